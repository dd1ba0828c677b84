"""Low-activity windows of a training iteration: metrics, tiers, eligibility, rank, targets.

Specification A (Rose), sections 4.3.2 and appendices A and B, restated in ``docs/windows.md``: per node and
iteration ``D_v`` (time), ``a_v`` (activity), score ``S(v) = D_v (1 - a_v)``; excluded if ``a_v >= 0.8``, tier
1 below 0.5, tier 2 between; eligible if ``D_v >= min(tau_a, tau_r T_iter)``; ranked by tier, then by S.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from rlprof.analysis.activity import (
    MIN_COVERAGE_FRAC,
    blind_nodes,
    node_sums,
)
from rlprof.analysis.iteration import Iteration, find_iteration
from rlprof.analysis.low_activity import capture_span, low_activity
from rlprof.analysis.ranking import COLUMNS, choose_targets, loop_count_table, window_table
from rlprof.analysis.signals import SOURCE_TEXT, Signal, foreign_frac, signals
from rlprof.text import counted
from rlprof.trace.hierarchy import Hierarchy, hierarchy
from rlprof.trace.trace import Trace, TraceMeta
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
#: A node shorter than this many sampling periods on average has a coarse activity.
SHORT_PERIODS = 2


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
    tree : Hierarchy
        The nodes that were ranked, with their invocations.
    signals : tuple of Signal or Unavailable
        The activity that they were ranked by.
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
    tree: Hierarchy = field(repr=False)
    signals: tuple[Signal, ...] | Unavailable = field(repr=False)

    @property
    def activity_span_s(self) -> float | None:
        """From the first to the last time at which activity is known, seconds; None: never."""
        if isinstance(self.signals, Unavailable) or not any(len(s.start_ns) for s in self.signals):
            return None
        start_ns, end_ns = capture_span(self.signals)
        return float(end_ns[0] - start_ns[0]) / 1e9

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
    elif found.cut_count:
        notes.append(_cut_iterations_note(found))
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
    counts, count_notes = loop_count_table(trace, tree, loop_counts or {})
    notes += count_notes
    frame = window_table(trace, tree, found, sums, counts, tau_abs_ns, tau_rel_frac)
    period_ns = max((s.period_ns for s in active if s.period_ns), default=None)
    notes += _quality_notes(trace, frame, active, period_ns)
    low = low_activity(trace, tree, found, sums, active)
    excluded, chosen = choose_targets(frame, found, targets)
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
        tree=tree,
        signals=signal,
    )


def _cut_iterations_note(found: Iteration) -> str:
    if found.whole:
        more = f"{found.name}: {found.cut_count} more, not wholly in the capture"
        return f"{more}, left out of times per iteration"
    return (
        f"no {found.name} lies wholly in the capture: its duration, and all times per iteration, are those of"
        " parts, or too long if only their ends were lost"
    )


def _kernel_union_note(active: tuple[Signal, ...]) -> str:
    bounded = all(s.grid_bounded for s in active)
    how = (
        "tightened by grid sizes"
        if bounded
        else "grid sizes or SM counts are unknown, so it is not tightened"
    )
    return f"no SM counters: activity is the {SOURCE_TEXT['kernel_union']}, {how}"


def _nodes(frame: pl.DataFrame, verb: str, plural: str) -> str:
    """How many nodes a table has, with the verb that goes with it: ``1 node is``, ``2 nodes are``."""
    number = frame["node"].n_unique()
    return f"{counted(number, 'node')} {verb if number == 1 else plural}"


def _quality_notes(
    trace: Trace, frame: pl.DataFrame, active: tuple[Signal, ...], period_ns: int | None
) -> list[str]:
    """What makes activities doubtful: coarse sampling, poor coverage, work of others."""
    notes = []
    lost = frame.filter("mostly_cut")
    if not lost.is_empty():
        notes.append(
            f"{_nodes(lost, 'has', 'have')} most of the time in ranges without an end of their own:"
            f" times and scores are doubtful, and not proposed ({_some(lost)})"
        )
    if active and not frame.is_empty():
        poor = frame.filter((pl.col("coverage") < MIN_COVERAGE_FRAC) & pl.col("sm_activity").is_null())
        if len(poor):
            notes.append(
                f"{_nodes(poor, 'lacks', 'lack')} an activity: under {MIN_COVERAGE_FRAC:.0%} of the"
                f" time is covered by samples ({_some(poor)})"
            )
    if period_ns and not frame.is_empty():
        short = frame.filter(
            (pl.col("mean_s") * 1e9 < SHORT_PERIODS * period_ns) & pl.col("sm_activity").is_not_null()
        )
        if len(short):
            notes.append(
                f"{_nodes(short, 'is', 'are')} shorter than {SHORT_PERIODS} sampling periods of"
                f" {period_ns / 1e6:.4g} ms on average, so the activity is coarse ({_some(short)})"
            )
    for s in active:
        share = foreign_frac(trace, s)
        if share is not None and share >= 0.005:
            notes.append(
                f"{share:.1%} of the SM activity of GPU {s.device} fell into samples without any traced GPU"
                " work: somebody else used it (graphics, or a process that was not traced)"
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
