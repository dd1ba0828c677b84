"""Keyed draws do not depend on order or grouping."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap import Draws, ExecutionNode, LoopNode, at_call, current
from rlprof.overlap.bindings import arguments
from rlprof.overlap.callgraph import Call
from rlprof.overlap.context import CallContext
from rlprof.overlap.errors import OverlapError


def call(origin: str, samples: tuple[int, ...] | None = None, **indices: int) -> Call:
    loops = tuple((name.replace("_", "/"), index) for name, index in indices.items())
    return Call(origin, "main/step", origin, 0, arguments((), {}), indices=loops, samples=samples)


@given(st.integers(1, 12), st.randoms(), st.integers(0, 2**70))
def test_parts_in_any_order_draw_what_the_whole_draws(size: int, rng: random.Random, seed: int) -> None:
    draws = Draws(seed)
    region = CallContext("main", None, 0, False)
    calls = [f"main/step#{k}" if k else "main/step" for k in range(3)]
    whole = {}
    for origin in calls:
        with at_call(region, call(origin)):
            whole[origin] = (draws.normal(size, (2,)), draws.integers(size, 0, 1000), draws.uniform(size))
    units = [(origin, sample) for origin in calls for sample in range(size)]
    rng.shuffle(units)
    while units:
        origin = units[0][0]
        take = [u for u in units if u[0] == origin][: rng.randint(1, size)]
        units = [u for u in units if u not in take]
        samples = tuple(sample for _, sample in take)
        with at_call(region, call(origin, samples)):
            parts = (
                draws.normal(len(samples), (2,)),
                draws.integers(len(samples), 0, 1000),
                draws.uniform(len(samples)),
            )
        for part, full in zip(parts, whole[origin], strict=True):
            assert part.tobytes() == full[list(samples)].tobytes()


def test_every_part_of_the_key_counts() -> None:
    region = CallContext("main", None, 0, False)
    found = []
    for seed, name in ((1, ""), (2, ""), (1, "b")):
        draws = Draws(seed, name)
        for origin in ("main/step", "main/step#1", "main/loop[0]/step", "main/loop[1]/step", "main/other"):
            with at_call(region, call(origin)):
                found += [draws.normal(3), draws.normal(3)]
    numbers = np.concatenate(found)
    assert len(set(numbers.tolist())) == numbers.size == 3 * 5 * 2 * 3


def test_a_graphs_call_draws_what_the_native_one_draws() -> None:
    draws = Draws(7)
    seen: dict[str, tuple[object, ...]] = {}

    def step() -> None:
        context = current()
        assert context is not None
        seen[context.label] = (draws.normal(2).tobytes(), context.indices, context.index)

    def body() -> None:
        for _ in loop(range(2)):
            node()
            node()

    root = LoopNode(None, None, body, name="main")
    loop = LoopNode(2, root)
    node = ExecutionNode(loop, step)
    root()
    root()
    assert len(seen) == 8
    native = dict(seen)
    seen.clear()
    for iteration in (1, 0):
        region = CallContext("main", None, iteration, True)
        for i in (1, 0):
            for k in ("#1", ""):
                with at_call(region, call(f"main/loop[{i}]/step{k}", main_loop=i)):
                    step()
    assert seen == native


def test_outside_of_nodes_draws_are_counted() -> None:
    a, b = Draws(1), Draws(1)
    first = a.normal(2)
    assert (first == b.normal(2)).all()
    assert (first != a.normal(2)).all()


def test_a_number_is_a_shape_of_one_axis() -> None:
    assert (Draws(1).normal(3, 2) == Draws(1).normal(3, (2,))).all()
    assert (Draws(1).uniform(3, 2) == Draws(1).uniform(3, (2,))).all()
    assert (Draws(1).integers(3, 0, 9, 2) == Draws(1).integers(3, 0, 9, (2,))).all()
    assert Draws(1).normal(3).shape == (3,)


def test_rows_and_samples_must_agree() -> None:
    draws = Draws(1)
    part = at_call(CallContext("main", None, 0, False), call("main/step", (4, 2)))
    with part, pytest.raises(OverlapError, match="call main/step draws for 3 samples and works on 2"):
        draws.normal(3)
    with pytest.raises(OverlapError, match="a seed of type str"):
        Draws("1")  # type: ignore[arg-type]


def test_numbers_look_drawn() -> None:
    draws = Draws(11)
    normal = draws.normal(4000)
    assert abs(normal.mean()) < 0.08
    assert abs(normal.std() - 1) < 0.05
    assert set(draws.integers(200, 2, 5).tolist()) == {2, 3, 4}
    uniform = draws.uniform(100, (2, 2))
    assert uniform.shape == (100, 2, 2)
    assert 0 <= uniform.min() < uniform.max() < 1


def test_torch_draws_do_not_depend_on_grouping() -> None:
    torch = pytest.importorskip("torch")
    draws = Draws(5)
    region = CallContext("main", None, 0, False)
    with at_call(region, call("main/step")):
        whole = draws.torch_normal(4, (3,))
    with at_call(region, call("main/step", (3, 1))):
        part = draws.torch_normal(2, (3,))
    assert torch.equal(part, whole[[3, 1]])
    assert len(draws.torch_generators(2)) == 2
