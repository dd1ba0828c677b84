"""Ranked windows of one recorded iteration, by numpy alone: what `rlprof.analysis.windows` says of a capture.

The optimiser ranks the calls of a graph that it ran itself, on machines that may have no polars. Metrics,
tiers, order and choice of targets are those of specification A, section 4; a test compares both paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rlprof.analysis.intervals import StepIntegral, union
from rlprof.analysis.targets import EXCLUDED_FROM, TIER_1_BELOW, Ranked, choose
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.transforms.common import ancestor, group_key

#: A node of which less than this share of its time is covered by samples has no activity.
MIN_COVERAGE_FRAC = 0.5
ACTIVITY_DECIMALS = 9
TAU_ABS_S, TAU_REL_FRAC = 1e-3, 0.01


@dataclass(frozen=True, slots=True)
class Window:
    """A node of the hierarchy in one training iteration.

    Parameters
    ----------
    node : str
        Its path.
    count : int
        Invocations.
    total_s : float
        D_v: time with one of them running.
    mean_s : float
        T(v): mean duration of an invocation.
    sm_activity : float or None
        a_v: mean activity of the device while it ran, 0..1; None: not known.
    coverage : float
        Share of its time that samples cover.
    workers : tuple of str
        Component workers of the calls in it.
    eligible : bool
        D_v is at least the smaller of the two thresholds.
    tier : int or None
        1 below 0.5, 2 below 0.8, None above or unknown.
    score_s : float or None
        S = D_v (1 - a_v).
    rank : int or None
        From 1; None: excluded, not eligible, or of unknown activity.
    """

    node: str
    count: int
    total_s: float
    mean_s: float
    sm_activity: float | None
    coverage: float
    workers: tuple[str, ...]
    eligible: bool
    tier: int | None = None
    score_s: float | None = None
    rank: int | None = None

    @property
    def excluded(self) -> bool:
        """Too active to be a window."""
        return self.sm_activity is not None and self.sm_activity >= EXCLUDED_FROM

    def to_dict(self) -> dict[str, Any]:
        """Return the window as a JSON document."""
        return {name: getattr(self, name) for name in self.__slots__} | {"workers": list(self.workers)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Window:
        """Make a window of its JSON document."""
        if not isinstance(document["node"], str):
            raise TypeError(f"{document['node']!r} is no path of a node")
        numbers: dict[str, Any] = {n: float(document[n]) for n in ("total_s", "mean_s", "coverage")}
        for name in ("sm_activity", "score_s"):
            numbers[name] = None if document[name] is None else float(document[name])
        return cls(**{**document, **numbers, "workers": tuple(map(str, document["workers"]))})


@dataclass(frozen=True)
class Activity:
    """Samples of a device: disjoint, sorted steps in the clock of the calls.

    Parameters
    ----------
    start_ns, end_ns : ndarray of int64, shape (n,)
        What each covers.
    active_frac : ndarray of float64, shape (n,)
        0..1.
    source : str
        Where they come from.
    """

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    active_frac: npt.NDArray[np.float64]
    source: str

    def mean(self, start_ns: int, end_ns: int) -> float | None:
        """Mean over an interval; None if less than half of it is covered."""
        found = _activity(self, np.array([start_ns]), np.array([end_ns]))
        return found[0]


@dataclass(frozen=True, slots=True)
class CallTime:
    """When a call of a graph ran, on the clock of the activity: start, and the later of return and device."""

    call: str
    start_ns: int
    end_ns: int


def invocations(graph: CallGraph, times: Iterable[CallTime]) -> dict[str, npt.NDArray[np.int64]]:
    """Intervals of every node, from those of the calls.

    Parameters
    ----------
    graph : CallGraph
        What ran.
    times : iterable of CallTime
        One for each call.

    Returns
    -------
    dict of str to ndarray of int64, shape (invocations, 2)
        By path. A node above calls runs from the first start to the last end of the calls in one call of it;
        parts of a split one are invocations of their own.
    """
    hulls: dict[str, dict[tuple[Any, ...], tuple[int, int]]] = {}
    region_depth = graph.region.count("/")
    for time in times:
        call = graph.by_id[time.call]
        steps = call.node.split("/")
        for depth in range(region_depth + 1, len(steps) + 1):
            path = "/".join(steps[:depth])
            # the region itself is one invocation, whatever runs beside whatever in it
            key = (graph.region,) if path == graph.region else (ancestor(call, path), *group_key(call))
            old = hulls.setdefault(path, {}).get(key, (time.start_ns, time.end_ns))
            hulls[path][key] = (min(old[0], time.start_ns), max(old[1], time.end_ns))
    return {path: np.array(sorted(found.values()), dtype=np.int64) for path, found in hulls.items()}


def rank(
    graph: CallGraph,
    times: Sequence[CallTime],
    activity: Activity | None,
    *,
    tau_abs_s: float = TAU_ABS_S,
    tau_rel_frac: float = TAU_REL_FRAC,
) -> tuple[Window, ...]:
    """Rank all nodes of one iteration.

    Parameters
    ----------
    graph : CallGraph
        Of one iteration.
    times : sequence of CallTime
        Of all its calls.
    activity : Activity or None
        Of the device; None: no node gets a rank.
    tau_abs_s, tau_rel_frac : float
        A node is eligible if D_v >= min(tau_abs_s, tau_rel_frac times the iteration).

    Returns
    -------
    tuple of Window
        Ranked ones first.
    """
    found = invocations(graph, times)
    whole = found[graph.region]
    least_s = min(tau_abs_s, tau_rel_frac * float((whole[:, 1] - whole[:, 0]).sum()) / 1e9)
    windows = []
    for path, spans in found.items():
        start, end = union(spans[:, 0], spans[:, 1])
        total_s = float((end - start).sum()) / 1e9
        active, coverage = (None, 0.0) if activity is None else _activity(activity, start, end)
        workers = {graph.nodes[call.node].component for call in graph.below(path)}
        windows.append(
            Window(
                node=path,
                count=len(spans),
                total_s=total_s,
                mean_s=float((spans[:, 1] - spans[:, 0]).mean()) / 1e9,
                sm_activity=active,
                coverage=coverage,
                workers=tuple(sorted(workers)),
                eligible=total_s >= least_s,
            )
        )
    return ranked(windows)


def ranked(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Give tiers, scores and ranks by what is known of each window; ranked ones first."""
    scored = []
    for window in windows:
        a = window.sm_activity
        tier = None if a is None or a >= EXCLUDED_FROM else 1 if a < TIER_1_BELOW else 2
        score = None if a is None else window.total_s * (1 - a)
        scored.append(replace(window, tier=tier, score_s=score, rank=None))
    may = [w for w in scored if w.tier is not None and w.eligible]
    may.sort(key=lambda w: (w.tier, -(w.score_s or 0.0), w.node.count("/"), w.node))
    rest = [w for w in scored if w.tier is None or not w.eligible]
    rest.sort(key=lambda w: (-w.total_s, w.node))
    return (*(replace(w, rank=n) for n, w in enumerate(may, 1)), *rest)


def targets(windows: Iterable[Window], region: str, most: int) -> tuple[Window, ...]:
    """Windows to fill first: in one component worker, no root, no relatives (section 4, "Targets").

    Parameters
    ----------
    windows : iterable of Window
        As of `rank`.
    region : str
        The iteration.
    most : int
        K.
    """
    rows = {w.node: w for w in windows}
    cells = [
        Ranked(w.node, "", w.tier, w.excluded, w.eligible, True, w.rank if len(w.workers) == 1 else None)
        for w in rows.values()
    ]
    return tuple(rows[node] for node, _ in choose(cells, region, most))


def _activity(
    activity: Activity, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> tuple[float | None, float]:
    both = np.vstack([np.ones(len(activity.start_ns)), activity.active_frac])
    covered, active = StepIntegral.of(activity.start_ns, activity.end_ns, *both).over(start, end).sum(axis=1)
    length = float((end - start).sum())
    coverage = min(float(covered) / length, 1.0) if length else 0.0
    if coverage < MIN_COVERAGE_FRAC:
        return None, coverage
    return round(float(active / covered), ACTIVITY_DECIMALS), coverage
