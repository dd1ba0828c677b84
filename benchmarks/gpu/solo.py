"""What an iteration without overlap takes of cores and of the GPU's time, for a bound on overlap."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
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


def works(readings: Sequence[Reading], calls: Iterable[CallTime], wall_s: float) -> tuple[Work, ...]:
    """Divide the time in which a GPU was busy among the calls that a reading may be of.

    Parameters
    ----------
    readings : sequence of Reading
        Evenly spaced: each stands for an equal share of the time.
    calls : iterable of CallTime
        When each call ran, on the monotonic clock.
    wall_s : float
        Time that was watched.

    Returns
    -------
    tuple of Work
        One for each reading. The period that it is of may have ended up to a period before: what ran within
        two periods before it may have kept the GPU busy, all of that counts as its calls.
    """
    from rlprof.overlap.optimize.bound import Work

    times, back_s = list(calls), 2 * period_s(readings)
    found = []
    for at_s, busy_frac in readings:
        ran = [t for t in times if t.end_ns / 1e9 >= at_s - back_s and t.start_ns / 1e9 <= at_s]
        found.append(Work(busy_frac * wall_s / len(readings), tuple(t.call for t in ran)))
    return tuple(found)


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
        self._gpu = int(device.partition(":")[2] or 0) if device.startswith("cuda") else None
        self._stop = threading.Event()
        self.readings: list[Reading] = []
        self.reason = "there is no GPU" if self._gpu is None else "nothing was read"
        self.wall_s = self.own_core_s = self.simulator_core_s = 0.0

    def __enter__(self) -> Solo:
        self._began, self._own, self._theirs = time.monotonic(), time.process_time(), self._processes()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.monotonic() - self._began
        self.own_core_s = time.process_time() - self._own
        self.simulator_core_s = self._processes() - self._theirs
        self._stop.set()
        self._thread.join(timeout=5)

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
        if self._gpu is None:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(self._gpu)
            while not self._stop.wait(EVERY_S):
                busy_frac = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                self.readings.append(Reading(time.monotonic(), busy_frac))
        except Exception as error:  # without it the other limits are there
            self.reason = f"{type(error).__name__}: {error}"[:200]

    def since_began(self, at_ns: int) -> float:
        """Seconds from the start of the watch to a time on the monotonic clock."""
        return at_ns / 1e9 - self._began

    @property
    def utilization(self) -> float | None:
        """Mean share of time in which anything executed on the GPU, graphics included."""
        return sum(r.busy_frac for r in self.readings) / len(self.readings) if self.readings else None

    def resources(self, calls: Iterable[CallTime] = ()) -> dict[str, Any]:
        """For `rlprof.overlap.optimize.bound.bound`.

        The driver waits for the GPU by spinning, at most one core of many; a simulator that shares memory
        with it is counted once.

        Parameters
        ----------
        calls : iterable of CallTime
            When calls ran, on the monotonic clock; none: the GPU's time is known of the iteration alone.
        """
        from rlprof.overlap.optimize.bound import Resource
        from rlprof.unavailable import Unavailable

        cores = len(os.sched_getaffinity(0))
        found: dict[str, Any] = {"cores": Resource(self.own_core_s + self.simulator_core_s, cores)}
        busy = self.utilization
        if busy is None:
            found["GPU time slices"] = Unavailable(self.reason)
        else:
            times = list(calls)
            of_calls = works(self.readings, times, self.wall_s) if times else ()
            found["GPU time slices"] = Resource(busy * self.wall_s, works=of_calls)
        return found

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
