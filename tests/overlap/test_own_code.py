"""Parents whose own code does more than route values run as one unit, whatever they call."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rlprof.overlap import LoopNode, Program, wrap
from rlprof.overlap.bindings import sources
from rlprof.overlap.callgraph import CallGraph

Array = npt.NDArray[np.int64]


class Choosing:
    """A parent that calls a node only for odd numbers."""

    def __init__(self, first: int) -> None:
        self.number = first

    def child(self, x: Array) -> Array:
        return x * 10

    def parent(self, x: Array) -> Array:
        return self.child(x) if x[0] % 2 else x + 3

    def after(self, x: Array) -> Array:
        return x + 1

    def iteration(self) -> Array:
        self.number += 1
        return self.after(self.parent(self.made()))

    def made(self) -> Array:
        return np.array([self.number, 7])


class Computing(Choosing):
    """A parent that computes with what its node returned; the code after it takes a view."""

    def parent(self, x: Array) -> Array:
        return self.child(x) + 1

    def iteration(self) -> Array:
        self.number += 1
        return self.after(self.parent(self.made())[::-1])


def native_graph(plain: Any) -> CallGraph:
    program = Program()
    iteration = LoopNode(None, program, plain.iteration)
    parent = wrap(plain, "parent", iteration, stateless=True)
    wrap(plain, "child", parent, stateless=True)
    for name in ("made", "after"):
        wrap(plain, name, iteration)
    return program.graph(program.record(iteration, runs=2, run=lambda: [iteration(), iteration()]))


def test_what_a_parent_computed_is_no_constant_because_two_runs_had_equal_inputs() -> None:
    plain = Computing(0)
    plain.made = lambda: np.array([4, 7])  # type: ignore[method-assign]
    graph = native_graph(plain)
    assert sources(graph.by_id["iteration/after"].arguments) == ("iteration/parent",)


@pytest.mark.parametrize("first", [0, 1])
def test_a_parent_that_calls_nothing_in_one_run_is_one_unit(first: int) -> None:
    graph = native_graph(Choosing(first))
    assert "other calls" in graph.opaque["iteration/parent"]
    assert [call.node for call in graph.calls] == ["iteration/made", "iteration/parent", "iteration/after"]


def test_a_view_of_what_a_parent_computed_is_a_view_of_its_output() -> None:
    graph = native_graph(Computing(0))
    assert "iteration/parent" in graph.opaque
    (taken,) = graph.by_id["iteration/after"].arguments.items[0].items  # type: ignore[union-attr]
    assert taken.call == "iteration/parent"
    assert taken.view is not None
    assert taken.view.strides == (-1,)
