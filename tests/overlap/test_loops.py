"""The table of loops in Rose, section 4.2.2: each row, its variants, and what each answer has to name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlprof.overlap.build import call_graph
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.dependencies import dependencies
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.loops import LoopIndependence, loop_independence
from rlprof.overlap.specs import Cell
from tests.overlap.made import NOTHING, External, Script, record, use, value

STATES = {"ENV": {"partitions": 4}, "W": {"rollout_weights": True}, "THETA": {}, "OPT": {}, "BATCH": {}}
ENV = tuple(Cell("ENV", k) for k in range(4))


def graph_of(body: Callable[[Script], None], **changed: dict[str, int]) -> CallGraph:
    return call_graph(
        record(body, {name: {**spec, **changed.get(name, {})} for name, spec in STATES.items()})
    )


def rollout(
    s: Script, reset: str = "first", epochs: int = 2, chunks: int = 3, count: int | None = -1
) -> None:
    """epoch: reset; chunk loop of policy and simulator; `reset`: where and what."""
    last = value("rollout/start")
    with s.node("rollout"):
        s.call("start")
        for _ in s.loop("epoch", epochs, declared=count):
            if reset == "first":
                last = s.call("reset", uses=use("refresh", *ENV))
            if reset == "partial":
                last = s.call("reset", uses=use("refresh", *ENV[:2]))
            for _ in s.loop("chunk", chunks):
                action = s.call("policy", last, uses=use("read", "W"))
                last = s.call("simulator", action, uses=use("update", *ENV))
            if reset == "last":
                last = s.call("reset", uses=use("refresh", *ENV))


def flows(found: LoopIndependence) -> set[tuple[str, str, str]]:
    names = (
        (f.source.rpartition("/")[2], f.target.rpartition("/")[2], f.cell.state if f.cell else "output")
        for f in found.flows
    )
    return set(names)


def test_chunk_is_dependent_through_simulator_and_observation() -> None:
    found = loop_independence(graph_of(rollout), "rollout/epoch/chunk")
    assert found.kind == "dependent"
    assert flows(found) == {("simulator", "policy", "output"), ("simulator", "simulator", "ENV")}
    first = next(f for f in found.flows if f.cell is None)
    assert (first.source_iteration, first.target_iteration) == (0, 1)
    assert first.source == "rollout/epoch[0]/chunk[0]/simulator"
    assert first.target == "rollout/epoch[0]/chunk[1]/policy"


def test_epoch_is_free_if_reset_comes_first() -> None:
    found = loop_independence(graph_of(rollout), "rollout/epoch")
    assert (found.kind, found.flows, found.count) == ("free", (), 2)
    assert found.refreshed == ("ENV",)
    assert found.read_only == ("W",)
    assert found.written == ("ENV",)
    assert found.alive == 1, "one copy of ENV: one epoch alive"


def test_copies_say_how_many_epochs_may_be_alive() -> None:
    graph = graph_of(rollout, ENV={"copies": 3})
    assert loop_independence(graph, "rollout/epoch").alive == 3


def test_epoch_without_reset_is_dependent() -> None:
    found = loop_independence(graph_of(lambda s: rollout(s, "never")), "rollout/epoch")
    assert found.kind == "dependent"
    assert flows(found) == {("simulator", "policy", "output"), ("simulator", "simulator", "ENV")}


def test_epoch_with_reset_at_its_end_is_dependent() -> None:
    found = loop_independence(graph_of(lambda s: rollout(s, "last")), "rollout/epoch")
    assert found.kind == "dependent"
    assert flows(found) == {("reset", "policy", "output"), ("reset", "simulator", "ENV")}


def test_epoch_with_partial_reset_is_dependent() -> None:
    found = loop_independence(graph_of(lambda s: rollout(s, "partial")), "rollout/epoch")
    assert found.kind == "dependent"
    assert flows(found) == {("simulator", "simulator", "ENV")}
    assert found.flows[0].cells == ENV[2:], "only what was not refreshed flows"


def test_partitions_that_depend_on_data_count_as_update_of_the_whole() -> None:
    def body(s: Script) -> None:
        with s.node("rollout"):
            for _ in s.loop("epoch", 2):
                s.call("reset", uses=use("refresh", *(ENV if s.run else ENV[:3])))
                s.call("simulator", uses=use("update", *ENV))

    found = loop_independence(graph_of(body), "rollout/epoch")
    assert found.kind == "dependent"
    assert ("simulator", "reset", "ENV") in flows(found)


def test_minibatches_are_dependent_through_weights_and_optimiser_and_not_through_the_batch() -> None:
    def body(s: Script) -> None:
        with s.node("train"):
            s.call("fill", uses=use("refresh", *(Cell("BATCH", i) for i in range(3))))
            for i in s.loop("minibatch", 3):
                s.call("step", uses=(*use("read", Cell("BATCH", i)), *use("update", "THETA", "OPT")))

    found = loop_independence(graph_of(body), "train/minibatch")
    assert found.kind == "dependent"
    assert flows(found) == {("step", "step", "THETA"), ("step", "step", "OPT")}
    assert found.read_only == ("BATCH",)


def test_a_partition_for_each_iteration_is_free_and_needs_no_copies() -> None:
    def body(s: Script) -> None:
        with s.node("train"):
            for i in s.loop("minibatch", 3):
                s.call("fill", uses=use("refresh", Cell("BATCH", i)))
                s.call("use", uses=use("update", Cell("BATCH", i)))

    found = loop_independence(graph_of(body), "train/minibatch")
    assert (found.kind, found.alive, found.written) == ("free", None, ())


def training(s: Script, *, rollout_reads: str = "W", epochs: int = 2) -> None:
    with s.node("training"):
        for _ in s.loop("iteration", 2):
            s.call("sync", uses=(*use("read", "THETA"), *use("refresh", "W")))
            with s.node("rollout"):
                seen = []
                for _ in s.loop("epoch", epochs):
                    s.call("reset", uses=use("refresh", *ENV))
                    seen.append(s.call("simulate", uses=(*use("read", rollout_reads), *use("update", *ENV))))
            s.call("train", *seen, uses=use("update", "THETA"))


def test_iteration_is_dependent_through_the_trained_weights_and_not_the_published_ones() -> None:
    graph = graph_of(training)
    found = loop_independence(graph, "training/iteration")
    assert found.kind == "dependent"
    assert flows(found) == {("train", "sync", "THETA"), ("train", "train", "THETA")}
    assert {"W", "ENV"} <= set(found.refreshed)
    assert loop_independence(graph, "training/iteration/rollout/epoch").free


def test_training_on_an_epoch_shares_no_edge_with_later_epochs_unless_the_rollout_reads_what_is_trained() -> (
    None
):
    """Figure 9 (b): train follows each epoch; the next epoch does not wait for it, nor it for the next."""

    def body(read: str) -> Callable[[Script], None]:
        def script(s: Script) -> None:
            with s.node("iteration"):
                s.call("sync", uses=(*use("read", "THETA"), *use("refresh", "W")))
                for _ in s.loop("epoch", 2):
                    s.call("reset", uses=use("refresh", *ENV))
                    data = s.call("simulate", uses=(*use("read", read), *use("update", *ENV)))
                    s.call("train", data, uses=use("update", "THETA"))

        return script

    def between(read: str) -> set[tuple[str, str]]:
        found = dependencies(graph_of(body(read)))
        names = {(d.source, d.target) for d in found}
        return {(a, b) for a, b in names if "train" in a + b and "epoch[0]" in a and "epoch[1]" in b}

    train, later = "iteration/epoch[0]/train", "iteration/epoch[1]/train"
    assert between("W") == {(train, later)}, "only training follows training"
    assert (train, "iteration/epoch[1]/simulate") in between("THETA")
    assert loop_independence(graph_of(body("W")), "iteration/epoch").kind == "dependent"


def test_the_last_rollout_delays_training_only_if_it_reads_the_trained_weights() -> None:
    def waits(read: str) -> bool:
        graph = graph_of(lambda s: training_without_data(s, read))
        return any(
            d.target == "training/train" and d.source.endswith("simulate") for d in dependencies(graph)
        )

    def training_without_data(s: Script, read: str) -> None:
        with s.node("training"):
            s.call("sync", uses=(*use("read", "THETA"), *use("refresh", "W")))
            s.call("simulate", uses=use("read", read))
            s.call("train", uses=use("update", "THETA"))

    assert not waits("W")
    assert waits("THETA")


def test_no_fixed_count_is_dependent_even_without_flows() -> None:
    """Inside a region such a loop is folded; its parent runs as one unit and says why."""

    def body(s: Script) -> None:
        with s.node("iteration"), s.node("rollout"):
            for _ in s.loop("epoch", 2, declared=None):
                s.call("reset", uses=use("refresh", *ENV))

    graph = graph_of(body)
    found = loop_independence(graph, "iteration/rollout/epoch")
    assert found.kind == "dependent"
    assert "no fixed count" in found.reason
    assert "iteration/rollout" in found.reason


def test_an_undeclared_node_makes_its_loop_dependent() -> None:
    def body(s: Script) -> None:
        with s.node("rollout"):
            for _ in s.loop("epoch", 2):
                s.call("log", uses=use("update", "component:logger"))

    found = loop_independence(graph_of(body), "rollout/epoch")
    assert flows(found) == {("log", "log", "component:logger")}


def test_storing_over_a_value_that_is_still_read_is_no_flow() -> None:
    def body(s: Script) -> None:
        with s.node("rollout"):
            for _ in s.loop("epoch", 3):
                s.call("write", uses=use("refresh", "OPT"))
                s.call("look", uses=use("read", "OPT"))

    found = loop_independence(graph_of(body), "rollout/epoch")
    assert (found.kind, found.written, found.alive) == ("free", ("OPT",), 1)


def test_flow_that_skips_iterations() -> None:
    """Iteration 2 takes what iteration 0 made; iteration 1 has no part in it."""

    def body(s: Script) -> None:
        with s.node("rollout"):
            for i in s.loop("epoch", 3):
                s.call("step", *([value("rollout/epoch[0]/step")] if i == 2 else []))

    found = loop_independence(graph_of(body), "rollout/epoch")
    assert [(f.source_iteration, f.target_iteration) for f in found.flows] == [(0, 2)]


def test_nested_loops_are_flattened() -> None:
    """The inner loop carries a flow, the outer none; and the other way round."""

    def body(s: Script) -> None:
        with s.node("region"):
            for i in s.loop("outer", 2):
                for _ in s.loop("inner", 2):
                    s.call("across", uses=use("update", Cell("ENV", i)))
                for k in s.loop("other", 2):
                    s.call("along", uses=use("update", Cell("BATCH", k)))

    graph = graph_of(body)
    assert loop_independence(graph, "region/outer/inner").kind == "dependent"
    assert loop_independence(graph, "region/outer/other").free
    assert flows(loop_independence(graph, "region/outer")) == {("along", "along", "BATCH")}


def test_two_executions_of_a_loop_are_told_apart() -> None:
    """What flows from a loop's first execution into its second is no flow between its iterations."""

    def body(s: Script) -> None:
        with s.node("region"):
            for _ in range(2):
                for i in s.loop("epoch", 2):
                    s.call("step", uses=use("update", Cell("BATCH", i)))

    graph = graph_of(body)
    assert loop_independence(graph, "region/epoch").free


