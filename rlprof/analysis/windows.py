"""Low-activity windows of a training iteration: metrics, tiers, eligibility, rank, targets.

Specification A (Rose), sections 4.3.2 and appendices A and B, restated in ``docs/windows.md``: per node and
iteration ``D_v`` (time), ``a_v`` (activity), score ``S(v) = D_v (1 - a_v)``; excluded if ``a_v >= 0.8``, tier
1 below 0.5, tier 2 between; eligible if ``D_v >= min(tau_a, tau_r T_iter)``; ranked by tier, then by S.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlprof.analysis.activity import (
    MIN_COVERAGE_FRAC,
    THRESHOLDS,
    NodeSums,
    blind_nodes,
    node_sums,
)
from rlprof.analysis.intervals import StepIntegral, union
from rlprof.analysis.iteration import Iteration, find_iteration
from rlprof.analysis.signals import HOST, SOURCE_TEXT, Signal, foreign_frac, signals
from rlprof.trace.hierarchy import Hierarchy, hierarchy
from rlprof.trace.trace import Trace, TraceMeta
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
TIER_1_BELOW, EXCLUDED_FROM = 0.5, 0.8
#: A node shorter than this many sampling periods on average has a coarse activity.
SHORT_PERIODS = 2
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


@dataclass(frozen=True)
class WindowReport:
    """Ranked windows of a trace and what they rest on.

    Parameters
    ----------
    frame : polars.DataFrame
        One row per node and device, and per node over all devices (``device`` null) if there are several;
        columns in `COLUMNS`, explained in ``docs/windows.md``. Ranked rows first.
    iteration : Iteration or None
        None: no node looks like an iteration and the whole capture was taken as one.
    activity_source : str or None
        What ``sm_activity`` was computed from; None: unavailable, the notes say why.
    sample_period_s : float or None
        Median sampling period of that source.
    low_activity : polars.DataFrame
        ``scope`` (the iteration or ``capture``, then every node), ``threshold``, ``fraction`` of the covered
        time that lies in samples below it, at this sampling period.
    excluded : frozenset of (node, process)
        Nodes too active to be windows.
    targets : tuple of (node, process)
        Windows to fill first: no relatives among them.
    notes : tuple of str
        What was missing, repaired, dropped or guessed.
    meta : TraceMeta
        Facts about the capture.
    devices : tuple of dict
        ``id``, ``name``, ``sm_count`` of each GPU.
    processes : tuple of dict
        ``id``, ``pid``, ``rank``, ``label``, ``file`` of each process.
    """

    frame: pl.DataFrame
    iteration: Iteration | None
    activity_source: str | None
    sample_period_s: float | None
    low_activity: pl.DataFrame
    excluded: frozenset[tuple[str, str]]
    targets: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    meta: TraceMeta
    devices: tuple[dict[str, Any], ...]
    processes: tuple[dict[str, Any], ...]

    def to_pandas(self) -> pd.DataFrame:
        """The windows as a pandas frame."""
        return self.frame.to_pandas()

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``rlprof analyze --format json``; its shape is stable (docs/windows.md)."""
        found = self.iteration
        return {
            "schema_version": SCHEMA_VERSION,
            "trace": {
                "path": " + ".join(self.meta.files),
                "format": self.meta.format,
                "duration_s": self.meta.duration_ns / 1e9,
                "devices": [dict(d) for d in self.devices],
                "processes": [dict(p) for p in self.processes],
            },
            "activity_source": self.activity_source,
            "iteration": found and {"name": found.name, "count": found.count, "total_s": found.total_s},
            "sample_period_s": self.sample_period_s,
            "windows": self.frame.to_dicts(),
            "low_activity": self.low_activity.to_dicts(),
            "notes": list(self.notes),
        }


