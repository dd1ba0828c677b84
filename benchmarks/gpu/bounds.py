"""The bound on overlap: from the profiled native iteration, and from what all native iterations took.

Graphics and this process' kernels take turns on a GPU as wholes, since their contexts are time-sliced;
kernels of two calls of this process may run side by side. So no graph gets below the time of graphics plus
the SM time of the calls (`SLICES`). That all the time in which anything executed must be had in turn
(`IN_TURN`) holds only of graphs in which this process' kernels never run side by side: it is told beside the
bound.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.solo import Use
from rlprof.cores import usable_cores
from rlprof.overlap.optimize.bound import Bound, Resource, Work, bound, sm_resource
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from rlprof.overlap.callgraph import CallGraph
    from rlprof.overlap.optimize.windows import Window

#: Name of the limit by graphics, which have the GPU to themselves, and kernels, which share its SMs.
SLICES = "graphics slices and SM time"
#: Name of the limit by all the time in which anything executed: kernels of two streams of a process need not
#: take turns, so a graph may get below it.
IN_TURN = "GPU time slices, kernels in turn"
#: What bounds are of, and whether batches stay whole in it.
KINDS = {"any graph": False, "graphs of whole batches": True}
Resources = dict[str, Resource | Unavailable]


@dataclass(frozen=True, slots=True)
class Profiled:
    """A native iteration of which the calls are known.

    Parameters
    ----------
    native : CallGraph
        Its graph.
    windows : sequence of Window
        Durations and SM activity.
    works : sequence of Work
        Busy time of the GPU by calls; none: not known.
    simulator : str
        Component whose calls draw or compute outside of this process.
    slices : bool
        Whether the GPU's time is divided between this process and others; not so between clients of MPS.
    cores : int
        How many there are.
    """

    native: CallGraph
    windows: Sequence[Window]
    works: Sequence[Work] = ()
    simulator: str = "env"
    slices: bool = True
    cores: int = 1

    def resources(self, use: Use) -> tuple[Resources, Resources]:
        """What an iteration takes, by what was read of one; then what counts only if kernels take turns."""
        sound: Resources = {
            "SM time": sm_resource(self.native, self.windows),
            "cores": Resource(use.core_s, self.cores),
        }
        if not self.slices:
            return sound, {}
        sound[SLICES] = self.graphics_and_sm(use)
        if use.busy_s is None:
            return sound, {IN_TURN: Unavailable(use.reason)}
        known_s = sum(work.amount_s for work in self.works)
        scale = use.busy_s / known_s if known_s else 0.0  # divided among calls as in the profiled iteration
        works = tuple(Work(scale * work.amount_s, work.calls) for work in self.works if scale)
        return sound, {IN_TURN: Resource(use.busy_s, works=works)}

    def graphics_s(self, busy_s: float) -> float:
        """Time in which others than this process kept the GPU busy: a lower estimate.

        It is the busy time of an iteration less the durations of all calls that are not the simulator's, as
        if those were busy all along.
        """
        own = {c.node for c in self.native.calls if not self._simulates(c.node)}
        return max(0.0, busy_s - sum(w.total_s for w in self.windows if w.node in own))

    def graphics_and_sm(self, use: Use) -> Resource | Unavailable:
        """Time of graphics, which is of the simulator's calls, and SM time of all other calls.

        Graphics keep SMs active too: that is in their time already.
        """
        if use.busy_s is None:
            return Unavailable(use.reason)
        called = {c.node for c in self.native.calls}
        own = [w for w in self.windows if w.node in called and not self._simulates(w.node)]
        kernels = sm_resource(self.native, own)
        if isinstance(kernels, Unavailable):
            return kernels
        drawn = self.graphics_s(use.busy_s)
        by = tuple(c.id for c in self.native.calls if self._simulates(c.node))
        works = (*kernels.works, Work(drawn, by)) if by else kernels.works
        return Resource(kernels.amount_s + drawn, works=works)

    def bounds(self, use: Use) -> dict[str, Bound]:
        """Bounds by what was read of one iteration, by kind of graph."""
        durations = {w.node: w.mean_s for w in self.windows}
        sound, assumed = self.resources(use)
        return {
            kind: bound(self.native, durations, sound, whole_batches=whole, assumed=assumed)
            for kind, whole in KINDS.items()
        }

    def _simulates(self, node: str) -> bool:
        return self.native.nodes[node].component == self.simulator


@dataclass(frozen=True, slots=True)
class Spread:
    """Bounds by each native iteration that was read.

    Parameters
    ----------
    median : Bound
        By the median of what they took.
    each : tuple of Bound
        By what one of them took.
    """

    median: Bound
    each: tuple[Bound, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the median as a JSON document, and how far those of single iterations are from it."""
        spread = {
            "iterations": len(self.each),
            "least_s": min(b.least_s for b in self.each),
            "median_s": self.median.least_s,
            "most_s": max(b.least_s for b in self.each),
        }
        assumed = {}
        for one in self.median.assumed:
            of = [a.least_s for b in self.each for a in b.assumed if a.name == one.name]
            assumed[one.name] = {"least_s": min(of), "median_s": one.least_s, "most_s": max(of)}
        return {**self.median.to_dict(), "over_iterations": {**spread, "assumed": assumed}}


def spreads(profiled: Profiled, uses: Sequence[Use]) -> dict[str, Spread]:
    """Bounds by the median of what native iterations took, and by each.

    Durations and SM activity are those of the profiled iteration in all of them.
    """
    each = [profiled.bounds(use) for use in uses]
    median = profiled.bounds(median_use(uses))
    return {kind: Spread(median[kind], tuple(one[kind] for one in each)) for kind in KINDS}


def median_use(uses: Sequence[Use]) -> Use:
    """Median of the busy times that are known, and of the processor times."""
    busy = [use.busy_s for use in uses if use.busy_s is not None]
    core_s = statistics.median(use.core_s for use in uses)
    return replace(uses[0], core_s=core_s, busy_s=statistics.median(busy) if busy else None)


def available_cores() -> int:
    """Cores that this process and its children may use."""
    return usable_cores()


def call_times(workload: Any) -> list[Any]:
    """When the calls of the latest iteration by a graph ran, on the monotonic clock; empty: not recorded."""
    from rlprof.overlap.optimize.windows import CallTime

    if workload.last_run is None:
        return []
    _, record = workload.last_run
    return sorted((CallTime(t.task, t.start_ns, t.end_ns) for t in record.tasks), key=lambda t: t.start_ns)
