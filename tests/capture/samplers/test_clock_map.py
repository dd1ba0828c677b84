"""The map from a device's clock to the host's, against clocks whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.capture.samplers.clock_map import DeviceClockMap, Knot, Reading, knot

EPOCH = 1_790_000_000_000_000_000


def true_device(host_ns: int, drift_ppm: float) -> int:
    return EPOCH + host_ns + round(host_ns * drift_ppm * 1e-6)


def readings(
    host_ns: int, drift_ppm: float, rng: np.random.Generator, delay_ns: int, count: int = 4
) -> list[Reading]:
    """Brackets of 6 to 12 us; the look lies anywhere in the middle, after `delay_ns` of waiting."""
    found = []
    for _ in range(count):
        width = int(rng.integers(6_000, 12_000))
        look = host_ns + delay_ns + int(width * rng.uniform(0.2, 0.8))
        end = host_ns + delay_ns + width
        found.append(Reading(host_ns, true_device(look, drift_ppm), end))
        host_ns = end
    return found


@given(
    drift_ppm=st.floats(-100, 100),
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(2, 40),
)
def test_undisturbed_times_are_mapped_within_the_stated_uncertainty(
    drift_ppm: float, seed: int, steps: int
) -> None:
    rng = np.random.default_rng(seed)
    clock = DeviceClockMap()
    for i in range(steps):
        clock.add(knot(readings(10**12 + i * 10**9, drift_ppm, rng, 0)))
    host = 10**12 + np.sort(rng.integers(0, (steps - 1) * 10**9 + 1, 200))
    device = np.array([true_device(int(h), drift_ppm) for h in host])
    mapped = clock.to_host(device)
    uncertainty = clock.uncertainty_ns
    assert uncertainty is not None
    assert np.abs(mapped - host).max() <= uncertainty + 2
    assert uncertainty < 12_000
    assert np.all(np.diff(mapped) >= 0)


@given(seed=st.integers(0, 2**32 - 1), delay_ms=st.integers(1, 20))
def test_waiting_for_a_busy_device_moves_times_by_microseconds_only(seed: int, delay_ms: int) -> None:
    rng = np.random.default_rng(seed)
    clock = DeviceClockMap()
    for i in range(10):
        clock.add(knot(readings(10**12 + i * 10**9, 3.0, rng, 0 if i in (0, 9) else delay_ms * 10**6, 1)))
    host = np.arange(10**12 + 10**8, 10**12 + 8 * 10**9, 10**7)
    device = np.array([true_device(int(h), 3.0) for h in host])
    assert np.abs(clock.to_host(device) - host).max() < 15_000
    assert clock.facts()["disturbed_readings"] == 8


def test_drift_is_told_once_a_second_has_passed() -> None:
    rng = np.random.default_rng(0)
    clock = DeviceClockMap()
    clock.add(knot(readings(10**12, 25.0, rng, 0)))
    assert clock.drift_ppm is None
    clock.add(knot(readings(10**12 + 60 * 10**9, 25.0, rng, 0)))
    assert clock.drift_ppm == pytest.approx(25.0, abs=0.2)


def test_bounds_of_a_burst_are_intersected() -> None:
    burst = [Reading(0, 1_000, 100), Reading(200, 1_290, 300), Reading(400, 1_410, 500)]
    found = knot(burst)
    assert (found.low_ns, found.high_ns) == (990, 1000)
    assert found.width_ns == 10


def test_a_clock_that_was_stepped_within_a_burst_gives_its_closest_bracket() -> None:
    found = knot([Reading(0, 1_000, 100), Reading(200, 9_240, 240)])
    assert (found.low_ns, found.high_ns) == (9_000, 9_040)


def test_nothing_can_be_mapped_before_the_first_reading() -> None:
    clock = DeviceClockMap()
    assert clock.uncertainty_ns is None
    assert clock.facts()["readings"] == 0
    with pytest.raises(ValueError, match="no reading"):
        clock.to_host(np.array([1]))
    with pytest.raises(ValueError, match="no reading"):
        knot([])


def test_a_burst_that_is_not_later_is_ignored() -> None:
    clock = DeviceClockMap()
    clock.add(Knot(EPOCH, 0, 10))
    clock.add(Knot(EPOCH, 500, 510))
    assert clock.facts()["readings"] == 1
    assert clock.to_host(np.array([EPOCH + 7]))[0] == EPOCH + 7 - 5


def test_outside_the_readings_the_offset_holds_on() -> None:
    clock = DeviceClockMap()
    clock.add(Knot(EPOCH, 100, 100))
    clock.add(Knot(EPOCH + 1000, 200, 200))
    mapped = clock.to_host(np.array([EPOCH - 50, EPOCH + 500, EPOCH + 2000]))
    assert (mapped - EPOCH).tolist() == [-150, 350, 1800]
