"""The named examples of figure 9: what they overlap, in the schedule that is predicted for them."""

from __future__ import annotations

import numpy as np
import pytest

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.legality import check
from rlprof.overlap.lower import lower, priorities
from rlprof.overlap.transforms.figure9 import (
    FIGURE_9,
    backbone_beside_denoise,
    split_and_interleave,
    train_beside_next_epoch,
    transfer_beside_compute,
)
from rlprof.taskgraph import schedule
from tests.overlap.graphs import Loop, Node, graph_of, rollout, run, same, state


def spans(graph: CallGraph) -> dict[str, tuple[float, float]]:
    """Start and end of every call in the predicted schedule."""
    tasks = lower(graph)
    planned = schedule(tasks, priority=priorities(tasks))
    times = zip(planned.start_s.tolist(), planned.finish_s.tolist(), strict=True)
    return dict(zip((task.id for task in tasks.tasks), times, strict=True))


def makespan_s(graph: CallGraph) -> float:
    return max(end for _, end in spans(graph).values())


def together(graph: CallGraph, one: str, other: str) -> bool:
    """Some call of one node (its id holds `one`) runs while one of the other does."""
    times = spans(graph)
    return any(
        max(a[0], b[0]) < min(a[1], b[1])
        for x, a in times.items()
        for y, b in times.items()
        if one in x and other in y and x != y
    )


def legal(native: CallGraph, graph: CallGraph) -> None:
    assert check(native, graph) == ()
    for seed in range(3):
        assert same(run(native), run(graph, seed))


def test_a_simulator_steps_for_one_half_while_the_policy_infers_for_the_other() -> None:
    native = rollout(chunks=4)
    graph = split_and_interleave(native, "it/epoch/chunk")
    legal(native, graph)
    times = spans(graph)
    for epoch in range(2):
        start = times[f"it/epoch[{epoch}]/reset"][1]
        for chunk in range(4):
            here = f"it/epoch[{epoch}]/chunk[{chunk}]"
            # halves of calls of 2 s: A infers, then steps while B infers, and so on without a gap
            assert times[f"{here}/policy@0"][0] == pytest.approx(start + 2 * chunk)
            assert times[f"{here}/step@0"] == times[f"{here}/policy@1"]
    assert makespan_s(native) == pytest.approx(2 * (1 + 4 * 4 + 0.5) + 1)
    assert makespan_s(graph) == pytest.approx(2 * (1 + 4 * 2 + 1 + 0.5) + 1)


def training(
    *, span: bool = False, passes: int = 1, reads: str = "W", shuffle: bool = False, trainer: str = "learner"
) -> CallGraph:
    """As real loops: data goes through partitions of a buffer, one for each epoch or minibatch."""
    epochs = Loop(
        "epoch",
        2,
        (
            Node("reset", "simulator", (), {"ENV": "refresh"}, duration_s=2.0, out="obs"),
            Node("policy", "policy", ("obs",), {reads: "read"}),
            Node("step", "simulator", ("policy",), {"ENV": "update"}, out="data[]"),
        ),
    )
    advantage = Loop(
        "advantage",
        2,
        (Node("adv", trainer, ("data0+data1",) if span else ("data[]",), mixes=True, out="adv[]"),),
    )
    update = Node(
        "update",
        trainer,
        ("adv0+adv1",) if shuffle else ("adv[]",),
        {"THETA": "update"},
        mixes=True,
        role="update",
        duration_s=3.0,
    )
    train: Loop = Loop("minibatch", 2, (update,))
    if passes > 1:
        train = Loop("pass", passes, (train,))
    sync = Node("sync", "policy", (), {"THETA": "read", "W": "refresh"}, mixes=True, role="sync")
    return graph_of(
        (sync, epochs, advantage, train), (state("ENV", batch=4), state("W", weights=True), state("THETA"))
    )


def test_b_training_on_an_epoch_runs_beside_the_next_one() -> None:
    native = training()
    graph = train_beside_next_epoch(native, "it/epoch", "it/minibatch")
    legal(native, graph)
    assert together(graph, "minibatch[0]/update", "epoch[1]/reset")
    times = spans(graph)
    assert times["it/minibatch[0]/update"][0] >= times["it/advantage[0]/adv"][1]
    assert makespan_s(graph) < makespan_s(native) - 2.9


def test_b_only_the_first_pass_moves() -> None:
    native = training(passes=2)
    graph = train_beside_next_epoch(native, "it/epoch", "it/pass/minibatch")
    legal(native, graph)
    assert together(graph, "pass[0]/minibatch[0]/update", "epoch[1]/")
    assert not together(graph, "pass[1]", "epoch[1]/")


