"""Read PyTorch profiler traces (Kineto's Chrome JSON, plain or gzipped), from 2021 to today.

What counts as what (categories changed case in 2022, so case is ignored):

============================  =============================================================================
``kernel``                    table kernels
``gpu_memcpy``, ``memcpy``    copies; the kind comes from the event's name (``Memcpy HtoD (...)``)
``gpu_memset``, ``memset``    copies of kind ``memset``
``cuda_runtime``, ``runtime``,
``cuda_driver``, ``driver``   api
``user_annotation``           ranges of style ``push_pop``
``cpu_op``, ``operator``      ranges of style ``operator``, except the labels among 2021's ``Operator`` events
                              (`kineto_events.is_label`): that format had no category for annotations
``B``/``E``, ``b``/``e``      begin/end pairs of any host category are annotations
the rest                      not work: synchronisation, GPU-side copies of annotations, profiler overhead,
                              Python frames, flow arrows
============================  =============================================================================

A file without any category of Kineto's (a plain Chrome trace of some other tool) is read too: its complete
events are annotations.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl

from rlprof.errors import NotATraceError
from rlprof.garbage import collection_paused
from rlprof.progress import Progress, silent
from rlprof.trace.chrome_events import (
    EPOCH_NS,
    RANGE_ROW,
    Names,
    Rows,
    as_int,
    counted,
    loader,
    ranges_frame,
    typed,
    worker_label,
)
from rlprof.trace.device_events import copy_kind, covered_ns, short_name, suspect_times
from rlprof.trace.json_stream import EventStream
from rlprof.trace.kineto_events import OTHER, Collector
from rlprof.trace.tables import TableName, schema
from rlprof.trace.trace import Loader, Trace, TraceMeta

_RANK_IN_NAME = re.compile(r"(?<![A-Za-z0-9])(?:rank[-_ ]?|r[-_]?)(\d{1,6})(?![A-Za-z0-9])", re.IGNORECASE)


def rank_in_name(file_name: str) -> int | None:
    """Rank that a file's name states (``rank-0``, ``rank0``, ``r0``), or None; the last one counts."""
    found = _RANK_IN_NAME.findall(file_name)
    return int(found[-1]) if found else None


def read_kineto(path: Path, *, progress: Progress = silent) -> Trace:
    """Read a PyTorch profiler trace.

    The file is parsed once, in pieces; only the columns of the tables are kept, so memory grows with the
    number of events and not with the text of their arguments.

    Parameters
    ----------
    path : pathlib.Path
        ``.json`` or ``.json.gz``, told apart by content.
    progress : Progress
        Told the share of the file that has been read.

    Returns
    -------
    Trace
        Time 0 is the earliest start of an event kept; times are exact to the nanosecond.

    Raises
    ------
    UnreadableError
        If the file cannot be opened.
    NotATraceError
        If it is not a trace, or holds no event with a time.
    DamagedTraceError
        If it is cut off or not valid.
    """
    stream = EventStream(path, progress)
    events = Collector()
    with collection_paused():  # -20 % time
        for piece in stream:
            events.take(piece)
    return _build(path, stream, events)


