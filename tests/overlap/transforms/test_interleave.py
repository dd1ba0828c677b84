"""Groups in streams of their own, one behind the other; dependencies between them are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlprof.errors import UsageError
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.legality import check
from rlprof.overlap.lower import lower
from rlprof.overlap.specs import Role
from rlprof.overlap.transforms import interleave, merge, rewire, split_chained, split_spatial, split_temporal
from rlprof.taskgraph import schedule
from tests.overlap.graphs import Loop, Node, allowed_order, graph_of, rollout, run, same, state

CHUNK = "it/epoch/chunk"


def test_groups_take_turns_on_every_worker() -> None:
    native = rollout()
    graph = interleave(split_spatial(native, CHUNK, 2), CHUNK)
    assert [len(s) for s in graph.streams] == [5, 12, 12]
    here = "it/epoch[0]/chunk"
    turns = {
        (f"{here}[{i}]/{node}@0", f"{here}[{i}]/{node}@1") for i in range(3) for node in ("policy", "step")
    }
    assert turns <= set(graph.order_edges)
    assert check(native, graph) == ()
    # a second time changes nothing
    assert interleave(graph, CHUNK) == graph


def test_a_block_of_calls_on_one_worker_is_not_torn_apart() -> None:
    """The second group starts when the first leaves the worker, not after its first call."""
    native = graph_of(
        (
            Loop(
                "l",
                2,
                (
                    Node("a", "policy", ("x",)),
                    Node("b", "policy", ("a",)),
                    Node("c", "simulator", ("b",), {"ENV": "update"}, out="x"),
                ),
            ),
        ),
        (state("ENV", batch=4),),
    )
    graph = interleave(split_spatial(native, "it/l"), "it/l")
    assert ("it/l[0]/b@0", "it/l[0]/a@1") in graph.order_edges
    assert ("it/l[0]/b@1", "it/l[1]/a@0") in graph.order_edges
    assert check(native, graph) == ()


def test_answers_of_two_groups_do_not_take_turns_within() -> None:
    """Of an answer of several calls all run before the other group's: else both end together, late."""
    phases = tuple(Node(f"p{i}", "policy", (f"p{i - 1}" if i else "x",)) for i in range(4))
    step = Node("step", "simulator", ("p3",), {"ENV": "update"}, out="x", duration_s=6.0)
    epoch = (Node("reset", "simulator", (), {"ENV": "refresh"}, out="x"), Loop("chunk", 5, (*phases, step)))
    two = replace(state("ENV", copies=2), component="simulator", separate=True)
    native = graph_of((Loop("epoch", 2, epoch),), (two,))
    graph = interleave(split_temporal(native, "it/epoch", 2), "it/epoch")
    turns = [f"it/epoch[{e}]/chunk[{c}]" for c in range(5) for e in range(2) for _ in range(4)]
    for seed in range(5):
        ran = [name for name in allowed_order(graph, seed) if "/p" in name]
        assert [name[: name.index("/p")] for name in ran] == turns
    # 1 s of reset, 5 x (4 s of answer, 6 s of step), 4 s of the first group's first answer
    assert schedule(lower(graph)).makespan_s == 1 + 5 * (4 + 6) + 4


def test_a_component_that_is_not_there_takes_no_turns() -> None:
    graph = split_spatial(rollout(), CHUNK, 2)
    with pytest.raises(UsageError, match=r"no component is called 'polic'.*learner, policy, simulator"):
        interleave(graph, CHUNK, in_turn=("polic",))
    assert interleave(graph, CHUNK, in_turn="policy").hash == interleave(graph, CHUNK, ("policy",)).hash
    bare = graph_of((Loop("l", 3, (Node("a"),)),), ())
    with pytest.raises(UsageError, match="no node of this graph has a component"):
        interleave(split_spatial(bare, "it/l"), "it/l", ("policy",))


def test_turns_are_left_away_where_calls_would_wait_for_each_other() -> None:
    """Inside a block on the device lie two of the policy: the other group cannot go between these."""
    body = (
        Node("a", "policy", ("x",), resources=("device",)),
        Node("b", "simulator", ("a",), resources=("device",)),
        Node("c", "policy", ("b",), {"ENV": "update"}, resources=("device",), out="x"),
        Node("d", "critic", ("x",)),
    )
    native = graph_of((Loop("l", 3, body),), (state("ENV", batch=4),))
    graph = interleave(split_spatial(native, "it/l"), "it/l")
    assert ("it/l[0]/c@0", "it/l[0]/a@1") in graph.order_edges
    assert ("it/l[0]/a@1", "it/l[0]/c@0") not in graph.order_edges
    assert check(native, graph) == ()