def windows(
    trace: Trace,
    *,
    iteration: str | None = None,
    tau_abs_ns: int = 1_000_000,
    tau_rel_frac: float = 0.01,
    exact_names: bool = False,
    loop_counts: Mapping[str, int] | None = None,
    targets: int = 3,
) -> WindowReport:
    """Rank the low-activity windows of a training iteration.

    Parameters
    ----------
    trace : Trace
        Any capture.
    iteration : str, optional
        Node to take as the iteration; found by itself if not given.
    tau_abs_ns, tau_rel_frac : int, float
        A node is eligible if its time per iteration is at least the smaller of `tau_abs_ns` and
        `tau_rel_frac` of the iteration's mean duration.
    exact_names : bool
        Keep ids inside labels.
    loop_counts : mapping of node path to int, optional
        How often nodes really ran in the capture, where only some invocations were marked; their totals
        are extrapolated from the marked ones. Counts found in the capture are used by themselves.
    targets : int
        How many windows to propose.

    Returns
    -------
    WindowReport

    Raises
    ------
    UsageError
        If `iteration` names no node.
    """
    tree = hierarchy(trace, exact_names=exact_names)
    found = find_iteration(tree, iteration) if not tree.nodes.is_empty() or iteration else None
    signal = signals(trace)
    notes = list(tree.notes)
    if isinstance(signal, Unavailable):
        notes.append(f"SM activity is unavailable: {signal.reason}")
    active = signal if isinstance(signal, tuple) else ()
    if not trace.has("ranges"):
        notes.append(f"no nodes: {trace.missing.get('ranges', 'the capture has no ranges')}")
    elif found is None:
        notes.append("no iteration was found: the whole capture is taken as one (name one with --iteration)")
    sums = node_sums(trace, tree, found, active)
    source = active[0].source if active else None
    if source == "kernel_union":
        notes.append(_kernel_union_note(active))
        blind, reason = blind_nodes(trace, tree)
        if reason:
            sums.used[:, blind] = False
            notes.append(f"activity is unavailable for the {int(blind.sum())} nodes that hold them: {reason}")
    elif source == "host_cores":
        notes.append(SOURCE_TEXT[source])
    counts, count_notes = _counts(trace, tree, loop_counts or {})
    notes += count_notes
    frame = _frame(trace, tree, found, sums, counts, tau_abs_ns, tau_rel_frac)
    period_ns = max((s.period_ns for s in active if s.period_ns), default=None)
    notes += _quality_notes(trace, frame, active, period_ns)
    low = _low_activity(trace, tree, found, sums, active)
    excluded, chosen = _targets(frame, found, targets)
    public = frame.select(pl.col(c).cast(t) for c, t in COLUMNS.items())
    return WindowReport(
        frame=public,
        iteration=found,
        activity_source=source,
        sample_period_s=period_ns / 1e9 if period_ns else None,
        low_activity=low,
        excluded=excluded,
        targets=chosen,
        notes=(*dict.fromkeys((*trace.notes, *notes)),),
        meta=trace.meta,
        devices=_devices(trace),
        processes=_processes(trace),
    )


def _kernel_union_note(active: tuple[Signal, ...]) -> str:
    bounded = all(s.grid_bounded for s in active)
    how = "tightened by grid sizes" if bounded else "grid sizes or SM counts are unknown, so it is not tightened"
    return f"no SM counters: activity is the {SOURCE_TEXT['kernel_union']}, {how}"


