"""Dependencies against a slow reference: a memory in which every write leaves its name, in all orders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.overlap.bindings import Ref, arguments
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph
from rlprof.overlap.dependencies import Dependency, dependencies
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.specs import Cell, Mode, NodeSpec, StateSpec

A = Cell("A")


def call(
    name: str, order: int, *accesses: Access, needs: tuple[str, ...] = (), origin: str = "", group: int = 0
) -> Call:
    bound = arguments(tuple(Ref(source) for source in needs), {})
    return Call(name, name, origin or name, order, bound, accesses, group=group)


def graph_of(*calls: Call) -> CallGraph:
    nodes = {"r": NodeSpec("r", None)}
    states = {a.cell.state: StateSpec(a.cell.state, copies=3) for c in calls for a in c.accesses}
    return CallGraph("r", nodes, states, calls, (tuple(c.id for c in calls),), arguments((), {}))


def pairs(graph: CallGraph) -> set[tuple[str, str, str]]:
    return {(d.source, d.target, d.kind) for d in dependencies(graph)}


def test_each_kind() -> None:
    graph = graph_of(
        call("w", 0, Access(A, "refresh", None)),
        call("r", 1, Access(A, "read", "w"), needs=("w",)),
        call("u", 2, Access(A, "update", "w")),
        call("f", 3, Access(A, "refresh", None)),
    )
    assert pairs(graph) == {
        ("w", "r", "data"),
        ("w", "r", "state"),
        ("w", "u", "state"),
        ("w", "u", "storage"),
        ("r", "u", "storage"),
        ("u", "f", "storage"),
    }


def test_readers_do_not_wait_for_each_other() -> None:
    assert pairs(graph_of(call("a", 0, Access(A, "read", "")), call("b", 1, Access(A, "read", "")))) == set()


def test_a_spare_copy_frees_the_writer_of_its_readers() -> None:
    """The refresh into copy 1 waits for nobody; the next one into copy 0 waits for the readers there."""
    graph = graph_of(
        call("old", 0, Access(A, "read", INITIAL)),
        call("fresh", 1, Access(A, "refresh", None, 1)),
        call("new", 2, Access(A, "update", "fresh", 1)),
        call("last", 3, Access(A, "refresh", None)),
    )
    assert pairs(graph) == {
        ("fresh", "new", "state"),
        ("fresh", "new", "storage"),
        ("old", "last", "storage"),
    }


def test_parts_of_a_split_call_write_their_own_cells() -> None:
    """Each consumer waits for the part that has its samples; an unsplit one for both."""
    cells = (Cell("A", 0), Cell("A", 1))
    graph = graph_of(
        call("s@0", 0, Access(cells[0], "update", ""), origin="s", group=0),
        call("s@1", 0, Access(cells[1], "update", ""), origin="s", group=1),
        call("t@0", 1, Access(cells[0], "read", "s"), origin="t", group=0),
        call("t@1", 1, Access(cells[1], "read", "s"), origin="t", group=1),
        call("all", 2, *(Access(c, "read", "s") for c in cells)),
    )
    assert pairs(graph) == {
        ("s@0", "t@0", "state"),
        ("s@1", "t@1", "state"),
        ("s@0", "all", "state"),
        ("s@1", "all", "state"),
    }


def test_parts_that_read_one_cell_both_hold_back_the_next_write() -> None:
    graph = graph_of(
        call("p@0", 0, Access(A, "read", ""), origin="p", group=0),
        call("p@1", 0, Access(A, "read", ""), origin="p", group=1),
        call("w", 1, Access(A, "update", "")),
    )
    assert pairs(graph) == {("p@0", "w", "storage"), ("p@1", "w", "storage")}


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ((call("a", 0, needs=("gone",)),), "output of gone"),
        ((call("a", 0, Access(A, "read", "gone")),), "as gone writes it"),
        ((call("a", 0, Access(A, "read", INITIAL, 1)),), "copy 1 of A, where nothing lies"),
        (
            (call("w", 0, Access(A, "refresh", None)), call("a", 1, Access(A, "read", INITIAL))),
            "the initial version in copy 0 of A, where what w writes lies",
        ),
        (
            (call("w", 0, Access(A, "refresh", None, 1)), call("a", 1, Access(A, "read", "w"))),
            "what w writes in copy 0 of A, where the initial version lies",
        ),
        (
            # both parts update a cell that is not partitioned
            (
                call("u@0", 0, Access(A, "update", INITIAL), origin="u"),
                call("u@1", 0, Access(A, "update", INITIAL), origin="u", group=1),
            ),
            "u@1 needs the initial version",
        ),
    ],
)
def test_what_no_order_can_give_is_refused(calls: tuple[Call, ...], message: str) -> None:
    with pytest.raises(OverlapError, match=message):
        dependencies(graph_of(*calls))


@st.composite
def graphs(draw: st.DrawFn) -> CallGraph:
    """Native sequences: some refreshes move to a spare copy, which later uses follow."""
    count = draw(st.integers(2, 5))
    version: dict[Cell, str] = {}
    copy: dict[Cell, int] = {}
    calls = []
    for order in range(count):
        name = f"c{order}"
        accesses = []
        modes: dict[int, Mode] = draw(
            st.dictionaries(st.integers(0, 1), st.sampled_from(("read", "update", "refresh")), max_size=2)
        )
        for key, mode in sorted(modes.items()):
            cell = Cell("S", key)
            if mode == "refresh":
                copy[cell] = draw(st.integers(0, 2))
            accesses.append(
                Access(
                    cell, mode, None if mode == "refresh" else version.get(cell, INITIAL), copy.get(cell, 0)
                )
            )
            if mode != "read":
                version[cell] = name
        needs = draw(st.lists(st.integers(0, order - 1), max_size=1)) if order else []
        calls.append(call(name, order, *accesses, needs=tuple(f"c{n}" for n in needs)))
    return graph_of(*calls)


def orders(names: list[str], before: dict[str, set[str]]) -> Iterator[list[str]]:
    """All orders in which each name comes after those that it waits for."""
    if not names:
        yield []
    for name in names:
        if not before[name] & set(names):
            for rest in orders([n for n in names if n != name], before):
                yield [name, *rest]


def right(graph: CallGraph, order: list[str]) -> bool:
    """Run an order: has each call what it needs, and does every copy get its native contents in turn?"""

    def run(order: list[str]) -> dict[tuple[Cell, int], list[str]] | None:
        memory: dict[tuple[Cell, int], list[str]] = {}
        done: set[str] = set()
        for name in order:
            this = graph.by_id[name]
            needs = {leaf.call for leaf in this.arguments.items[0].items if isinstance(leaf, Ref)}  # type: ignore[union-attr]
            if not needs <= done:
                return None
            for access in this.accesses:
                there = memory.get((access.cell, access.copy), [INITIAL if access.copy == 0 else "nothing"])
                if access.sees is not None and there[-1] != access.sees:
                    return None
            for access in this.accesses:
                if access.mode != "read":
                    memory.setdefault((access.cell, access.copy), []).append(name)
            done.add(name)
        return memory

    native = run([c.id for c in graph.calls])
    assert native is not None
    return run(order) == native


def waits(found: tuple[Dependency, ...], names: list[str]) -> dict[str, set[str]]:
    return {name: {d.source for d in found if d.target == name} for name in names}


@settings(max_examples=80, deadline=None)
@given(graphs())
def test_every_order_that_respects_them_is_right_and_none_is_idle(graph: CallGraph) -> None:
    names = [c.id for c in graph.calls]
    before = waits(dependencies(graph), names)
    for order in orders(names, before):
        assert right(graph, order)
    for target in names:
        for source in sorted(before[target]):
            fewer = {**before, target: before[target] - {source}}
            if not reaches(fewer, source, target):  # else it is implied by others
                assert any(not right(graph, order) for order in orders(names, fewer)), (source, target)


def reaches(before: dict[str, set[str]], source: str, target: str) -> bool:
    return any(near == source or reaches(before, source, near) for near in before[target])
