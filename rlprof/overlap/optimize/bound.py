"""The least time of an iteration under any legal graph, from runs in which nothing overlaps.

However calls are overlapped, three things cannot be had: a value before the calls that lead to it, more of a
component worker than all of its time, and more of a device than it has. The largest of these times bounds the
makespan from below, and with it what overlap can gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlprof.errors import UsageError
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.dependencies import dependencies
from rlprof.overlap.optimize.windows import Window
from rlprof.unavailable import Unavailable

#: Names of limits that do not come of resources.
CHAIN, WORKER = "longest chain", "component worker"


@dataclass(frozen=True, slots=True)
class Resource:
    """What the work of an iteration takes of something that all share.

    Parameters
    ----------
    amount_s : float
        Seconds of one unit: of all SMs (SM activity times duration, summed), of the GPU (time with anything
        of anybody executing, where contexts are time-sliced), of one core.
    units : float
        How many there are: 1 GPU, 16 cores.
    """

    amount_s: float
    units: float = 1.0


@dataclass(frozen=True, slots=True)
class Limit:
    """A time below which no graph gets.

    Parameters
    ----------
    name : str
        Of the resource, ``component worker NAME`` or ``longest chain``.
    least_s : float
        Seconds.
    """

    name: str
    least_s: float


@dataclass(frozen=True)
class Bound:
    """Lower bound on the time of an iteration.

    Parameters
    ----------
    limits : tuple of Limit
        The largest first.
    unknown : tuple of (str, str)
        Resources that nothing is known of, and why: the true bound may be larger.
    """

    limits: tuple[Limit, ...]
    unknown: tuple[tuple[str, str], ...] = ()

    @property
    def least_s(self) -> float:
        """No legal graph of the same work takes less, seconds."""
        return self.limits[0].least_s

    @property
    def binding(self) -> str:
        """What sets it."""
        return self.limits[0].name

    def speedup(self, reference_s: float) -> float:
        """Largest speed-up over something that takes `reference_s`; at least 1."""
        return max(1.0, reference_s / self.least_s)

    def reached(self, reference_s: float, found_s: float) -> float:
        """Speed-up of a run of `found_s` as a share of the largest one: 0.9 is 90 % of the bound."""
        return (reference_s / found_s) / self.speedup(reference_s)

    def to_dict(self) -> dict[str, Any]:
        """Return the bound as a JSON document."""
        return {
            "least_s": self.least_s,
            "binding": self.binding,
            "limits": [{"name": one.name, "least_s": one.least_s} for one in self.limits],
            "unknown": dict(self.unknown),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Bound:
        """Make a bound of its JSON document."""
        limits = tuple(Limit(str(one["name"]), float(one["least_s"])) for one in document["limits"])
        return cls(limits, tuple((str(k), str(v)) for k, v in document.get("unknown", {}).items()))


def bound(
    native: CallGraph,
    durations_s: Mapping[str, float],
    resources: Mapping[str, Resource | Unavailable] | None = None,
    *,
    whole_batches: bool = False,
    smallest_s: Mapping[str, float] | None = None,
) -> Bound:
    """Bound the time of an iteration from below.

    Parameters
    ----------
    native : CallGraph
        The native graph.
    durations_s : mapping of str to float
        By node: duration of one of its calls while nothing runs beside it, seconds.
    resources : mapping of str to Resource or Unavailable
        What the whole iteration takes of devices, from solo runs.
    whole_batches : bool
        Only of graphs that split no batch: each chunk's answer waits for all environments.
    smallest_s : mapping of str to float
        By node that a batch can be split at: duration of its smallest part. Else, unless batches stay whole,
        the call counts nothing in a chain.

    Returns
    -------
    Bound
        The largest of: the longest chain of calls that need each other's values or state; for each component
        worker the time of all its calls, divided by its copies where they are workers of their own; and for
        each resource its amount divided by its units.

    Raises
    ------
    UsageError
        If a node that is called has no duration, or a number is negative or no unit is there.

    Notes
    -----
    Chains are of values alone: storage that is written again could be copied, and the order of streams can be
    changed. Parts of a call are taken to need together at least as long as the whole. Graphs that do other
    work (kernels that are faster, fewer environments) are not bounded.
    """
    called = dict.fromkeys(call.node for call in native.calls)
    missing = [node for node in called if node not in durations_s]
    if missing:
        raise UsageError(
            f"no duration of {missing[0]} is known", hint="give one for each node that is called"
        )
    if negative := [node for node in called if durations_s[node] < 0]:
        raise UsageError(f"{negative[0]} takes {durations_s[negative[0]]} s", hint="give seconds from 0 on")
    if whole_batches:
        along = dict(durations_s)
    else:
        least = smallest_s or {}
        along = {n: s if native.nodes[n].batch is None else least.get(n, 0.0) for n, s in durations_s.items()
                 if n in called}  # fmt: skip
    limits = [Limit(CHAIN, chain_s(native, along))]
    limits += [Limit(f"{WORKER} {name}", s) for name, s in worker_s(native, durations_s).items()]
    unknown = []
    for name, one in (resources or {}).items():
        if isinstance(one, Unavailable):
            unknown.append((name, one.reason))
        elif one.units <= 0 or one.amount_s < 0:
            raise UsageError(f"{one.amount_s} s of {one.units} units of {name}", hint="give units above 0")
        else:
            limits.append(Limit(name, one.amount_s / one.units))
    limits.sort(key=lambda one: (-one.least_s, one.name))
    return Bound(tuple(limits), tuple(unknown))


def chain_s(native: CallGraph, durations_s: Mapping[str, float]) -> float:
    """Length of the longest chain of calls, each of which needs a value or state of the one before."""
    before: dict[str, list[str]] = {}
    for dependency in dependencies(native):
        if dependency.kind != "storage":
            before.setdefault(dependency.target, []).append(dependency.source)
    end: dict[str, float] = {}
    for call in native.calls:
        start = max((end[source] for source in before.get(call.id, ())), default=0.0)
        end[call.id] = start + durations_s[call.node]
    return max(end.values(), default=0.0)


def worker_s(native: CallGraph, durations_s: Mapping[str, float]) -> dict[str, float]:
    """Time that the calls of each component worker take, divided by its copies that serve at once."""
    copies: dict[str, int] = {}
    for state in native.states.values():
        if state.separate:
            copies[state.component] = max(copies.get(state.component, 1), state.copies)
    found: dict[str, float] = {}
    for call in native.calls:
        component = native.nodes[call.node].component
        if component:
            found[component] = found.get(component, 0.0) + durations_s[call.node]
    return {name: total / copies.get(name, 1) for name, total in found.items()}


def sm_resource(native: CallGraph, windows: Iterable[Window]) -> Resource | Unavailable:
    """SM time of an iteration in which nothing overlapped: activity times duration of all that is called."""
    called = {call.node for call in native.calls}
    total = 0.0
    for window in windows:
        if window.node not in called:
            continue
        if window.sm_activity is None:
            if window.eligible:
                return Unavailable(f"the activity of {window.node} is not known")
            continue
        total += window.total_s * window.sm_activity
    return Resource(total)
