"""Low-level libraries that fail and lose as told, with a device clock of their own."""

from __future__ import annotations

import numpy as np

from rlprof.capture.samplers.base import SamplerError
from rlprof.capture.samplers.clock_map import Reading
from rlprof.capture.samplers.pm_counters import Decoded

START = 1_790_000_000_000_000_000


class FakeTime:
    """Host time that only moves when told, and a device's clock beside it."""

    def __init__(self, drift_ppm: float = 0.0) -> None:
        self.now = 5_000_000_000
        self.drift = drift_ppm * 1e-6

    def monotonic_ns(self) -> int:
        self.now += 50  # a look takes time
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)

    def device(self, host_ns: int | None = None) -> int:
        host = self.now if host_ns is None else host_ns
        return START + host + round(host * self.drift)

    def host(self, device_ns: np.ndarray) -> np.ndarray:
        """The inverse of `device`, exact to a nanosecond or two."""
        since = (device_ns - START).astype(np.float64)
        return np.rint(since / (1 + self.drift)).astype(np.int64)


class FakeClock:
    """A device's clock: every look takes `width_ns`; on a busy device the answer comes after `delay_ns`."""

    def __init__(self, time: FakeTime, width_ns: int = 8_000, delay_ns: int = 0) -> None:
        self.time, self.width_ns, self.delay_ns = time, width_ns, delay_ns
        self.closed = False
        self.bursts: list[int] = []

    def burst(self, count: int, *, close_enough_ns: int = 0) -> list[Reading]:
        self.bursts.append(count)
        readings = []
        for _ in range(min(count, 3)):
            before = self.time.now
            self.time.now += self.delay_ns + self.width_ns // 2
            device = self.time.device()
            self.time.now += self.width_ns // 2
            readings.append(Reading(before, device, self.time.now))
        return readings

    def close(self) -> None:
        self.closed = True


class FakeCounters:
    """Records every `period_ns` of device time; the first starts at 0, and a value tells a record's time."""

    def __init__(self, time: FakeTime, period_ns: int, buffer_bytes: int = 0, slots: int = 1 << 30) -> None:
        self.time, self.period, self.slots, self.buffer = time, period_ns, slots, buffer_bytes
        self.next: int | None = None
        self.first = True
        self.events: list[str] = []
        self.refuse: SamplerError | None = None
        self.lose: list[tuple[int, int]] = []  # stretches of device time without records
        self.capacity = 1 << 30
        self.overflown = False
        self.bad_values: set[int] = set()
        self.silent = False
        self.again = 0  # records that the next decode gives a second time
        self.broken = False

    def open(self) -> str:
        if self.refuse is not None:
            raise self.refuse
        self.events.append("open")
        self.next = self.time.device()
        return "GH100"

    def decode(self) -> Decoded:
        assert self.next is not None
        if self.broken:
            raise SamplerError("CUPTI refused to sample GPU 0")
        now = self.time.device()
        self.next, self.again = self.next - self.again * self.period, 0
        count = 0 if self.silent else (now - self.next) // self.period
        self.overflown = self.overflown or count > self.capacity
        if self.overflown:
            return Decoded(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 1)), True)
        start = self.next + np.arange(count, dtype=np.int64) * self.period
        end = start + self.period
        self.next += count * self.period
        if count > self.slots:  # what does not fit is lost
            start, end = start[: self.slots], end[: self.slots]
        keep = np.ones(len(start), dtype=bool)
        for lo, hi in self.lose:
            keep &= (end <= lo) | (start >= hi)
        start, end = start[keep], end[keep]
        values = (start // self.period % 101).astype(np.float64)[:, None]
        for i in self.bad_values & set(range(len(values))):
            values[i] = np.nan
        if self.first and len(start):
            start = start.copy()
            start[0], self.first = 0, False
        return Decoded(start, end, values)

    def restart(self) -> None:
        self.events.append("restart")
        self.overflown = False
        self.next = self.time.device()

    def stop(self) -> Decoded:
        self.events.append("stop")
        last = self.decode()
        # as hardware does: records without length at the end
        at = np.array([START])
        start, end = np.concatenate([last.start_ns, at]), np.concatenate([last.end_ns, at])
        return Decoded(start, end, np.concatenate([last.values, [[0.0]]]))

    def close(self) -> None:
        self.events.append("close")
