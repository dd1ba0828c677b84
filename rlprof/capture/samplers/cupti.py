"""SM activity by CUPTI's PM sampling: the back end to prefer.

``sm__cycles_active.avg.pct_of_peak_sustained_elapsed`` is the share of cycles in which an SM has at least one
warp resident, mean over all SMs: what DCGM calls SM activity. It is read device-wide, work of other processes
included. Runs of any length: the hardware's buffer is read while it fills, and what is missing between two
records is counted, never filled in.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlprof.capture.samplers.base import (
    MS,
    Device,
    Losses,
    SamplerError,
    Samples,
    Source,
    check_period,
)
from rlprof.capture.samplers.clock_map import DeviceClockMap, Knot, Reading, knot
from rlprof.capture.samplers.pm_counters import Counters, Decoded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

METRIC = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"
#: Between two looks at the GPU's clock, and how many looks at the start and later.
SYNC_NS, FIRST_BURST, BURST = 1000 * MS, 64, 4
#: Bytes that the hardware writes per record (4.2 KB were seen with one metric), and its buffer at least and
#: at most: it is memory of this process too.
RECORD_BYTES, MIN_BUFFER, MAX_BUFFER = 5 << 10, 16 << 20, 96 << 20
#: How long the first record may take; and for how long none may come before the counters are set up anew.
START_NS, SILENT_NS = 3000 * MS, 3000 * MS


class Clock(Protocol):
    """A GPU's clock that can be looked at."""

    def burst(self, count: int, *, close_enough_ns: int = 0) -> list[Reading]:
        """Look up to `count` times."""

    def close(self) -> None:
        """Give it back."""


class CuptiSampler:
    """PM sampling of some GPUs; see `rlprof.capture.samplers.base.Sampler`.

    Parameters
    ----------
    devices : sequence of Device
        GPUs to sample.
    period_ns : int
        40 us to 10 ms.
    counters : function (device, period_ns, buffer_bytes, slots) -> Counters
        Gives the counters of a GPU.
    clock : function (device) -> Clock or None
        Gives its clock; None where it cannot be had (times are then bounded by when records arrive).
    extra_metrics : sequence of str
        Metrics read beside SM activity.

    Raises
    ------
    UsageError
        If the period is out of range.
    """

    source: Source = "sm_counters"

    def __init__(
        self,
        devices: Sequence[Device],
        period_ns: int,
        counters: Callable[[int, int, int, int], Counters],
        clock: Callable[[int], Clock | None],
        extra_metrics: Sequence[str] = (),
    ) -> None:
        check_period("cupti", period_ns)
        self.period_ns = period_ns
        self.poll_ns = min(200 * MS, max(20 * MS, 500 * period_ns))
        self._units = [_Unit(d, period_ns, self.poll_ns, counters, clock, extra_metrics) for d in devices]

    def start(self) -> Sequence[Device]:
        """Take the counters of all GPUs and wait for the first record of each."""
        try:
            for unit in self._units:
                unit.start()
        except BaseException:
            self._close()
            raise
        return [unit.device for unit in self._units]

    def drain(self) -> Sequence[Samples]:
        """Read all GPUs; samples appear once the clock was looked at after them."""
        return [s for unit in self._units if (s := unit.drain()) is not None]

    def stop(self) -> Sequence[Samples]:
        """Stop, read the rest, give the counters back."""
        try:
            return [s for unit in self._units if (s := unit.stop()) is not None]
        finally:
            self._close()

    def losses(self) -> Losses:
        """Sum over the GPUs."""
        total = Losses()
        for unit in self._units:
            for name, value in vars(unit.losses).items():
                setattr(total, name, getattr(total, name) + value)
        return total

    def clock(self) -> dict[str, Any]:
        """Per GPU, by its number."""
        return {str(u.device.device): {"method": u.method, **u.map.facts()} for u in self._units}

    def _close(self) -> None:
        for unit in self._units:
            unit.close()


