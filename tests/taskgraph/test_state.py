"""Every task sees the version of state that it names, or the run stops and says why."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlprof.taskgraph import (
    AccessError,
    CellAccess,
    CellInUseError,
    CellVersion,
    Edge,
    RunError,
    SerialBackend,
    Task,
    TaskGraph,
    ThreadBackend,
    VersionMismatchError,
    run,
    schedule,
    state_edges,
    verify,
)
from rlprof.taskgraph.violations import NotRun, VersionsReordered

from .made import as_planned, stateful_tasks


def nothing(task: Task, inputs: Mapping[str, Any]) -> None:
    """Do nothing."""


def read(cell: str, sees: str = "", copy: int = 0) -> CellAccess:
    return CellAccess(cell, sees, None, copy)


def update(cell: str, sees: str, makes: str, copy: int = 0) -> CellAccess:
    return CellAccess(cell, sees, makes, copy)


def refresh(cell: str, makes: str, copy: int = 0) -> CellAccess:
    return CellAccess(cell, None, makes, copy)


def task(id: str, order: int, *accesses: CellAccess) -> Task:
    return Task(id, payload="call", program_order=order, duration_s=1.0, accesses=accesses)


@given(stateful_tasks(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_with_edges_derived_from_accesses_any_order_sees_the_right_versions(
    tasks: tuple[Task, ...], chance: random.Random
) -> None:
    graph = TaskGraph(tasks, state_edges(tasks))
    priority = np.array([chance.random() for _ in tasks])
    for backend in (SerialBackend({"call": nothing}), ThreadBackend({"call": nothing}, workers=3)):
        record = run(graph, backend, priority=priority).record
        assert verify(graph, record) == ()
        runs = {r.task: r for r in record.tasks}
        for t in tasks:
            assert runs[t.id].seen == tuple(
                (a.cell, a.copy, a.sees) for a in t.accesses if a.sees is not None
            )
            assert runs[t.id].made == tuple((a.cell, a.copy, a.makes) for a in t.accesses if a.makes)
    assert verify(graph, as_planned(graph, schedule(graph, priority=priority))) == ()


@given(stateful_tasks(), st.data())
@settings(deadline=None, max_examples=60)
def test_derived_edges_are_exactly_what_conflicting_accesses_need(
    tasks: tuple[Task, ...], data: st.DataObject
) -> None:
    """Two accesses of one copy, one of which writes, are ordered; and each edge is for such a pair."""
    edges = state_edges(tasks)
    graph = TaskGraph(tasks, edges)
    reach = [{i} for i in range(len(tasks))]
    for i in reversed(graph.topological_order):
        for j in graph.successors.of(i):
            reach[i] |= reach[j]
    conflicts = {
        (a.id, b.id)
        for i, a in enumerate(graph.tasks)
        for b in graph.tasks[i + 1 :]
        for x in a.accesses
        for y in b.accesses
        if x.key == y.key and (x.makes or y.makes)
    }
    assert {(e.source, e.target) for e in edges} <= conflicts
    assert all(graph.index[b] in reach[graph.index[a]] for a, b in conflicts)


@given(stateful_tasks(), st.data())
@settings(deadline=None, max_examples=60)
def test_without_one_edge_a_run_in_another_order_is_caught(
    tasks: tuple[Task, ...], data: st.DataObject
) -> None:
    edges = state_edges(tasks)
    assume(edges)
    lost = data.draw(st.sampled_from(edges))
    graph = TaskGraph(tasks, tuple(e for e in edges if (e.source, e.target) != (lost.source, lost.target)))
    priority = np.array(data.draw(st.permutations(range(len(tasks)))), dtype=np.float64)
    # the target would rather go first
    priority[graph.index[lost.target]] += len(tasks)
    started: list[str] = []
    stopped: RunError | None = None
    try:
        record = run(
            graph, SerialBackend({"call": lambda t, inputs: started.append(t.id)}), priority=priority
        ).record
    except (VersionMismatchError, CellInUseError) as error:
        stopped, record = error, error.record
    reordered = lost.target in started and (
        lost.source not in started or started.index(lost.target) < started.index(lost.source)
    )
    found = [v for v in verify(graph, record) if not isinstance(v, NotRun)]
    if reordered:
        assert stopped or found
    elif stopped is None:
        assert found == []
    # as a schedule with overlap: whatever does not keep the lost order is found from the times alone
    planned = schedule(graph, priority=priority)
    source, target = graph.index[lost.source], graph.index[lost.target]
    assume(graph.durations_s[source] > 0 and graph.durations_s[target] > 0)
    kept = planned.finish_s[source] <= planned.start_s[target]
    assert kept == (verify(graph, as_planned(graph, planned)) == ())


def test_a_missing_edge_stops_the_run_before_the_wrong_version_is_seen() -> None:
    ran: list[str] = []
    graph = TaskGraph((task("train", 0, update("W", "", "train")), task("rollout", 1, read("W", "train"))))
    backend = SerialBackend({"call": lambda t, inputs: ran.append(t.id)})
    with pytest.raises(VersionMismatchError, match=r"task rollout needs version 'train' of 'W'") as caught:
        run(graph, backend, priority=np.array([0.0, 1.0]))
    error = caught.value
    assert (error.task, error.cell, error.copy, error.expected, error.found) == (
        "rollout",
        "W",
        0,
        "train",
        "",
    )
    assert ran == []
    assert run(graph, backend, priority=np.array([1.0, 0.0])).record.tasks[1].seen == (
        CellVersion("W", 0, "train"),
    )


def test_a_cell_that_is_written_is_used_by_nobody_else() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(t: Task, inputs: Mapping[str, Any]) -> None:
        begun.set()
        go_on.wait(10)

    def then(t: Task, inputs: Mapping[str, Any]) -> None:
        begun.wait(10)  # "first" runs; what follows this one starts beside it
        threading.Timer(0.05, go_on.set).start()

    for first, second in (
        (refresh("ENV", "first"), read("ENV")),
        (read("ENV"), refresh("ENV", "second")),
        (update("ENV", "", "first"), refresh("ENV", "second")),
    ):
        begun.clear()
        go_on.clear()
        graph = TaskGraph(
            (
                Task("first", payload="slow", program_order=0, accesses=(first,)),
                Task("then", payload="then", program_order=1),
                Task("second", payload="slow", program_order=2, accesses=(second,)),
            ),
            (Edge("then", "second"),),
        )
        with pytest.raises(CellInUseError, match="task second was to start while first used 'ENV'") as caught:
            run(graph, {"slow": slow, "then": then})
        assert caught.value.users == ("first",)
        assert {r.task for r in caught.value.record.tasks} == {"first", "then"}
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer):
            timer.join()


def test_readers_share_a_cell_and_copies_are_separate() -> None:
    meet = threading.Barrier(3, timeout=60)
    graph = TaskGraph(
        (
            task("a", 0, read("ENV")),
            task("b", 1, read("ENV")),
            task("c", 2, refresh("ENV", "c", copy=1)),
        )
    )
    record = run(graph, {"call": lambda t, inputs: meet.wait()}).record
    assert verify(graph, record) == ()


def test_a_task_that_fails_makes_no_version() -> None:
    def fail(t: Task, inputs: Mapping[str, Any]) -> None:
        raise ValueError

    graph = TaskGraph((task("a", 0, update("W", "", "a")),))
    with pytest.raises(RunError) as caught:
        run(graph, {"call": fail})
    (failed,) = caught.value.record.tasks
    assert failed.seen == (CellVersion("W", 0, ""),)
    assert failed.made == ()


def test_writes_without_a_reader_are_compared_with_program_order() -> None:
    """Nobody would see the difference in the run; whoever uses the state afterwards would."""
    graph = TaskGraph((task("a", 0, refresh("W", "a")), task("b", 1, refresh("W", "b"))))
    record = run(graph, SerialBackend({"call": nothing}), priority=np.array([0.0, 1.0])).record
    assert verify(graph, record) == (VersionsReordered("W", 0, "a", "b"),)


def test_contradictions_are_refused_when_the_graph_is_made() -> None:
    w = refresh("W", "a")
    for tasks, message in (
        ([task("a", 0, w, read("W"))], "'a' accesses 'W' twice"),
        ([task("a", 0, CellAccess("W", None))], "neither sees nor makes"),
        ([task("a", 0, read("W", copy=-1))], "neither sees nor makes"),
        ([task("a", 0, update("W", "", ""))], "initial version of 'W'"),
        ([task("a", 0, w), task("b", 1, w)], "'a' and 'b' both make version 'a' of 'W'"),
        ([task("a", 0, w), task("b", 1, read("W", "a", copy=1))], "version 'a' of 'W', copy 1, but no task"),
    ):
        with pytest.raises(AccessError, match=message):
            TaskGraph(tuple(tasks))
    with pytest.raises(AccessError, match="'b' finds version 'a' of 'W', not ''"):
        state_edges([task("a", 0, w), task("b", 1, read("W"))])


def test_a_read_write_chain_is_one_edge_for_each_step() -> None:
    chain = [
        task("a", 0, refresh("ENV", "a")), task("b", 1, update("ENV", "a", "b")),
        task("c", 2, read("ENV", "b")), task("d", 3, read("ENV", "b")), task("e", 4, refresh("ENV", "e")),
    ]  # fmt: skip
    assert {(e.source, e.target) for e in state_edges(chain)} == {
        ("a", "b"), ("b", "c"), ("b", "d"), ("c", "e"), ("d", "e"),
    }  # fmt: skip
    assert {(e.kind, e.item) for e in state_edges(chain)} == {("state", "'ENV'")}
