"""How much of the time lies below an activity."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from rlprof.analysis.activity import THRESHOLDS, NodeSums
from rlprof.analysis.intervals import I64, StepIntegral, union
from rlprof.analysis.iteration import Iteration
from rlprof.analysis.signals import Signal
from rlprof.trace.hierarchy import Hierarchy
from rlprof.trace.trace import Trace


def low_activity(
    trace: Trace, tree: Hierarchy, found: Iteration | None, sums: NodeSums, active: tuple[Signal, ...]
) -> pl.DataFrame:
    """Shares of time below the thresholds: of the iteration (or capture), then of every node."""
    rows: list[tuple[str, float, float]] = []
    covered, below = 0.0, np.zeros(len(THRESHOLDS))
    for s in active:
        span = union(found.start_ns, found.end_ns) if found else capture_span(active)
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
    twice = {path for path, times in Counter(paths).items() if times > 1}
    labels = dict(trace.table("processes", ["process", "label"]).iter_rows())
    for i, path in enumerate(paths):
        seen = good[:, i]
        # the iteration of several processes has a row of its own for each, beside the one at the top
        if not seen.any() or (found is not None and path == found.name and path not in twice):
            continue
        total = float(sums.covered_ns[seen, i].sum())
        scope = f"{labels.get(process[i], process[i])}:{path}" if path in twice else path
        rows += [(scope, t, float(sums.below_ns[j, seen, i].sum()) / total) for j, t in enumerate(THRESHOLDS)]
    schema = {"scope": pl.String, "threshold": pl.Float64, "fraction": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def capture_span(active: tuple[Signal, ...]) -> tuple[I64, I64]:
    """Where the capture has anything to tell: from the first to the last step of any device.

    Returns
    -------
    (start_ns, end_ns) : ndarray of int64, shape (1,) each
    """
    lo = min(int(s.start_ns[0]) for s in active if len(s.start_ns))
    hi = max(int(s.end_ns[-1]) for s in active if len(s.end_ns))
    return np.array([lo]), np.array([hi])
