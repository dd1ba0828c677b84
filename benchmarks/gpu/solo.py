"""What an iteration without overlap takes of cores and of the GPU's time, for a bound on overlap."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rlprof.overlap.optimize.bound import Work
    from rlprof.overlap.optimize.windows import CallTime

#: Seconds between readings of the GPU's utilisation, which is a mean over a sixth of a second or more.
EVERY_S = 0.1
#: The longest time that NVML says a utilisation is a mean over.
LONGEST_PERIOD_S = 1.0
#: Share of an iteration of which there must be readings.
COVERED_FRAC = 0.9


class Reading(NamedTuple):
    """What NVML said: the utilisation over the latest period that was complete.

    Parameters
    ----------
    at_s : float
        When, on the monotonic clock.
    busy_frac : float
        Share of a period in which anything executed.
    """

    at_s: float
    busy_frac: float


def period_s(readings: Sequence[Reading]) -> float:
    """Longest time that a utilisation may be a mean over: the driver renews it at the end of each period.

    Two changes that follow each other are at least a period apart, and each came between two readings.
    """
    changed = [(a.at_s, b.at_s) for a, b in pairwise(readings) if a.busy_frac != b.busy_frac]
    return min((LONGEST_PERIOD_S, *(late - early for (early, _), (_, late) in pairwise(changed))))


def renewed_every_s(readings: Sequence[Reading]) -> float:
    """Period of a utilisation, as changes tell it: the mean time between those that follow each other.

    Longer times than a period can be had periods of the same value in between.
    """
    changed = [b.at_s for a, b in pairwise(readings) if a.busy_frac != b.busy_frac]
    longest_s = period_s(readings)
    one = [late - early for early, late in pairwise(changed) if late - early <= longest_s]
    return sum(one) / len(one) if one else longest_s


def busy_shares(readings: Sequence[Reading], start_s: float, end_s: float) -> list[tuple[Reading, float]]:
    """Readings that are of a certain time, and how much of it each stands for.

    Parameters
    ----------
    readings : sequence of Reading
        In order.
    start_s, end_s : float
        First and last work that counts, on the monotonic clock.

    Returns
    -------
    list of (Reading, float)
        Seconds, at most those around the reading that are nearer to it than to others. What a utilisation is
        of, a period, was complete when it was renewed: it is told a period later. A period that began before
        the start or lasted beyond the end counts by its share, as if it were busy evenly. If nothing was
        read for so long after the end, the rest is left out.
    """
    late_s = renewed_every_s(readings)
    start_s, end_s = start_s + late_s, end_s + late_s
    times = [r.at_s for r in readings]
    if not times:
        return []
    between = [(a + b) / 2 for a, b in pairwise(times)]
    edges = [times[0] - EVERY_S / 2, *between, times[-1] + EVERY_S / 2]
    spans = ((max(a, start_s), min(b, end_s)) for a, b in pairwise(edges))
    return [(r, b - a) for r, (a, b) in zip(readings, spans, strict=True) if b > a]


def works(readings: Sequence[Reading], calls: Iterable[CallTime]) -> tuple[Work, ...]:
    """Divide the time in which a GPU was busy among the calls that a reading may be of.

    Parameters
    ----------
    readings : sequence of Reading
        Also some after the last call.
    calls : iterable of CallTime
        When each call ran, on the monotonic clock.

    Returns
    -------
    tuple of Work
        One for each reading that counts (see `busy_shares`). The period that it is of may have ended up to a
        period before: what ran within two periods before it may have kept the GPU busy, all of that counts as
        its calls.
    """
    from rlprof.overlap.optimize.bound import Work

    times, back_s = list(calls), 2 * period_s(readings)
    found = []
    for (at_s, busy_frac), share_s in busy_shares(readings, *_around(times)):
        ran = [t for t in times if t.end_ns / 1e9 >= at_s - back_s and t.start_ns / 1e9 <= at_s]
        found.append(Work(busy_frac * share_s, tuple(t.call for t in ran)))
    return tuple(found)


def _around(calls: Sequence[CallTime]) -> tuple[float, float]:
    """Seconds from the first start to the last end."""
    return min(t.start_ns for t in calls) / 1e9, max(t.end_ns for t in calls) / 1e9


class Cores(NamedTuple):
    """Processor time up to a moment.

    Parameters
    ----------
    at_s : float
        When, on the monotonic clock.
    own_s, simulator_s : float
        Of this process, and of the simulators.
    """

    at_s: float
    own_s: float
    simulator_s: float


@dataclass(frozen=True, slots=True)
class Use:
    """What an iteration took of what all share.

    Parameters
    ----------
    start_s, end_s : float
        First and last work of the iteration, from the start of the watch.
    core_s : float
        Processor time of this process and of the simulators.
    busy_s : float or None
        Time in which anything executed on the GPU, graphics included.
    reason : str
        Why that is not known.
    """

    start_s: float
    end_s: float
    core_s: float
    busy_s: float | None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the use as a JSON document."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items() if v != ""}


class Solo:
    """Processor time of this process and of the simulators, and time in which the GPU executed anything.

    Parameters
    ----------
    device : str
        Of the policy.
    simulator : object
        Names its processes in ``process_ids``.
    """

    def __init__(self, device: str, simulator: Any) -> None:
        self._ids = tuple(getattr(simulator, "process_ids", ()))
        from rlprof.gpu_numbers import gpu_number
        from rlprof.unavailable import Unavailable

        number = gpu_number(device) if device.startswith("cuda") else Unavailable("there is no GPU")
        self._gpu = number if isinstance(number, int) else None
        self._stop = threading.Event()
        self.readings: list[Reading] = []
        self.cores: list[Cores] = []
        self.reason = number.reason if isinstance(number, Unavailable) else "nothing was read"
        self._began = self.wall_s = self.own_core_s = self.simulator_core_s = 0.0

    def __enter__(self) -> Solo:
        self._began = time.monotonic()
        self._note()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        self._note()
        first, last = self.cores[0], self.cores[-1]
        self.wall_s = last.at_s - first.at_s
        self.own_core_s = last.own_s - first.own_s
        self.simulator_core_s = last.simulator_s - first.simulator_s

    def _note(self) -> None:
        self.cores.append(Cores(time.monotonic(), time.process_time(), self._processes()))

    def wait(self) -> None:
        """Let the readings come that are of what has just ended."""
        if self._gpu is not None:
            time.sleep(renewed_every_s(self.readings) + EVERY_S)

    def _processes(self) -> float:
        """Seconds that the simulator's processes have had of cores."""
        ticks = 0
        for pid in self._ids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _read(self) -> None:
        gauge = self._gauge()
        while not self._stop.wait(EVERY_S):
            self._note()
            if gauge is None:
                continue
            try:
                busy_frac = gauge()
            except Exception as error:  # without it the other limits are there
                self.reason, gauge = f"{type(error).__name__}: {error}"[:200], None
            else:
                self.readings.append(Reading(time.monotonic(), busy_frac))

    def _gauge(self) -> Callable[[], float] | None:
        if self._gpu is None:
            return None
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(self._gpu)
        except Exception as error:  # without it the other limits are there
            self.reason = f"{type(error).__name__}: {error}"[:200]
            return None
        return lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100

    def since_began(self, at_ns: int) -> float:
        """Seconds from the start of the watch to a time on the monotonic clock."""
        return at_ns / 1e9 - self._began

    @property
    def utilization(self) -> float | None:
        """Mean share of time in which anything executed on the GPU, graphics included."""
        return sum(r.busy_frac for r in self.readings) / len(self.readings) if self.readings else None

    def use(self, start_ns: int, end_ns: int) -> Use:
        """What was taken between the start and the end of an iteration, on the monotonic clock.

        The driver waits for the GPU by spinning, at most one core of many; a simulator that shares memory
        with it is counted once.
        """
        start_s, end_s = start_ns / 1e9, end_ns / 1e9
        taken = [_at(self.cores, at_s) for at_s in (start_s, end_s)]
        around = start_s - self._began, end_s - self._began
        core_s = taken[1] - taken[0]
        shares = busy_shares(self.readings, start_s, end_s)
        if not shares:
            return Use(*around, core_s, None, self.reason)
        if (read_s := sum(share_s for _, share_s in shares)) < COVERED_FRAC * (end_s - start_s):
            reason = f"the utilisation of {read_s:.2f} of {end_s - start_s:.2f} s was read"
            return Use(*around, core_s, None, reason)
        return Use(*around, core_s, sum(r.busy_frac * share_s for r, share_s in shares))

    def to_dict(self) -> dict[str, Any]:
        """All that was read."""
        return {
            "own_core_s": round(self.own_core_s, 3),
            "simulator_core_s": round(self.simulator_core_s, 3),
            "gpu_utilization": None if self.utilization is None else round(self.utilization, 4),
            "gpu_utilization_samples": len(self.readings),
            "gpu_utilization_period_s": round(period_s(self.readings), 3) if self.readings else None,
            "gpu_utilization_readings": [
                [round(r.at_s - self._began, 3), r.busy_frac] for r in self.readings
            ],
        }


def _at(cores: Sequence[Cores], at_s: float) -> float:
    """Processor time up to a moment, between what was noted before and after it."""
    before = next((c for c in reversed(cores) if c.at_s <= at_s), cores[0])
    after = next((c for c in cores if c.at_s >= at_s), cores[-1])
    share = (at_s - before.at_s) / (after.at_s - before.at_s) if after.at_s > before.at_s else 0.0
    return sum(b + share * (a - b) for b, a in zip(before[1:], after[1:], strict=True))
