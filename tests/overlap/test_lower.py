from __future__ import annotations

import numpy as np
import pytest

from rlprof.overlap.bindings import Ref, arguments
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph
from rlprof.overlap.lower import lower, priorities, ranges
from rlprof.overlap.specs import Cell, NodeSpec, StateSpec
from rlprof.taskgraph import schedule
from rlprof.taskgraph.task import CellAccess
from tests.overlap.handmade import rollout_graph

GROUPS = ((0, 1, 2), (3, 4, 5))


def test_every_call_is_a_task_with_what_is_known_of_it():
    tasks = lower(rollout_graph(2, GROUPS))
    assert len(tasks) == 8
    task = tasks.tasks[tasks.position_of("rollout/chunk[1]/step@1")]
    assert (task.name, task.payload) == ("rollout/chunk/step", "rollout/chunk/step")
    assert task.worker == "simulator"
    assert task.duration_s == 0.1
    assert dict(task.provenance) == {
        "node": "rollout/chunk/step",
        "origin": "rollout/chunk[1]/step",
        "iteration of rollout/chunk": 1,
        "group": 1,
        "samples": "3-5",
    }
    before = "rollout/chunk[0]/step"
    assert task.accesses[0] == CellAccess("ENV[3]", before, "rollout/chunk[1]/step", 0)
    read = tasks.tasks[tasks.position_of("rollout/chunk[1]/infer@1")].accesses
    assert read == (CellAccess("W", INITIAL, None, 0),)


def test_every_edge_says_why_and_order_is_only_said_where_nothing_else_is():
    tasks = lower(rollout_graph(2, GROUPS))
    found = {(e.source, e.target, e.kind, e.item) for e in tasks.edges}
    for g, cells in ((0, "ENV[0], ENV[1], ENV[2]"), (1, "ENV[3], ENV[4], ENV[5]")):
        assert (f"rollout/chunk[0]/step@{g}", f"rollout/chunk[1]/infer@{g}", "data", "") in found
        assert (f"rollout/chunk[0]/step@{g}", f"rollout/chunk[1]/step@{g}", "state", cells) in found
    assert not {e for e in tasks.edges if e.source[-1] != e.target[-1]}
    assert "order" not in {e.kind for e in tasks.edges}


def test_many_cells_are_counted():
    tasks = lower(rollout_graph(2))
    (item,) = {e.item for e in tasks.edges if e.kind == "state"}
    assert item == "ENV[0], ENV[1], ENV[2] and 3 more"


def made(calls, streams, nodes, order_edges=()) -> CallGraph:
    states = {name: StateSpec(name) for name in ("W", "THETA")}
    return CallGraph("r", nodes, states, calls, streams, Ref(calls[-1].id), order_edges)


def test_state_that_a_synchronisation_publishes_has_edges_of_its_own():
    nodes = {
        "r": NodeSpec("r", None),
        "r/train": NodeSpec("r/train", "r", role="update"),
        "r/sync": NodeSpec("r/sync", "r", role="sync"),
        "r/infer": NodeSpec("r/infer", "r"),
    }
    none = arguments((), {})
    calls = (
        Call("r/train", "r/train", "r/train", 0, none, (Access(Cell("THETA"), "update", INITIAL),)),
        Call(
            "r/sync",
            "r/sync",
            "r/sync",
            1,
            none,
            (Access(Cell("THETA"), "read", "r/train"), Access(Cell("W"), "refresh", None)),
        ),
        Call("r/infer", "r/infer", "r/infer", 2, none, (Access(Cell("W"), "read", "r/sync"),)),
        Call("r/infer#1", "r/infer", "r/infer#1", 3, none),
    )
    graph = made(calls, (("r/train", "r/sync", "r/infer", "r/infer#1"),), nodes)
    kinds = {(e.source, e.target): e.kind for e in lower(graph).edges}
    assert kinds == {
        ("r/train", "r/sync"): "publication",
        ("r/sync", "r/infer"): "publication",
        ("r/infer", "r/infer#1"): "order",
    }
    apart = made(calls, tuple((c.id,) for c in calls), nodes, (("r/infer#1", "r/train"),))
    assert {e.kind for e in lower(apart).edges if e.target == "r/train"} == {"order"}


def test_a_parent_that_runs_as_one_unit_holds_what_its_children_need():
    nodes = {
        "r": NodeSpec("r", None),
        "r/p": NodeSpec("r/p", "r", component="A"),
        "r/p/x": NodeSpec("r/p/x", "r/p", component="B", resources=("cuda graph",)),
        "r/q": NodeSpec("r/q", "r", component="B"),
    }
    calls = tuple(Call(n, n, n, i, arguments((), {})) for i, n in enumerate(("r/p", "r/q")))
    tasks = lower(made(calls, (("r/p",), ("r/q",)), nodes)).tasks
    assert {use.resource for use in tasks[0].uses} == {"worker A", "worker B", "cuda graph"}
    assert {use.resource for use in tasks[1].uses} == {"worker B"}


@pytest.mark.parametrize("durations", [True, False])
@pytest.mark.parametrize("groups", [2, 3])
def test_groups_take_turns(durations, groups):
    graph = rollout_graph(4, tuple((g,) for g in range(groups)), durations=True)
    timed = lower(graph)
    order = priorities(
        timed if durations else lower(rollout_graph(4, tuple((g,) for g in range(groups)), durations=False))
    )
    planned = schedule(timed, priority=order)
    steps = [timed.tasks[i].id for i in planned.order if "step" in timed.tasks[i].id]
    assert [s.partition("@")[2] for s in steps] == [str(g) for g in range(groups)] * 4
    native = schedule(lower(rollout_graph(4)))
    assert native.makespan_s == pytest.approx(4 * 0.4)
    if groups == 2:
        assert planned.makespan_s == pytest.approx(4 * 0.2 + 0.1)


def test_a_group_that_came_later_natively_does_not_starve():
    """Three independent chains of equal length on one policy: nobody is a full step behind."""
    graph = rollout_graph(6, ((0, 1), (2, 3), (4, 5)))
    tasks = lower(graph)
    planned = schedule(tasks, priority=priorities(tasks))
    done = dict.fromkeys("012", 0)
    for i in planned.order:
        if "infer" in tasks.tasks[i].id:
            done[tasks.tasks[i].id[-1]] += 1
            assert max(done.values()) - min(done.values()) <= 1


def test_equal_graphs_lower_to_equal_task_graphs():
    a, b = lower(rollout_graph(3, GROUPS)), lower(rollout_graph(3, GROUPS))
    assert a == b
    assert a.hash == b.hash
    assert np.array_equal(priorities(a), priorities(b))


def test_ranges_are_short():
    assert ranges((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
    assert ranges(()) == ""
