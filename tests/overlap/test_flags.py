"""Where a value of which there is one object comes from does not show, so it has to stay what it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest

from rlprof.overlap import Batch, Program, wrap
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import IllegalTransformationError, ReplayError, WrapError
from rlprof.overlap.flags import Flag, check_flags
from rlprof.overlap.recording import Recording
from rlprof.overlap.transforms import split_spatial


class Phase(Enum):
    FIRST = 1
    LATER = 2


class Plain:
    """`step` returns what `values` holds for the iteration; `route` is the code between the calls."""

    def __init__(self, values: list[Any], route: Callable[[Plain, Any, Any], Any]) -> None:
        self.values, self.route = iter(values), route

    def step(self) -> tuple[Any, Any]:
        return np.ones(2), next(self.values)

    def use(self, x: Any, flag: Any = None) -> Any:
        return x, flag

    def iteration(self) -> Any:
        x, flag = self.step()
        return self.route(self, x, flag)


def recorded(
    values: list[Any], route: Callable[[Plain, Any, Any], Any], runs: int = 2
) -> tuple[Plain, Recording]:
    plain, program = Plain(values, route), Program()
    iteration = wrap(plain, "iteration", program)
    for name in ("step", "use"):
        wrap(plain, name, iteration, stateless=True)
    recording = program.record(iteration, runs=runs, run=lambda: [plain.iteration() for _ in range(runs)])
    program.install(program.graph(recording))
    return plain, recording


@pytest.mark.parametrize(
    ("was", "now"), [(False, True), (0, 1), (None, np.ones(1)), ("go", "stop"), (Phase.FIRST, Phase.LATER)]
)
def test_a_flag_that_was_passed_on_and_is_another_one_is_an_error(was: Any, now: Any) -> None:
    plain, _ = recorded([was, was, was, now], lambda p, x, flag: p.use(x, flag))
    assert plain.iteration()[1] is was
    with pytest.raises(ReplayError, match=r"iteration/step returned .* at \[1\], .* iteration got the same"):
        plain.iteration()


def test_a_flag_that_the_region_returns_is_compared() -> None:
    plain, _ = recorded([0, 0, 0, 7], lambda p, x, flag: (p.use(x), flag))
    plain.iteration()
    with pytest.raises(
        ReplayError, match=r"returned int 7 at .*and 0 in every recorded run; iteration got the same"
    ):
        plain.iteration()


def test_code_between_calls_may_branch_on_a_flag() -> None:
    plain, _ = recorded([False, False, True], lambda p, x, done: x if done else p.use(x))
    with pytest.raises(ReplayError, match="the code between calls may branch on it"):
        plain.iteration()


def test_a_flag_that_differed_when_nothing_else_did_need_not_be_compared() -> None:
    plain, recording = recorded([False, True, False, True], lambda p, x, done: p.use(x))
    assert "iteration/step" not in recording.flags
    assert [plain.iteration()[1], plain.iteration()[1]] == [None, None]


def test_a_number_that_nobody_is_given_need_not_be_compared() -> None:
    _, recording = recorded([3, 3], lambda p, x, count: p.use(x))
    assert "iteration/step" not in recording.flags


def test_flags_can_be_ignored() -> None:
    plain, recording = recorded([False, False, True], lambda p, x, done: p.use(x))
    program = plain.iteration.rlprof_node.program  # type: ignore[attr-defined]
    program.install(program.graph(recording), on_flag="ignore")
    plain.iteration()


def test_parts_that_return_lists_are_not_compared_by_position() -> None:
    flags = (Flag("a", (3,), True),)
    check_flags(flags, [1, 2], part=True)
    with pytest.raises(ReplayError):
        check_flags(flags, [1, 2])


def routes(values: list[Any], route: Callable[[Plain, Any, Any], Any]) -> Plain:
    return recorded(values, route)[0]


def numbers(*names: str) -> dict[str, Any]:
    return {name: np.ones(2) for name in names}


@pytest.mark.parametrize(
    ("was", "now", "route"),
    [
        ([1.5, 2.5], [1.5, 2.5, 3.5], lambda p, x, found: [p.use(item) for item in found]),
        ([1.5, 2.5], [1.5, 2.5, 3.5], lambda p, x, found: p.use(found[1:])),
        ((1.5, 2.5), (1.5,), lambda p, x, found: p.use(list(found))),
        (numbers("a"), numbers("a", "b"), lambda p, x, found: {k: p.use(v) for k, v in found.items()}),
        ([[1.5]], [[1.5, 2.5]], lambda p, x, found: p.use(tuple(found[0]))),
    ],
    ids=["items one by one", "a slice", "shorter", "a dict", "nested"],
)
def test_a_container_with_other_items_that_glue_takes_apart_is_an_error(
    was: Any, now: Any, route: Any
) -> None:
    plain = routes([copy.deepcopy(was) for _ in range(3)] + [now], route)
    plain.iteration()
    with pytest.raises(ReplayError, match=r"iteration/step returned a container of .* in every recorded run"):
        plain.iteration()


@pytest.mark.parametrize(
    ("was", "now", "route"),
    [
        ([1.5, 2.5], [1.5, 2.5, 3.5], lambda p, x, found: p.use(found)),
        (numbers("obs", "info"), numbers("obs", "info", "episode"), lambda p, x, found: p.use(found["obs"])),
    ],
    ids=["passed on whole", "by one key"],
)
def test_other_items_that_nobody_looks_for_do_no_harm(was: Any, now: Any, route: Any) -> None:
    plain = routes([copy.deepcopy(was) for _ in range(2)] + [now], route)
    plain.iteration()


@pytest.mark.parametrize("values", [[[1.5], [1.5, 2.5]], [[1.5, 2.5], [1.5]]])
def test_a_container_that_differs_between_recorded_runs_is_no_surprise(values: list[Any]) -> None:
    plain, recording = recorded([*values, [7.5, 8.5, 9.5]], lambda p, x, found: p.use(found[0]))
    assert not [layout for layout in recording.layouts["iteration/step"] if layout.path == (1,)]
    assert plain.iteration()[0] == 7.5


def test_a_generator_runs_after_its_call() -> None:
    program = Program()
    plain = Plain([], lambda p, x, flag: None)
    plain.iteration = lambda: list(plain.step())  # type: ignore[method-assign]
    plain.step = lambda: (n for n in range(3))  # type: ignore[method-assign,assignment,return-value]
    node = wrap(plain, "iteration", program)
    wrap(plain, "step", node, stateless=True)
    with pytest.raises(WrapError, match="node iteration/step returned a generator in iteration/step"):
        program.record(node, run=plain.iteration)
    assert plain.iteration() == [0, 1, 2]


class Split:
    """`make` returns `rows` of a batch, and the batch; `take` is the code between it and `use`."""

    def __init__(self, rows: Callable[[Any], Any], take: Callable[[Any], Any] = lambda found: found) -> None:
        self.rows, self.take = rows, take

    def make(self, x: Any) -> Any:
        return {"rows": self.rows(x), "whole": x}

    def use(self, found: Any) -> Any:
        return found

    def iteration(self, x: Any) -> Any:
        return self.use(self.take(self.make(x)))

    def recorded(self, **batch: Any) -> tuple[Program, CallGraph]:
        program = Program()
        iteration = wrap(self, "iteration", program)
        wrap(self, "make", iteration, stateless=True, batch=Batch(invariant=True, **batch))
        wrap(self, "use", iteration, stateless=True)
        run = lambda: [self.iteration(np.arange(4.0)) for _ in range(2)]  # noqa: E731
        return program, program.graph(program.record(iteration, run=run))


TAKES = [lambda found: found, lambda found: found["rows"], lambda found: found["rows"][1]]


@pytest.mark.parametrize("take", TAKES)
def test_a_list_with_an_item_for_each_sample_is_not_joined_item_by_item(take: Callable[[Any], Any]) -> None:
    """Parts of two samples return two rows of four: joined row by row they would be rows of eight."""
    plain = Split(lambda x: [np.full(4, row) for row in x], take)
    program, graph = plain.recorded()
    program.install(split_spatial(graph, "iteration/make"))
    with pytest.raises(
        ReplayError, match=r"make@0 returned 2 items at \['rows'\] for a part of a batch whose whole"
    ):
        plain.iteration(np.arange(4.0))


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize(
    "rows",
    [
        lambda x: [np.full(2, row) for row in x],
        lambda x: [float(row) for row in x],
        lambda x: [np.float64(row) for row in x],
    ],
    ids=["rows", "numbers", "numbers of numpy"],
)
def test_what_shows_that_it_cannot_be_joined_is_refused_before_it_runs(
    rows: Callable[[Any], Any], take: Callable[[Any], Any]
) -> None:
    _, graph = Split(rows, take).recorded()
    with pytest.raises(
        IllegalTransformationError,
        match=r"what iteration/make returns at \['rows'\]\[[01]\] has no axis of samples, and iteration/use",
    ):
        split_spatial(graph, "iteration/make")


def test_a_number_that_nobody_is_given_joined_does_no_harm() -> None:
    plain = Split(lambda x: float(len(x)), lambda found: found["whole"])
    program, graph = plain.recorded()
    program.install(split_spatial(graph, "iteration/make"))
    assert np.array_equal(plain.iteration(np.arange(4.0)), np.arange(4.0))


def test_a_number_that_every_part_shares_is_not_joined() -> None:
    plain = Split(lambda x: 7.5)
    program, graph = plain.recorded(shared_outputs=("rows",))
    program.install(split_spatial(graph, "iteration/make"))
    assert plain.iteration(np.arange(4.0))["rows"] == 7.5


class Pair(NamedTuple):
    """Rows by sample, and what is the same for all."""

    rows: Any
    scale: Any


@pytest.mark.parametrize("shared", [(1,), ("scale",)])
def test_an_item_of_a_named_tuple_is_shared_by_name_or_by_position(shared: tuple[int | str, ...]) -> None:
    """Also where it is used alone; its two numbers look like samples of a part, and are none."""
    plain = Split(lambda x: x, lambda found: found.scale)
    plain.make = lambda x: Pair(x, np.array([7.5, 8.5]))  # type: ignore[method-assign]
    program, graph = plain.recorded(shared_outputs=shared)
    program.install(split_spatial(graph, "iteration/make"))
    assert plain.iteration(np.arange(4.0)).tolist() == [7.5, 8.5]
