"""Durations by batch size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.analysis.batch_time import MOST_KEPT, BatchFit, BatchTimes
from rlprof.unavailable import Unavailable


def times(rows: dict[int, list[float]], node: str = "n") -> BatchTimes:
    found = BatchTimes()
    for batch, values in rows.items():
        for value in values:
            found = found.with_observation(node, batch, value)
    return found


@given(st.floats(0, 1), st.floats(0, 0.1), st.lists(st.integers(1, 64), min_size=2, max_size=5, unique=True))
def test_a_line_is_found_again(fixed_s: float, per_sample_s: float, sizes: list[int]) -> None:
    found = times({b: [fixed_s + per_sample_s * b] for b in sizes}).fit("n")
    assert isinstance(found, BatchFit)
    for batch in sizes:
        assert found.at(batch) == pytest.approx(fixed_s + per_sample_s * batch, abs=1e-9)
    assert max(map(abs, found.residuals_s)) < 1e-9


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 10)), min_size=2, max_size=8))
def test_neither_part_is_below_zero(rows: list[tuple[int, float]]) -> None:
    found = BatchTimes()
    for batch, value in rows:
        found = found.with_observation("n", batch, value)
    fit = found.fit("n")
    if isinstance(fit, BatchFit):
        assert fit.fixed_s >= 0
        assert fit.per_sample_s >= 0
        assert fit.sizes == tuple(sorted(fit.sizes))
        for median, left, batch in zip(fit.medians_s, fit.residuals_s, fit.sizes, strict=True):
            assert fit.at(batch) + left == pytest.approx(median)


def test_one_size_is_a_guess_in_proportion() -> None:
    found = times({8: [0.4, 0.5, 0.6]})
    assert isinstance(found.fit("n"), Unavailable)
    assert found.share("n", 1.0) == (0.5, False)
    assert found.share("n", 0.5) == (0.25, True)
    assert found.share("other", 0.5) is None


def test_a_measured_size_counts_before_the_line() -> None:
    found = times({8: [0.5], 4: [0.4], 2: [0.1]})
    assert found.share("n", 0.5) == (0.4, False)
    share = found.share("n", 0.125)
    assert share is not None
    assert not share[1]


def test_the_latest_are_kept() -> None:
    found = times({1: [9.0] * MOST_KEPT + [1.0] * MOST_KEPT})
    assert found.medians_s("n") == {1: 1.0}
