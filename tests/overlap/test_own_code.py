"""Parents whose own code does more than route values run as one unit, whatever they call."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rlprof.overlap import LoopNode, Program, wrap
from rlprof.overlap.bindings import External, Pack, sources
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import RecordingError

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
        return self.after(self.parent(self.made()))

    def made(self) -> Array:
        self.number += 1
        return np.array([self.number, 7])


class Computing(Choosing):
    """A parent that computes with what its node returned; the code after it takes a view."""

    def parent(self, x: Array) -> Array:
        return self.child(x) + 1

    def iteration(self) -> Array:
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


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ([(0, 0), (1, 1)], "equal to several arguments of the region"),
        ([(0, 0), (1, 2)], None),
        ([(3, 4), (4, 3)], None),
    ],
)
def test_small_numbers_among_arguments_are_told_apart_by_all_runs(
    given: list[tuple[int, int]], refusal: str | None
) -> None:
    class Scale:
        def times(self, number: int, x: Any) -> Any:
            return x * number

        def run(self, first: int, second: int, x: Any) -> Any:
            return self.times(second, x)

    scale, program = Scale(), Program()
    region = wrap(scale, "run", program)
    wrap(scale, "times", region, stateless=True)
    recording = program.record(
        region, runs=len(given), run=lambda: [scale.run(*pair, np.ones(2)) for pair in given]
    )
    if refusal:
        with pytest.raises(RecordingError, match=refusal):
            program.graph(recording)
    else:
        (call,) = program.graph(recording).calls
        positional = call.arguments.items[0]
        assert isinstance(positional, Pack)
        assert positional.items[0] == External((0, 1))