def test_a_path_between_halves_is_named() -> None:
    """A whole call in the loop that the next iteration waits for makes each half wait for the other."""
    norm = Node("norm", "policy", ("obs",), {"MEAN": "update"}, mixes=True, out="obs")
    native = graph_of(
        (
            Node("reset", "simulator", (), {"ENV": "refresh"}, out="obs"),
            Loop("chunk", 2, (Node("step", "simulator", ("obs",), {"ENV": "update"}, out="obs"), norm)),
        ),
        (state("ENV", batch=4), state("MEAN")),
    )
    graph = split_spatial(native, "it/chunk/step")
    with pytest.raises(IllegalTransformationError) as caught:
        interleave(graph, "it/chunk")
    assert "a dependency leads from one group to another" in str(caught.value)
    assert caught.value.calls == ("it/chunk[0]/step@1", "it/chunk[0]/norm", "it/chunk[1]/step@0")


def test_what_lies_between_two_executions_of_the_loop_does_not_matter() -> None:
    """The reset of an epoch waits for both halves of the one before; inside an epoch they are apart."""
    native = rollout()
    graph = split_spatial(native, CHUNK)
    assert check(native, interleave(graph, CHUNK)) == ()
    with pytest.raises(IllegalTransformationError, match=r"ENV\[\d\]"):
        interleave(graph, "it")


def test_segments_that_only_wait_are_refused() -> None:
    native = graph_of((Loop("l", 4, (Node("a", "a", (), {"S": "update"}),)),), (state("S"),))
    with pytest.raises(IllegalTransformationError, match=r"a group starts when another is over: .*\(S\)"):
        interleave(split_chained(native, "it/l"), "it/l")


def test_nothing_to_interleave() -> None:
    with pytest.raises(IllegalTransformationError, match="no two groups below it/epoch/chunk"):
        interleave(rollout(), CHUNK)


def test_a_moved_node_keeps_its_stream() -> None:
    native = rollout()
    graph = split_spatial(native, "it/epoch", 2)
    moved = interleave(rewire(graph, "it/epoch/reward", stream="own"), "it/epoch")
    assert check(native, moved) == ()
    assert {s for s in moved.streams if all("reward" in name for name in s)} == {
        ("it/epoch[0]/reward@0", "it/epoch[1]/reward@0"),
        ("it/epoch[0]/reward@1", "it/epoch[1]/reward@1"),
    }


def test_merge_gives_back_the_native_call() -> None:
    native = rollout()
    halves = split_spatial(native, CHUNK)
    assert merge(halves, CHUNK).hash == native.hash
    apart = interleave(halves, CHUNK)
    whole = merge(apart, f"{CHUNK}/policy")
    assert check(native, whole) == ()
    for seed in range(4):
        assert same(run(native), run(whole, seed))
    (policy,) = whole.parts["it/epoch[0]/chunk[1]/policy"]
    assert (policy.samples, policy.duration_s) == (None, 2.0)
    with pytest.raises(IllegalTransformationError, match="nothing is split below it/epoch/reward"):
        merge(halves, "it/epoch/reward")


def test_a_merge_that_would_wait_for_itself_is_refused() -> None:
    """All of one half runs before the other: a whole call in the loop would need what comes after it."""
    native = rollout(epochs=1)
    apart = interleave(split_spatial(native, CHUNK), CHUNK)
    first, second = apart.streams[1:]
    ordered = replace(apart, streams=(apart.streams[0], (*first, *second)), order_edges=())
    assert check(native, ordered) == ()
    with pytest.raises(IllegalTransformationError, match=r"^L2: .*chunk\[1\]/policy"):
        merge(ordered, f"{CHUNK}/policy")


@pytest.mark.parametrize("role", ["update", "sync"])
def test_turns_are_left_away_where_a_boundary_of_training_forbids_them(role: Role) -> None:
    """Boundaries order what no dependency does: a turn against one would have the whole graph refused."""
    body = (Node("a", "policy"), Node("b", "learner", mixes=True, role=role))
    native = graph_of((Loop("l", 4, body),), ())
    graph = interleave(split_temporal(native, "it/l", 2), "it/l")
    assert check(native, graph) == ()
    assert len(graph.streams) > 1
    for seed in range(3):
        ran = [name for name in allowed_order(graph, seed) if name.endswith("b")]
        assert ran == [f"it/l[{i}]/b" for i in range(4)]
