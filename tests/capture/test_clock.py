"""Anchors in UTC and the map from a device's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.capture import clock
from rlprof.capture.clock import Anchor, ClockPair, bracket, fit_clock, utc_shift_ns
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
    with pytest.raises(UsageError, match="no reading of the device's clock"):
        fit_clock([])


@given(
    origin=st.integers(1, 2 * 10**18),
    offset=st.integers(-(10**18), 10**18),
    drift_ppm=st.floats(-50, 50),
    at_s=st.lists(st.floats(0, 3600), min_size=1, max_size=30),
    errors=st.lists(st.integers(-2000, 2000), min_size=30, max_size=30),
)
def test_a_clock_is_mapped_within_the_uncertainty_that_is_stated(
    origin: int, offset: int, drift_ppm: float, at_s: list[float], errors: list[int]
) -> None:
    def truth(device_ns: int) -> int:
        since = device_ns - origin
        return origin + offset + since + round(since * drift_ppm * 1e-6)

    device = [origin + round(s * 1e9) for s in at_s]
    pairs = [
        ClockPair(truth(d) + e, d, abs(e) + 10) for d, e in zip(device, errors[: len(device)], strict=True)
    ]
    found = fit_clock(pairs)
    assert found.pair_count == len(pairs)
    for d in device:
        assert abs(found.to_host_ns(d) - truth(d)) <= 2 * found.uncertainty_ns
    mapped = found.to_host_ns(np.array(device, dtype=np.int64))
    assert mapped.dtype == np.int64
    assert np.abs(mapped - np.array([found.to_host_ns(d) for d in device])).max() <= 1
    if len(pairs) == 1:
        assert found.drift == 0


def test_drift_and_offset_are_measured() -> None:
    base = 1_700_000_000 * SECOND
    pairs = [ClockPair(5 * SECOND + t + t // 100_000, base + t, 50) for t in range(0, 100 * SECOND, SECOND)]
    found = fit_clock(pairs)
    assert found.drift == pytest.approx(1e-5, rel=1e-6)
    assert found.uncertainty_ns < 60
    assert found.to_dict()["offset_ns"] == found.host_origin_ns - found.origin_ns
    later = base + 1000 * SECOND
    assert abs(found.to_host_ns(later) - (1005 * SECOND + 10_000_000)) < 100
