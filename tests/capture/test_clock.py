"""Anchors in UTC and the map from a device's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from rlprof.capture import clock
from rlprof.capture.clock import Anchor, bracket, utc_shift_ns
from rlprof.errors import UsageError

SECOND = 10**9


def test_an_anchor_ties_the_two_clocks_of_this_machine() -> None:
    before = time.time_ns(), time.monotonic_ns()
    anchor = Anchor.now()
    after = time.time_ns(), time.monotonic_ns()
    assert before[0] <= anchor.utc_ns <= after[0]
    assert before[1] <= anchor.monotonic_ns <= after[1]
    assert 0 < anchor.uncertainty_ns < SECOND
    assert anchor.utc_of(anchor.monotonic_ns + 5) == anchor.utc_ns + 5
    assert Anchor.from_dict(anchor.to_dict()) == anchor


@pytest.mark.parametrize("fields", [{}, {"monotonic_ns": 1, "utc_ns": None, "uncertainty_ns": 2}])
def test_a_damaged_anchor_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="not an anchor"):
        Anchor.from_dict(fields)


def test_a_step_of_utc_is_seen() -> None:
    assert utc_shift_ns(Anchor(0, 100, 1), Anchor(50, 150, 1)) == 0
    assert utc_shift_ns(Anchor(0, 100, 1), Anchor(50, 150 - SECOND, 1)) == -SECOND


def fake_time(monkeypatch: pytest.MonkeyPatch, costs: list[int]) -> Callable[[], int]:
    """A host's clock on which reading the other clock takes the given times, and the other clock."""
    now = [1000]
    left = iter(costs)

    def read_other() -> int:
        cost = next(left)
        now[0] += cost // 2
        value = now[0] + 7 * SECOND
        now[0] += cost - cost // 2
        return value

    monkeypatch.setattr(clock.time, "monotonic_ns", lambda: now[0])
    return read_other


def test_the_narrowest_bracket_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = bracket(fake_time(monkeypatch, [900, 30, 500]), readings=3)
    assert pair.uncertainty_ns == 15
    assert pair.other_ns - pair.host_ns == 7 * SECOND


def test_at_least_one_reading_is_needed() -> None:
    with pytest.raises(UsageError, match="readings is 0"):
        bracket(time.time_ns, 0)
