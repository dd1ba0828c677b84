"""Projection of host ranges onto the GPU: which work was launched from inside a range.

An operation (kernel, copy, memset, whole graph launch) belongs to a range if the API call that launched it
was made by the range's thread and lies inside the range. This is the attribution of ``nsys stats --report
nvtx_gpu_proj_sum``; `rlprof.analysis.attribution` has the other one, by time. ``docs/attribution.md`` says
why they differ.

On one thread, calls that launch work follow one another, so the calls inside a range are neighbours in
order of time: two binary searches find them, and the first start and last end of their operations are a
range-minimum query. That holds for ranges that nest, overlap or cross alike, and costs O(n log n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlprof.analysis.summaries import absent, duration_statistics, range_labels
from rlprof.errors import DamagedTraceError
from rlprof.trace.sweep import I64, LARGEST, disjoint_layers, nest, slice_minimum
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from rlprof.trace.trace import Trace


def gpu_projection(trace: Trace) -> pl.DataFrame | Unavailable:
    """Projected GPU time and operations of ranges, per label and style.

    Equals ``nsys stats --report nvtx_gpu_proj_sum`` for captures without whole graph launches; those are
    operations here. Ranges that launched nothing are not counted. Ranges without a name have a row of their
    own (label null), which ``nsys stats`` leaves out.

    Parameters
    ----------
    trace : Trace
        Needs tables ``ranges``, ``api`` and one of ``kernels`` and ``copies``.

    Returns
    -------
    polars.DataFrame or Unavailable
        ``label``, ``style``, ``projected_ns`` (sum over invocations, each from the start of its first to the
        end of its last operation), ``range_ns`` (sum of the host durations of the same invocations),
        ``count``, ``mean_ns``, ``median_ns``, ``min_ns``, ``max_ns``, ``std_ns`` (of the projected
        durations), ``operations``, ``mean_operations``, ``mean_level`` (0: not inside another range of the
        thread), ``mean_children`` (ranges directly inside that launched something); longest total first.
    """
    invocations = project_invocations(trace)
    if isinstance(invocations, Unavailable):
        return invocations
    return (
        invocations.with_columns(
            (pl.col("projected_end_ns") - pl.col("projected_start_ns")).alias("projected_ns"),
            (pl.col("end_ns") - pl.col("start_ns")).alias("range_ns"),
        )
        .group_by("label", "style")
        .agg(
            pl.col("projected_ns").sum(),
            pl.col("range_ns").sum(),
            pl.len().cast(pl.Int64).alias("count"),
            *duration_statistics("projected_ns"),
            pl.col("operations").sum(),
            pl.col("operations").mean().alias("mean_operations"),
            pl.col("level").mean().alias("mean_level"),
            pl.col("children").mean().alias("mean_children"),
        )
        .with_columns(pl.col("label").cast(pl.String))
        .sort(["projected_ns", "label"], descending=[True, False], nulls_last=True)
    )


def project_invocations(trace: Trace) -> pl.DataFrame | Unavailable:
    """Projection of each invocation of a range that launched GPU work.

    Parameters
    ----------
    trace : Trace
        Needs tables ``ranges``, ``api`` and one of ``kernels`` and ``copies``.

    Returns
    -------
    polars.DataFrame or Unavailable
        ``row`` (in table ``ranges``), ``label``, ``style``, ``process``, ``thread``, ``start_ns``,
        ``end_ns``, ``projected_start_ns``, ``projected_end_ns``, ``operations`` (launching calls with
        distinct correlation ids: a graph launch counts once, however many kernels it ran), ``level``,
        ``children``; in order of ``row``.

    Raises
    ------
    DamagedTraceError
        If the timestamps are spread too far to be those of one capture.
    """
    if not trace.has("ranges"):
        return absent(trace, "ranges")
    if not trace.has("api"):
        return absent(trace, "api")
    if not trace.has("kernels") and not trace.has("copies"):
        return absent(trace, "kernels")

    ranges = trace.table("ranges", ["start_ns", "end_ns", "name", "style", "process", "thread", "domain"])
    launches = _launches(trace)
    start_key, end_key, call_start_key, call_end_key = _thread_keys(ranges, launches)
    work = _work_inside(
        start_key, end_key, call_start_key, call_end_key,
        first_ns=launches["work_start_ns"].to_numpy(), last_ns=launches["work_end_ns"].to_numpy(),
    )  # fmt: skip
    repeats = _repeats(launches, call_start_key, call_end_key)
    if repeats is not None:
        work.count[:] -= _count_inside(start_key, end_key, *repeats)

    parent, level = _parents(start_key, end_key)
    launching = work.count > 0
    children = np.bincount(parent[launching & (parent >= 0)], minlength=ranges.height)
    return (
        ranges.select(
            pl.int_range(pl.len(), dtype=pl.Int64).alias("row"),
            range_labels(ranges),
            "style", "process", "thread", "start_ns", "end_ns",
        )
        .with_columns(
            pl.Series("projected_start_ns", work.first_ns),
            pl.Series("projected_end_ns", work.last_ns),
            pl.Series("operations", work.count),
            pl.Series("level", level),
            pl.Series("children", children.astype(np.int64)),
        )
        .filter(pl.Series(launching))
    )  # fmt: skip


def _launches(trace: Trace) -> pl.DataFrame:
    """API calls that launched work, with the span of that work; sorted by process, thread and start."""
    columns = ["start_ns", "end_ns", "process", "correlation_id"]
    work = (
        pl.concat([trace.table("kernels", columns), trace.table("copies", columns)])
        .group_by("process", "correlation_id")
        .agg(pl.col("start_ns").min().alias("work_start_ns"), pl.col("end_ns").max().alias("work_end_ns"))
    )
    # on (process, id): ids repeat across processes
    return (
        trace.table("api", ["start_ns", "end_ns", "process", "thread", "correlation_id"])
        .join(work, on=["process", "correlation_id"], how="inner")
        .sort("process", "thread", "start_ns", "end_ns")
    )


def _thread_keys(ranges: pl.DataFrame, calls: pl.DataFrame) -> tuple[I64, I64, I64, I64]:
    """Times as integers that keep the order within a thread and keep threads apart.

    Thread k of the capture occupies the band [k w, (k + 1) w), w being the span of all times plus one, so
    one sorted search serves all threads at once.
    """
    spans = [(f["start_ns"].min(), f["end_ns"].max()) for f in (ranges, calls) if f.height]
    if not spans:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing, nothing, nothing
    origin = min(int(lo) for lo, _ in spans)  # type: ignore[arg-type]
    width = max(int(hi) for _, hi in spans) - origin + 1  # type: ignore[arg-type]
    threads = pl.concat([f.select("process", "thread") for f in (ranges, calls)]).unique()
    if width * threads.height > LARGEST // 2:
        raise DamagedTraceError(
            f"timestamps are spread over {width / 86_400e9:.0f} days",
            hint="export the capture again; its times are not those of one run",
        )
    # in the order of the sorted calls
    codes = threads.sort("process", "thread").with_row_index("code").cast({"code": pl.Int64})

    def keys(frame: pl.DataFrame) -> tuple[I64, I64]:
        coded = frame.select("process", "thread", "start_ns", "end_ns").join(
            codes, on=["process", "thread"], how="left", maintain_order="left"
        )
        base = coded["code"].to_numpy() * width - origin
        return base + coded["start_ns"].to_numpy(), base + coded["end_ns"].to_numpy()

    return *keys(ranges), *keys(calls)


@dataclass(frozen=True)
class _Work:
    """Work found inside each of N ranges: number of calls, first start, last end."""

    count: I64
    first_ns: I64
    last_ns: I64


def _work_inside(
    start: I64, end: I64, call_start: I64, call_end: I64, *, first_ns: I64, last_ns: I64
) -> _Work:
    count = np.zeros(start.size, dtype=np.int64)
    first = np.full(start.size, LARGEST)
    last = np.full(start.size, -LARGEST)
    for layer in disjoint_layers(call_end):
        lo = np.searchsorted(call_start[layer], start, side="left")
        hi = np.searchsorted(call_end[layer], end, side="right")
        count += np.maximum(hi - lo, 0)
        np.minimum(first, slice_minimum(first_ns[layer], lo, hi), out=first)
        # the largest is the smallest of the negated
        np.maximum(last, -slice_minimum(-last_ns[layer], lo, hi), out=last)
    return _Work(count, first, last)


def _count_inside(start: I64, end: I64, item_start: I64, item_end: I64) -> I64:
    count = np.zeros(start.size, dtype=np.int64)
    for layer in disjoint_layers(item_end):
        lo = np.searchsorted(item_start[layer], start, side="left")
        hi = np.searchsorted(item_end[layer], end, side="right")
        count += np.maximum(hi - lo, 0)
    return count


def _repeats(launches: pl.DataFrame, call_start: I64, call_end: I64) -> tuple[I64, I64] | None:
    """Spans of consecutive calls of one thread that carry the same correlation id, sorted by start.

    A range that holds such a span holds one operation less than calls.
    """
    keyed = launches.select(
        "process", "thread", "correlation_id", pl.Series("start", call_start), pl.Series("end", call_end)
    )
    by = ["process", "thread", "correlation_id"]
    pairs = (
        keyed.filter(pl.struct(by).is_duplicated())
        .sort(*by, "start", maintain_order=True)
        .select(
            pl.col("start").shift(1).over(by).alias("start"),
            pl.max_horizontal("end", pl.col("end").shift(1).over(by)).alias("end"),
        )
        .drop_nulls()
        .sort("start", "end")
    )
    if pairs.is_empty():
        return None
    return pairs["start"].to_numpy(), pairs["end"].to_numpy()


def _parents(start: I64, end: I64) -> tuple[I64, I64]:
    """Row of the range around each range of one thread, or -1, and how many are around, in any domain."""
    order = np.lexsort((-end, start))
    # keys keep threads apart, so one group holds them all
    found = nest(np.zeros(len(start), dtype=np.int64), start[order], end[order])
    parent = np.empty(len(start), dtype=np.int64)
    parent[order] = np.where(found.parent >= 0, order[found.parent], -1)
    level = np.empty(len(start), dtype=np.int64)
    level[order] = found.depth
    return parent, level
