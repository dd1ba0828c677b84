"""The CUPTI sampler's own logic: what is kept, counted, mapped, and given back; the hardware is faked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rlprof.capture.samplers import cupti
from rlprof.capture.samplers.base import MS, Device, SamplerError, Samples
from rlprof.errors import UsageError
from tests.capture.samplers.fakes import FakeClock, FakeCounters, FakeTime

PERIOD = 100_000


class Rig:
    """A sampler of one faked GPU."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        drift_ppm: float = 0.0,
        clock: bool = True,
        delay_ns: int = 0,
        devices: int = 1,
    ) -> None:
        self.time = FakeTime(drift_ppm)
        monkeypatch.setattr(cupti, "time", self.time)
        self.counters: list[FakeCounters] = []
        self.clocks: list[FakeClock] = []

        def counters(device: int, period: int, buffer: int, slots: int) -> FakeCounters:
            self.counters.append(FakeCounters(self.time, period, buffer, slots))
            return self.counters[-1]

        def make_clock(device: int) -> FakeClock | None:
            if not clock:
                return None
            self.clocks.append(FakeClock(self.time, delay_ns=delay_ns))
            return self.clocks[-1]

        self.sampler = cupti.CuptiSampler([Device(d) for d in range(devices)], PERIOD, counters, make_clock)

    def run(self, seconds: float) -> list[Samples]:
        got: list[Samples] = []
        for _ in range(round(seconds * 1e9 / self.sampler.poll_ns)):
            self.time.now += self.sampler.poll_ns
            got += self.sampler.drain()
        return got


def joined(samples: Sequence[Samples], device: int = 0) -> Samples:
    own = [s for s in samples if s.device == device]
    return Samples(
        device,
        *(np.concatenate([getattr(s, c) for s in own]) for c in ("start_ns", "end_ns", "active_frac")),
    )


def test_every_record_arrives_once_in_order_and_in_host_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, drift_ppm=20.0)
    rig.sampler.start()
    opened = rig.counters[0]
    got = joined([*rig.run(5.0), *rig.sampler.stop()])
    assert len(got) > 49_000
    assert np.all(np.diff(got.start_ns) > 0)
    assert np.abs(got.start_ns[1:] - got.end_ns[:-1]).max() <= 1
    # the value tells the record's device time, so that its host time can be checked
    device = np.array([rig.time.device(int(t)) for t in got.start_ns[::500]])
    index = np.rint((device - opened.next) / PERIOD).astype(np.int64)
    exact = rig.time.host(opened.next + index * PERIOD)
    assert np.abs(got.start_ns[::500] - exact).max() < 5_000
    expected = (opened.next + index * PERIOD) // PERIOD % 101 / 100
    assert got.active_frac[::500] == pytest.approx(np.minimum(expected, 1.0))
    clock = rig.sampler.clock()["0"]
    assert clock["drift_ppm"] == pytest.approx(20.0, abs=1.0)
    assert 0 < clock["uncertainty_ns"] < 10_000
    assert clock["method"] == "kernel reading %globaltimer"


def test_records_without_a_time_are_dropped_and_nothing_counts_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.start()
    rig.run(1.0)
    rig.sampler.stop()
    losses = rig.sampler.losses()
    assert losses.dropped == 2  # the first of the run, the one after the stop
    assert (losses.lost_samples, losses.gaps, losses.overflows, losses.invalid) == (0, 0, 0, 0)


