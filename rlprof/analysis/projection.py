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
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlprof.trace.trace import Trace

    Ints = NDArray[np.int64]

_FAR = np.iinfo(np.int64).max


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

    parent = enclosing(start_key, end_key)
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
            pl.Series("level", _levels(parent)),
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


def _thread_keys(ranges: pl.DataFrame, calls: pl.DataFrame) -> tuple[Ints, Ints, Ints, Ints]:
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
    if width * threads.height > _FAR // 2:
        raise DamagedTraceError(
            f"timestamps are spread over {width / 86_400e9:.0f} days",
            hint="export the capture again; its times are not those of one run",
        )
    # in the order of the sorted calls
    codes = threads.sort("process", "thread").with_row_index("code").cast({"code": pl.Int64})

    def keys(frame: pl.DataFrame) -> tuple[Ints, Ints]:
        coded = frame.select("process", "thread", "start_ns", "end_ns").join(
            codes, on=["process", "thread"], how="left", maintain_order="left"
        )
        base = coded["code"].to_numpy() * width - origin
        return base + coded["start_ns"].to_numpy(), base + coded["end_ns"].to_numpy()

    return *keys(ranges), *keys(calls)


@dataclass(frozen=True)
class _Work:
    """Work found inside each of N ranges: number of calls, first start, last end."""

    count: Ints
    first_ns: Ints
    last_ns: Ints


def _work_inside(
    start: Ints, end: Ints, call_start: Ints, call_end: Ints, *, first_ns: Ints, last_ns: Ints
) -> _Work:
    count = np.zeros(start.size, dtype=np.int64)
    first = np.full(start.size, _FAR)
    last = np.full(start.size, -_FAR)
    for layer in _disjoint_layers(call_end):
        lo = np.searchsorted(call_start[layer], start, side="left")
        hi = np.searchsorted(call_end[layer], end, side="right")
        count += np.maximum(hi - lo, 0)
        np.minimum(first, _slice_minimum(first_ns[layer], lo, hi), out=first)
        # the largest is the smallest of the negated
        np.maximum(last, -_slice_minimum(-last_ns[layer], lo, hi), out=last)
    return _Work(count, first, last)


def _count_inside(start: Ints, end: Ints, item_start: Ints, item_end: Ints) -> Ints:
    count = np.zeros(start.size, dtype=np.int64)
    for layer in _disjoint_layers(item_end):
        lo = np.searchsorted(item_start[layer], start, side="left")
        hi = np.searchsorted(item_end[layer], end, side="right")
        count += np.maximum(hi - lo, 0)
    return count


def _disjoint_layers(end: Ints) -> list[Ints]:
    """Split intervals, sorted by start, into groups in which the ends are sorted too.

    One group where no interval lies inside another (the calls of a thread that launch work, as a rule); one
    more for each level of calls within calls.
    """
    layers: list[Ints] = []
    rest = np.arange(end.size)
    while rest.size:
        ends = end[rest]
        # those that end no earlier than all before them
        keep = ends >= np.maximum.accumulate(ends)
        layers.append(rest[keep])
        rest = rest[~keep]
    return layers


def _slice_minimum(values: Ints, lo: Ints, hi: Ints) -> Ints:
    """Minimum of ``values[lo:hi]`` for each pair; the largest integer for an empty slice.

    A sparse table (minima of windows of length 2^k), made and used one level at a time so that memory
    stays O(n).
    """
    answer = np.full(lo.size, _FAR)
    length = hi - lo
    # 2^level is the largest power of two that is not longer than the slice
    level = np.where(length > 0, np.frexp(np.maximum(length, 1).astype(np.float64))[1] - 1, -1)
    window = values
    for k in range(int(level.max(initial=-1)) + 1):
        if k > 0:
            half = 1 << (k - 1)
            window = np.minimum(window[:-half], window[half:])
        ask = np.flatnonzero(level == k)
        answer[ask] = np.minimum(window[lo[ask]], window[hi[ask] - (1 << k)])
    return answer


def _repeats(launches: pl.DataFrame, call_start: Ints, call_end: Ints) -> tuple[Ints, Ints] | None:
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


def enclosing(start: Ints, end: Ints) -> Ints:
    """Row of the nearest interval that holds each interval, or -1.

    Parameters
    ----------
    start, end : numpy.ndarray of int64
        N intervals; keys that keep threads apart (see `_thread_keys`).

    Returns
    -------
    numpy.ndarray of int64
        Of the intervals that begin no later and end no earlier, the one that begins last. Of two equal
        intervals, the earlier row holds the later one.
    """
    order = np.lexsort((-end, start))
    ends = end[order]
    # nearest earlier interval that does not end before this one. Everything skipped by a candidate ends
    # before it, so when the candidate ends too early its own candidate is the next to try; the steps grow
    # as candidates move, so few rounds are needed (about the nesting depth plus log2 N).
    candidate = np.arange(ends.size) - 1
    active = np.flatnonzero((candidate >= 0) & (ends[candidate] < ends))
    while active.size:
        candidate[active] = candidate[candidate[active]]
        now = candidate[active]
        active = active[(now >= 0) & (ends[now] < ends[active])]
    parent = np.empty(ends.size, dtype=np.int64)
    parent[order] = np.where(candidate >= 0, order[candidate], -1)
    return parent


def _levels(parent: Ints) -> Ints:
    """Number of ancestors of each row."""
    level = np.zeros(parent.size, dtype=np.int64)
    rows = np.flatnonzero(parent >= 0)
    above = parent[rows]
    while rows.size:
        level[rows] += 1
        above = parent[above]
        rows, above = rows[above >= 0], above[above >= 0]
    return level
