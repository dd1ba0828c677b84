"""From an Nsight Systems export to a trace."""

from __future__ import annotations

import polars as pl

from rlprof.trace.nsys_events import (
    MARK,
    PUSH_POP,
    START_END,
    read_api,
    read_copies,
    read_kernels,
    read_loop_counts,
    read_ranges,
)
from rlprof.trace.nsys_export import (
    CONTEXT,
    GRAPH,
    KERNEL,
    LARGEST_TIME_NS,
    MEMCPY,
    MEMSET,
    METRICS,
    NEEDED_TABLES,
    NVTX,
    OVERHEAD,
    RUNTIME,
    Condition,
    NsysExport,
    RawTables,
    as_int,
    has_nsys_tables,
)
from rlprof.trace.nsys_metrics import sm_activity_reader
from rlprof.trace.tables import TableName, empty
from rlprof.trace.trace import Loaded, Loader, Trace, TraceMeta
from rlprof.unavailable import Unavailable

__all__ = ["NEEDED_TABLES", "Condition", "RawTables", "has_nsys_tables", "trace_from_raw"]


def trace_from_raw(raw: RawTables, *, format: str, file_name: str, notes: tuple[str, ...] = ()) -> Trace:
    """Make a trace of an nsys export.

    Parameters
    ----------
    raw : RawTables
        The export's tables.
    format : str
        Format name for the metadata.
    file_name : str
        Name, without folders, that reports show.
    notes : tuple of str
        What the caller already had to say.

    Returns
    -------
    Trace
        Times are the session's own nanoseconds; samples may precede 0 and a trimmed file may start late.

    Raises
    ------
    DamagedTraceError
        If a table lacks a column without which it cannot be read.
    """
    export = NsysExport(raw, file_name)
    meta, meta_notes = _meta(export, format)
    loaders: dict[TableName, Loader] = {"devices": lambda _: _devices(export)}
    missing: dict[TableName, str] = {"counters": "of nsys' GPU metrics, SM activity alone is read"}
    if export.process_keys:
        loaders["processes"] = lambda _: _processes(export)
    else:
        missing["processes"] = "no traced process: the capture holds device-wide data only"
    if NVTX not in export.tables:
        missing["ranges"] = "no NVTX events in the capture; capture with `nsys profile --trace=nvtx,cuda`"
    elif not raw.exists(NVTX, (("eventType", (PUSH_POP, START_END)),)):
        missing["ranges"] = "the NVTX events hold names only (threads, domains), no range"
    else:
        loaders["ranges"] = lambda c: read_ranges(export, meta, c)
        if raw.exists(NVTX, (("eventType", (MARK,)),)):
            loaders["loop_counts"] = lambda _: read_loop_counts(export)
        else:
            missing["loop_counts"] = "the program stated no loop count"
    if export.tables & {KERNEL, GRAPH}:
        loaders["kernels"] = lambda c: read_kernels(export, c)
    elif RUNTIME in export.tables:
        missing["kernels"] = "CUDA API calls were traced but no kernel was: none ran, or they were lost"
    else:
        missing["kernels"] = "no CUDA activity in the capture; capture with `nsys profile --trace=cuda,nvtx`"
    if export.tables & {MEMCPY, MEMSET}:
        loaders["copies"] = lambda c: read_copies(export, c)
    else:
        missing["copies"] = "no copy or memset in the capture"
    if RUNTIME in export.tables:
        loaders["api"] = lambda c: read_api(export, c)
    else:
        missing["api"] = "no CUDA API call in the capture"
    samples = sm_activity_reader(export)
    if isinstance(samples, Unavailable):
        missing["activity"] = samples.reason
    else:
        loaders["activity"] = lambda _: samples()
    return Trace(meta, loaders, missing, (*notes, *meta_notes))