def test_missing_records_are_counted_and_not_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.start()
    at = rig.time.device() + 300 * MS
    at -= (at - rig.counters[0].next) % PERIOD
    rig.counters[0].lose = [(at, at + 37 * PERIOD), (at + 100 * MS, at + 100 * MS + PERIOD)]
    got = joined([*rig.run(2.0), *rig.sampler.stop()])
    losses = rig.sampler.losses()
    assert (losses.gaps, losses.lost_samples) == (2, 39 - 37 + 37 - 1)
    assert losses.lost_ns == 38 * PERIOD
    steps = got.start_ns[1:] - got.end_ns[:-1]
    assert sorted(np.rint(steps[steps > PERIOD // 2] / PERIOD).tolist()) == [1, 37]


def test_a_full_buffer_is_counted_and_sampling_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.start()
    rig.counters[0].capacity = 20_000
    before = rig.run(0.5)
    rig.time.now += 5_000 * MS  # the sampler is kept from running
    after = [*rig.run(0.5), *rig.sampler.stop()]
    got, losses = joined([*before, *after]), rig.sampler.losses()
    assert losses.overflows == 1
    assert losses.gaps == 1
    assert losses.lost_ns == pytest.approx(5_050 * MS, rel=0.01)
    assert losses.lost_samples == pytest.approx(50_500, rel=0.01)
    assert rig.counters[0].events == ["open", "restart", "stop", "close"]
    assert int((got.start_ns[1:] - got.end_ns[:-1]).max()) == pytest.approx(5_050 * MS, rel=0.01)


def test_a_pass_larger_than_the_image_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.start()
    slots = rig.counters[0].slots
    assert slots >= 2 * rig.sampler.poll_ns // PERIOD
    rig.time.now += (slots + 1000) * PERIOD
    rig.sampler.drain()
    rig.run(0.2)
    rig.sampler.stop()
    assert rig.sampler.losses().lost_samples == pytest.approx(1000, abs=2)


def test_records_that_come_twice_are_delivered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.start()
    got = rig.run(1.0)
    rig.counters[0].again = 1000
    got += [*rig.run(1.0), *rig.sampler.stop()]
    samples, losses = joined(got), rig.sampler.losses()
    assert losses.repeated == 1000
    assert (losses.lost_samples, losses.gaps) == (0, 0)
    assert np.abs(samples.start_ns[1:] - samples.end_ns[:-1]).max() <= 1


def test_counters_that_fail_keep_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.start()
    got = rig.run(2.5)
    rig.counters[0].broken = True
    with pytest.raises(SamplerError, match="refused"):
        rig.sampler.drain()
    samples = joined([*got, *rig.sampler.stop()])
    assert len(samples) > 24_000
    assert rig.counters[0].events[-1] == "close"


def test_counters_that_fall_silent_are_set_up_anew_and_the_gap_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.start()
    rig.run(1.0)
    rig.counters[0].silent = True
    rig.run(2.5)
    assert rig.counters[0].events == ["open"]
    rig.run(1.0)
    assert rig.counters[0].events == ["open", "restart"]
    rig.counters[0].silent = False
    rig.counters[0].next = rig.time.device()
    rig.run(1.0)
    rig.sampler.stop()
    losses = rig.sampler.losses()
    assert losses.gaps == 1
    assert losses.lost_ns == pytest.approx(3500 * MS, rel=0.05)


def test_counters_that_stay_silent_to_the_end_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.start()
    rig.run(1.0)
    rig.counters[0].silent = True
    rig.run(2.5)
    rig.sampler.stop()
    losses = rig.sampler.losses()
    assert losses.gaps == 1
    assert losses.lost_ns == pytest.approx(2500 * MS, rel=0.05)


def test_values_that_are_no_number_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.start()
    rig.counters[0].bad_values = {3, 4}
    rig.time.now += rig.sampler.poll_ns
    rig.sampler.drain()
    rig.counters[0].bad_values = set()
    rig.run(0.2)
    got = joined(rig.sampler.stop())
    losses = rig.sampler.losses()
    assert losses.invalid == 2
    assert losses.lost_samples == 2
    assert np.isfinite(got.active_frac).all()


def test_a_busy_gpu_widens_the_uncertainty_and_moves_no_sample_far(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, drift_ppm=5.0)
    rig.sampler.start()
    rig.clocks[0].delay_ns = 1_500_000  # a time slice passes before each look
    got = joined([*rig.run(5.0), *rig.sampler.stop()])
    device = np.array([rig.time.device(int(t)) for t in got.start_ns])
    error = (device - rig.counters[0].next + PERIOD // 2) % PERIOD - PERIOD // 2
    assert np.abs(error).max() < 20_000
    clock = rig.sampler.clock()["0"]
    assert clock["disturbed_readings"] >= 4
    assert clock["uncertainty_ns"] >= clock["closest_bracket_ns"] // 2


def test_without_a_context_times_are_bounded_by_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, clock=False)
    rig.sampler.start()
    got = joined([*rig.run(3.0), *rig.sampler.stop()])
    assert len(got) > 29_000
    clock = rig.sampler.clock()["0"]
    assert clock["method"] == "arrival of the records"
    exact = rig.time.host(rig.counters[0].next + np.array([0]))
    assert abs(int(got.end_ns[-1]) - int(exact[0])) <= clock["uncertainty_ns"] + PERIOD


def test_two_gpus_keep_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, devices=2)
    rig.sampler.start()
    got = [*rig.run(2.0), *rig.sampler.stop()]
    assert {s.device for s in got} == {0, 1}
    assert len(joined(got, 0)) == pytest.approx(len(joined(got, 1)), abs=700)
    assert all("close" in c.events for c in rig.counters)
    assert all(c.closed for c in rig.clocks)


def test_when_the_second_gpu_refuses_the_first_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, devices=2)
    rig.counters[1].refuse = SamplerError("the counters of GPU 1 are taken")
    with pytest.raises(SamplerError, match="GPU 1 are taken"):
        rig.sampler.start()
    assert rig.counters[0].events[-1] == "close"
    assert all(c.closed for c in rig.clocks)


def test_counters_that_give_nothing_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.counters[0].silent = True
    with pytest.raises(SamplerError, match="give no samples"):
        rig.sampler.start()
    assert rig.counters[0].events == ["open", "close"]


@pytest.mark.parametrize("period", [39_999, 10 * MS + 1])
def test_periods_out_of_range_are_refused(period: int) -> None:
    with pytest.raises(UsageError, match="outside the range of the cupti sampler"):
        cupti.CuptiSampler([Device(0)], period, lambda *_: FakeCounters(FakeTime(), 1), lambda _: None)


def test_memory_of_a_long_run_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.start()
    rig.run(20.0)
    unit = rig.sampler._units[0]
    assert sum(len(d.start_ns) for d in unit._pending) < 2 * cupti.SYNC_NS // PERIOD
    assert len(unit._pending) < 50
