"""Does the record of a run agree with its graph? Every disagreement is a violation of its own type."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rlprof.taskgraph.graph import Edge, TaskGraph
from rlprof.taskgraph.record import RunRecord, TaskRun


@dataclass(frozen=True)
class WrongGraph:
    """The record is of another graph."""

    recorded_hash: str
    graph_hash: str

    def __str__(self) -> str:
        return f"the record is of graph {self.recorded_hash[:12]}, not of {self.graph_hash[:12]}"


@dataclass(frozen=True)
class NotRun:
    """A task of the graph is not in the record."""

    task: str

    def __str__(self) -> str:
        return f"task {self.task} did not run"


@dataclass(frozen=True)
class RunRepeatedly:
    """A task ran more than once."""

    task: str
    count: int

    def __str__(self) -> str:
        return f"task {self.task} ran {self.count} times"


@dataclass(frozen=True)
class NotInGraph:
    """A task ran that the graph does not have."""

    task: str

    def __str__(self) -> str:
        return f"task {self.task} ran and is not in the graph"


@dataclass(frozen=True)
class Failed:
    """A task raised."""

    task: str
    worker: str

    def __str__(self) -> str:
        return f"task {self.task} failed on {self.worker}"


@dataclass(frozen=True)
class BadTimes:
    """A task returned before it started, or was complete before it returned."""

    run: TaskRun

    def __str__(self) -> str:
        r = self.run
        return (
            f"task {r.task} starts at {r.start_ns} ns, returns at {r.returned_ns} ns, ends at {r.end_ns} ns"
        )


@dataclass(frozen=True)
class EdgeBroken:
    """A task started before another that it waits for had completed.

    Parameters
    ----------
    edge : Edge
        Data, state, publication or order.
    early_ns : int
        By how much.
    """

    edge: Edge
    early_ns: int

    def __str__(self) -> str:
        e = self.edge
        item = f" ({e.item})" if e.item else ""
        return f"task {e.target} started {self.early_ns} ns before {e.source} ended; {e.kind} edge{item}"


@dataclass(frozen=True)
class OverCapacity:
    """More of a resource was held at once than there is.

    Parameters
    ----------
    resource : str
        Which.
    at_ns : int
        When the last of `tasks` started.
    tasks : tuple of str
        Who held it.
    held, capacity : int
        Units.
    """

    resource: str
    at_ns: int
    tasks: tuple[str, ...]
    held: int
    capacity: int

    def __str__(self) -> str:
        return (
            f"{self.held} of {self.capacity} units of {self.resource} were held at {self.at_ns} ns by"
            f" {', '.join(self.tasks)}"
        )


Violation = WrongGraph | NotRun | RunRepeatedly | NotInGraph | Failed | BadTimes | EdgeBroken | OverCapacity


def verify(graph: TaskGraph, record: RunRecord) -> tuple[Violation, ...]:
    """Compare a record with its graph.

    Parameters
    ----------
    graph : TaskGraph
        What was to run.
    record : RunRecord
        What ran.

    Returns
    -------
    tuple of violations
        Empty if the record is of this graph, each task ran exactly once and did not fail, started after all
        it waits for had completed, and no resource was held beyond its capacity. A task that ran repeatedly
        is held to that in each of its executions.
    """
    found: list[Violation] = []
    if record.graph_hash != graph.hash:
        found.append(WrongGraph(record.graph_hash, graph.hash))
    counts = Counter(run.task for run in record.tasks)
    for task in graph.tasks:
        if not counts[task.id]:
            found.append(NotRun(task.id))
        elif counts[task.id] > 1:
            found.append(RunRepeatedly(task.id, counts[task.id]))
    found += [NotInGraph(task) for task in sorted(set(counts) - set(graph.index))]
    found += [Failed(run.task, run.worker) for run in record.tasks if run.failed]
    found += [BadTimes(run) for run in record.tasks if not run.start_ns <= run.returned_ns <= run.end_ns]
    found += _broken_edges(graph, record)
    found += _over_capacity(graph, record)
    return tuple(found)


def _broken_edges(graph: TaskGraph, record: RunRecord) -> list[EdgeBroken]:
    first_start: dict[str, int] = {}
    last_end: dict[str, int] = {}
    for run in record.tasks:
        first_start[run.task] = min(run.start_ns, first_start.get(run.task, run.start_ns))
        last_end[run.task] = max(run.end_ns, last_end.get(run.task, run.end_ns))
    broken = []
    for edge in graph.edges:
        # a task that did not run is a violation already
        if edge.source in last_end and edge.target in first_start:
            early_ns = last_end[edge.source] - first_start[edge.target]
            if early_ns > 0:
                broken.append(EdgeBroken(edge, early_ns))
    return broken


_RELEASE, _INSTANT, _TAKE = range(3)


def _over_capacity(graph: TaskGraph, record: RunRecord) -> list[OverCapacity]:
    """Sweep over the starts and ends of each resource's holders.

    Intervals are half-open, and one of no duration counts only inside of others.
    """
    events: dict[str, list[tuple[int, int, int, int]]] = {}
    for number, run in enumerate(record.tasks):
        if run.task not in graph.index or run.end_ns < run.start_ns:
            continue
        for use in graph.tasks[graph.index[run.task]].resources:
            units = graph.held(use)
            here = events.setdefault(use.resource, [])
            if run.start_ns == run.end_ns:
                here.append((run.start_ns, _INSTANT, number, units))
            else:
                here.append((run.start_ns, _TAKE, number, units))
                here.append((run.end_ns, _RELEASE, number, units))
    found = []
    for resource in sorted(events):
        capacity, held = graph.capacity(resource), 0
        holders: dict[int, int] = {}
        for at_ns, phase, number, units in sorted(events[resource]):
            if phase == _RELEASE:
                held -= holders.pop(number)
                continue
            if held + units > capacity:
                names = tuple(record.tasks[n].task for n in (*holders, number))
                found.append(OverCapacity(resource, at_ns, names, held + units, capacity))
            if phase == _TAKE:
                holders[number] = units
                held += units
    return found