@pytest.mark.parametrize(
    ("kind", "named"),
    [({"span": True}, "epoch[1]/step"), ({"shuffle": True}, "epoch[1]/step"), ({"reads": "THETA"}, "THETA")],
)
def test_b_is_refused_when_training_needs_all_epochs(kind: dict[str, bool], named: str) -> None:
    with pytest.raises(
        IllegalTransformationError, match="needs all epochs from its first minibatch"
    ) as caught:
        train_beside_next_epoch(training(**kind), "it/epoch", "it/minibatch")  # type: ignore[arg-type]
    assert named in str(caught.value)
    assert "it/minibatch[0]/update" in caught.value.calls


def transfers(own_link: bool = True) -> CallGraph:
    link = "link" if own_link else "simulator"
    return graph_of(
        (
            Node("reset", "simulator", (), {"ENV": "refresh"}, out="obs"),
            Loop(
                "chunk",
                3,
                (
                    Node("policy", "policy", ("obs",), duration_s=2.0),
                    Node("send", link, ("policy",), out="action"),
                    Node("step", "simulator", ("action",), {"ENV": "update"}, duration_s=2.0, out="raw"),
                    Node("receive", link, ("raw",), out="obs"),
                    Node("store", link, ("raw",), {"BUF": "update"}),
                ),
            ),
        ),
        (state("ENV", batch=4), state("BUF", batch=4)),
    )


def test_c_transfers_run_beside_compute() -> None:
    native = transfers()
    graph = transfer_beside_compute(native, ["it/chunk/store"], ["it/chunk/policy", "it/chunk/step"])
    legal(native, graph)
    assert together(graph, "store", "policy")
    assert makespan_s(graph) < makespan_s(native) - 1.9


def test_c_needs_a_second_group_where_each_transfer_is_waited_for() -> None:
    native = transfers()
    nodes = (["it/chunk/send", "it/chunk/receive"], ["it/chunk/policy", "it/chunk/step"])
    with pytest.raises(IllegalTransformationError, match="before or after it/chunk/send") as caught:
        transfer_beside_compute(native, *nodes)
    assert "it/chunk[1]/policy -> it/chunk[1]/send -> it/chunk[1]/step" in str(caught.value)
    graph = transfer_beside_compute(split_and_interleave(native, "it/chunk"), *nodes)
    legal(native, graph)
    assert together(graph, "send@0", "policy@1")
    assert together(graph, "receive@0", "step@1")


def vla(*, one_worker: bool = False) -> CallGraph:
    """Backbone, denoising steps, simulator, and a reward that nothing in the loop waits for."""
    return graph_of(
        (
            Node("reset", "simulator", (), {"ENV": "refresh"}, out="obs"),
            Loop(
                "chunk",
                3,
                (
                    Node("vlm", "vlm", ("obs",), {"W": "read"}, duration_s=4.0),
                    Loop(
                        "denoise",
                        2,
                        (Node("head", "vlm" if one_worker else "head", ("vlm",), duration_s=2.0),),
                    ),
                    Node("step", "simulator", ("head",), {"ENV": "update"}, duration_s=2.0, out="obs"),
                    Node("reward", "simulator", ("obs",), {"ENV": "read"}, duration_s=1.0),
                ),
            ),
        ),
        (state("ENV", batch=4, copies=1), state("W", weights=True)),
    )


def test_d_the_backbone_runs_in_the_other_groups_denoise_window() -> None:
    native = vla()
    nodes = {"backbone": "it/chunk/vlm", "denoise": "it/chunk/denoise", "reward": "it/chunk/reward"}
    graph = backbone_beside_denoise(native, "it/chunk", **nodes)
    legal(native, graph)
    times = spans(graph)
    assert times["it/chunk[0]/vlm@1"][0] == times["it/chunk[0]/denoise[0]/head@0"][0]
    assert together(graph, "vlm@1", "head@0")
    assert makespan_s(graph) < makespan_s(split_and_interleave(native, "it/chunk")) < makespan_s(native)


def test_d_is_refused_on_one_worker() -> None:
    with pytest.raises(IllegalTransformationError, match="both hold vlm, which serves one call at a time"):
        backbone_beside_denoise(
            vla(one_worker=True), "it/chunk", backbone="it/chunk/vlm", denoise="it/chunk/denoise"
        )


def test_all_four_have_names() -> None:
    assert list(FIGURE_9) == ["a", "b", "c", "d"]
    assert np.unique([f.__name__ for f in FIGURE_9.values()]).size == 4