def _build(path: Path, stream: EventStream, events: Collector) -> Trace:
    notes = list(stream.notes)
    raw = {
        "kernels": events.kernels.frame(),
        "copies": events.copies.frame(),
        "api": events.api.frame(),
        "ranges": events.ranges.frame(),
    }
    others = events.others.frame()
    if events.other_categories:
        listed = ", ".join(f"{n} of {c}" for c, n in sorted(events.other_categories.items()))
        if events.seen <= {OTHER}:
            raw["ranges"] = pl.concat([raw["ranges"], others])
        else:
            notes.append(f"events of categories that are not PyTorch's were left out: {listed}")
    raw, found = suspect_times(raw)
    notes += found
    if events.pairs:
        last = max([*(_last(f) for f in raw.values() if len(f)), *events.pairs.times()])
        paired = Rows(RANGE_ROW)
        events.pairs.join(paired, last)
        raw["ranges"] = pl.concat([raw["ranges"], paired.frame()])
        notes += events.pairs.notes()
    notes += [f"{counted(n, 'event')} {what} set aside" for what, n in events.dropped.items()]
    held = {name: frame for name, frame in raw.items() if len(frame)}
    if not held:
        what = f"{stream.count} events, none with a time" if stream.count else "its list of events is empty"
        raise NotATraceError(
            f"a PyTorch profiler trace without data: {what}",
            where=path,
            hint="check that the profiler's active steps ran and that the trace was exported after them",
        )
    start_ns = min(int(f.select(pl.col("start_ns").min()).item()) for f in held.values())
    end_ns = max(_last(f) for f in held.values())
    rank, note = _rank(stream.document, path.name)
    notes += note
    tables = _tables(raw, events, start_ns)
    tables["processes"] = _processes(tables, events, rank, path.name)
    if (devices := _devices(tables, stream.document)) is not None:
        tables["devices"] = devices
    overhead = events.overhead.frame()
    version = stream.document.get("schemaVersion")
    meta = TraceMeta(
        format="kineto",
        files=(path.name,),
        start_ns=0,
        end_ns=end_ns - start_ns,
        utc_origin_ns=_utc(start_ns, stream.document),
        graph_mode="node" if events.graph_nodes else None,
        product="PyTorch profiler" if events.seen - {OTHER} else None,
        schema_version=None if version is None else str(version),
        overhead_ns=None if overhead.is_empty() else covered_ns(overhead),
    )
    loaders: dict[TableName, Loader] = {name: loader(name, frame) for name, frame in tables.items()}
    return Trace(meta, loaders, _missing(tables), tuple(notes))


def _last(frame: pl.DataFrame) -> int:
    return int(frame.select(pl.col("end_ns").max()).item())


def _tables(raw: dict[str, pl.DataFrame], events: Collector, origin_ns: int) -> dict[TableName, pl.DataFrame]:
    shift = [pl.col("start_ns") - origin_ns, pl.col("end_ns") - origin_ns]
    api = raw["api"].sort("start_ns", maintain_order=True)
    out: dict[TableName, pl.DataFrame] = {}
    if len(api):
        out["api"] = typed(api.with_columns(*shift, events.api_names.decode(api["name"])), "api")
    if len(ranges := ranges_frame(raw["ranges"], events.range_names, origin_ns)):
        out["ranges"] = ranges
    if len(raw["kernels"]):
        frame = _owned(raw["kernels"].sort("start_ns", maintain_order=True), api, len(events.pids))
        short = Names()
        codes = pl.Series([short.code(short_name(n)) for n in events.kernel_names.strings], dtype=pl.UInt32)
        frame = frame.with_columns(
            *shift,
            short.decode(codes.gather(frame["full_name"])).alias("name"),
            events.kernel_names.decode(frame["full_name"]),
            pl.lit("kernel").alias("kind"),
        )
        out["kernels"] = typed(frame, "kernels")
    if len(raw["copies"]):
        frame = _owned(raw["copies"].sort("start_ns", maintain_order=True), api, len(events.pids))
        kinds = Names()
        codes = pl.Series([kinds.code(copy_kind(n)) for n in events.copy_names.strings], dtype=pl.UInt32)
        out["copies"] = typed(
            frame.with_columns(*shift, kinds.decode(codes.gather(frame["kind"])).alias("kind")), "copies"
        )
    return out


def _owned(work: pl.DataFrame, api: pl.DataFrame, process_count: int) -> pl.DataFrame:
    """Add the process of device work: the one that made the call of its correlation id."""
    if process_count <= 1:
        return work.with_columns(process=pl.lit(0, dtype=pl.UInt32))
    # ids repeat across processes: an id of several is no evidence
    callers = (
        api.drop_nulls("correlation_id")
        .group_by("correlation_id")
        .agg(pl.col("process").min(), pl.col("process").n_unique().alias("n"))
        .filter(pl.col("n") == 1)
        .drop("n")
    )
    busiest = api["process"].mode().min() if len(api) else 0
    return work.join(callers, on="correlation_id", how="left", maintain_order="left").with_columns(
        pl.col("process").fill_null(busiest)
    )