class _Unit:
    """One GPU at work."""

    def __init__(
        self,
        device: Device,
        period_ns: int,
        poll_ns: int,
        counters: Callable[[int, int, int, int], Counters],
        clock: Callable[[int], Clock | None],
        extra_metrics: Sequence[str],
    ) -> None:
        self.device = device
        self.losses = Losses()
        self.map = DeviceClockMap()
        self.method = "none"
        self.extra_metrics = list(extra_metrics)
        self._period = period_ns
        self._poll = poll_ns
        # room for a second of records; the image is emptied when half full, so a decode may bring two passes
        buffer = min(MAX_BUFFER, max(MIN_BUFFER, 1_000 * MS // period_ns * RECORD_BYTES))
        slots = max(256, 4 * poll_ns // period_ns)
        self._counters = counters(device.device, period_ns, buffer, slots)
        self._make_clock = clock
        self._clock: Clock | None = None
        self._pending: list[Decoded] = []
        self._last_end: int | None = None
        self._silent = 0  # passes without a record
        self._synced_at = self._bounded_at = 0

    def start(self) -> None:
        self._clock = self._make_clock(self.device.device)
        self.method = "kernel reading %globaltimer" if self._clock else "arrival of the records"
        self._sync(FIRST_BURST, close_enough_ns=0)
        began = time.monotonic_ns()
        chip = self._counters.open()
        self.device.facts["chip"] = chip
        while time.monotonic_ns() - began < START_NS:
            time.sleep(min(0.02, 4 * self._period / 1e9))
            decoded = self._counters.decode()
            taken = self._take(decoded, began)
            self._go_on_after(decoded)
            if taken:
                return
        raise SamplerError(
            f"the counters of GPU {self.device.device} were set up but give no samples",
            hint="see that no other profiler is sampling this GPU",
        )

    def drain(self) -> Samples | None:
        decoded = self._counters.decode()
        # in passes, not in time: a process that was halted has not looked meanwhile
        self._silent = 0 if self._take(decoded, None) else self._silent + 1
        self._go_on_after(decoded)
        if self._silent * self._poll >= SILENT_NS:
            self._counters.restart()
            self._silent = 0
        if time.monotonic_ns() - self._synced_at >= SYNC_NS:
            self._sync(BURST, close_enough_ns=(self.map.closest_ns or 0) * 3 // 2)
        return self._mapped(everything=False)

    def stop(self) -> Samples | None:
        at = time.monotonic_ns()
        # where that fails, what came before is whole, and what is missing at the end is counted
        with contextlib.suppress(SamplerError):
            self._take(self._counters.stop(), None)
        self._sync(FIRST_BURST, close_enough_ns=(self.map.closest_ns or 0) * 3 // 2)
        self._count_end(at)
        return self._mapped(everything=True)

    def _count_end(self, stopped_ns: int) -> None:
        """Count what is missing between the last record and the end, where that is more than some passes."""
        import numpy as np

        if self._last_end is None or self.map.known_until_ns is None:
            return
        missing = stopped_ns - int(self.map.to_host(np.array([self._last_end]))[0])
        if missing > 4 * self._poll:
            self.losses.gap(missing, self._period)

    def close(self) -> None:
        self._counters.close()
        if self._clock is not None:
            self._clock.close()
            self._clock = None

    def _go_on_after(self, decoded: Decoded) -> None:
        if decoded.overflow:
            self.losses.overflows += 1
            self._counters.restart()

    def _take(self, decoded: Decoded, began_ns: int | None) -> int:
        """Keep the valid records of a decode and count what lies between them; returns how many were kept."""
        import numpy as np

        good = (decoded.start_ns > 0) & (decoded.end_ns > decoded.start_ns)
        self.losses.dropped += int((~good).sum())
        number = np.isfinite(decoded.values).all(axis=1)
        self.losses.invalid += int((good & ~number).sum())
        good &= number
        start, end, values = decoded.start_ns[good], decoded.end_ns[good], decoded.values[good]
        if not len(start):
            return 0
        begun = int(start[0]) if self._last_end is None else self._last_end
        before = np.concatenate(([begun], np.maximum.accumulate(end)[:-1].clip(min=begun)))
        # see `pm_counters`: a record may come again, by some nanoseconds elsewhere
        new = start >= before - self._period // 2
        self.losses.repeated += int((~new).sum())
        start, end, values, before = start[new], end[new], values[new], before[new]
        if not len(start):
            return 0
        if self._clock is None:
            self._bound(int(start[0]), int(end[-1]), began_ns)
        for gap in (start - before)[start - before > self._period // 2].tolist():
            self.losses.gap(gap, self._period)
        self._last_end = int(end[-1])
        self._pending.append(Decoded(start, end, values))
        return len(start)

    def _sync(self, count: int, *, close_enough_ns: int) -> None:
        self._synced_at = time.monotonic_ns()
        if self._clock is not None and (
            readings := self._clock.burst(count, close_enough_ns=close_enough_ns)
        ):
            self.map.add(knot(readings))

    def _bound(self, first_ns: int, last_ns: int, began_ns: int | None) -> None:
        """Without a clock to look at: the last record had ended when it was read."""
        now = time.monotonic_ns()
        if began_ns is None and now - self._bounded_at < SYNC_NS:
            return
        self._bounded_at = now
        low = last_ns - now
        high = low + 10 * MS if began_ns is None else first_ns - began_ns
        self.map.add(Knot(last_ns, low, max(low, high)))

    def _mapped(self, *, everything: bool) -> Samples | None:
        import numpy as np

        until = self.map.known_until_ns
        if until is None or not self._pending:
            return None
        start = np.concatenate([d.start_ns for d in self._pending])
        end = np.concatenate([d.end_ns for d in self._pending])
        values = np.concatenate([d.values for d in self._pending])
        n = len(end) if everything else int(np.searchsorted(end, until, side="right"))
        self._pending = [Decoded(start[n:], end[n:], values[n:])] if n < len(end) else []
        if not n:
            return None
        active = np.clip(values[:n, 0] / 100.0, 0.0, 1.0)
        return Samples(
            self.device.device,
            self.map.to_host(start[:n]),
            self.map.to_host(end[:n]),
            active,
            self._extras(values[:n]),
        )

    def _extras(self, values: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        return {name: values[:, i + 1] for i, name in enumerate(self.extra_metrics)}


def sampler(devices: Sequence[int] | None, period_ns: int, extra_metrics: Sequence[str] = ()) -> CuptiSampler:
    """A sampler of real GPUs.

    Parameters
    ----------
    devices : sequence of int or None
        Numbers of the GPUs; None is all of them.
    period_ns : int
        Sampling interval.
    extra_metrics : sequence of str
        Further metrics of the chip, as far as one pass can read them.

    Raises
    ------
    SamplerError
        If there is no driver or no such GPU.
    UsageError
        If the period is out of range.
    """
    from rlprof.capture.samplers.gpu_clock import GpuClock, describe, device_count, load_driver
    from rlprof.capture.samplers.pm_counters import PmCounters

    check_period("cupti", period_ns)
    driver = load_driver()
    chosen = range(device_count(driver)) if devices is None else devices
    metrics = [METRIC, *extra_metrics]

    def clock(device: int) -> Clock | None:
        try:
            return GpuClock(driver, device)
        except SamplerError:  # memory full or exclusive mode: sampling itself needs no context
            return None

    return CuptiSampler(
        [describe(driver, d) for d in chosen],
        period_ns,
        lambda device, period, buffer, slots: PmCounters(device, metrics, period, buffer, slots),
        clock,
        extra_metrics,
    )
