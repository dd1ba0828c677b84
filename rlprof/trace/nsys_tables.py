"""From the tables of an Nsight Systems export, in whatever container, to the tidy tables of a trace.

Exports differ by version in which tables and columns exist, so every table and column is tested for and
no version is asked. Tables are made by nsys only when they hold rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import polars as pl

from rlprof.errors import DamagedTraceError
from rlprof.trace.names import scrub_home
from rlprof.trace.samples import hold_intervals
from rlprof.trace.tables import TableName, conform, empty
from rlprof.trace.trace import Loaded, Loader, Trace, TraceMeta

NVTX, STRINGS = "NVTX_EVENTS", "StringIds"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
METRICS, METRIC_NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
GPU, CUDA_DEVICE, CONTEXT = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_CUDA_CONTEXT_INFO"
OVERHEAD = "PROFILER_OVERHEAD"

#: Tables that rlprof reads. The ones that hold environments, command lines and host names are not among them.
NEEDED_TABLES = (
    NVTX,
    STRINGS,
    KERNEL,
    GRAPH,
    MEMCPY,
    MEMSET,
    RUNTIME,
    METRICS,
    METRIC_NAMES,
    GPU,
    CUDA_DEVICE,
    CONTEXT,
    OVERHEAD,
    "TARGET_INFO_SESSION_START_TIME",
    "ANALYSIS_DETAILS",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "META_DATA_CAPTURE",
)

# NVTX eventType values
PUSH_POP, START_END, MARK, DOMAIN_CREATE = 59, 60, 34, 75
#: Text of an NVTX mark by which a program says how often a partly marked range really ran.
LOOP_COUNT_MARK = re.compile(r"^rlprof\.count:(?P<path>.+)=(?P<count>\d+)$")
COPY_KINDS = {
    0: "unknown",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "UVM HtoD",
    12: "UVM DtoH",
    13: "UVM DtoD",
}
OTHER_VENDORS = re.compile(r"intel|amd|radeon|microsoft|llvmpipe|aspeed|matrox", re.IGNORECASE)

#: A row filter: column, and the values allowed in it.
Condition = tuple[str, tuple[int | None, ...]]


class RawTables(Protocol):
    """Tables of an nsys export in one container (SQLite file, folder of parquet or Arrow files)."""

    path: Path

    def tables(self) -> frozenset[str]:
        """Names of the tables that exist; a table may have no rows."""

    def columns(self, table: str) -> tuple[str, ...]:
        """Column names of a table."""

    def read(self, table: str, columns: Sequence[str], where: tuple[Condition, ...] = ()) -> pl.DataFrame:
        """Rows in file order; integers as Int64, reals as Float64, text as String with bad bytes replaced."""

    def row_count(self, table: str) -> int:
        """Number of rows."""

    def exists(self, table: str, where: tuple[Condition, ...]) -> bool:
        """Whether any row satisfies `where`."""

    def unique(self, table: str, column: str, *, shift: int = 0) -> list[int]:
        """Distinct values of ``column >> shift``, ascending, nulls left out."""


def has_nsys_tables(names: Iterable[str]) -> bool:
    """Whether a set of table names is that of an nsys export.

    Exports name themselves in META_DATA_EXPORT (schemas up to 3.1: EXPORT_META_DATA); before schema 2.9
    there is neither, but StringIds beside CUPTI or NVTX tables.
    """
    held = set(names)
    if held & {"META_DATA_EXPORT", "EXPORT_META_DATA"}:
        return True
    return STRINGS in held and any(n.startswith("CUPTI_ACTIVITY_KIND_") or n == NVTX for n in held)


@dataclass(frozen=True)
class NsysExport:
    """An export with the look-ups that several tables share."""

    raw: RawTables
    file_name: str

    @cached_property
    def tables(self) -> frozenset[str]:
        """Tables that hold rows."""
        return frozenset(t for t in self.raw.tables() if t in NEEDED_TABLES and self.raw.row_count(t) > 0)

    def pick(self, table: str, columns: Sequence[str]) -> list[str]:
        """Those of `columns` that the table has."""
        have = set(self.raw.columns(table))
        return [c for c in columns if c in have]

    def small(self, table: str, columns: Sequence[str]) -> list[dict[str, object]]:
        """Rows of a small table as dictionaries; columns that it lacks are None."""
        if table not in self.tables:
            return []
        have = self.pick(table, columns)
        if not have:
            return []
        rows = self.raw.read(table, have).to_dicts()
        return [{c: r.get(c) for c in columns} for r in rows]

    @cached_property
    def strings(self) -> pl.DataFrame:
        """StringIds as (id, value)."""
        if STRINGS not in self.tables:
            return pl.DataFrame(schema={"id": pl.Int64, "value": pl.Categorical})
        frame = self.raw.read(STRINGS, ["id", "value"])
        return frame.unique("id", keep="first", maintain_order=True).with_columns(
            pl.col("value").cast(pl.Categorical())
        )

    @cached_property
    def settings(self) -> dict[str, str]:
        """What the capture says of itself. Only keys that rlprof uses are taken: others are personal."""
        wanted = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
        capture = re.compile(
            r"^(PROCESS_\d+:)?(COLLECT_(CUDA|NVTX)_TRACE|CUDA_GRAPH_TRACE_OPTIONS:MODE)$"
            r"|^GPU_METRICS_OPTIONS:SAMPLING_FREQUENCY$"
        )
        out: dict[str, str] = {}
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE"):
            for row in self.small(table, ["name", "value"]):
                name = str(row["name"])
                if name in wanted or capture.match(name):
                    key = re.sub(r"^PROCESS_\d+:", "", name)
                    # several processes may differ: "true" for one is what counts
                    if out.get(key) != "true":
                        out[key] = str(row["value"])
        return out

    @cached_property
    def process_keys(self) -> list[int]:
        """Hardware, VM and pid bits of every process seen, ascending; its position is the process number."""
        keys: set[int] = set()
        for table, column in (
            (NVTX, "globalTid"),
            (KERNEL, "globalPid"),
            (GRAPH, "globalPid"),
            (MEMCPY, "globalPid"),
            (RUNTIME, "globalTid"),
        ):
            if table in self.tables and column in self.raw.columns(table):
                keys.update(self.raw.unique(table, column, shift=24))
        return sorted(keys) or [0]

    @cached_property
    def gpus(self) -> list[dict[str, object]]:
        """NVIDIA GPUs of TARGET_INFO_GPU (which also lists other vendors' and unused ones)."""
        rows = self.small(GPU, ["id", "name", "smCount", "uuid", "cuDevice"])
        own = [
            r
            for r in rows
            if not OTHER_VENDORS.search(str(r["name"] or "")) and not (r["smCount"] == 0 and len(rows) > 1)
        ]
        return sorted(own, key=lambda r: _int(r["id"]))

    @cached_property
    def device_of(self) -> Callable[[pl.DataFrame], pl.Series]:
        """Map (process number, CUDA ordinal as the process sees it) to the GPU's number in the report."""
        by_process: dict[tuple[int, int], int] = {}
        number = {k & 0xFFFFFF: i for i, k in enumerate(self.process_keys)}
        for r in self.small(CUDA_DEVICE, ["gpuId", "cudaId", "pid"]):
            if r["pid"] is not None and _int(r["pid"]) in number:
                by_process[number[_int(r["pid"])], _int(r["cudaId"])] = _int(r["gpuId"])
        by_ordinal = {_int(g["cuDevice"]): _int(g["id"]) for g in self.gpus if g["cuDevice"] is not None}

        def apply(frame: pl.DataFrame) -> pl.Series:
            pairs = frame.select("process", "deviceId").unique()
            rows = [
                (p, d, by_process.get((p, d), by_ordinal.get(d, d))) for p, d in pairs.iter_rows() if d is not None
            ]
            names = {"process": pl.UInt32, "deviceId": pl.Int64, "device": pl.Int32}
            table = pl.DataFrame(rows, schema=names, orient="row")
            return frame.select("process", "deviceId").join(
                table, on=["process", "deviceId"], how="left", maintain_order="left"
            )["device"]

        return apply

    def process_number(self, globals_: pl.Series) -> pl.Series:
        """Process numbers of a column of globalTid or globalPid values."""
        keys = self.process_keys
        if len(keys) == 1:
            return pl.repeat(0, len(globals_), dtype=pl.UInt32, eager=True)
        return (globals_.fill_null(0) // (1 << 24)).replace_strict(
            keys, list(range(len(keys))), default=0, return_dtype=pl.UInt32
        )

    def named(self, ids: pl.Series) -> pl.Series:
        """Strings of a column of StringIds ids; null where there is none."""
        frame = pl.DataFrame({"id": ids.cast(pl.Int64)})
        return frame.join(self.strings, on="id", how="left", maintain_order="left")["value"]


def _int(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


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
    loaders: dict[TableName, Loader] = {
        "devices": lambda c: _devices(export),
        "processes": lambda c: _processes(export),
    }
    missing: dict[TableName, str] = {}
    if NVTX not in export.tables:
        missing["ranges"] = "no NVTX events in the capture; capture with `nsys profile --trace=nvtx,cuda`"
    elif not raw.exists(NVTX, (("eventType", (PUSH_POP, START_END)),)):
        missing["ranges"] = "the NVTX events hold names only (threads, domains), no range"
    else:
        loaders["ranges"] = lambda c: _ranges(export, meta, c)
        if raw.exists(NVTX, (("eventType", (MARK,)),)):
            loaders["loop_counts"] = lambda c: _loop_counts(export)
    if export.tables & {KERNEL, GRAPH}:
        loaders["kernels"] = lambda c: _kernels(export, c)
    elif RUNTIME in export.tables:
        missing["kernels"] = "CUDA API calls were traced but no kernel was; it may have run none, or lost them"
    else:
        missing["kernels"] = "no CUDA activity in the capture; capture with `nsys profile --trace=cuda,nvtx`"
    if export.tables & {MEMCPY, MEMSET}:
        loaders["copies"] = lambda c: _copies(export, c)
    else:
        missing["copies"] = "no copy or memset in the capture"
    if RUNTIME in export.tables:
        loaders["api"] = lambda c: _api(export, c)
    else:
        missing["api"] = "no CUDA API call in the capture"
    metric, why = _sm_metric(export)
    if metric:
        loaders["activity"] = lambda c: _activity(export, metric)
    else:
        missing["activity"] = why
    return Trace(meta, loaders, missing, (*notes, *meta_notes))


def _meta(export: NsysExport, format: str) -> tuple[TraceMeta, list[str]]:
    """Span, clock and settings of the capture."""
    notes = []
    span = export.small("ANALYSIS_DETAILS", ["duration"])
    end_ns = max((_int(r["duration"]) for r in span), default=0)
    if not end_ns:
        ends = [
            export.raw.read(t, ["end"])["end"].max()
            for t in (NVTX, KERNEL, GRAPH, MEMCPY, RUNTIME)
            if t in export.tables
        ]
        end_ns = max((_int(e) for e in ends), default=0)
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
        utc_origin_ns=_int(utc[0]["utcEpochNs"]) or None if utc else None,
        graph_mode=mode,
        sampling_hz=float(hertz) if hertz and hertz.isdigit() else None,
        product=f"Nsight Systems {product}" if product else None,
        schema_version=said.get("EXPORT_SCHEMA_VERSION"),
        traced=traced,
    ), notes


def _require(export: NsysExport, table: str, columns: Sequence[str]) -> None:
    lacking = [c for c in columns if c not in export.raw.columns(table)]
    if lacking:
        raise DamagedTraceError(
            f"table {table} has no column {', '.join(lacking)}",
            where=export.file_name,
            hint="export the report again with `nsys export`",
        )


def _domains(export: NsysExport) -> pl.DataFrame:
    """(process, domainId, domain): names of NVTX domains, which are registered per process."""
    names = {"process": pl.UInt32, "domainId": pl.Int64, "domain": pl.String}
    if "domainId" not in export.raw.columns(NVTX):
        return pl.DataFrame(schema=names)
    columns = export.pick(NVTX, ["globalTid", "domainId", "text", "textId"])
    rows = export.raw.read(NVTX, columns, (("eventType", (DOMAIN_CREATE,)),))
    return (
        pl.DataFrame(
            {
                "process": export.process_number(rows["globalTid"]),
                "domainId": rows["domainId"],
                "domain": _text(export, rows).cast(pl.String),
            },
            schema=names,
        )
        .filter(pl.col("domain").is_not_null() & (pl.col("domainId") != 0))
        .unique(["process", "domainId"], keep="last", maintain_order=True)
    )


def _text(export: NsysExport, rows: pl.DataFrame) -> pl.Series:
    """Label of each row: its own text, else the registered string, else null."""
    out = pl.repeat(None, len(rows), dtype=pl.Categorical(), eager=True)
    if "text" in rows.columns:
        out = rows["text"].cast(pl.Categorical())
    if "textId" in rows.columns and rows["textId"].null_count() < len(rows):
        registered = export.named(rows["textId"])
        out = pl.select(pl.coalesce(out, registered)).to_series()
    return out


def _ranges(export: NsysExport, meta: TraceMeta, columns: Sequence[str] | None) -> Loaded:
    _require(export, NVTX, ["start", "end", "eventType", "globalTid"])
    want = ["start", "end", "eventType", "globalTid", "domainId"]
    if columns is None or "name" in columns:
        want += ["text", "textId"]
    where: tuple[Condition, ...] = (("eventType", (PUSH_POP, START_END)),)
    rows = export.raw.read(NVTX, export.pick(NVTX, want), where)
    notes = []
    unended = rows["end"].null_count()
    # a range that was open when the capture stopped is closed at its end (by nsys itself, or here)
    cut = (rows["end"].fill_null(meta.end_ns) >= meta.end_ns).alias("cut")
    if unended:
        notes.append(f"{unended} ranges never ended: taken to last to the capture's end")
    if int(cut.sum()) > unended:
        notes.append(f"{int(cut.sum()) - unended} ranges were still open when the capture stopped: cut there")
    out = rows.with_columns(
        pl.col("start").alias("start_ns"),
        pl.max_horizontal("start", pl.col("end").fill_null(meta.end_ns)).alias("end_ns"),
        cut,
        pl.when(pl.col("eventType") == PUSH_POP)
        .then(pl.lit("push_pop"))
        .otherwise(pl.lit("start_end"))
        .alias("style"),
        export.process_number(rows["globalTid"]).alias("process"),
        pl.col("globalTid").alias("thread"),
    )
    backward = int((rows["end"] < rows["start"]).sum())
    if backward:
        notes.append(f"{backward} ranges end before they start: kept with duration 0")
    if columns is None or "domain" in columns:
        out = out.with_columns(_domain_column(export, out))
    if "text" in want:
        name = _text(export, rows)
        if name.null_count():
            notes.append(f"{name.null_count()} of {len(rows)} ranges have no name")
        out = out.with_columns(scrub_home(name).alias("name"))
    return Loaded(conform(out, "ranges", columns), tuple(notes))


def _domain_column(export: NsysExport, rows: pl.DataFrame) -> pl.Series:
    """Domain names; a domain that was created before a trimmed file begins is called by its number."""
    if "domainId" not in rows.columns or not (rows["domainId"].fill_null(0) != 0).any():
        return pl.repeat("", len(rows), dtype=pl.Categorical(), eager=True).alias("domain")
    keys = rows.select("process", pl.col("domainId").fill_null(0)).unique()
    named = keys.join(_domains(export), on=["process", "domainId"], how="left").with_columns(
        pl.when(pl.col("domainId") == 0)
        .then(pl.lit(""))
        .otherwise(pl.coalesce("domain", pl.format("domain {}", "domainId")))
        .cast(pl.Categorical())
        .alias("domain")
    )
    return rows.select("process", pl.col("domainId").fill_null(0)).join(
        named, on=["process", "domainId"], how="left", maintain_order="left"
    )["domain"]


def _loop_counts(export: NsysExport) -> Loaded:
    """Counts that a program left in marks ``rlprof.count:PATH=N``; the last one for a path holds."""
    columns = export.pick(NVTX, ["start", "globalTid", "text", "textId"])
    rows = export.raw.read(NVTX, columns, (("eventType", (MARK,)),))
    processes = export.process_number(rows["globalTid"])
    found: dict[tuple[int, str], int] = {}
    for process, text in zip(processes, _text(export, rows).cast(pl.String), strict=True):
        if text and (m := LOOP_COUNT_MARK.match(text)):
            found[int(process), m["path"]] = int(m["count"])
    data = [(p, path, n) for (p, path), n in sorted(found.items())]
    return Loaded(pl.DataFrame(data, schema=empty("loop_counts").schema, orient="row"))


def _kernels(export: NsysExport, columns: Sequence[str] | None) -> Loaded:
    parts, notes = [], []
    if KERNEL in export.tables:
        _require(export, KERNEL, ["start", "end", "deviceId"])
        parts.append(_device_rows(export, KERNEL, columns).with_columns(pl.lit("kernel").alias("kind")))
    if GRAPH in export.tables:
        graphs = _device_rows(export, GRAPH, columns).with_columns(pl.lit("graph").alias("kind"))
        parts.append(graphs)
        notes.append(
            f"{len(graphs)} CUDA-graph launches were recorded as a whole: busy, but what ran inside is unknown"
            " (capture with --cuda-graph-trace=node)"
        )
    frame = pl.concat([conform(p, "kernels", columns) for p in parts])
    return Loaded(frame, tuple(notes))


def _device_rows(export: NsysExport, table: str, columns: Sequence[str] | None) -> pl.DataFrame:
    """Rows of one CUPTI table with process, device and the other columns that it has."""
    source: Mapping[str, tuple[str, ...]] = {
        "stream": ("streamId",),
        "correlation_id": ("correlationId",),
        "name": ("shortName",),
        "full_name": ("demangledName",),
        "blocks": ("gridX", "gridY", "gridZ"),
        "kind": ("copyKind",) if table == MEMCPY else (),
        "size_bytes": ("bytes",),
    }
    wanted = [c for k, cs in source.items() if columns is None or k in columns for c in cs]
    want = ["start", "end", "deviceId", "globalPid", *wanted]
    rows = export.raw.read(table, export.pick(table, want))
    if "globalPid" not in rows.columns:
        rows = rows.with_columns(pl.lit(export.process_keys[0] << 24).alias("globalPid"))
    rows = rows.with_columns(export.process_number(rows["globalPid"]).alias("process"))
    out = rows.with_columns(
        pl.col("start").alias("start_ns"),
        pl.col("end").alias("end_ns"),
        export.device_of(rows).alias("device"),
    )
    plain = {"streamId": "stream", "correlationId": "correlation_id", "bytes": "size_bytes"}
    out = out.rename({k: v for k, v in plain.items() if k in out.columns})
    for column, name in (("shortName", "name"), ("demangledName", "full_name")):
        if column in out.columns:
            out = out.with_columns(export.named(out[column]).alias(name))
    if {"gridX", "gridY", "gridZ"} <= set(out.columns):
        out = out.with_columns((pl.col("gridX") * pl.col("gridY") * pl.col("gridZ")).alias("blocks"))
    return out


def _copies(export: NsysExport, columns: Sequence[str] | None) -> Loaded:
    parts = []
    if MEMCPY in export.tables:
        rows = _device_rows(export, MEMCPY, columns)
        if "copyKind" in rows.columns:
            kind = rows["copyKind"].replace_strict(COPY_KINDS, default="unknown", return_dtype=pl.String)
            rows = rows.with_columns(kind.alias("kind"))
        parts.append(rows)
    if MEMSET in export.tables:
        parts.append(_device_rows(export, MEMSET, columns).with_columns(pl.lit("memset").alias("kind")))
    return Loaded(pl.concat([conform(p, "copies", columns) for p in parts]))


def _api(export: NsysExport, columns: Sequence[str] | None) -> Loaded:
    _require(export, RUNTIME, ["start", "end", "globalTid"])
    source = {"correlation_id": "correlationId", "name": "nameId"}
    wanted = [c for k, c in source.items() if columns is None or k in columns]
    rows = export.raw.read(RUNTIME, export.pick(RUNTIME, ["start", "end", "globalTid", *wanted]))
    out = rows.with_columns(
        pl.col("start").alias("start_ns"),
        pl.col("end").alias("end_ns"),
        export.process_number(rows["globalTid"]).alias("process"),
        pl.col("globalTid").alias("thread"),
    )
    if "correlationId" in out.columns:
        out = out.rename({"correlationId": "correlation_id"})
    if "nameId" in out.columns:
        out = out.with_columns(export.named(out["nameId"]).alias("name"))
    return Loaded(conform(out, "api", columns))


def metric_key(name: str) -> str:
    """A metric's name without what varies between versions: case, plural, unit suffix.

    >>> metric_key("SMs Active [Throughput %]") == metric_key("SM Active")
    True
    """
    bare = re.sub(r"\s*\[.*?\]\s*$", "", name).strip().lower()
    return re.sub(r"\bsms\b", "sm", bare)


def _sm_metric(export: NsysExport) -> tuple[dict[int, int], str]:
    """``{typeId: metricId}`` of SM activity, or the reason why there is none.

    metricId is local to a typeId and to a file, so it is looked up by (typeId, name).
    """
    if METRICS not in export.tables:
        return {}, (
            "no GPU metrics in the capture, so SM activity was not measured; "
            "capture with `nsys profile --gpu-metrics-devices=all`"
        )
    found = {
        _int(r["typeId"]): _int(r["metricId"])
        for r in export.small(METRIC_NAMES, ["typeId", "metricId", "metricName"])
        if metric_key(str(r["metricName"])) == "sm active"
    }
    return found, "the GPU metrics hold no metric `SM Active` / `SMs Active`"


def _activity(export: NsysExport, metric: Mapping[int, int]) -> Loaded:
    _require(export, METRICS, ["timestamp", "typeId", "metricId", "value"])
    where: tuple[Condition, ...] = (
        ("typeId", tuple(metric)),
        ("metricId", tuple(sorted(set(metric.values())))),
    )
    rows = export.raw.read(METRICS, ["timestamp", "typeId", "metricId", "value"], where)
    right = pl.DataFrame(
        {"typeId": list(metric), "metricId": list(metric.values())},
        schema={"typeId": pl.Int64, "metricId": pl.Int64},
    )
    rows = rows.join(right, on=["typeId", "metricId"], how="semi")
    frame, notes = hold_intervals(
        rows.select(
            (pl.col("typeId") & 0xFF).cast(pl.Int32).alias("device"),
            pl.col("timestamp").alias("start_ns"),
            (pl.col("value").cast(pl.Float64) / 100).alias("active_frac"),
        )
    )
    return Loaded(conform(frame.with_columns(pl.lit("sm_counters").alias("source")), "activity"), notes)


def _devices(export: NsysExport) -> Loaded:
    rows = [
        (_int(g["id"]), str(g["name"] or f"GPU {g['id']}"), _int(g["smCount"]) or None, g["uuid"])
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
        if r["processId"] is not None and _int(r["processId"]) in number:
            ordinals.setdefault(number[_int(r["processId"])], set()).add(_int(r["deviceId"]))
    pairs = [(p, d) for p, ds in ordinals.items() for d in sorted(ds)]
    frame = pl.DataFrame(pairs, schema={"process": pl.UInt32, "deviceId": pl.Int64}, orient="row")
    devices: dict[int, list[int]] = {}
    for (p, _), device in zip(pairs, export.device_of(frame), strict=True):
        devices.setdefault(p, []).append(int(device))
    pids = [k & 0xFFFFFF for k in keys]
    rows = [
        # two VMs or nodes may use one pid: then the label carries the upper bits too
        (i, pid, None, str(pid) if pids.count(pid) == 1 else f"{k >> 24}:{pid}", export.file_name, devices.get(i))
        for i, (k, pid) in enumerate(zip(keys, pids, strict=True))
    ]
    return Loaded(pl.DataFrame(rows, schema=empty("processes").schema, orient="row"))
