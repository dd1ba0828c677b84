"""Every kind of disagreement, seeded into a good record, is found as what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlprof.taskgraph import CellAccess, CellVersion, Edge, RunRecord, Task, TaskGraph, TaskRun, Use, verify
from rlprof.taskgraph.violations import (
    BadTimes,
    EdgeBroken,
    Failed,
    NotInGraph,
    NotRun,
    OverCapacity,
    RunRepeatedly,
    VersionsReordered,
    WrittenWhileUsed,
    WrongGraph,
    WrongVersionMade,
    WrongVersionSeen,
    WrongWorker,
)

from .made import as_planned, graphs


def moved(run: TaskRun, start_ns: int) -> TaskRun:
    """The same execution at another time."""
    by_ns = start_ns - run.start_ns
    return run._replace(start_ns=start_ns, returned_ns=run.returned_ns + by_ns, end_ns=run.end_ns + by_ns)


def with_run(record: RunRecord, number: int, run: TaskRun) -> RunRecord:
    return replace(record, tasks=(*record.tasks[:number], run, *record.tasks[number + 1 :]))


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_a_run_as_scheduled_has_no_violation(graph: TaskGraph) -> None:
    assert verify(graph, as_planned(graph)) == ()


@given(graphs(), st.data())
@settings(max_examples=50, deadline=None)
def test_a_task_that_is_missing_repeated_or_foreign(graph: TaskGraph, data: st.DataObject) -> None:
    assume(len(graph))
    record = as_planned(graph)
    number = data.draw(st.integers(0, len(graph) - 1))
    run = record.tasks[number]
    without = replace(record, tasks=record.tasks[:number] + record.tasks[number + 1 :])
    assert verify(graph, without) == (NotRun(run.task),)
    later = moved(run, record.end_ns + 1)
    assert RunRepeatedly(run.task, 2) in verify(graph, replace(record, tasks=(*record.tasks, later)))
    foreign = run._replace(task="foreign")
    assert NotInGraph("foreign") in verify(graph, replace(record, tasks=(*record.tasks, foreign)))
    assert Failed(run.task, run.worker) in verify(graph, with_run(record, number, run._replace(failed=True)))


@given(graphs(resources=False), st.data())
@settings(max_examples=50, deadline=None)
def test_every_edge_that_is_not_kept_is_found_whatever_its_kind(
    graph: TaskGraph, data: st.DataObject
) -> None:
    assume(graph.edges)
    edge = data.draw(st.sampled_from(graph.edges))
    record = as_planned(graph)
    number = next(n for n, r in enumerate(record.tasks) if r.task == edge.target)
    source = next(r for r in record.tasks if r.task == edge.source)
    early = with_run(record, number, moved(record.tasks[number], source.end_ns - 1))
    assert EdgeBroken(edge, 1) in verify(graph, early)


@given(graphs(), st.data())
@settings(max_examples=50, deadline=None)
def test_every_excess_over_a_capacity_is_found(graph: TaskGraph, data: st.DataObject) -> None:
    free = TaskGraph(graph.tasks, (), graph.capacities)
    record = as_planned(free)
    number = data.draw(st.integers(0, max(len(free) - 1, 0)))
    assume(len(free))
    at_ns = data.draw(st.sampled_from([r.start_ns for r in record.tasks]))
    bent = with_run(record, number, moved(record.tasks[number], at_ns))
    excess = set()
    for resource in free.resources:
        units = {t.id: free.held(u) for t in free.tasks for u in t.uses if u.resource == resource}
        for run in bent.tasks:
            # a task of no duration counts inside of others, not at their edges
            instant = run.start_ns == run.end_ns
            holders = [
                o.task
                for o in bent.tasks
                if o.task in units
                and o is not run
                and (o.start_ns < run.start_ns if instant else o.start_ns <= run.start_ns)
                and run.start_ns < o.end_ns
            ]
            if run.task in units and sum(units[t] for t in [run.task, *holders]) > free.capacity(resource):
                excess.add((resource, run.start_ns))
    found = verify(free, bent)
    assert all(isinstance(v, OverCapacity) for v in found)
    assert {(v.resource, v.at_ns) for v in found if isinstance(v, OverCapacity)} == excess


GRAPH = TaskGraph(
    (Task("a", resources=(Use("cores", 2),)), Task("b", resources=(Use("cores", 3),)), Task("c")),
    (Edge("a", "c", "publication", "W"),),
    {"cores": 4},
)


def record_of(*runs: TaskRun) -> RunRecord:
    return RunRecord(GRAPH.hash, runs, 0, 100)


def test_violations_say_what_happened() -> None:
    record = record_of(
        TaskRun("a", "w0", 0, 10, 10), TaskRun("b", "w1", 5, 20, 20), TaskRun("c", "w2", 9, 9, 12)
    )
    assert [str(v) for v in verify(GRAPH, record)] == [
        "task c started 1 ns before a ended; publication edge (W)",
        "5 of 4 units of cores were held at 5 ns by a, b",
    ]


def test_a_device_that_still_works_counts() -> None:
    early = record_of(TaskRun("a", "w", 0, 2, 10), TaskRun("c", "w", 3, 4, 4), TaskRun("b", "w", 10, 11, 11))
    assert verify(GRAPH, early) == (EdgeBroken(GRAPH.edges[0], 7),)


def test_one_may_start_in_the_nanosecond_in_which_another_ends() -> None:
    record = record_of(TaskRun("a", "w", 0, 5, 5), TaskRun("b", "w", 5, 9, 9), TaskRun("c", "w", 5, 6, 6))
    assert verify(GRAPH, record) == ()


@pytest.mark.parametrize("times", [(5, 4, 6), (5, 7, 6), (5, 4, 4)])
def test_times_that_go_backwards(times: tuple[int, int, int]) -> None:
    bad = TaskRun("b", "w", *times)
    record = record_of(TaskRun("a", "w", 0, 1, 1), bad, TaskRun("c", "w", 8, 9, 9))
    assert verify(GRAPH, record) == (BadTimes(bad),)


def test_the_record_of_another_graph() -> None:
    record = replace(as_planned(TaskGraph((Task("a", duration_s=1.0),))), graph_hash="0" * 64)
    graph = TaskGraph((Task("a", duration_s=1.0),))
    assert verify(graph, record) == (WrongGraph("0" * 64, graph.hash),)


def test_a_named_worker_runs_its_tasks_itself_and_one_at_a_time() -> None:
    graph = TaskGraph((Task("a", worker="left"), Task("b", worker="left"), Task("c")))
    runs = (TaskRun("a", "left", 0, 5, 5), TaskRun("b", "right", 4, 6, 6), TaskRun("c", "left", 3, 4, 4))
    assert verify(graph, RunRecord(graph.hash, runs, 0, 9)) == (
        OverCapacity("worker left", 3, ("a", "c"), 2, 1),
        WrongWorker("b", "right", "left"),
    )


STATE = TaskGraph(
    (
        Task("a", program_order=0, accesses=(CellAccess("W", "", "a"),)),
        Task("b", program_order=1, accesses=(CellAccess("W", "a"),)),
        Task("c", program_order=2, accesses=(CellAccess("W", None, "c"),)),
    )
)
INITIAL, BY_A, BY_C = (CellVersion("W", 0, version) for version in ("", "a", "c"))
A = TaskRun("a", "w", 0, 2, 2, False, (INITIAL,), (BY_A,))
B = TaskRun("b", "w", 2, 4, 4, False, (BY_A,))
C = TaskRun("c", "w", 4, 6, 6, False, (), (BY_C,))


@pytest.mark.parametrize(
    ("runs", "violations"),
    [
        ((A, B, C), ()),
        # by the record
        ((A, B._replace(seen=(INITIAL,)), C), (WrongVersionSeen("b", "W", 0, "a", ""),)),
        ((A, B._replace(seen=()), C), (WrongVersionSeen("b", "W", 0, "a", None),)),
        ((A, B, C._replace(made=())), (WrongVersionMade("c", "W", 0, "c", None),)),
        ((A, B, C._replace(made=(BY_A,))), (WrongVersionMade("c", "W", 0, "c", "a"),)),
        ((A, B._replace(made=(BY_C,)), C), (WrongVersionMade("b", "W", 0, None, "c"),)),
        # by the times, whatever was recorded
        ((moved(A, 2), moved(B, 0), C), (WrongVersionSeen("b", "W", 0, "a", ""),)),
        ((A, moved(B, 8), C), (WrongVersionSeen("b", "W", 0, "a", "c"),)),
        ((A, B, moved(C, 3)), (WrittenWhileUsed("W", 0, 3, ("b", "c")),)),
        (
            (moved(A, 9), moved(B, 11), C),
            (WrongVersionSeen("a", "W", 0, "", "c"), VersionsReordered("W", 0, "a", "c")),
        ),
        # a reader and a writer that overlap: nobody knows what was read
        (
            (A, moved(B, 1), C),
            (WrongVersionSeen("b", "W", 0, "a", ""), WrittenWhileUsed("W", 0, 1, ("a", "b"))),
        ),
        # a task that failed made nothing, so the next one could not have seen its version
        (
            (A._replace(failed=True, made=()), B._replace(seen=(BY_A,)), C),
            (Failed("a", "w"), WrongVersionSeen("b", "W", 0, "a", "")),
        ),
    ],
)
def test_versions_are_followed_by_the_record_and_by_the_times(
    runs: tuple[TaskRun, ...], violations: tuple[object, ...]
) -> None:
    found = verify(STATE, RunRecord(STATE.hash, runs, 0, 20))
    assert found == violations
    assert all("W" in str(v) or "failed" in str(v) for v in found)


def test_versions_of_tasks_of_no_duration_follow_the_order_of_the_record() -> None:
    runs = tuple(run._replace(start_ns=7, returned_ns=7, end_ns=7) for run in (A, B, C))
    assert verify(STATE, RunRecord(STATE.hash, runs, 0, 9)) == ()


def test_a_task_that_ran_on_a_worker_that_it_holds_besides_its_own() -> None:
    tasks = (Task("whole", duration_s=1.0, worker="a", resources=(Use("worker b"),)), Task("b", worker="b"))
    graph = TaskGraph(tasks)
    runs = (TaskRun("whole", "b", 0, 5, 5), TaskRun("b", "b", 6, 7, 7))
    found = verify(graph, RunRecord(graph.hash, runs, 0, 7))
    assert [type(violation) for violation in found] == [WrongWorker]
