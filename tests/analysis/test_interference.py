"""Interference factors, on made timelines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.analysis.interference import (
    LEAST_CALLS,
    Interference,
    Ran,
    interference,
    without_others,
)
from rlprof.unavailable import Unavailable


def together(lost_a: float, lost_b: float, offset: float, a_s: float, b_s: float) -> list[Ran]:
    """A starts at 0 and B at `offset`; while both run A loses `lost_a` of its rate, B `lost_b`."""
    now, left = 0.0, {"a": a_s, "b": b_s}
    start, end = {"a": 0.0}, dict[str, float]()
    while len(end) < 2:
        if "b" not in start and now >= offset:
            start["b"] = now
        running = [n for n in start if n not in end]
        both = len(running) == 2
        rate = {"a": 1 - lost_a * both, "b": 1 - lost_b * both}
        step = min([left[n] / rate[n] for n in running] + ([offset - now] if "b" not in start else []))
        now += step
        for n in running:
            left[n] -= step * rate[n]
            if left[n] <= 1e-12:
                end[n] = now
    return [Ran(n, 4, start[n], end[n]) for n in ("a", "b")]


@given(st.floats(0, 0.6), st.floats(0, 0.6), st.lists(st.floats(0, 0.6), min_size=3, max_size=6))
def test_factors_are_found_again(lost_a: float, lost_b: float, offsets: list[float]) -> None:
    alone = [Ran("a", 4, 0, 1.0), Ran("b", 4, 0, 0.7)]
    runs = [together(lost_a, lost_b, offset, 1.0, 0.7) for offset in offsets]
    found = interference(alone, runs)
    assert isinstance(found, Interference)
    assert found.factors["a", "b"] == pytest.approx(1 / (1 - lost_a), rel=1e-6)
    assert found.factors["b", "a"] == pytest.approx(1 / (1 - lost_b), rel=1e-6)
    assert found.calls["a", "b"] == len(runs)
    assert found.residual_frac["a"] < 1e-6


def test_what_runs_alone_has_no_factor() -> None:
    alone = [Ran("a", 4, 0, 1.0)]
    assert isinstance(interference(alone, [[Ran("a", 4, 0, 1.0), Ran("b", 4, 1.0, 2.0)]]), Unavailable)
    # another batch size is other work
    assert isinstance(interference(alone, [[Ran("a", 2, 0, 1.0), Ran("b", 4, 0.0, 2.0)]]), Unavailable)


def test_a_call_that_is_faster_beside_others_has_no_factor_below_one() -> None:
    runs = [[Ran("a", 1, 0, 0.8), Ran("b", 1, 0.0, 2.0)]] * LEAST_CALLS
    found = interference([Ran("a", 1, 0, 1.0)], runs)
    assert isinstance(found, Interference)
    assert found.factors["a", "b"] == 1.0
    assert found.residual_frac["a"] == pytest.approx(0.25)


def test_a_pair_that_overlaps_too_little_to_tell_is_left_away() -> None:
    """For another reason a call takes 0.5 s more, and ran beside b for a tenth of a second."""
    runs = [[Ran("a", 1, 0, 1.5), Ran("b", 1, 1.4, 2.0), Ran("c", 1, 0.0, 0.3)]] * LEAST_CALLS
    found = interference([Ran("a", 1, 0, 1.0), Ran("c", 1, 0.0, 0.3)], runs)
    assert isinstance(found, Interference)
    assert ("a", "b") not in found.factors
    assert ("a", "b") not in found.calls
    assert found.residual_frac["a"] > 0.05


@pytest.mark.parametrize("end_s", [1.401, 1.4])
def test_where_all_pairs_are_left_away_there_is_no_answer(end_s: float) -> None:
    """Half a second is lost for another reason; b is there for a millisecond, or for no time at all."""
    runs = [[Ran("a", 1, 0, 1.5), Ran("b", 1, 1.4, end_s)]]
    found = interference([Ran("a", 1, 0, 1.0)], runs)
    assert isinstance(found, Unavailable)
    assert "too short a time" in found.reason


def step_beside_two(short_s: float, long_s: float, noise_s: float) -> list[Ran]:
    """A call beside a short and a long other, both of which slow it down to 64 %."""
    end_s = 0.097 + 0.36 * (short_s + long_s) + noise_s
    return [
        Ran("step", 0, 0, end_s),
        Ran("short", 0, 0, short_s),
        Ran("long", 0, short_s, short_s + long_s),
    ]


def test_what_always_runs_beside_in_one_proportion_is_not_told_apart() -> None:
    alone = [Ran("step", 0, 0, 0.097 + d) for d in (-0.004, 0.0, 0.004)]
    random = np.random.default_rng(3)
    runs = [
        step_beside_two(0.017 + 0.002 * a, 0.11 + 0.002 * b, 0.002 * c)
        for a, b, c in random.normal(size=(22, 3))
    ]
    found = interference(alone, runs)
    assert isinstance(found, Interference)
    (one,) = found.found
    assert one.beside == ("long", "short")
    assert one.factor == pytest.approx(1 / (1 - 0.36), rel=0.05)
    assert one.calls == 22
    assert not found.factors


def test_what_runs_beside_in_many_proportions_is_told_apart() -> None:
    random = np.random.default_rng(3)
    runs = [
        step_beside_two(0.05 * a, 0.06 * b, 0.002 * c)
        for (a, b), c in zip(random.random((60, 2)), random.normal(size=60), strict=True)
    ]
    found = interference([Ran("step", 0, 0, 0.097)], runs)
    assert isinstance(found, Interference)
    assert set(found.factors) == {("step", "long"), ("step", "short")}
    for one in found.found:
        assert one.factor == pytest.approx(1 / (1 - 0.36), rel=one.error_frac)


def test_few_calls_say_nothing() -> None:
    runs = [[Ran("a", 1, 0, 1.5), Ran("b", 1, 0, 2.0)]] * (LEAST_CALLS - 1)
    found = interference([Ran("a", 1, 0, 1.0)], runs)
    assert isinstance(found, Unavailable)
    assert "2 calls ran beside it" in found.reason


def test_calls_that_differ_for_other_reasons_have_no_factor() -> None:
    random = np.random.default_rng(0)
    runs = [[Ran("a", 1, 0, 1.0 + random.exponential(3.0)), Ran("b", 1, 0, 0.8)] for _ in range(5)]
    found = interference([Ran("a", 1, 0, 1.0)], runs)
    assert isinstance(found, Unavailable)
    # the calls lose more than b is there
    assert "too short a time" in found.reason


def test_calls_alone_are_those_with_nothing_beside() -> None:
    run = [Ran("a", 1, 0, 1.0), Ran("b", 1, 0.995, 2.0), Ran("c", 1, 2.0, 3.0), Ran("d", 1, 2.5, 4.0)]
    assert [r.node for r in without_others(run)] == ["a", "b"]
    assert without_others([]) == ()