def _meta(export: NsysExport, format: str) -> tuple[TraceMeta, list[str]]:
    """Span, clock and settings of the capture."""
    notes = []
    end_ns = export.stated_duration_ns
    if end_ns is None:
        end_ns = _last_event_ns(export)
        notes.append("the capture does not state its duration; it is taken to end with its last event")
    utc = export.small("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])
    said = export.settings
    if not said:
        notes.append("the export does not say which Nsight Systems wrote it (schema before 2.9)")
    traced = None
    if "COLLECT_CUDA_TRACE" in said or "COLLECT_NVTX_TRACE" in said:
        traced = frozenset(
            name
            for name, on in (
                ("cuda", said.get("COLLECT_CUDA_TRACE") == "true" or KERNEL in export.tables),
                ("nvtx", said.get("COLLECT_NVTX_TRACE") == "true"),
                ("gpu_metrics", "GPU_METRICS_OPTIONS:SAMPLING_FREQUENCY" in said),
            )
            if on
        )
    mode = said.get("CUDA_GRAPH_TRACE_OPTIONS:MODE", "").lower() or None
    hertz = said.get("GPU_METRICS_OPTIONS:SAMPLING_FREQUENCY")
    product = said.get("EXPORT_PRODUCT_VERSION")
    return TraceMeta(
        format=format,
        files=(export.file_name,),
        start_ns=0,
        end_ns=end_ns,
        utc_origin_ns=as_int(utc[0]["utcEpochNs"]) or None if utc else None,
        graph_mode=mode,
        sampling_hz=float(hertz) if hertz and hertz.isdigit() else None,
        product=f"Nsight Systems {product}" if product else None,
        schema_version=said.get("EXPORT_SCHEMA_VERSION"),
        traced=traced,
        overhead_ns=_overhead_ns(export),
    ), notes


def _last_event_ns(export: NsysExport) -> int:
    """When the last event begins or ends; 0 without any."""
    found = [0]
    for table in (NVTX, KERNEL, GRAPH, MEMCPY, RUNTIME, METRICS):
        if table in export.tables:
            times = export.raw.read(table, export.pick(table, ["start", "end", "timestamp"]))
            found += [as_int(c.filter(c <= LARGEST_TIME_NS).max()) for c in times]
    return max(found)


def _overhead_ns(export: NsysExport) -> int | None:
    """Union of the times in which the profiler held up a thread."""
    spans = export.small(OVERHEAD, ["start", "end"])
    total, reached = 0, 0
    for start, end in sorted((as_int(s["start"]), as_int(s["end"])) for s in spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total if spans else None


def _devices(export: NsysExport) -> Loaded:
    rows = [
        (as_int(g["id"]), str(g["name"] or f"GPU {g['id']}"), max(0, as_int(g["smCount"])) or None, g["uuid"])
        for g in export.gpus
    ]
    notes: tuple[str, ...] = ()
    if not rows:
        seen: set[int] = set()
        for table in (KERNEL, GRAPH, MEMCPY):
            if table in export.tables:
                seen.update(export.raw.unique(table, "deviceId"))
        if METRICS in export.tables:
            seen.update(t & 0xFF for t in export.raw.unique(METRICS, "typeId"))
        rows = [(d, f"GPU {d}", None, None) for d in sorted(seen)]
        notes = ("the capture does not describe its GPUs (trimmed file?): names and SM counts are unknown",)
    return Loaded(pl.DataFrame(rows, schema=empty("devices").schema, orient="row"), notes)


def _processes(export: NsysExport) -> Loaded:
    keys = export.process_keys
    number = {k & 0xFFFFFF: i for i, k in enumerate(keys)}
    ordinals: dict[int, set[int]] = {}
    for r in export.small(CONTEXT, ["processId", "deviceId"]):
        if r["processId"] is not None and as_int(r["processId"]) in number:
            ordinals.setdefault(number[as_int(r["processId"])], set()).add(as_int(r["deviceId"]))
    pairs = [(p, d) for p, ds in ordinals.items() for d in sorted(ds)]
    frame = pl.DataFrame(pairs, schema={"process": pl.UInt32, "deviceId": pl.Int64}, orient="row")
    devices: dict[int, list[int]] = {}
    for (p, _), device in zip(pairs, export.device_of(frame), strict=True):
        devices.setdefault(p, []).append(int(device))
    pids, file = [k & 0xFFFFFF for k in keys], export.file_name
    rows = [
        # two VMs or nodes may use one pid: then the label carries the upper bits too
        (
            i,
            pid,
            None,
            str(pid) if pids.count(pid) == 1 else f"{k >> 24}:{pid}",
            file,
            devices.get(i),
        )
        for i, (k, pid) in enumerate(zip(keys, pids, strict=True))
    ]
    return Loaded(pl.DataFrame(rows, schema=empty("processes").schema, orient="row"))
