"""The least time of an iteration under any legal graph, from runs in which nothing overlaps.

However calls are overlapped, three things cannot be had: a value before the calls that lead to it, more of a
component worker than all of its time, and more of a device than it has. A worker or device does not begin
with some calls before what leads to them, and does not end later than what follows them needs. The largest of
these times bounds the makespan from below, and with it what overlap can gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlprof.errors import UsageError
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize.chains import Chains, chains
from rlprof.overlap.optimize.one_machine import Job, one_machine
from rlprof.overlap.optimize.windows import Window
from rlprof.unavailable import Unavailable

#: Names of limits that do not come of resources.
CHAIN, WORKER = "longest chain", "component worker"


#: By how much sums that are equal may differ.
ROUNDING_FRAC = 1e-6


@dataclass(frozen=True, slots=True)
class Work:
    """What certain calls take of a resource.

    Parameters
    ----------
    amount_s : float
        Seconds of one unit.
    calls : tuple of str
        Native calls of which one takes it, or several together, it is not known in which proportion; none:
        nothing is known.
    """

    amount_s: float
    calls: tuple[str, ...] = ()


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
    works : tuple of Work
        Parts of the amount of which the calls are known; none: the amount alone bounds.
    """

    amount_s: float
    units: float = 1.0
    works: tuple[Work, ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """A time below which no graph gets.

    Parameters
    ----------
    name : str
        Of the resource, ``component worker NAME`` or ``longest chain``.
    work_s : float
        Time that the resource needs for calls of the hardest set, all of them if nothing is known of calls;
        of a chain its length.
    head_s, tail_s : float
        What must come before any call of that set, and after any.
    """

    name: str
    work_s: float
    head_s: float = 0.0
    tail_s: float = 0.0

    @property
    def least_s(self) -> float:
        """All three, seconds."""
        return self.head_s + self.work_s + self.tail_s

    def __str__(self) -> str:
        parts = f"{self.head_s:.2f} + {self.work_s:.2f} + {self.tail_s:.2f}"
        return f"{self.name} {self.least_s:.2f} s" + (f" ({parts})" if self.head_s or self.tail_s else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the limit as a JSON document."""
        return {"name": self.name, "least_s": self.least_s} | {
            name: getattr(self, name) for name in ("head_s", "work_s", "tail_s")
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Limit:
        """Make a limit of its JSON document; older ones have the time alone."""
        work_s = float(document.get("work_s", document["least_s"]))
        around = (float(document.get(name, 0.0)) for name in ("head_s", "tail_s"))
        return cls(str(document["name"]), work_s, *around)


@dataclass(frozen=True)
class Bound:
    """Lower bound on the time of an iteration.

    Parameters
    ----------
    limits : tuple of Limit
        The largest first.
    unknown : tuple of (str, str)
        Resources that nothing is known of, and why: the true bound may be larger.
    assumed : tuple of Limit
        Those that hold only under an assumption, which their names say; they are no part of the bound.
    """

    limits: tuple[Limit, ...]
    unknown: tuple[tuple[str, str], ...] = ()
    assumed: tuple[Limit, ...] = ()

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
            "limits": [one.to_dict() for one in self.limits],
            "unknown": dict(self.unknown),
            "assumed": [one.to_dict() for one in self.assumed],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Bound:
        """Make a bound of its JSON document; in older ones nothing is told apart as assumed."""
        limits, assumed = (
            tuple(Limit.from_dict(one) for one in document.get(name, ())) for name in ("limits", "assumed")
        )
        unknown = tuple((str(k), str(v)) for k, v in document.get("unknown", {}).items())
        return cls(limits, unknown, assumed)


def bound(
    native: CallGraph,
    durations_s: Mapping[str, float],
    resources: Mapping[str, Resource | Unavailable] | None = None,
    *,
    whole_batches: bool = False,
    smallest_s: Mapping[str, float] | None = None,
    assumed: Mapping[str, Resource | Unavailable] | None = None,
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
    assumed : mapping of str to Resource or Unavailable
        Resources that are shared out as `resources` only under an assumption, which the name says: their
        limits are told beside the bound.

    Returns
    -------
    Bound
        The largest of: the longest chain of calls that need each other's values or state; and for each
        component worker, with its copies where they are workers of their own, and each resource the largest,
        over all sets of calls, of the least head, the time that they take of it, and the least tail.

    Raises
    ------
    UsageError
        If a node that is called has no duration, a number is negative or no unit is there, or the work of
        calls is more than the amount, or of calls that are none.

    Notes
    -----
    Heads and tails are those of the one-machine relaxation (Carlier 1982; see `one_machine`). They hold also
    where calls share a device, since their rates add up to at most 1: work of a set does not begin before
    its least head, takes all of its time, and when the last of it is done some call's tail is left. Of
    several units or copies, which are never served faster than all at once, the work is divided.

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
    around = chains(native, along, whole_batches=whole_batches)
    workers = {f"{WORKER} {name}": one for name, one in worker_resources(native, durations_s).items()}
    limits, unknown = [Limit(CHAIN, around.longest_s)], []
    beside: list[Limit] = []
    for of, known in ((limits, workers), (limits, resources or {}), (beside, assumed or {})):
        for name, one in known.items():
            if isinstance(one, Unavailable):
                unknown.append((name, one.reason))
            else:
                of.append(limit(name, one, around))
    return Bound(_largest_first(limits), tuple(unknown), _largest_first(beside))


def _largest_first(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """A set of one call may be a chain: then that is said."""

    def key(one: Limit) -> tuple[float, str]:
        return -one.least_s * (1 + ROUNDING_FRAC * (one.name == CHAIN)), one.name

    return tuple(sorted(limits, key=key))


def limit(name: str, resource: Resource, around: Chains) -> Limit:
    """Least time by a resource: that of its hardest set of calls.

    Raises
    ------
    UsageError
        See `bound`.
    """
    known_s = sum(work.amount_s for work in resource.works)
    if resource.units <= 0 or resource.amount_s < 0:
        raise UsageError(
            f"{resource.amount_s} s of {resource.units} units of {name}", hint="give units above 0"
        )
    if known_s > resource.amount_s * (1 + ROUNDING_FRAC) or any(w.amount_s < 0 for w in resource.works):
        raise UsageError(
            f"calls take {known_s} s of {resource.amount_s} s of {name}",
            hint="give no negative amounts, and of all calls together at most what the iteration takes",
        )
    strange = {c for work in resource.works for c in work.calls} - set(around.head_s)
    if strange:
        raise UsageError(
            f"{min(strange)!r} takes {name} and is no call of the graph", hint="give native calls"
        )
    jobs = [Job(0.0, max(0.0, resource.amount_s - known_s) / resource.units, 0.0)]
    for work in resource.works:
        head_s, tail_s = around.around(work.calls)
        jobs.append(Job(head_s, work.amount_s / resource.units, tail_s))
    hardest = one_machine(jobs)
    if hardest.total_s <= resource.amount_s / resource.units:  # by rounding, or because nothing is known
        return Limit(name, resource.amount_s / resource.units)
    return Limit(name, hardest.work_s, hardest.head_s, hardest.tail_s)


def worker_resources(native: CallGraph, durations_s: Mapping[str, float]) -> dict[str, Resource]:
    """Time that each call takes of its component worker; units are copies that serve at once."""
    copies: dict[str, int] = {}
    for state in native.states.values():
        if state.separate:
            copies[state.component] = max(copies.get(state.component, 1), state.copies)
    found: dict[str, list[Work]] = {}
    for call in native.calls:
        component = native.nodes[call.node].component
        if component:
            found.setdefault(component, []).append(Work(durations_s[call.node], (call.id,)))
    return {
        name: Resource(sum(work.amount_s for work in works), copies.get(name, 1), tuple(works))
        for name, works in found.items()
    }


def sm_resource(native: CallGraph, windows: Iterable[Window]) -> Resource | Unavailable:
    """SM time of an iteration in which nothing overlapped: activity times duration of all that is called.

    What a node takes is divided among its calls alike.
    """
    calls: dict[str, list[str]] = {}
    for call in native.calls:
        calls.setdefault(call.node, []).append(call.id)
    total, works = 0.0, []
    for window in windows:
        if window.node not in calls:
            continue
        if window.sm_activity is None:
            if window.eligible:
                return Unavailable(f"the activity of {window.node} is not known")
            continue
        amount_s = window.total_s * window.sm_activity
        total += amount_s
        of = calls[window.node]
        works += [Work(amount_s / len(of), (call,)) for call in of]
    return Resource(total, works=tuple(works))
