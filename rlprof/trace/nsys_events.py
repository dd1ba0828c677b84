"""Ranges, kernels, copies and API calls of an Nsight Systems export."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from rlprof.trace.names import scrub_home
from rlprof.trace.nsys_export import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NVTX,
    RUNTIME,
    Condition,
    NsysExport,
    require,
    set_aside_impossible,
)
from rlprof.trace.tables import conform, empty
from rlprof.trace.trace import Loaded, TraceMeta

# NVTX eventType values
PUSH_POP, START_END, MARK, DOMAIN_CREATE = 59, 60, 34, 75
#: Text of an NVTX mark by which a program says how often a partly marked range really ran.
LOOP_COUNT_MARK = re.compile(r"^rlprof\.count:(?P<path>.+)=(?P<count>[0-9]{1,15})$", re.DOTALL)
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
                "domain": scrub_home(_text(export, rows)).cast(pl.String),
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


def read_ranges(export: NsysExport, meta: TraceMeta, columns: Sequence[str] | None) -> Loaded:
    """Push/pop and start/end ranges."""
    require(export, NVTX, ["start", "end", "eventType", "globalTid"])
    want = ["start", "end", "eventType", "globalTid", "domainId"]
    if columns is None or "name" in columns:
        want += ["text", "textId"]
    where: tuple[Condition, ...] = (("eventType", (PUSH_POP, START_END)),)
    rows, notes = set_aside_impossible(
        export.raw.read(NVTX, export.pick(NVTX, want), where), "ranges", ("start", "globalTid")
    )
    unended = rows["end"].null_count()
    # A range that was open when the capture stopped is closed at its end, by nsys itself or here. Where the
    # end is but that of the last event, a range that ends there may as well have been closed by the program.
    cut = rows["end"].is_null()
    if export.stated_duration_ns is not None:
        cut |= (rows["end"] >= meta.end_ns).fill_null(False)
    cut = cut.alias("cut")
    if unended:
        notes.append(f"ranges that never ended: {unended}; taken to last to the capture's end")
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


def read_loop_counts(export: NsysExport) -> Loaded:
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


def _with_read_anyway(columns: Sequence[str] | None) -> Sequence[str] | None:
    """Add the columns that `_device_rows` reads in any case, so that they are not read a second time."""
    return None if columns is None else (*columns, "start_ns", "end_ns", "device", "process")


def read_kernels(export: NsysExport, columns: Sequence[str] | None) -> Loaded:
    """Kernels, and CUDA graphs that were recorded as a whole."""
    parts: list[pl.DataFrame] = []
    notes: list[str] = []
    columns = _with_read_anyway(columns)
    if KERNEL in export.tables:
        require(export, KERNEL, ["start", "end", "deviceId"])
        rows, odd = _device_rows(export, KERNEL, columns, "kernels")
        parts.append(rows.with_columns(pl.lit("kernel").alias("kind")))
        notes += odd
    if GRAPH in export.tables:
        graphs, odd = _device_rows(export, GRAPH, columns, "CUDA-graph launches")
        parts.append(graphs.with_columns(pl.lit("graph").alias("kind")))
        notes += odd
        notes.append(
            f"{len(graphs)} CUDA-graph launches were recorded as a whole: busy, but what ran inside is"
            " unknown (capture with --cuda-graph-trace=node)"
        )
    frame = pl.concat([conform(p, "kernels", columns) for p in parts])
    return Loaded(frame, tuple(notes))


def _device_rows(
    export: NsysExport, table: str, columns: Sequence[str] | None, what: str
) -> tuple[pl.DataFrame, list[str]]:
    """Rows of one CUPTI table with process, device and the other columns that it has; and notes."""
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
    rows, notes = set_aside_impossible(
        export.raw.read(table, export.pick(table, want)), what, ("start", "end")
    )
    if "globalPid" not in rows.columns:
        rows = rows.with_columns(pl.lit(0).alias("globalPid"))
    rows = rows.with_columns(export.process_number(rows["globalPid"]).alias("process"))
    out = rows.with_columns(
        pl.col("start").alias("start_ns"),
        pl.col("end").alias("end_ns"),
        export.device_of(rows).alias("device"),
    )
    if lost := out["device"].null_count():
        notes.append(f"{lost} of {len(out)} {what} name no GPU of the capture: they count for none")
    plain = {"streamId": "stream", "correlationId": "correlation_id", "bytes": "size_bytes"}
    out = out.rename({k: v for k, v in plain.items() if k in out.columns})
    for column, name in (("shortName", "name"), ("demangledName", "full_name")):
        if column in out.columns:
            out = out.with_columns(export.named(out[column]).alias(name))
    if {"gridX", "gridY", "gridZ"} <= set(out.columns):
        blocks = pl.col("gridX") * pl.col("gridY") * pl.col("gridZ")
        # no launch has fewer than one block: a size of 0 was not recorded
        out = out.with_columns(pl.when(blocks > 0).then(blocks).alias("blocks"))
    return out, notes


def read_copies(export: NsysExport, columns: Sequence[str] | None) -> Loaded:
    """Copies and memsets."""
    parts: list[pl.DataFrame] = []
    notes: list[str] = []
    columns = _with_read_anyway(columns)
    if MEMCPY in export.tables:
        rows, odd = _device_rows(export, MEMCPY, columns, "copies")
        notes += odd
        if "copyKind" in rows.columns:
            kind = rows["copyKind"].replace_strict(COPY_KINDS, default="unknown", return_dtype=pl.String)
            rows = rows.with_columns(kind.alias("kind"))
        parts.append(rows)
    if MEMSET in export.tables:
        rows, odd = _device_rows(export, MEMSET, columns, "memsets")
        parts.append(rows.with_columns(pl.lit("memset").alias("kind")))
        notes += odd
    return Loaded(pl.concat([conform(p, "copies", columns) for p in parts]), tuple(notes))


def read_api(export: NsysExport, columns: Sequence[str] | None) -> Loaded:
    """Runtime and driver calls (one table holds both)."""
    require(export, RUNTIME, ["start", "end", "globalTid"])
    source = {"correlation_id": "correlationId", "name": "nameId"}
    wanted = [c for k, c in source.items() if columns is None or k in columns]
    rows, notes = set_aside_impossible(
        export.raw.read(RUNTIME, export.pick(RUNTIME, ["start", "end", "globalTid", *wanted])),
        "API calls",
        ("start", "end", "globalTid"),
    )
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
    return Loaded(conform(out, "api", columns), tuple(notes))
