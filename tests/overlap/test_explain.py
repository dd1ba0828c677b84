"""What a person reads: the names that decide are in it, and nothing that is not so."""

from __future__ import annotations

import pytest

from rlprof.overlap.build import call_graph
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.explain import explain, listed
from rlprof.overlap.specs import Cell
from tests.overlap.made import Script, record, use
from tests.overlap.test_loops import STATES, graph_of, rollout, training


def test_free_loop() -> None:
    text = str(graph_of(rollout).explain("rollout/epoch"))
    assert text.splitlines() == [
        "rollout/epoch: free",
        "  reset refreshes ENV before its first use in each iteration",
        "  W is only read",
        "  no call takes an output of an earlier iteration",
        "  storage: one copy of ENV for each iteration alive; there is 1",
    ]


def test_dependent_loop() -> None:
    text = str(explain(record(rollout, STATES), "rollout/epoch/chunk"))
    assert text.splitlines() == [
        "rollout/epoch/chunk: dependent",
        "  policy takes argument 0 from simulator of the iteration before",
        "  simulator updates ENV as simulator of the iteration before left it",
    ]


def test_iteration_names_what_it_does_not_depend_on() -> None:
    text = str(explain(graph_of(training), "training/iteration"))
    assert "sync reads THETA as train of the iteration before left it" in text
    assert "not because of W: sync refreshes W in each iteration, before its first use" in text


def test_partial_refresh_names_the_partitions() -> None:
    text = str(explain(graph_of(lambda s: rollout(s, "partial")), "rollout/epoch"))
    assert "simulator updates ENV[2] and ENV[3]" in text


def test_partitions_of_its_own() -> None:
    def body(s: Script) -> None:
        with s.node("train"):
            for i in s.loop("minibatch", 2):
                s.call("fill", uses=use("update", Cell("BATCH", i)))

    assert "each iteration uses partitions of its own of BATCH" in str(
        explain(graph_of(body), "train/minibatch")
    )


def test_undeclared_node() -> None:
    def body(s: Script) -> None:
        with s.node("rollout"):
            for _ in s.loop("epoch", 2):
                s.call(
                    "log",
                    uses=use("update", "component:logger"),
                    spec={"component": "logger", "declared": False},
                )

    graph = graph_of(body)
    for path in ("rollout/epoch", "rollout/epoch/log"):
        assert "declares nothing" in str(explain(graph, path))
        assert "component logger" in str(explain(graph, path))


def test_node_and_call_say_what_they_wait_for_and_who_waits() -> None:
    graph = graph_of(rollout)
    assert str(explain(graph, "rollout/epoch[1]/reset")).splitlines() == [
        "rollout/epoch[1]/reset: 1 call",
        "  waits for simulator to be done with ENV, which it overwrites",
        "  policy waits for its output",
        "  simulator waits for ENV as it leaves it",
    ]
    assert "waits for nothing in the region" in str(explain(graph, "rollout/start"))
    assert explain(graph, "rollout/epoch/reset").answer == "2 calls"
    assert "start, reset, policy and simulator" in str(explain(graph, "rollout"))


def test_opaque_nodes_say_why() -> None:
    def body(s: Script) -> None:
        with s.node("region"), s.node("unit"):
            for _ in s.loop("again", 2):
                s.call("step", s.unknown())

    graph = call_graph(record(body))
    assert "no known origin" in str(explain(graph, "region/unit"))
    for inner in ("region/unit/again/step", "region/unit/again"):
        text = str(explain(graph, inner))
        assert "region/unit" in text
        assert "no known origin" in text


def test_unknown_paths_are_refused() -> None:
    graph = graph_of(rollout)
    with pytest.raises(OverlapError, match="no node and no call"):
        explain(graph, "roll")
    spec = graph.nodes["rollout/start"]
    with pytest.raises(OverlapError, match="was not called"):
        explain(graph.changed("", nodes={**graph.nodes, "rollout/late": spec}), "rollout/late")


def test_long_lists_are_cut() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"
