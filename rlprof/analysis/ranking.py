"""The table of windows: times, activity, tier, score and rank of every node, and which to fill first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from rlprof.analysis.activity import NodeSums
from rlprof.analysis.iteration import Iteration
from rlprof.analysis.signals import HOST
from rlprof.analysis.targets import EXCLUDED_FROM, TIER_1_BELOW, Ranked, choose
from rlprof.trace.hierarchy import Hierarchy
from rlprof.trace.trace import Trace

#: A node with more than this share of its time in cut ranges is not proposed: how long it takes is unknown.
MAX_CUT_FRAC = 0.5
#: Columns of the windows, in the order of every output.
COLUMNS: dict[str, Any] = {
    "node": pl.String,
    "process": pl.String,
    "device": pl.Int32,
    "leaf": pl.Boolean,
    "measured_count": pl.Int64,
    "coverage": pl.Float64,
    "count": pl.Int64,
    "total_s": pl.Float64,
    "mean_s": pl.Float64,
    "self_s": pl.Float64,
    "sm_activity": pl.Float64,
    "tier": pl.Int64,
    "score_s": pl.Float64,
    "eligible": pl.Boolean,
    "rank": pl.Int64,
}


def loop_count_table(
    trace: Trace, tree: Hierarchy, given: Mapping[str, int]
) -> tuple[pl.DataFrame, list[str]]:
    """Per node: marked invocations, and how many there really were."""
    measured = tree.invocations.group_by("node").agg(pl.len().cast(pl.Int64).alias("measured_count"))
    nodes = tree.nodes.join(measured, on="node", how="left", maintain_order="left")
    stated = trace.table("loop_counts").select("process", "path", pl.col("count").alias("stated"))
    by_hand = pl.DataFrame(
        {"path": list(given), "given": list(given.values())}, schema={"path": pl.String, "given": pl.Int64}
    )
    out = (
        nodes.join(stated, on=["process", "path"], how="left", maintain_order="left")
        .join(by_hand, on="path", how="left", maintain_order="left")
        .with_columns(pl.coalesce("given", "stated", "measured_count").alias("claimed"))
        .with_columns(pl.max_horizontal("claimed", "measured_count").alias("count"))
        .select("node", "measured_count", "count")
    )
    notes = [
        f"{path}: {measured_count} of {count} invocations are marked; its times are extrapolated from those"
        for path, measured_count, count in out.filter(pl.col("count") > pl.col("measured_count"))
        .join(tree.nodes.select("node", "path"), on="node", how="left")
        .select("path", "measured_count", "count")
        .iter_rows()
    ]
    return out, notes


def window_table(
    trace: Trace,
    tree: Hierarchy,
    found: Iteration | None,
    sums: NodeSums,
    counts: pl.DataFrame,
    tau_abs_ns: int,
    tau_rel_frac: float,
) -> pl.DataFrame:
    """One row per node and device, and per node over all devices; with depth for choosing targets."""
    labels = trace.table("processes", ["process", "label"])
    duration = pl.col("end_ns") - pl.col("start_ns")
    # a cut range has an unknown duration: it counts into totals, not into the mean unless all are cut
    times = tree.invocations.group_by("node").agg(
        duration.sum().alias("total_ns"),
        pl.col("self_ns").sum(),
        duration.filter(~pl.col("cut")).mean().alias("mean_uncut_ns"),
        duration.mean().alias("mean_ns"),
        duration.filter(pl.col("cut")).sum().alias("cut_ns"),
    )
    base = (
        tree.nodes.join(counts, on="node", how="left", maintain_order="left")
        .join(times, on="node", how="left", maintain_order="left")
        .join(labels, on="process", how="left", maintain_order="left")
    )
    n_iter = np.array([len(found.of(p)[0]) if found else 1 for p in base["process"]], dtype=np.float64)
    t_iter_ns = _iteration_ns(trace, tree, found)
    scale = (base["count"] / base["measured_count"]).to_numpy() if len(base) else np.zeros(0)
    d_ns = sums.inside_ns / np.maximum(n_iter, 1) * scale
    active, coverage = sums.activity()
    base = base.with_columns(
        pl.col("path").alias("node"),
        pl.col("label").alias("process"),
        pl.Series("scale", scale),
        pl.Series("d_ns", d_ns),
        pl.Series("inside", sums.inside_ns > 0),
    ).with_columns(
        (pl.col("total_ns") * pl.col("scale") / 1e9).alias("total_s"),
        (pl.coalesce("mean_uncut_ns", "mean_ns") / 1e9).alias("mean_s"),
        (pl.col("self_ns") * pl.col("scale") / 1e9).alias("self_s"),
        (pl.col("d_ns") >= min(tau_abs_ns, tau_rel_frac * t_iter_ns)).alias("eligible"),
        (pl.col("cut_ns") > MAX_CUT_FRAC * pl.col("total_ns")).alias("mostly_cut"),
    )
    parts = []
    if len(sums.devices) > 1:
        for i, device in enumerate(sums.devices):
            part = base.with_columns(
                pl.lit(device).alias("device"),
                pl.Series("sm_activity", active[i]),
                pl.Series("coverage", coverage[i]),
            )
            parts.append(part.filter(pl.Series(sums.used[i])))
    only = sums.devices[0] if len(sums.devices) == 1 and sums.devices[0] != HOST else None
    with np.errstate(invalid="ignore"):
        good = ~np.isnan(active)
        some = good.any(axis=0) if len(sums.devices) else np.zeros(len(base), dtype=bool)
        mean = np.where(some, np.where(good, active, 0).sum(axis=0) / np.maximum(good.sum(axis=0), 1), np.nan)
        used = np.maximum(sums.used.sum(axis=0), 1)
        cover = np.where(sums.used, coverage, 0).sum(axis=0) / used
    over_all = base.with_columns(
        pl.lit(only, dtype=pl.Int32).alias("device"),
        pl.Series("sm_activity", mean),
        # without a source there is nothing that could cover: null, not 0
        pl.Series("coverage", cover if len(sums.devices) else np.full(len(base), np.nan)).fill_nan(None),
    )
    parts.insert(0, over_all)
    return pl.concat([_ranked(p.with_columns(pl.col("device").cast(pl.Int32))) for p in parts]).sort(
        # the rows over all devices (null) come before those of single ones
        [pl.col("device").fill_null(HOST), "rank", "total_s"],
        descending=[False, False, True],
        nulls_last=True,
        maintain_order=True,
    )


def _ranked(part: pl.DataFrame) -> pl.DataFrame:
    """Tier, score and rank of the rows of one device."""
    a = pl.col("sm_activity")
    rows = part.with_columns(a.fill_nan(None)).with_columns(
        pl.when(a < TIER_1_BELOW).then(1).when(a < EXCLUDED_FROM).then(2).alias("tier"),
        (a >= EXCLUDED_FROM).fill_null(False).alias("excluded"),
        pl.when(pl.col("inside")).then(pl.col("d_ns") / 1e9 * (1 - a)).alias("score_s"),
    )
    may = pl.col("tier").is_not_null() & pl.col("eligible") & pl.col("inside")
    order = (
        rows.with_row_index("row")
        .filter(may)
        .sort(["tier", "score_s", "depth", "node", "process"], descending=[False, True, False, False, False])
    )
    ranks = order.select("row").with_row_index("rank", offset=1)
    return rows.with_row_index("row").join(ranks, on="row", how="left", maintain_order="left").drop("row")


def _iteration_ns(trace: Trace, tree: Hierarchy, found: Iteration | None) -> float:
    """Mean duration of an iteration; of the span of all ranges if there is none."""
    if found is not None:
        return float((found.end_ns - found.start_ns).mean())
    inv = tree.invocations
    if inv.is_empty():
        return float(trace.meta.duration_ns)
    return float(inv["end_ns"].to_numpy().max() - inv["start_ns"].to_numpy().min())


def choose_targets(
    frame: pl.DataFrame, found: Iteration | None, most: int
) -> tuple[frozenset[tuple[str, str]], tuple[tuple[str, str], ...]]:
    """Windows to fill first (specification A, section 4, "Targets").

    Scanned by rank; the iteration itself and what holds it are not windows, a node that holds an eligible
    descendant of another tier (or an excluded one) is left for its parts, and relatives of one taken are
    skipped; so are nodes of which most of the time is in ranges that have no end of their own.
    """
    if frame.is_empty():
        return frozenset(), ()
    several = frame["device"].n_unique() > 1
    rows = frame.filter(pl.col("device").is_null()) if several else frame
    lost = frozenset(rows.filter("mostly_cut").select("node", "process").iter_rows())
    cells = rows.select("node", "process", "tier", "excluded", "eligible", "inside", "rank").rows()
    excluded = frozenset((n, p) for n, p, _, x, *_ in cells if x)
    # what is lost is no target, and still tells what lies in a node
    nodes = (Ranked._make(c) if (c[0], c[1]) not in lost else Ranked._make((*c[:-1], None)) for c in cells)
    return excluded, choose(nodes, None if found is None else found.name, most)
