"""Does the record of a run agree with its graph? Every disagreement is a violation of its own type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from rlprof.errors import UsageError
from rlprof.taskgraph.graph import TaskGraph, expect_tasks
from rlprof.taskgraph.record import RunRecord, TaskRun
from rlprof.taskgraph.state import Key
from rlprof.taskgraph.task import INITIAL, CellAccess, Use, worker_resource
from rlprof.taskgraph.violations import (
    BadTimes,
    EdgeBroken,
    Failed,
    NotInGraph,
    NotRun,
    OverCapacity,
    RunRepeatedly,
    VersionsReordered,
    Violation,
    WrittenWhileUsed,
    WrongGraph,
    WrongVersionMade,
    WrongVersionSeen,
    WrongWorker,
)
from rlprof.text import with_article


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
        Empty if the record is of this graph, each task ran exactly once, on its worker, and did not fail,
        started after all it waits for had completed, no resource was held beyond its capacity, no named
        worker ran two tasks at once; and, for state cells, if each task saw and made the versions that the
        graph says, no cell was written while it was used, and versions were made in program order. A task
        that ran repeatedly is held to that in each of its executions.

    Raises
    ------
    UsageError
        If it is no record.

    Notes
    -----
    Versions are followed twice: as the dispatcher recorded them, and anew from the times of the tasks.
    """
    expect_tasks(graph)
    if not isinstance(record, RunRecord):
        raise UsageError(
            f"{with_article(type(record).__name__)} is no record of a run",
            hint="verify(graph, result.record)",
        )
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
    found += _wrong_workers(graph, record)
    if any(task.accesses for task in graph.tasks):
        found += dict.fromkeys(_wrong_versions(graph, record))  # the two ways may find the same
    return tuple(found)


def _wrong_workers(graph: TaskGraph, record: RunRecord) -> list[WrongWorker]:
    expected = {task.id: task.worker for task in graph.tasks if task.worker is not None}
    return [
        WrongWorker(run.task, run.worker, expected[run.task])
        for run in record.tasks
        if expected.get(run.task, run.worker) != run.worker
    ]


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
    workers = {task.worker for task in graph.tasks if task.worker is not None}
    for number, run in enumerate(record.tasks):
        if run.task not in graph.index or run.end_ns < run.start_ns:
            continue
        uses = graph.tasks[graph.index[run.task]].resources
        where = worker_resource(run.worker)  # where it ran, not where it should have
        if run.worker in workers and all(use.resource != where for use in uses):
            uses = (*uses, Use(where, exclusive=True))
        for use in uses:
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


def _wrong_versions(graph: TaskGraph, record: RunRecord) -> list[Violation]:
    """Follow each cell's copy through the record, by what was recorded and by the times."""
    found: list[Violation] = []
    users: dict[Key, list[tuple[int, CellAccess]]] = {}
    for number, run in enumerate(record.tasks):
        if run.task not in graph.index:
            continue
        accesses = graph.tasks[graph.index[run.task]].accesses
        found += _recorded_otherwise(run, accesses)
        if run.end_ns >= run.start_ns:
            for access in accesses:
                users.setdefault(access.key, []).append((number, access))
    for key in sorted(users):
        found += _followed(graph, record, users[key])
    return found


def _recorded_otherwise(run: TaskRun, accesses: tuple[CellAccess, ...]) -> Iterable[Violation]:
    """What the record says that a task saw and made, against the graph."""
    seen = {(cell, copy): version for cell, copy, version in run.seen}
    made = {(cell, copy): version for cell, copy, version in run.made}
    for access in accesses:
        if access.sees is not None and seen.get(access.key) != access.sees:
            yield WrongVersionSeen(run.task, *access.key, access.sees, seen.get(access.key))
        makes = None if run.failed else access.makes
        if made.pop(access.key, None) != makes:
            recorded = {(cell, copy): version for cell, copy, version in run.made}
            yield WrongVersionMade(run.task, *access.key, makes, recorded.get(access.key))
    for (cell, copy), version in made.items():
        yield WrongVersionMade(run.task, cell, copy, None, version)


def _followed(graph: TaskGraph, record: RunRecord, users: list[tuple[int, CellAccess]]) -> list[Violation]:
    """One cell's copy over time. Intervals are half-open, as for resources."""
    events: list[tuple[int, int, int, CellAccess]] = []
    for number, access in users:
        run = record.tasks[number]
        if run.start_ns == run.end_ns:
            events.append((run.start_ns, _INSTANT, number, access))
        else:
            events.append((run.start_ns, _TAKE, number, access))
            events.append((run.end_ns, _RELEASE, number, access))
    found: list[Violation] = []
    version = INITIAL
    holders: dict[int, CellAccess] = {}
    made_by: list[int] = []
    for at_ns, phase, number, access in sorted(events, key=lambda e: e[:3]):
        run = record.tasks[number]
        if phase != _RELEASE:
            if access.sees is not None and access.sees != version:
                found.append(WrongVersionSeen(run.task, *access.key, access.sees, version))
            if holders and (access.makes is not None or any(h.makes is not None for h in holders.values())):
                names = tuple(record.tasks[n].task for n in (*holders, number))
                found.append(WrittenWhileUsed(*access.key, at_ns, names))
            holders[number] = access
        if phase != _TAKE:
            del holders[number]
            if access.makes is not None and not run.failed:
                version = access.makes
                made_by.append(graph.index[run.task])
    for a, b in pairwise(made_by):
        if b < a:
            cell, copy = users[0][1].key
            found.append(VersionsReordered(cell, copy, graph.tasks[b].id, graph.tasks[a].id))
    return found
