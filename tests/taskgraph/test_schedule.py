"""Schedules keep precedence and capacities, and are no shorter than the bounds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings

from rlprof.errors import UsageError
from rlprof.taskgraph import (
    Edge,
    Task,
    TaskGraph,
    UnknownDurationError,
    Use,
    critical_path,
    schedule,
    upward_rank,
    work_s,
)
from rlprof.unavailable import Unavailable

from .made import earliest_starts, graphs, held_at, longest_from, random_graph


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_schedules_keep_precedence_and_capacities(graph: TaskGraph) -> None:
    s = schedule(graph)
    assert sorted(s.order) == list(range(len(graph)))
    assert np.array_equal(s.finish_s, s.start_s + graph.durations_s)
    for edge in graph.edges:
        assert s.start_s[graph.index[edge.target]] >= s.finish_s[graph.index[edge.source]]
    for resource in graph.resources:
        for at_s in s.start_s:
            assert held_at(s, resource, at_s) <= graph.capacity(resource)


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_the_makespan_is_bounded_by_path_and_work(graph: TaskGraph) -> None:
    s = schedule(graph)
    assert s.makespan_s >= critical_path(graph).length_s
    assert all(s.makespan_s >= work - 1e-9 for work in work_s(graph).values())
    assert s.makespan_s <= sum(graph.durations_s)
    if s.makespan_s:
        assert isinstance(s.utilisation_frac, dict)
        assert all(0 <= share <= 1 + 1e-12 for share in s.utilisation_frac.values())


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_no_task_waits_while_all_it_needs_is_free(graph: TaskGraph) -> None:
    s = schedule(graph)
    moments = sorted({0.0, *s.finish_s.tolist()})
    for i, task in enumerate(graph.tasks):
        done = max((s.finish_s[j] for j in graph.predecessors.of(i)), default=0.0)
        for at_s in moments:
            if done <= at_s < s.start_s[i]:
                assert any(
                    held_at(s, use.resource, at_s) + graph.held(use) > graph.capacity(use.resource)
                    for use in task.uses
                )


#: The second task is ready in the moment in which the third one starts, and after it.
NO_TIME = TaskGraph(
    (
        Task("none", duration_s=0.0),
        Task("after", duration_s=0.25, resources=(Use("cores", exclusive=True),)),
        Task("first", duration_s=0.25, resources=(Use("cores", exclusive=True),)),
    ),
    (Edge("none", "after"),),
    {"cores": 4},
)


@given(graphs())
@example(NO_TIME)
@settings(max_examples=50, deadline=None)
def test_of_tasks_with_equal_needs_the_one_of_higher_priority_goes_first(graph: TaskGraph) -> None:
    s, rank = schedule(graph), upward_rank(graph)
    for i, a in enumerate(graph.tasks):
        before = graph.predecessors.of(i)
        ready_s = max((s.finish_s[j] for j in before), default=0.0)
        for j, b in enumerate(graph.tasks):
            if a.uses == b.uses and ready_s <= s.start_s[j] < s.start_s[i]:
                if any(s.start_s[p] == s.finish_s[p] == s.start_s[j] for p in before):
                    continue  # what takes no time ends after others have started in its moment
                assert (-rank[j], j) < (-rank[i], i)


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_upward_rank_and_critical_path_agree_with_all_paths_tried(graph: TaskGraph) -> None:
    durations = graph.durations_s.tolist()
    longest = longest_from(durations, graph.successors)
    assert upward_rank(graph).tolist() == longest
    path = critical_path(graph)
    assert path.length_s == max(longest, default=0.0)
    where = [graph.index[task] for task in path.tasks]
    assert sum(durations[i] for i in where) == path.length_s
    assert all(b in graph.successors.of(a) for a, b in pairwise(where))


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_constraints_of_a_schedule_reproduce_its_times(graph: TaskGraph) -> None:
    s = schedule(graph)
    assert earliest_starts(graph.durations_s.tolist(), s.constraints) == s.start_s.tolist()
    assert critical_path(graph, s).length_s == s.makespan_s


@given(graphs(resources=False))
@settings(max_examples=50, deadline=None)
def test_without_resources_the_makespan_is_the_critical_path(graph: TaskGraph) -> None:
    assert schedule(graph).makespan_s == critical_path(graph).length_s


def test_simulator_of_one_group_beside_policy_of_the_other() -> None:
    """Figure 8 of the Rose paper in small: four units of work on two exclusive resources."""
    tasks = [
        Task(f"{name} {group}", duration_s=duration_s, resources=(Use(resource),), program_order=group)
        for group in (0, 1)
        for name, duration_s, resource in (("policy", 2.0, "gpu"), ("simulator", 1.5, "cores"))
    ]
    graph = TaskGraph(tuple(tasks), tuple(Edge(f"policy {g}", f"simulator {g}") for g in (0, 1)))
    s = schedule(graph)
    starts = {graph.tasks[i].id: s.start_s[i] for i in range(4)}
    assert starts == {"policy 0": 0.0, "policy 1": 2.0, "simulator 0": 2.0, "simulator 1": 4.0}
    assert s.makespan_s == 5.5
    assert s.utilisation_frac == {"gpu": 4 / 5.5, "cores": 3 / 5.5}
    assert s.parallelism == 7 / 5.5
    assert critical_path(graph, s).tasks == ("policy 0", "policy 1", "simulator 1")
    assert s.to_frame().select("task", "lane", "start_s").row(0) == ("policy 0", "gpu", 0.0)


def test_exclusive_use_waits_for_all_units() -> None:
    tasks = (
        Task("small", duration_s=2.0, resources=(Use("cores"),)),
        Task("whole", duration_s=1.0, resources=(Use("cores", exclusive=True),)),
        Task("other", duration_s=1.0, resources=(Use("cores", 3),)),
    )
    s = schedule(TaskGraph(tasks, capacities={"cores": 4}))
    assert dict(zip((t.id for t in s.graph.tasks), s.start_s, strict=True)) == {
        "small": 0.0, "other": 0.0, "whole": 2.0,
    }  # fmt: skip


def test_priority_decides_and_ties_go_by_program_order_then_id() -> None:
    tasks = tuple(
        Task(i, duration_s=1.0, resources=(Use("gpu"),), program_order=p)
        for i, p in (("x", 1), ("b", 0), ("a", 0))
    )
    graph = TaskGraph(tasks)
    assert [graph.tasks[i].id for i in schedule(graph).order] == ["a", "b", "x"]
    upside_down = schedule(graph, priority=np.array([0.0, 1.0, 2.0]))
    assert [graph.tasks[i].id for i in upside_down.order] == ["x", "b", "a"]
    for wrong in (np.zeros(2), np.array([0.0, np.nan, 1.0])):
        with pytest.raises(UsageError, match="3 priorities"):
            schedule(graph, priority=wrong)


def test_a_duration_that_is_not_known_is_named() -> None:
    graph = TaskGraph((Task("a", duration_s=1.0), Task("b")))
    for question in (schedule, critical_path, work_s, upward_rank):
        with pytest.raises(UnknownDurationError, match="'b'"):
            question(graph)  # type: ignore[operator]


def test_a_graph_that_takes_no_time_has_no_utilisation() -> None:
    s = schedule(TaskGraph(()))
    assert s.makespan_s == 0
    assert isinstance(s.utilisation_frac, Unavailable)
    assert isinstance(s.parallelism, Unavailable)
    assert s.to_frame().height == 0


def test_equal_graphs_have_equal_schedules() -> None:
    graph = random_graph(500, seed=1)
    again = TaskGraph(tuple(reversed(graph.tasks)), tuple(reversed(graph.edges)))
    assert np.array_equal(schedule(graph).start_s, schedule(again).start_s)


def test_a_larger_graph_keeps_its_exclusive_resources() -> None:
    graph = random_graph(3000, seed=2)
    s = schedule(graph)
    lanes: dict[str, list[int]] = {}
    for i in s.order:
        lanes.setdefault(graph.tasks[i].resources[0].resource, []).append(i)
    for lane in lanes.values():
        assert (s.start_s[lane[1:]] >= s.finish_s[lane[:-1]]).all()
    assert s.makespan_s >= max(work_s(graph).values()) - 1e-9


def test_tasks_that_complete_at_the_same_time_are_all_done_before_the_next_one_is_chosen() -> None:
    graph = TaskGraph(
        (
            Task("a", duration_s=1.0, program_order=0),
            Task("b", duration_s=1.0, program_order=1),
            Task("short", duration_s=1.0, resources=(Use("gpu"),), program_order=2),
            Task("long", duration_s=5.0, resources=(Use("gpu"),), program_order=3),
        ),
        (Edge("a", "short"), Edge("b", "long")),
    )
    assert schedule(graph).start_s.tolist() == [0.0, 0.0, 6.0, 1.0]
