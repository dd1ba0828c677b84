"""Algorithm 2 against its text, and against simulated pairs of processes whose best level is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.errors import UsageError
from rlprof.overlap.quota.errors import QuotaError
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.search import (
    Measurement,
    QuotaSearch,
    coarse_step,
    most_trials,
    quota_search,
    sweep,
)
from rlprof.unavailable import Unavailable


def levels_of(count: int) -> tuple[Level, ...]:
    return tuple(Level(6 + 2 * k, k) for k in range(1, count + 1))


def by_the_text(t: Callable[[int], float], q: int, k0: int) -> tuple[list[int], int, int]:
    """The algorithm as it is written down: order of measurements, anchor, best."""
    rho = max(2, q // 16)
    kb = k0
    h = {kb: t(kb)}
    while kb > 1:
        k = max(1, kb - rho)
        h[k] = t(k)
        if h[k] > h[kb]:
            break
        kb = k
    for d in (-1, +1):
        k = kb + d
        while 1 <= k <= q and k not in h:
            h[k] = t(k)
            if h[k] > h[kb]:
                break
            k += d
    return list(h), kb, min(h, key=lambda k: h[k])


@dataclass(frozen=True)
class Pair:
    """Two simulated processes: f under level k of q, and the later one c, which gains from what f lacks."""

    q: int
    later_s: float
    interference_s: float
    earlier_s: float
    own_share: float

    def later_ready_s(self, k: int) -> float:
        return self.later_s + self.interference_s * (k / self.q) ** 2

    def earlier_ready_s(self, k: int) -> float:
        return self.earlier_s * max(1.0, self.own_share * self.q / k)

    def join_s(self, k: int) -> float:
        return max(self.later_ready_s(k), self.earlier_ready_s(k))


PAIRS = st.builds(
    Pair,
    q=st.integers(1, 70),
    later_s=st.floats(0.1, 10),
    interference_s=st.floats(0, 10),
    earlier_s=st.floats(0.01, 5),
    own_share=st.floats(0, 1),
)


def search(t: Callable[[int], float], q: int, k0: int | None = None) -> tuple[QuotaSearch, list[int]]:
    asked: list[int] = []

    def measure(level: Level) -> float:
        asked.append(level.setting)
        return t(level.setting)

    return quota_search(levels_of(q), measure, k0), asked


@settings(max_examples=80)
@given(st.data())
def test_it_measures_what_the_text_says(data: st.DataObject) -> None:
    q = data.draw(st.integers(1, 70))
    k0 = data.draw(st.integers(1, q))
    few = st.sampled_from([1.0, 2.0, 3.0])  # ties are common
    times = data.draw(st.lists(st.one_of(few, st.floats(0.1, 9)), min_size=q, max_size=q))
    found, asked = search(lambda k: times[k - 1], q, k0)
    order, anchor, best = by_the_text(lambda k: times[k - 1], q, k0)
    assert (asked, found.anchor, found.best) == (order, anchor, best)
    assert len(set(asked)) == len(asked) <= most_trials(q, k0)
    assert found.measured == {k: times[k - 1] for k in asked}
    assert found.measured[found.best] == min(found.measured.values())
    assert (found.start, found.step, found.complete) == (k0, max(2, q // 16), True)
    assert [t.phase for t in found.trials] == sorted(
        (t.phase for t in found.trials), key=["start", "coarse", "fine"].index
    )
    json.dumps(found.to_dict(), allow_nan=False)


@settings(max_examples=100)
@given(PAIRS)
def test_the_best_level_of_two_processes_is_found(pair: Pair) -> None:
    found, asked = search(pair.join_s, pair.q)
    assert pair.join_s(found.best) == min(pair.join_s(k) for k in range(1, pair.q + 1))
    assert len(asked) <= most_trials(pair.q)


@settings(max_examples=60)
@given(st.data())
def test_the_bottom_of_every_valley_is_found_from_anywhere(data: st.DataObject) -> None:
    """Times that strictly fall and then rise: U-shaped, rising only, falling only."""
    q = data.draw(st.integers(1, 60))
    bottom, k0 = data.draw(st.integers(1, q)), data.draw(st.integers(1, q))
    steps = data.draw(st.lists(st.sampled_from([0.25, 0.5, 1.0]), min_size=q, max_size=q))
    times = [1.0 + sum(steps[min(k, bottom) : max(k, bottom)]) for k in range(1, q + 1)]
    found, _ = search(lambda k: times[k - 1], q, k0)
    assert times[found.best - 1] == min(times)


def test_a_plateau_before_the_bottom_can_hide_it() -> None:
    """What the text does not find: equal times are a way down, and levels that are known an end."""
    found, _ = search(lambda k: [1.5, 1.5, 1.0][k - 1], 3, 2)
    assert (found.best, list(found.measured)) == (2, [2, 1])


@settings(max_examples=100)
@given(PAIRS, st.floats(0, 0.05), st.randoms(use_true_random=False))
def test_noise_costs_no_more_than_noise(pair: Pair, noise: float, random: object) -> None:
    """What was measured best is, truly, within twice the noise of everything that was measured."""
    measured: dict[int, float] = {}

    def t(k: int) -> float:
        measured[k] = pair.join_s(k) * (1 + random.uniform(-noise, noise))  # type: ignore[attr-defined]
        return measured[k]

    found, asked = search(t, pair.q)
    assert found.measured == measured
    assert len(asked) == len(measured) <= most_trials(pair.q)
    truth = min(pair.join_s(k) for k in measured)
    assert pair.join_s(found.best) <= truth * (1 + noise) / (1 - noise) * (1 + 1e-12)
    assert pair.join_s(found.best) <= pair.join_s(pair.q) * (1 + noise) / (1 - noise) * (1 + 1e-12)


def test_the_numbers_of_a_large_gpu() -> None:
    assert [coarse_step(q) for q in (1, 2, 16, 47, 48, 63, 66)] == [2, 2, 2, 2, 3, 3, 4]
    # the H200's 132 SMs in steps of two percent: at most 21 trials where a scan would take 48
    assert most_trials(48) == 1 + math.ceil(47 / 3) + 2 + 2
    assert most_trials(1) == 1
    found, asked = search(lambda k: abs(k - 38) + 1.0, 48)
    assert (found.best, found.anchor, asked) == (38, 39, [48, 45, 42, 39, 36, 38, 37, 40])


def test_a_level_that_cannot_be_measured_is_slower_than_all() -> None:
    def measure(level: Level) -> Measurement | Unavailable:
        if level.setting < 5:
            return Unavailable("out of memory")
        return Measurement(float(level.setting), 0.1, 6)

    found = quota_search(levels_of(9), measure)
    assert found.best == 5
    assert found.measured[4] == math.inf
    document = found.to_dict()
    assert [row["k"] for row in document["trials"] if row.get("unavailable") == "out of memory"] == [3, 4]


def test_a_start_that_cannot_be_measured_is_an_error() -> None:
    with pytest.raises(QuotaError, match="out of memory"):
        quota_search(levels_of(3), lambda _level: Unavailable("out of memory"))


def test_a_budget_ends_it_with_what_it_has() -> None:
    asked: list[int] = []

    def measure(level: Level) -> float:
        asked.append(level.setting)
        return float(level.setting)

    found = quota_search(levels_of(20), measure, spent=lambda: len(asked) >= 3)
    assert asked == [20, 18, 16]
    assert (found.complete, found.best, found.anchor) == (False, 16, 16)
    assert "budget was spent after 3" in found.reason
    only = quota_search(levels_of(20), measure, spent=lambda: True)
    assert (len(only.trials), only.best) == (1, 20)


@pytest.mark.parametrize(
    ("levels", "start"),
    [((), None), (tuple(reversed(levels_of(3))), None), (levels_of(3), 4), (levels_of(3), 0)],
)
def test_levels_that_make_no_sense_are_refused(levels: tuple[Level, ...], start: int | None) -> None:
    with pytest.raises(UsageError):
        quota_search(levels, lambda _level: 1.0, start)


@pytest.mark.parametrize("time_s", [math.nan, -1.0])
def test_what_is_no_time_is_refused(time_s: float) -> None:
    with pytest.raises(UsageError, match="time under level"):
        quota_search(levels_of(3), lambda _level: time_s)


@given(st.integers(1, 40), st.integers(1, 7))
def test_a_sweep_measures_every_so_many_levels(q: int, every: int) -> None:
    trials = sweep(levels_of(q), lambda level: float(level.amount), every)
    assert [t.k for t in trials] == list(range(q, 0, -every))
    assert {t.phase for t in trials} == {"sweep"}
    assert sweep(levels_of(q), lambda level: 1.0, every, spent=lambda: True) == (
        *sweep(levels_of(q), lambda level: 1.0, q),
    )
    with pytest.raises(UsageError):
        sweep(levels_of(q), lambda level: 1.0, 0)


def test_trials_are_told_as_they_are_done() -> None:
    told: list[int] = []
    found = quota_search(levels_of(10), lambda x: float(x.amount), watch=lambda trial: told.append(trial.k))
    assert told == [trial.k for trial in found.trials]
    assert found.trial(told[0]).level == found.start_level
    with pytest.raises(KeyError):
        found.trial(99)
