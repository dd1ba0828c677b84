"""Refusals name the dependencies that forbid something."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.rl_programs import make
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.dependencies import dependencies
from rlprof.overlap.optimize.refusals import shortened, why_ordered
from rlprof.overlap.optimize.search import search
from rlprof.overlap.transforms.common import Reach
from tests.overlap.optimize.test_search import PLAIN, paths, program_with


def is_path(graph: CallGraph, way: str) -> bool:
    """Whether each call of a path needs what the one before it makes: a value, or the cell that is named."""
    known = {(d.source, d.target, d.item) for d in dependencies(graph)}
    for before, here in pairwise(way.split(" -> ")):
        if "further calls" in before + here:
            continue
        cell, _, target = here.rpartition(") ")
        if (before.rpartition(") ")[2], target, cell.removeprefix("(")) not in known:
            return False
    return True


@pytest.mark.parametrize(
    "node", ["iteration/sync", "iteration/advantages", "iteration/training/pass/part/minibatch/update"]
)
def test_a_refused_move_names_a_way_by_which_two_calls_depend_on_each_other(node: str) -> None:
    program = program_with(**PLAIN, copies=1, epochs=2, values=True)
    ways = [
        way
        for r in search(program.graph, node, {}).refused
        if r.name.startswith("rewire")
        for way in paths(r.reason)
    ]
    assert ways
    assert all(is_path(program.graph, way) for way in ways)


@pytest.mark.parametrize("seed", range(8))
def test_ways_are_dependencies_of_the_graph_and_cells_are_named(seed: int) -> None:
    graph = make(seed).graph
    reach, cells = Reach(graph), False
    for node in {call.node for call in graph.calls}:
        for other in {call.node for call in graph.calls} - {node}:
            why = why_ordered(reach, [(graph.below(node), graph.below(other))])
            ways = paths(why)
            assert all(is_path(graph, way) for way in ways)
            assert bool(ways) == ("dependencies" in why)
            cells |= any("(" in way for way in ways)
    assert cells


def test_the_middle_of_a_long_way_is_counted() -> None:
    way = " -> ".join(f"call[{i}]" for i in range(12))
    assert shortened(way).split(" -> ")[4:] == ["call[4]", "5 further calls", "call[10]", "call[11]"]
    assert shortened(" -> ".join("abcdefgh")) == " -> ".join("abcdefgh")
