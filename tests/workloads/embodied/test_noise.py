"""Random numbers do not depend on order or grouping."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.workloads.embodied import noise

KEY = (3, "policy", 1, 0, 2)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=8))
def test_a_sample_draws_the_same_in_any_batch(samples: list[int]) -> None:
    every = noise.normal(KEY, np.arange(31), (2, 3))
    some = noise.normal(KEY, np.array(samples), (2, 3))
    assert np.array_equal(some, every[samples])


@settings(deadline=None)
@given(st.tuples(st.integers(0, 5), st.integers(0, 5)), st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_other_keys_draw_otherwise(a: tuple[int, int], b: tuple[int, int]) -> None:
    first, second = (noise.generator(*key, "x").standard_normal(4) for key in (a, b))
    assert np.array_equal(first, second) == (a == b)


def test_keys_do_not_run_into_each_other() -> None:
    assert noise.generator(1, 11).random() != noise.generator(11, 1).random()
    assert noise.generator("1", "1").random() != noise.generator("11").random()


def test_draws_are_normal() -> None:
    drawn = noise.normal(KEY, np.arange(200), (50,))
    assert abs(drawn.mean()) < 0.03
    assert abs(drawn.std() - 1) < 0.03
    assert abs(np.corrcoef(drawn[:100].ravel(), drawn[100:].ravel())[0, 1]) < 0.05


def test_an_order_holds_every_sample_once() -> None:
    assert sorted(noise.permutation(KEY, 17)) == list(range(17))
    assert list(noise.permutation((0,), 17)) != list(noise.permutation((1,), 17))
