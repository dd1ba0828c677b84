"""The native version map, of native and of split graphs."""

from __future__ import annotations

from rlprof.overlap.bindings import arguments
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph
from rlprof.overlap.specs import Cell, NodeSpec, StateSpec
from rlprof.overlap.versions import Version, left_behind, native_versions, sees_natively

LEFT, RIGHT = Cell("S", 0), Cell("S", 1)


def graph_of(*calls: Call) -> CallGraph:
    nodes = {"r": NodeSpec("r", None)}
    states = {"S": StateSpec("S", partitions=2)}
    return CallGraph("r", nodes, states, calls, tuple((c.id,) for c in calls), arguments((), {}))


def call(name: str, order: int, *accesses: Access, origin: str = "", group: int = 0) -> Call:
    return Call(name, "n", origin or name, order, arguments((), {}), accesses, group=group)


def test_parts_of_a_call_write_the_version_of_the_call() -> None:
    graph = graph_of(
        call("a@0", 0, Access(LEFT, "refresh", None), origin="a"),
        call("a@1", 0, Access(RIGHT, "refresh", None), origin="a", group=1),
        call("b@0", 1, Access(LEFT, "update", "a"), origin="b"),
        call("b@1", 1, Access(RIGHT, "read", "a"), origin="b", group=1),
    )
    start = Version(INITIAL, "initial")
    assert native_versions(graph) == {
        LEFT: (start, Version("a", "refresh", ("b",)), Version("b", "update")),
        RIGHT: (start, Version("a", "refresh", ("b",))),
    }
    assert left_behind(graph) == {LEFT: "b", RIGHT: "a"}


def test_what_is_only_read_stays() -> None:
    graph = graph_of(call("a", 0, Access(LEFT, "read", INITIAL)))
    assert left_behind(graph) == {}
    assert native_versions(graph)[LEFT] == (Version(INITIAL, "initial", ("a",)),)


def test_versions_follow_from_order_and_modes_alone() -> None:
    """Whatever the accesses say that they see."""
    graph = graph_of(
        call("a", 0, Access(LEFT, "update", "wrong")),
        call("b", 1, Access(LEFT, "read", INITIAL)),
        call("c", 2, Access(LEFT, "refresh", None)),
    )
    assert sees_natively(graph) == {("a", LEFT): INITIAL, ("b", LEFT): "a", ("c", LEFT): None}
