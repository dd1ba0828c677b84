"""Slack is what its definition says, tried out delay by delay."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from rlprof.taskgraph import Edge, Task, TaskGraph, UnknownTaskError, Use, branches, schedule, slack
from rlprof.taskgraph.graph import Links

from .made import delayed, earliest_starts, graphs

STEP_S = 0.25  # durations are multiples of it


def check_by_delaying(graph: TaskGraph, links: Links, total_s: list[float], free_s: list[float]) -> None:
    durations = graph.durations_s.tolist()
    start = earliest_starts(durations, links)
    end = max((s + d for s, d in zip(start, durations, strict=True)), default=0.0)
    for i in range(len(graph)):
        for by_s, allowed in ((total_s[i], True), (total_s[i] + STEP_S, False)):
            moved = delayed(durations, links, i, by_s)
            assert (max(s + d for s, d in zip(moved, durations, strict=True)) <= end) == allowed
        for by_s, allowed in ((free_s[i], True), (free_s[i] + STEP_S, False)):
            moved = delayed(durations, links, i, by_s)
            others_stay = all(moved[j] == start[j] for j in range(len(graph)) if j != i)
            end_stays = moved[i] + durations[i] <= end
            assert (others_stay and end_stays) == allowed


@given(graphs())
@settings(max_examples=60)
def test_slack_of_a_graph_against_delays(graph: TaskGraph) -> None:
    s = slack(graph)
    check_by_delaying(graph, graph.successors, s.total_s.tolist(), s.free_s.tolist())


@given(graphs())
@settings(max_examples=60)
def test_slack_of_a_schedule_against_delays(graph: TaskGraph) -> None:
    planned = schedule(graph)
    s = slack(graph, planned)
    assert s.start_s.tolist() == planned.start_s.tolist()
    check_by_delaying(graph, planned.constraints, s.total_s.tolist(), s.free_s.tolist())


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_free_slack_is_at_most_total_and_a_critical_task_has_none(graph: TaskGraph) -> None:
    s = slack(graph)
    assert (s.free_s >= 0).all()
    assert (s.free_s <= s.total_s).all()
    if len(graph):
        assert s.total_s.min() == 0


def reachable(links: Links, heads: list[int], stop: int) -> set[int]:
    """Tasks that follow `heads`, themselves included, on paths that avoid `stop`."""
    seen, stack = set[int](), [i for i in heads if i != stop]
    while stack:
        i = stack.pop()
        if i not in seen:
            seen.add(i)
            stack += [j for j in links.of(i) if j != stop]
    return seen


@given(graphs(most=9))
@settings(max_examples=60)
def test_branches_are_the_parts_between_a_fork_and_the_first_join_of_all_its_paths(graph: TaskGraph) -> None:
    after, before = graph.successors, graph.predecessors
    finish = slack(graph).start_s + graph.durations_s
    found = branches(graph)
    for fork in (None, *(t.id for t in graph.tasks)):
        heads = (
            [i for i in range(len(graph)) if not before.of(i)]
            if fork is None
            else after.of(graph.index[fork])
        )
        mine = [b for b in found if b.fork == fork]
        # joins: without the task, no end of the graph is reachable; the first is the one all others follow
        ends = {i for i in range(len(graph)) if not after.of(i)}
        joins = [j for j in range(len(graph)) if heads and not reachable(after, heads, j) & ends]
        join = next((j for j in joins if set(joins) <= reachable(after, [j], -1)), len(graph))
        region = reachable(after, heads, join)
        parts = [{i} for i in region]
        for i in region:
            for j in after.of(i):
                if j in region:
                    a, b = (next(p for p in parts if x in p) for x in (i, j))
                    if a is not b:
                        parts.remove(b)
                        a |= b
        if len(heads) < 2 or len(parts) + (join in heads) < 2:
            assert not mine
            continue
        assert {frozenset(b.tasks) for b in mine} == {frozenset(graph.tasks[i].id for i in p) for p in parts}
        assert {b.join for b in mine} == {None if join == len(graph) else graph.tasks[join].id}
        for b in mine:
            assert b.ready_s == max(finish[graph.index[t]] for t in b.tasks)
            assert b.slack_s == max(o.ready_s for o in mine) - b.ready_s


@given(graphs(most=9, resources=False))
@settings(max_examples=60)
def test_a_branch_may_end_later_by_its_slack_without_delaying_its_join(graph: TaskGraph) -> None:
    durations = graph.durations_s.tolist()
    start = earliest_starts(durations, graph.successors)
    for branch in branches(graph):
        if branch.join is None:
            continue
        join = graph.index[branch.join]
        last = max(
            (graph.index[t] for t in branch.tasks if join in graph.successors.of(graph.index[t])),
            key=lambda i: start[i] + durations[i],
        )
        moved = delayed(durations, graph.successors, last, branch.slack_s)
        assert moved[join] == start[join]


def test_slack_of_two_branches_as_in_the_quota_rule() -> None:
    """C0 = 5 s for the policy, F0 = 3 s for the simulator: sigma = 2 s belongs to the simulator."""
    graph = TaskGraph(
        (
            Task("fork", duration_s=1.0),
            Task("policy 1", duration_s=2.0, resources=(Use("gpu"),)),
            Task("policy 2", duration_s=2.0, resources=(Use("gpu"),)),
            Task("simulator", duration_s=2.0, resources=(Use("simulator"),)),
            Task("join", duration_s=1.0),
            Task("tail", duration_s=10.0),
            Task("aside", duration_s=3.0),
        ),
        (
            Edge("fork", "policy 1"), Edge("policy 1", "policy 2"), Edge("policy 2", "join"),
            Edge("fork", "simulator"), Edge("simulator", "join"), Edge("aside", "tail"), Edge("join", "tail"),
        ),
    )  # fmt: skip
    policy, simulator = branches(graph, schedule(graph), forks=["fork"])
    assert (policy.tasks, policy.ready_s, policy.slack_s, policy.total_s) == (
        ("policy 1", "policy 2"),
        5,
        0,
        0,
    )
    assert (simulator.tasks, simulator.ready_s, simulator.slack_s) == (("simulator",), 3, 2)
    assert (simulator.fork, simulator.join) == ("fork", "join")
    start = branches(graph, forks=[None])
    assert [(b.tasks[0], b.join, b.slack_s) for b in start] == [("aside", "tail", 3.0), ("fork", "tail", 0.0)]
    with pytest.raises(UnknownTaskError, match="'gone'"):
        branches(graph, forks=["gone"])


def test_an_exclusive_resource_takes_slack_away() -> None:
    tasks = (
        Task("long", duration_s=4.0),
        Task("a", duration_s=1.0, resources=(Use("gpu"),)),
        Task("b", duration_s=1.0, resources=(Use("gpu"),)),
    )
    graph = TaskGraph(tasks)
    named = {t.id: i for i, t in enumerate(graph.tasks)}
    alone, shared = slack(graph), slack(graph, schedule(graph))
    assert alone.total_s[named["a"]] == 3
    assert shared.total_s[named["a"]] == 2
    assert shared.free_s[named["a"]] == 0