def _counts(
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


def _frame(
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
    order = rows.with_row_index("row").filter(may).sort(
        ["tier", "score_s", "depth", "node", "process"], descending=[False, True, False, False, False]
    )
    ranks = order.select("row").with_row_index("rank", offset=1)
    return (
        rows.with_row_index("row").join(ranks, on="row", how="left", maintain_order="left").drop("row")
    )


def _iteration_ns(trace: Trace, tree: Hierarchy, found: Iteration | None) -> float:
    """Mean duration of an iteration; of the span of all ranges if there is none."""
    if found is not None:
        return float((found.end_ns - found.start_ns).mean())
    inv = tree.invocations
    if inv.is_empty():
        return float(trace.meta.duration_ns)
    return float(inv["end_ns"].max() - inv["start_ns"].min())  # type: ignore[operator]


def _targets(
    frame: pl.DataFrame, found: Iteration | None, most: int
) -> tuple[frozenset[tuple[str, str]], tuple[tuple[str, str], ...]]:
    """Windows to fill first (specification A, section 4, "Targets").

    Scanned by rank; the iteration itself is not a window, a node that holds an eligible descendant of
    another tier (or an excluded one) is left for its parts, and relatives of one taken are skipped.
    """
    if frame.is_empty():
        return frozenset(), ()
    several = frame["device"].n_unique() > 1
    rows = frame.filter(pl.col("device").is_null()) if several else frame
    cells = rows.select("node", "process", "tier", "excluded", "eligible", "inside", "rank").rows()
    excluded = frozenset((n, p) for n, p, _, x, *_ in cells if x)
    chosen: list[tuple[str, str]] = []
    for node, process, tier, _, _, _, rank in sorted(
        (c for c in cells if c[6] is not None), key=lambda c: int(c[6])
    ):
        if len(chosen) == most:
            break
        if (found is not None and node == found.name) or any(
            p == process and (n.startswith(node + "/") or node.startswith(n + "/")) for n, p in chosen
        ):
            continue
        mixed = any(
            p == process and n.startswith(node + "/") and eligible and inside and (x or t != tier)
            for n, p, t, x, eligible, inside, _ in cells
        )
        if not mixed and rank:
            chosen.append((node, process))
    return excluded, tuple(chosen)


def _low_activity(
    trace: Trace, tree: Hierarchy, found: Iteration | None, sums: NodeSums, active: tuple[Signal, ...]
) -> pl.DataFrame:
    """Shares of time below the thresholds: of the iteration (or capture), then of every node."""
    rows: list[tuple[str, float, float]] = []
    covered, below = 0.0, np.zeros(len(THRESHOLDS))
    for s in active:
        span = union(found.start_ns, found.end_ns) if found else _capture_span(trace, active)
        low = [(s.active_frac < t).astype(np.float64) for t in THRESHOLDS]
        part = StepIntegral.of(s.start_ns, s.end_ns, np.ones(len(s.start_ns)), *low).over(*span).sum(axis=1)
        covered += part[0]
        below += part[1:]
    if covered > 0:
        name = found.name if found else "capture"
        rows += [(name, t, float(b / covered)) for t, b in zip(THRESHOLDS, below, strict=True)]
    activity, _ = sums.activity()
    good = ~np.isnan(activity)
    paths, process = tree.nodes["path"].to_list(), tree.nodes["process"].to_list()
    twice = {p for p in paths if paths.count(p) > 1} if len(set(paths)) < len(paths) else set()
    labels = dict(trace.table("processes", ["process", "label"]).iter_rows())
    for i, path in enumerate(paths):
        seen = good[:, i]
        if not seen.any() or (found is not None and path == found.name):
            continue
        total = float(sums.covered_ns[seen, i].sum())
        scope = f"{labels.get(process[i], process[i])}:{path}" if path in twice else path
        rows += [
            (scope, t, float(sums.below_ns[j, seen, i].sum()) / total) for j, t in enumerate(THRESHOLDS)
        ]
    schema = {"scope": pl.String, "threshold": pl.Float64, "fraction": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _capture_span(trace: Trace, active: tuple[Signal, ...]) -> tuple[Any, Any]:
    """Where the capture has anything to tell: for counters, from the first to the last sample."""
    lo = min(int(s.start_ns[0]) for s in active if len(s.start_ns))
    hi = max(int(s.end_ns[-1]) for s in active if len(s.end_ns))
    return np.array([max(lo, trace.meta.start_ns)]), np.array([min(hi, max(trace.meta.end_ns, lo + 1))])


def _quality_notes(
    trace: Trace, frame: pl.DataFrame, active: tuple[Signal, ...], period_ns: int | None
) -> list[str]:
    """What makes activities doubtful: coarse sampling, poor coverage, work of others."""
    notes = []
    if active and not frame.is_empty():
        poor = frame.filter((pl.col("coverage") < MIN_COVERAGE_FRAC) & pl.col("sm_activity").is_null())
        if len(poor):
            notes.append(
                f"{poor['node'].n_unique()} nodes have no activity: less than {MIN_COVERAGE_FRAC:.0%} of their time"
                f" is covered by samples ({_some(poor)})"
            )
    if period_ns and not frame.is_empty():
        short = frame.filter(
            (pl.col("mean_s") * 1e9 < SHORT_PERIODS * period_ns) & pl.col("sm_activity").is_not_null()
        )
        if len(short):
            notes.append(
                f"{short['node'].n_unique()} nodes are shorter than {SHORT_PERIODS} sampling periods of"
                f" {period_ns / 1e6:g} ms on average, so their activity is coarse ({_some(short)})"
            )
    for s in active:
        share = foreign_frac(trace, s)
        if share is not None and share >= 0.005:
            notes.append(
                f"{share:.1%} of the SM activity of GPU {s.device} fell into samples without any traced GPU work:"
                " somebody else used it (graphics, or a process that was not traced)"
            )
    return notes


def _some(frame: pl.DataFrame, most: int = 3) -> str:
    names = frame["node"].unique(maintain_order=True)
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names.head(most)) + more


def _devices(trace: Trace) -> tuple[dict[str, Any], ...]:
    rows = trace.table("devices", ["device", "name", "sm_count"]).iter_rows()
    return tuple({"id": d, "name": name, "sm_count": sms} for d, name, sms in rows)


def _processes(trace: Trace) -> tuple[dict[str, Any], ...]:
    columns = ["process", "pid", "rank", "label", "file"]
    rows = trace.table("processes", columns).iter_rows()
    return tuple(dict(zip(("id", *columns[1:]), row, strict=True)) for row in rows)
