"""What an iteration without overlap takes of cores and of the GPU's time, for a bound on overlap."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

#: Seconds between readings of the GPU's utilisation, which is a mean over a sixth of a second or more.
EVERY_S = 0.1


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
        self._seen: list[float] = []
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
                self._seen.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        except Exception as error:  # without it the other limits are there
            self.reason = f"{type(error).__name__}: {error}"[:200]

    @property
    def utilization(self) -> float | None:
        """Mean share of time in which anything executed on the GPU, graphics included."""
        return sum(self._seen) / len(self._seen) if self._seen else None

    def resources(self) -> dict[str, Any]:
        """For `rlprof.overlap.optimize.bound.bound`.

        The driver waits for the GPU by spinning, at most one core of many; a simulator that shares memory
        with it is counted once.
        """
        from rlprof.overlap.optimize.bound import Resource
        from rlprof.unavailable import Unavailable

        cores = len(os.sched_getaffinity(0))
        found: dict[str, Any] = {"cores": Resource(self.own_core_s + self.simulator_core_s, cores)}
        busy = self.utilization
        found["GPU time slices"] = Unavailable(self.reason) if busy is None else Resource(busy * self.wall_s)
        return found

    def to_dict(self) -> dict[str, Any]:
        """All that was read."""
        return {
            "own_core_s": round(self.own_core_s, 3),
            "simulator_core_s": round(self.simulator_core_s, 3),
            "gpu_utilization": None if self.utilization is None else round(self.utilization, 4),
            "gpu_utilization_samples": len(self._seen),
        }