def _processes(
    tables: dict[TableName, pl.DataFrame], events: Collector, rank: int | None, file_name: str
) -> pl.DataFrame:
    work = [tables[t].select("process", "device") for t in ("kernels", "copies") if t in tables]
    used: dict[int, list[int]] = {}
    if work:
        grouped = pl.concat(work).drop_nulls().unique().sort("process", "device").group_by("process")
        used = dict(grouped.agg("device").iter_rows())
    rows = []
    pids = dict(events.pids) or {None: 0}
    for pid, process in pids.items():
        label = worker_label(pid) if pid is not None else "process"
        if rank is not None:
            label = f"rank {rank}" if len(pids) == 1 else f"rank {rank}, {label}"
        number = pid if isinstance(pid, int) else None
        rows.append((process, number, rank, label, file_name, used.get(process)))
    return pl.DataFrame(rows, schema=schema("processes"), orient="row")


def _devices(tables: dict[TableName, pl.DataFrame], document: dict[str, Any]) -> pl.DataFrame | None:
    """GPUs that the file describes, and those seen at work that it does not."""
    rows: dict[int, tuple[int, str | None, int | None, None]] = {}
    listed = document.get("deviceProperties")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and (device := as_int(entry.get("id"))) is not None:
            name = entry.get("name")
            sms = as_int(entry.get("numSms"))
            rows[device] = (device, name if isinstance(name, str) and name else None, sms or None, None)
    for table in ("kernels", "copies"):
        if table in tables:
            for device in tables[table]["device"].drop_nulls().unique():
                rows.setdefault(device, (device, None, None, None))
    if not rows:
        return None
    return pl.DataFrame([rows[d] for d in sorted(rows)], schema=schema("devices"), orient="row")


def _rank(document: dict[str, Any], file_name: str) -> tuple[int | None, list[str]]:
    info = document.get("distributedInfo")
    if isinstance(info, dict):
        rank = as_int(info.get("rank"))
        if rank is not None and rank >= 0:
            return rank, []
    rank = rank_in_name(file_name)
    if rank is None:
        return None, []
    return rank, [f"the rank ({rank}) is taken from the file's name: the trace does not state it"]


def _utc(start_ns: int, document: dict[str, Any]) -> int | None:
    """Nanoseconds since the Unix epoch at `start_ns` of the file's clock, if the file tells."""
    if EPOCH_NS[0] <= start_ns <= EPOCH_NS[1]:
        return start_ns
    base = as_int(document.get("baseTimeNanoseconds"))
    if base is not None and EPOCH_NS[0] <= base + start_ns <= EPOCH_NS[1]:
        return base + start_ns
    return None


def _missing(tables: dict[TableName, pl.DataFrame]) -> dict[TableName, str]:
    why: dict[TableName, str] = {
        "kernels": "the PyTorch trace holds no kernel: the profiler recorded no GPU (ProfilerActivity.CUDA"
        " off, or no GPU used), so whether a GPU was idle cannot be told",
        "copies": "the PyTorch trace holds no copy or memset of a GPU",
        "api": "the PyTorch trace holds no CUDA runtime or driver call",
        "ranges": "the PyTorch trace holds no annotation or operator; mark code with"
        " torch.profiler.record_function",
        "activity": "PyTorch traces hold no SM-activity counters; capture with nsys profile"
        " --gpu-metrics-devices=all",
        "counters": "PyTorch traces hold no hardware counters",
        "devices": "the PyTorch trace describes no GPU",
        "loop_counts": "PyTorch traces do not state how often a loop ran",
    }
    return {name: reason for name, reason in why.items() if name not in tables}
