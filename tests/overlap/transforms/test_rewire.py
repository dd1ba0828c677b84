"""Calls move past what they have nothing to do with; anything else is named."""

from __future__ import annotations

import pytest

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.legality import check
from rlprof.overlap.transforms import rewire, split_chained, split_spatial
from tests.overlap.graphs import Loop, Node, graph_of, run, same, state


def program() -> CallGraph:
    return graph_of(
        (
            Node("sync", "policy", (), {"W": "refresh"}, mixes=True, role="sync"),
            Loop(
                "l",
                3,
                (
                    Node("load", "io", ("x",), out="data"),
                    Node("policy", "policy", ("data",), {"W": "read"}),
                    Node("step", "simulator", ("policy",), {"ENV": "update"}),
                    Node("log", "io", ("step",), {"LOG": "update"}, mixes=True),
                    Node("fixed", "io", ("step",), movable=False),
                ),
            ),
            Node("eval", "policy", ("x",), {"W": "read"}),
            Node("peek", "io", (), {"ENV": "read"}),
            Node("wipe", "simulator", (), {"ENV": "refresh"}),
            Node("tail", "io", ("step",)),
        ),
        (state("ENV", batch=4), state("LOG"), state("W", weights=True)),
    )


def nodes_of(graph: CallGraph) -> list[str]:
    (stream,) = graph.streams
    return [name.removeprefix("it/") for name in stream]


def legal(native: CallGraph, graph: CallGraph) -> None:
    assert check(native, graph) == ()
    for seed in range(4):
        assert same(run(native), run(graph, seed))


def test_before_and_after_in_every_iteration() -> None:
    native = program()
    graph = rewire(native, "it/l/log", after="it/l/fixed")
    legal(native, graph)
    assert nodes_of(graph)[1:6] == [f"l[0]/{n}" for n in ("load", "policy", "step", "fixed", "log")]
    graph = rewire(native, "it/tail", before="it/eval")
    legal(native, graph)
    assert nodes_of(graph)[-4:] == ["tail", "eval", "peek", "wipe"]
    graph = rewire(native, "it/eval", before="it/l")
    legal(native, graph)
    assert nodes_of(graph)[:3] == ["sync", "eval", "l[0]/load"]


def test_a_whole_loop_moves() -> None:
    native = program()
    graph = rewire(native, "it/eval", after="it/sync")
    assert nodes_of(rewire(graph, "it/eval", after="it/l")) == nodes_of(native)


def test_own_stream_and_another_nodes_stream() -> None:
    native = program()
    graph = rewire(native, "it/l/log", stream="own")
    legal(native, graph)
    assert graph.streams[1] == tuple(f"it/l[{i}]/log" for i in range(3))
    graph = rewire(graph, "it/peek", stream="it/l/log")
    legal(native, graph)
    assert graph.streams[1][-1] == "it/peek"
    halves = rewire(split_spatial(native, "it/l/policy"), "it/l/policy", stream="own")
    legal(native, halves)
    assert [len(s) for s in halves.streams] == [17, 3, 3]


def test_shift_is_software_pipelining() -> None:
    native = program()
    graph = rewire(native, "it/l/load", shift=-1)
    legal(native, graph)
    # the prologue loads for the first iteration, the last iteration loads nothing
    assert nodes_of(graph)[1:8] == [
        *("l[0]/load", "l[1]/load"),
        *("l[0]/policy", "l[0]/step", "l[0]/log", "l[0]/fixed", "l[2]/load"),
    ]
    assert nodes_of(graph)[8:12] == ["l[1]/policy", "l[1]/step", "l[1]/log", "l[1]/fixed"]
    graph = rewire(native, "it/l/log", shift=2)
    legal(native, graph)
    assert nodes_of(graph)[1:16] == [
        *("l[0]/load", "l[0]/policy", "l[0]/step", "l[0]/fixed"),
        *("l[1]/load", "l[1]/policy", "l[1]/step", "l[1]/fixed"),
        *("l[2]/load", "l[2]/policy", "l[2]/step", "l[0]/log", "l[2]/fixed"),
        *("l[1]/log", "l[2]/log"),
    ]


def test_a_shift_inside_a_segment_stays_there() -> None:
    native = graph_of((Loop("l", 4, (Node("a", "a", ("x",)), Node("b", "b", ("x",)))),), ())
    graph = rewire(split_chained(native, "it/l"), "it/l/b", shift=1)
    legal(native, graph)
    assert graph.streams[1] == ("it/l[2]/a", "it/l[3]/a", "it/l[2]/b", "it/l[3]/b")


REFUSED: list[tuple[str, str, dict[str, object], str, str]] = [
    (
        "needs an output",
        "it/l/step",
        {"before": "it/l/policy"},
        "L2",
        "it/l[0]/policy, whose output it needs",
    ),
    ("is needed", "it/l/step", {"after": "it/l/log"}, "L2", "it/l[0]/log comes before it/l[0]/step"),
    (
        "reads before a write",
        "it/peek",
        {"after": "it/wipe"},
        "L4",
        "of ENV[0] that it/peek has still to read",
    ),
    (
        "writes after a read",
        "it/wipe",
        {"before": "it/peek"},
        "L4",
        "of ENV[0] that it/peek has still to read",
    ),
    (
        "in its own iteration",
        "it/l/log",
        {"after": "it/tail"},
        "rewire",
        "would leave the iterations of loop it/l",
    ),
    ("a shift against the flow", "it/l/step", {"shift": 1}, "L2", "it/l[0]/step"),
    ("reads weights too early", "it/eval", {"before": "it/sync"}, "L2", "whose W it sees"),
    ("a boundary", "it/sync", {"stream": "own"}, "L6", "it/sync has the role 'sync'"),
    ("not movable", "it/l/fixed", {"stream": "own"}, "rewire", "it/l/fixed says that it is not movable"),
    ("not movable inside", "it/l", {"before": "it/sync"}, "rewire", "it/l/fixed says that it is not movable"),
    ("part of itself", "it/l/log", {"before": "it/l"}, "rewire", "are parts of each other"),
    ("no loop", "it/eval", {"shift": 1}, "rewire", "it/eval is in no loop"),
    ("too far", "it/l/log", {"shift": 3}, "rewire", "leaves the 3 iterations"),
    ("nowhere", "it/l/log", {}, "rewire", "says where to"),
    ("to two places", "it/l/log", {"shift": 1, "stream": "own"}, "rewire", "says where to"),
]


@pytest.mark.parametrize(
    ("node", "how", "rule", "reason"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_rewire_is_refused(node: str, how: dict[str, str], rule: str, reason: str) -> None:
    with pytest.raises(IllegalTransformationError) as caught:
        rewire(program(), node, **how)  # type: ignore[arg-type]
    assert caught.value.rule == rule, str(caught.value)
    assert reason in str(caught.value)


def test_an_update_that_nothing_else_holds_back_gets_an_order_edge() -> None:
    """An evaluation reads what the synchronisation does not write; it is held behind it all the same."""
    native = graph_of(
        (
            Node("sync", "policy", (), {"W": "refresh"}, mixes=True, role="sync"),
            Node("other", "io", (), {"V": "read"}),
            Node("late", "io", (), mixes=True, role="sync"),
        ),
        (state("W", weights=True), state("V", weights=True)),
    )
    graph = rewire(native, "it/other", stream="own")
    assert graph.order_edges == (("it/other", "it/late"), ("it/sync", "it/other"))
    assert check(native, graph) == ()