def test_the_loop_of_which_the_region_is_an_iteration() -> None:
    def body(s: Script) -> None:
        with s.node("iteration", spec={"kind": "loop", "count": 10}):
            s.call("sync", uses=(*use("read", "THETA"), *use("refresh", "W")))
            s.call("rollout", uses=use("read", "W"))
            s.call("train", uses=use("update", "THETA"))

    found = loop_independence(graph_of(body), "iteration")
    assert found.kind == "dependent"
    assert flows(found) == {("train", "sync", "THETA"), ("train", "train", "THETA")}
    assert found.refreshed == ("W",)


def test_the_region_loop_cannot_be_free_while_its_arguments_may_come_from_before() -> None:
    def body(s: Script) -> None:
        with s.node("iteration", spec={"kind": "loop", "count": 10}):
            s.call("rollout", External((0, 0)))

    found = loop_independence(graph_of(body), "iteration")
    assert found.kind == "dependent"
    assert "argument" in found.reason


@pytest.mark.parametrize("path", ["rollout", "nowhere"])
def test_what_is_no_loop_is_refused(path: str) -> None:
    with pytest.raises(OverlapError, match=r"no loop node.*rollout/epoch"):
        loop_independence(graph_of(rollout), path)


def test_a_loop_that_was_not_called_is_refused() -> None:
    graph = graph_of(rollout)
    spec = graph.nodes["rollout/epoch"]
    more = graph.changed("", nodes={**graph.nodes, "rollout/late": spec})
    with pytest.raises(OverlapError, match="was not called"):
        loop_independence(more, "rollout/late")


def test_nothing_made_means_nothing_flows() -> None:
    def body(s: Script) -> None:
        with s.node("region"):
            for _ in s.loop("epoch", 2):
                s.call("step", NOTHING)

    found = loop_independence(graph_of(body), "region/epoch")
    assert found == LoopIndependence("region/epoch", "free", 2)
