"""Tables for charts: long series reduced to what a screen can show, with nothing dropped in silence.

Pure functions on arrays and frames; the charts of this package draw their results and compute nothing.
Times of charts are seconds (float) from the zero of the trace's clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rlprof.analysis.intervals import F64, I64, StepIntegral
from rlprof.plots.theme import category, short_path, unique_labels, window_label
from rlprof.text import clean

ENVELOPE_SCHEMA = {
    "start_s": pl.Float64(),
    "end_s": pl.Float64(),
    "mean_frac": pl.Float64(),
    "min_frac": pl.Float64(),
    "max_frac": pl.Float64(),
    "covered_frac": pl.Float64(),
}


def envelope(
    start_ns: I64, end_ns: I64, active_frac: F64, *, lo_ns: int, hi_ns: int, bins: int
) -> pl.DataFrame:
    """Reduce a piecewise-constant series to bins of equal width, keeping its bounds and its mean.

    Parameters
    ----------
    start_ns, end_ns : (n,) int64
        Segments, sorted and disjoint; time between them is not covered.
    active_frac : (n,) float64
        Value on each segment.
    lo_ns, hi_ns : int
        Span to draw; segments are cut at its edges.
    bins : int
        At most this many bins; fewer when the span holds fewer nanoseconds.

    Returns
    -------
    polars.DataFrame
        One row for each bin: ``start_s``, ``end_s``, ``mean_frac`` (weighted by time over what is covered),
        ``min_frac``, ``max_frac`` (null where nothing is covered), ``covered_frac`` (share of the bin).
    """
    if hi_ns <= lo_ns or bins < 1:
        return pl.DataFrame(schema=ENVELOPE_SCHEMA)
    bins = min(bins, hi_ns - lo_ns)
    edges = lo_ns + (np.arange(bins + 1, dtype=np.int64) * (hi_ns - lo_ns)) // bins
    start, end = np.clip(start_ns, lo_ns, hi_ns), np.clip(end_ns, lo_ns, hi_ns)
    keep = (end > start) & ~np.isnan(active_frac)
    start, end, value = start[keep], end[keep], active_frac[keep]

    # cut the segments at the edges of the bins: each piece lies in one bin
    first = np.searchsorted(edges, start, side="right") - 1
    last = np.searchsorted(edges, end, side="left") - 1
    count = last - first + 1
    piece = np.repeat(np.arange(start.size), count)
    which = np.arange(piece.size) - np.repeat(np.cumsum(count) - count - first, count)
    width = np.minimum(end[piece], edges[which + 1]) - np.maximum(start[piece], edges[which])

    covered = np.bincount(which, weights=width, minlength=bins)
    total = np.bincount(which, weights=width * value[piece], minlength=bins)
    mean, low, high = (np.full(bins, np.nan) for _ in range(3))
    some = covered > 0
    if which.size:
        firsts = np.flatnonzero(np.diff(which, prepend=-1))
        low[which[firsts]] = np.minimum.reduceat(value[piece], firsts)
        high[which[firsts]] = np.maximum.reduceat(value[piece], firsts)
        # rounding must not put the mean outside its bounds
        mean[some] = np.clip(total[some] / covered[some], low[some], high[some])
    return pl.DataFrame(
        {
            "start_s": edges[:-1] / 1e9,
            "end_s": edges[1:] / 1e9,
            "mean_frac": mean,
            "min_frac": low,
            "max_frac": high,
            "covered_frac": covered / np.diff(edges),
        },
        schema=ENVELOPE_SCHEMA,
    ).fill_nan(None)


def merge_spans(start_ns: I64, end_ns: I64, *, gap_ns: int) -> tuple[I64, I64, I64]:
    """Unite spans that overlap or lie at most `gap_ns` apart.

    Returns
    -------
    start_ns, end_ns, count : (m,) int64
        United spans in order, and how many of the given spans each stands for.
    """
    if start_ns.size == 0:
        none = np.zeros(0, dtype=np.int64)
        return none, none, none
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], np.maximum.accumulate(end_ns[order])
    opens = np.flatnonzero(np.concatenate(([True], start[1:] > end[:-1] + gap_ns)))
    return start[opens], end[np.append(opens[1:], start.size) - 1], np.diff(np.append(opens, start.size))


def marked_spans(
    windows: Sequence[tuple[str, str | None, I64, I64]], *, lo_ns: int, hi_ns: int, budget: int
) -> pl.DataFrame:
    """Spans in which given windows run, for shading; spans too near to be told apart are united.

    Parameters
    ----------
    windows : sequence of (node, process, start_ns, end_ns)
        Invocations of each window to mark, best first; the process is None where it need not be shown.
    lo_ns, hi_ns : int
        Span that is drawn.
    budget : int
        Most rows to return.

    Returns
    -------
    polars.DataFrame
        ``window`` (label, distinct), ``position`` (0 for the best), ``start_s``, ``end_s``, ``count``
        (invocations in the span).
    """
    labels = unique_labels([window_label(node, process) for node, process, _, _ in windows])
    gap = max((hi_ns - lo_ns) // 2_000, 0)
    while True:
        parts = []
        for position, (label, (_, _, start, end)) in enumerate(zip(labels, windows, strict=True)):
            inside = (end > lo_ns) & (start < hi_ns)
            lo, hi, count = merge_spans(start[inside], end[inside], gap_ns=gap)
            parts.append(
                pl.DataFrame(
                    {
                        "window": pl.Series([label] * lo.size, dtype=pl.String),
                        "position": pl.Series([position] * lo.size, dtype=pl.Int64),
                        "start_s": np.maximum(lo, lo_ns) / 1e9,
                        "end_s": np.minimum(hi, hi_ns) / 1e9,
                        "count": count,
                    }
                )
            )
        if not parts or sum(p.height for p in parts) <= max(budget, len(windows)):
            break
        gap = gap * 2 + 1
    schema = {
        "window": pl.String,
        "position": pl.Int64,
        "start_s": pl.Float64,
        "end_s": pl.Float64,
        "count": pl.Int64,
    }
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def iteration_bounds(
    start_ns: I64, end_ns: I64, *, lo_ns: int, hi_ns: int, most: int = 200
) -> tuple[pl.DataFrame, str | None]:
    """Bounds of the iterations inside a span, and a note if there are too many to draw them.

    Returns
    -------
    frame : polars.DataFrame
        ``iteration`` (from 1), ``start_s``, ``end_s``.
    note : str or None
        Says that bounds are not drawn, and of how many iterations.
    """
    schema = {"iteration": pl.Int64, "start_s": pl.Float64, "end_s": pl.Float64}
    index = np.flatnonzero((end_ns > lo_ns) & (start_ns < hi_ns))
    if index.size > most:
        return pl.DataFrame(schema=schema), f"bounds of the {index.size:,} iterations are not drawn"
    frame = pl.DataFrame(
        {"iteration": index + 1, "start_s": start_ns[index] / 1e9, "end_s": end_ns[index] / 1e9},
        schema=schema,
    )
    return frame, None


def activity_times(
    invocations: Sequence[tuple[I64, I64]], start_ns: I64, end_ns: I64, active_frac: F64, *, bins: int = 20
) -> F64:
    """Time of each node spent in each bin of activity.

    Parameters
    ----------
    invocations : sequence of (start_ns, end_ns)
        Spans of each of m nodes.
    start_ns, end_ns, active_frac : (n,)
        Activity: segments, sorted and disjoint, never interpolated.
    bins : int
        Bins of equal width over 0..1; a value of 1 belongs to the last.

    Returns
    -------
    (m, bins) float64
        Nanoseconds; time that no segment covers is in no bin.
    """
    # a value of 0.5 (10/20 in floating point) opens a bin and never ends one
    which = np.clip(np.floor(active_frac * bins + 1e-9).astype(np.int64), 0, bins - 1)
    out = np.zeros((len(invocations), bins))
    for b in np.unique(which):
        inside = which == b
        time = StepIntegral.of(start_ns[inside], end_ns[inside])
        for row, (lo, hi) in enumerate(invocations):
            out[row, b] = time.over(lo, hi)[0].sum()
    return out


def distribution_rows(
    windows: Sequence[tuple[str, str | None]], times_ns: F64, means: Sequence[float | None]
) -> pl.DataFrame:
    """Histograms of several nodes, one below the other.

    Parameters
    ----------
    windows : sequence of (node, process)
        m nodes, in the order to draw them; the process is None where it need not be shown.
    times_ns : (m, bins) float64
        As given by `activity_times`, summed over devices; nodes without any covered time are left out.
    means : sequence of float or None
        Time-weighted mean activity of each node.

    Returns
    -------
    polars.DataFrame
        One row for each node and bin with time in it: ``node`` (label, distinct), ``path``, ``row``,
        ``low_frac``, ``high_frac``, ``share_frac``, ``height`` (share relative to the node's largest),
        ``class``, ``mean_frac``, ``below_50_frac``, ``below_80_frac``.
    """
    bins = times_ns.shape[1]
    total = times_ns.sum(axis=1)
    low = np.arange(bins) / bins
    rows = []
    drawn = [i for i in range(len(windows)) if total[i] > 0]
    labels = unique_labels([window_label(*windows[i]) for i in drawn])
    for row, (i, label) in enumerate(zip(drawn, labels, strict=True)):
        share = times_ns[i] / total[i]
        some = np.flatnonzero(share > 0)
        rows.append(
            pl.DataFrame(
                {
                    "node": [label] * some.size,
                    "path": [window_label(*windows[i], 200)] * some.size,
                    "row": np.full(some.size, row, dtype=np.int64),
                    "low_frac": low[some],
                    "high_frac": low[some] + 1 / bins,
                    "share_frac": share[some],
                    "height": share[some] / share.max(),
                    "class": [category(float(v), None) for v in low[some] + 1e-9],
                    "mean_frac": pl.Series([means[i]] * some.size, dtype=pl.Float64),
                    "below_50_frac": np.full(some.size, share[low < 0.5 - 1e-9].sum()),
                    "below_80_frac": np.full(some.size, share[low < 0.8 - 1e-9].sum()),
                }
            )
        )
    texts = ("node", "path", "class")
    numbers = ("low_frac", "high_frac", "share_frac", "height", "mean_frac", "below_50_frac", "below_80_frac")
    schema = dict.fromkeys(texts, pl.String) | {"row": pl.Int64} | dict.fromkeys(numbers, pl.Float64)
    return pl.concat(rows) if rows else pl.DataFrame(schema=schema)


def ranking_rows(windows: pl.DataFrame, *, top: int = 20) -> pl.DataFrame:
    """The best-ranked windows.

    Parameters
    ----------
    windows : polars.DataFrame
        Frame of a `WindowReport`, for one choice of device.
    top : int
        Most windows to draw.

    Returns
    -------
    polars.DataFrame
        ``label`` (distinct), ``path``, ``process``, ``rank``, ``score_s``, ``sm_activity``, ``total_s``,
        ``count``, ``class``.
    """
    best = windows.filter(pl.col("rank").is_not_null()).sort("rank").head(top)
    several = best["process"].n_unique() > 1
    labels = [
        f"{rank}  {window_label(node, process if several else None)}"
        for rank, node, process in best.select("rank", "node", "process").iter_rows()
    ]
    return best.select(
        pl.Series("label", unique_labels(labels), dtype=pl.String),
        pl.col("node").map_elements(lambda p: short_path(p, 200), return_dtype=pl.String).alias("path"),
        pl.col("process").map_elements(lambda p: clean(p)[:80], return_dtype=pl.String),
        "rank",
        "score_s",
        "sm_activity",
        "total_s",
        "count",
        pl.struct("sm_activity", "tier")
        .map_elements(lambda r: category(r["sm_activity"], r["tier"]), return_dtype=pl.String)
        .alias("class"),
    )
