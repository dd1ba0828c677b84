"""The tidy tables of a trace: names, columns, types, units.

Every reader produces these and every analysis reads these. Time is int64 nanoseconds in one clock per
trace (`*_ns`); sizes are bytes (`*_bytes`); shares are 0..1 (`*_frac`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import polars as pl

TableName = Literal[
    "ranges", "kernels", "copies", "api", "activity", "counters", "devices", "processes", "loop_counts"
]
TABLE_NAMES: tuple[TableName, ...] = get_args(TableName)

STYLE = pl.Enum(["push_pop", "start_end", "operator"])
KERNEL_KIND = pl.Enum(["kernel", "graph"])
SOURCE = pl.Enum(["sm_counters", "host_cores"])

SCHEMAS: dict[TableName, dict[str, pl.DataType]] = {
    # Host-side ranges (NVTX, user annotations, framework timers). `cut`: the true end is not in the
    # capture, end_ns is the capture's end. `style`: push_pop nests per (process, thread, domain);
    # start_end may overlap anything; operator is a framework operator (Kineto cpu_op), nests like push_pop.
    "ranges": {
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "name": pl.Categorical(),
        "style": STYLE,
        "process": pl.UInt32(),
        "thread": pl.Int64(),
        "domain": pl.Categorical(),  # "" is the default domain
        "cut": pl.Boolean(),
    },
    # Device work that occupies SMs. kind "graph" is one CUDA-graph launch recorded as a whole: it was
    # busy, what ran inside is unknown (name, blocks are null).
    "kernels": {
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "device": pl.Int32(),
        "stream": pl.Int64(),
        "process": pl.UInt32(),
        "correlation_id": pl.Int64(),
        "name": pl.Categorical(),  # short name
        "full_name": pl.Categorical(),  # demangled, with arguments
        "blocks": pl.Int64(),  # grid size; null when unknown
        "kind": KERNEL_KIND,
    },
    # Copies and memsets: device work that does not occupy SMs. kind: HtoD, DtoH, DtoD, PtoP, ..., memset.
    "copies": {
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "device": pl.Int32(),
        "stream": pl.Int64(),
        "process": pl.UInt32(),
        "correlation_id": pl.Int64(),
        "kind": pl.Categorical(),
        "size_bytes": pl.Int64(),
    },
    # Runtime and driver calls on the host.
    "api": {
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "process": pl.UInt32(),
        "thread": pl.Int64(),
        "correlation_id": pl.Int64(),
        "name": pl.Categorical(),
    },
    # Activity samples, sorted by (source, device, start_ns). A sample holds over [start_ns, end_ns):
    # to the next sample, at most 1.5 median periods. host_cores samples have device -1.
    "activity": {
        "source": SOURCE,
        "device": pl.Int32(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "active_frac": pl.Float64(),
    },
    # Further hardware counters that were sampled beside the activity, by the name that the chip has for them
    # ("sm__warps_active.avg.pct_of_peak_sustained_active"); `value` is in the counter's own unit.
    "counters": {
        "metric": pl.Categorical(),
        "device": pl.Int32(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "value": pl.Float64(),
    },
    # uuid serves to recognise one GPU in several captures and is never shown.
    "devices": {
        "device": pl.Int32(),
        "name": pl.String(),
        "sm_count": pl.Int64(),
        "uuid": pl.String(),
    },
    # One row per (capture, process). `devices`: GPUs the process can be told to use, null if unknown.
    "processes": {
        "process": pl.UInt32(),
        "pid": pl.Int64(),
        "rank": pl.Int64(),
        "label": pl.String(),  # a name to show: "rank 0", a worker's name, or the pid
        "file": pl.String(),  # name (no path) of the capture it came from
        "devices": pl.List(pl.Int32),
    },
    # How often a range really ran, where only some of its invocations were marked. `path` is a node path.
    "loop_counts": {
        "process": pl.UInt32(),
        "path": pl.String(),
        "count": pl.Int64(),
    },
}


def schema(table: TableName, columns: Sequence[str] | None = None) -> dict[str, pl.DataType]:
    """Columns and types of `table`, restricted to `columns` (in table order) if given."""
    full = SCHEMAS[table]
    return full if columns is None else {c: t for c, t in full.items() if c in set(columns)}


def empty(table: TableName, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """A table with no rows."""
    return pl.DataFrame(schema=schema(table, columns))


def conform(frame: pl.DataFrame, table: TableName, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Cast `frame` to the types of `table` and order its columns; missing columns become null."""
    want = schema(table, columns)
    return frame.select(
        (pl.col(c) if c in frame.columns else pl.lit(None)).cast(t).alias(c) for c, t in want.items()
    )
