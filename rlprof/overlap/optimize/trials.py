"""What trials tell beside their time: durations of calls alone by batch size, and calls beside others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rlprof.analysis.batch_time import BatchTimes, Estimated
from rlprof.analysis.interference import Ran, without_others
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.optimize.search import Estimate
from rlprof.overlap.transforms.common import ancestor, group_key
from rlprof.taskgraph.errors import RestoreError

#: Start and end of calls, in seconds of one clock, by their ids.
Spans = Mapping[str, tuple[float, float]]
#: Node, samples and seconds of a call with nothing beside it.
Alone = tuple[str, int, float]


@runtime_checkable
class Recorded(Protocol):
    """A trial that knows when its calls ran, and can run them one after another."""

    def spans(self) -> Spans:
        """Start and end of the calls of the latest run."""
        ...

    def serially(self) -> None:
        """Run once with nothing beside anything. State is as before afterwards."""
        ...


def size_of(call: Call) -> int | None:
    """Samples of a call; None: it has no batch."""
    return call.batch_size if call.samples is None else len(call.samples)


def calls_ran(graph: CallGraph, spans: Spans) -> tuple[Ran, ...]:
    """Calls of a run by node and size (0: no batch), in order of their start."""
    found = []
    for name, (start_s, end_s) in spans.items():
        call = graph.by_id[name]
        found.append(Ran(call.node, size_of(call) or 0, start_s, end_s))
    return tuple(sorted(found, key=lambda r: (r.start_s, r.end_s)))


def alone(graph: CallGraph, spans: Spans) -> tuple[Alone, ...]:
    """Durations of what ran with nothing beside it in a serial run, calls and nodes above them.

    Parameters
    ----------
    graph : CallGraph
        The complete one: of a node above calls, all calls of an invocation must have run.
    spans : mapping of str to (float, float)
        Of some or all of its calls.

    Returns
    -------
    tuple of (str, int, float)
        Of a node above calls the duration is the sum of its calls', of one group where it is split. What has
        no batch, several sizes, or calls that are split beside others that are not, is left away.
    """
    named = {}
    for name, (start_s, end_s) in spans.items():
        named[name] = Ran(name, 0, start_s, end_s)
    lonely = {r.node: r.end_s - r.start_s for r in without_others(tuple(named.values()))}
    found: list[Alone] = []
    for name, duration_s in lonely.items():
        size = size_of(graph.by_id[name])
        if size is not None:
            found.append((graph.by_id[name].node, size, duration_s))
    return (*found, *_above(graph, lonely))


def _above(graph: CallGraph, lonely: Mapping[str, float]) -> Iterable[Alone]:
    """Sums of the invocations of nodes above calls of which all calls ran alone."""
    whole: Counter[tuple[Any, ...]] = Counter()
    sums: dict[tuple[Any, ...], list[float]] = {}
    sizes: dict[tuple[Any, ...], set[int]] = {}
    split: dict[tuple[str, str], set[bool]] = {}
    for call in graph.calls:
        size = size_of(call)
        for path in _paths_above(graph, call):
            key = (path, ancestor(call, path), *group_key(call))
            whole[key] += 1
            split.setdefault(key[:2], set()).add(call.samples is not None)
            if size is not None:
                sizes.setdefault(key, set()).add(size)
            if call.id in lonely:
                sums.setdefault(key, []).append(lonely[call.id])
    for key, times in sums.items():
        if len(times) == whole[key] and len(sizes.get(key, ())) == 1 and len(split[key[:2]]) == 1:
            yield str(key[0]), next(iter(sizes[key])), sum(times)


def _paths_above(graph: CallGraph, call: Call) -> list[str]:
    """Nodes above a call, inside of the region."""
    steps, first = call.node.split("/"), graph.region.count("/") + 2
    return ["/".join(steps[:depth]) for depth in range(first, len(steps))]


@dataclass(frozen=True)
class Seen:
    """What a trial told.

    Parameters
    ----------
    alone : tuple of (str, int, float)
        Node, samples and seconds.
    together : tuple of tuple of Ran
        Runs in which calls overlap.
    """

    alone: tuple[Alone, ...] = ()
    together: tuple[tuple[Ran, ...], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "alone": [list(a) for a in self.alone],
            "together": [[[r.node, r.size, r.start_s, r.end_s] for r in run] for run in self.together],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Seen:
        """Make it of its JSON document; of an older one nothing is known."""
        return cls(
            tuple((str(n), int(b), float(s)) for n, b, s in document.get("alone", ())),
            tuple(
                tuple(Ran(str(n), int(b), float(s), float(e)) for n, b, s, e in run)
                for run in document.get("together", ())
            ),
        )


@dataclass(frozen=True)
class Estimates:
    """What is known by measurements: durations by batch size, and runs in which calls overlap.

    Parameters
    ----------
    times : BatchTimes
        Alone.
    together : tuple of tuple of Ran
        Runs of trials, for factors of interference.
    """

    times: BatchTimes = field(default_factory=BatchTimes)
    together: tuple[tuple[Ran, ...], ...] = ()

    def having(self, seen: Seen) -> Estimates:
        """Return these with what a trial told."""
        times = self.times
        for node, size, duration_s in seen.alone:
            times = times.with_observation(node, size, duration_s)
        return Estimates(times, (*self.together, *seen.together))

    def lacks(self, graph: CallGraph, spans: Iterable[str]) -> bool:
        """Whether a part of a batch, of one of these calls, was never seen alone."""
        known = self.times.observed
        calls = (graph.by_id[name] for name in spans)
        return any(c.samples is not None and (c.node, len(c.samples)) not in known for c in calls)

    def of(self, graph: CallGraph) -> Estimate:
        """Estimate of a node's duration on a share of the batch that it has in a graph.

        None for all of it: a profile of the graph tells that; and for a node that was never seen alone.
        """
        sizes: dict[str, int] = {}

        def estimate(node: str, share: float) -> Estimated | None:
            if share >= 1:
                return None
            if node not in sizes:
                sizes[node] = max((size_of(c) or 0 for c in graph.below(node)), default=0)
            return self.times.at(node, sizes[node] * share) if sizes[node] else None

        return estimate


def watch(
    estimates: Estimates,
    trials: Sequence[tuple[CallGraph, object]],
    ran: Callable[[], None] = lambda: None,
    failed: Callable[[Exception], None] = lambda _: None,
) -> Seen:
    """What the latest runs of trials tell; parts of a batch that were never seen alone are run serially once.

    Calls that happen to be alone in a run in which others overlap are not taken: short ones are alone more
    often than long ones of the same node.

    Parameters
    ----------
    estimates : Estimates
        What is known.
    trials : sequence of (CallGraph, Trial)
        Complete graphs, and trials on a part of their work, each of which has run.
    ran : callable, optional
        Told of every further run.
    failed : callable, optional
        Told why one failed.

    Raises
    ------
    RestoreError
        If state could not be put back after a further run. One that fails otherwise tells nothing: the next
        estimate is a guess then, and says so.
    """
    lonely: list[Alone] = []
    together: list[tuple[Ran, ...]] = []
    for graph, trial in trials:
        if not isinstance(trial, Recorded):
            continue
        spans = trial.spans()
        if len(graph.streams) == 1:
            lonely += alone(graph, spans)
            continue
        together.append(calls_ran(graph, spans))
        if estimates.having(Seen(tuple(lonely))).lacks(graph, spans):
            try:
                trial.serially()
            except RestoreError:
                raise
            except Exception as error:  # whatever the program raises
                failed(error)
                continue
            ran()
            lonely += alone(graph, trial.spans())
    return Seen(tuple(lonely), tuple(together))
