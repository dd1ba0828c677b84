"""Paired comparisons: what noise may not decide, and what must be decided."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.analysis.trials import PairedComparison, Rule, against, compare, measure_paired, spread
from rlprof.errors import UsageError

TIMES = st.floats(0.001, 100.0)


def false_decisions(confidence: float, most: int) -> float:
    """Share of all sequences of fair coins, written out, in which a look calls the coin unfair."""
    bounds = against(confidence, most)
    wrong = 0
    for signs in itertools.product((0, 1), repeat=most):
        wrong += any(
            bounds[n - 1] >= 0 and min(sum(signs[:n]), n - sum(signs[:n])) <= bounds[n - 1]
            for n in range(1, most + 1)
        )
    return wrong / 2**most


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("most", [1, 5, 6, 7, 9, 12, 14])
def test_equal_ways_are_told_apart_no_more_often_than_allowed(confidence: float, most: int) -> None:
    assert false_decisions(confidence, most) <= 1 - confidence + 1e-12


def test_the_boundary_is_the_widest_of_its_kind() -> None:
    assert Rule(0.95, 6).least_pairs == 6  # 2 / 2 ** 6 = 0.031; with 5 pairs it would be 0.0625
    assert Rule(0.95, 5).least_pairs is None
    assert Rule(0.9, 5).least_pairs == 5
    assert against(0.95, 12) == (-1, -1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1)
    for n in range(1, 60):
        assert all(a <= b for a, b in itertools.pairwise(against(0.9, n)))


def test_the_boundary_of_many_pairs_takes_no_time_to_speak_of() -> None:
    against.cache_clear()
    began = time.process_time()
    bounds = against(0.95, 1000)  # all that a rule may have
    assert time.process_time() - began < 20  # half a second where it is quiet; by trying all levels, hours
    assert len(bounds) == 1000
    assert all(a <= b <= a + 1 for a, b in itertools.pairwise(bounds))
    assert bounds[11] < against(0.95, 12)[11]  # looks are many: the level of each is low


@settings(max_examples=60)
@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=20), st.sampled_from([0.5, 0.9, 0.95]))
def test_a_comparison_holds_together(pairs: list[tuple[float, float]], confidence: float) -> None:
    rule = Rule(confidence, 20)
    found, turned = compare(pairs, rule), compare([(b, a) for a, b in pairs], rule)
    assert found.low_s <= found.gain_s <= found.high_s
    assert found.gain_s == pytest.approx(-turned.gain_s)
    assert (found.low_s, found.high_s) == pytest.approx((-turned.high_s, -turned.low_s))
    opposite = {"better": "worse", "worse": "better", "unclear": "unclear"}
    assert turned.decision == opposite[found.decision]
    assert compare(list(reversed(pairs)), rule).decision == found.decision
    assert found.reference.median_s == statistics.median(a for a, _ in pairs)
    if found.decision == "better":
        assert sum(a > b for a, b in pairs) > len(pairs) / 2
    json.dumps(found.to_dict(), allow_nan=False)


@settings(max_examples=40)
@given(st.lists(TIMES, min_size=6, max_size=12), st.floats(0.01, 0.5))
def test_a_drift_does_not_hide_a_difference_within_pairs(drift: list[float], share: float) -> None:
    found = compare([(t, t * (1 - share)) for t in drift])
    assert found.decision == "better"
    assert found.low_s > 0


def test_a_win_within_the_noise_is_no_win() -> None:
    """Errors of the sequential procedure over many experiments with equal ways, and its power."""
    random.seed(1)
    wrong = right = 0
    count = 400
    for _ in range(count):
        equal = measure_paired(lambda: random.lognormvariate(0, 0.2), lambda: random.lognormvariate(0, 0.2))
        wrong += equal.decision != "unclear"
        faster = measure_paired(lambda: random.gauss(1.0, 0.01), lambda: random.gauss(0.97, 0.01))
        right += faster.decision == "better"
    assert wrong / count < 0.05 + 3 * math.sqrt(0.05 * 0.95 / count)
    assert right / count > 0.9


def test_it_ends_as_soon_as_the_answer_is_clear() -> None:
    found = measure_paired(lambda: 2.0, lambda: 1.0, Rule(most_pairs=12))
    assert (found.decision, len(found.pairs), found.reason) == ("better", 6, "clear after 6 pairs")
    slower = measure_paired(lambda: 1.0, lambda: 2.0, Rule(0.9, 12))
    assert (slower.decision, len(slower.pairs)) == ("worse", 5)
    same = measure_paired(lambda: 1.0, lambda: 1.0, Rule(most_pairs=12))
    assert (same.decision, same.reason) == ("unclear", "clear after 6 pairs")  # surely no gain


def test_a_gain_that_is_too_small_does_not_count() -> None:
    pairs = [(1.0, 0.995)] * 8
    assert compare(pairs).decision == "better"
    small = compare(pairs, Rule(least_gain_frac=0.01))
    assert (small.decision, small.settled) == ("unclear", True)
    assert small.gain_frac == pytest.approx(0.005)


def test_the_two_ways_take_turns_in_going_first() -> None:
    order: list[str] = []

    def way(name: str, time_s: float) -> float:
        order.append(name)
        return time_s + 0.1 * len(order)  # a steady drift that is larger than any difference

    found = measure_paired(lambda: way("a", 1.0), lambda: way("b", 1.0), Rule(most_pairs=8))
    assert "".join(order) == "abbaabbaabbaabba"
    assert found.decision == "unclear"
    assert found.gain_s == pytest.approx(0.0)


def test_no_pair_is_begun_that_the_budget_does_not_hold() -> None:
    now = [0.0]

    def run() -> float:
        now[0] += 10.0
        return 10.0 + random.random()

    found = measure_paired(run, run, Rule(most_pairs=12, budget_s=65.0), clock=lambda: now[0])
    assert len(found.pairs) == 3
    assert found.reason == "the budget of 65 s holds no more than 3 pairs"
    assert found.decision == "unclear"
    assert found.low_s == -math.inf
    assert found.to_dict()["low_s"] is None


def test_what_is_watched_grows_by_a_pair_each_time() -> None:
    seen: list[PairedComparison] = []
    measure_paired(lambda: 2.0, lambda: 1.0, watch=seen.append)
    assert [len(s.pairs) for s in seen] == [1, 2, 3, 4, 5, 6]
    assert [s.decision for s in seen] == ["unclear"] * 5 + ["better"]


def test_spreads_are_quartiles() -> None:
    found = spread([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (found.median_s, found.low_s, found.high_s, found.width_s, found.runs) == (3.0, 2.0, 4.0, 2.0, 5)
    assert spread([2.0, 1.0]) == spread([1.0, 2.0])
    assert (spread([2.0, 1.0]).low_s, spread([2.0, 1.0]).high_s) == (1.0, 2.0)


@pytest.mark.parametrize("times", [[], [math.nan], [1.0, math.inf]])
def test_what_is_no_time_is_refused(times: list[float]) -> None:
    with pytest.raises(UsageError):
        spread(times)
    with pytest.raises(UsageError):
        compare([(t, 1.0) for t in times])


@pytest.mark.parametrize("change", [{"confidence": 1.0}, {"most_pairs": 0}, {"least_gain_frac": -0.1}])
def test_a_rule_that_makes_no_sense_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Rule(**change)  # type: ignore[arg-type]
