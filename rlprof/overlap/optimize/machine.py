"""Looks at the machine beside trials: load of others, clocks, throttling. A look starts no process."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlprof.analysis.machine_state import MachineState, doubts, side
from rlprof.analysis.trials import PairedComparison
from rlprof.cores import limiting_group
from rlprof.unavailable import Unavailable

#: Processes that this one has started are looked for again after so long, in seconds.
AGAIN_S = 1.0
#: Clocks of no more cores are read.
MOST_CLOCKS = 16


@dataclass(frozen=True)
class Look:
    """What the kernel has accounted up to a moment; seconds since the machine, or each process, was started.

    Parameters
    ----------
    at_s : float
        Monotonic.
    busy_s : float or None
        Of the cores that this process may use.
    own_s : mapping of int to float
        By process: this one and all that it has started.
    throttled : int or None
        Of cores and of the control group.
    """

    at_s: float
    busy_s: float | None
    own_s: Mapping[int, float]
    throttled: int | None


class Machine:
    """The machine that trials run on.

    Parameters
    ----------
    gpu : int, str, Unavailable or None
        Number or UUID of the GPU, as NVML has it; None: no GPU is looked at.
    root : pathlib.Path
        Root of the file system.
    nvml : module, optional
        `pynvml`, by default imported where there is a GPU to look at.
    clock : callable
        Seconds.

    Notes
    -----
    The kernel accounts in ticks, mostly of 10 ms: a state of a short trial is coarse, the mean over a side's
    trials (`rlprof.analysis.machine_state.side`) is not.
    """

    def __init__(
        self,
        gpu: int | str | Unavailable | None = None,
        root: Path = Path("/"),
        nvml: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._clock = root, clock
        self._cores = sorted(os.sched_getaffinity(0))
        self._names = {f"cpu{core}" for core in self._cores}
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        cpus = [root / f"sys/devices/system/cpu/cpu{core}" for core in self._cores]
        clocks = [path / "cpufreq/scaling_cur_freq" for path in cpus[:MOST_CLOCKS]]
        self._clocks = [path for path in clocks if path.is_file()]
        counts = [path / "thermal_throttle/core_throttle_count" for path in cpus]
        self._throttles = [path for path in counts if path.is_file()]
        self._group = self._limits()
        self._children: tuple[int, ...] = ()
        self._looked_s = float("-inf")
        self._gpu = Gpu(gpu, nvml) if gpu is not None else None

    @property
    def gpu_reason(self) -> str | None:
        """Why nothing is known of the GPU that was asked for; None if it is, or none was."""
        return None if self._gpu is None else self._gpu.reason

    def look(self) -> Look:
        """Look now: once before a trial, outside of what is timed."""
        own = {os.getpid(): time.process_time()}
        for pid in self._started():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (self._root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()
                own[pid] = (int(fields[11]) + int(fields[12])) * self._tick_s
        return Look(self._clock(), self._busy_s(), own, self._throttled())

    def since(self, before: Look) -> MachineState:
        """State of the machine since a look; to be called after a trial, outside of what is timed."""
        now = self.look()
        wall_s = max(now.at_s - before.at_s, 1e-9)
        own_s = sum(used - before.own_s.get(pid, 0.0) for pid, used in now.own_s.items())
        others: float | None = None
        if now.busy_s is not None and before.busy_s is not None:
            others = max(0.0, now.busy_s - before.busy_s - own_s) / wall_s
        throttled: int | None = None
        if now.throttled is not None and before.throttled is not None:
            throttled = max(0, now.throttled - before.throttled)
        gpu = {} if self._gpu is None else self._gpu.state()
        clocks = [clock for path in self._clocks if (clock := _number(path)) is not None]
        return MachineState(
            wall_s=wall_s,
            cores=len(self._cores),
            own_cores=own_s / wall_s,
            others_cores=None if others is None else min(others, float(len(self._cores))),
            core_mhz=sum(clocks) / len(clocks) / 1000 if clocks else None,
            throttled=throttled,
            **gpu,
        )

    def _busy_s(self) -> float | None:
        """Seconds of work on the cores of this process; what a hypervisor gave to others counts as work."""
        try:
            lines = (self._root / "proc/stat").read_text().splitlines()
        except OSError:
            return None
        ticks, seen = 0, False
        for line in lines:
            name, *numbers = line.split()
            if not name.startswith("cpu"):
                break
            if name in self._names:
                # user nice system idle iowait irq softirq steal; guest time is part of user
                user, nice, system, _, _, irq, soft, *rest = map(int, numbers)
                ticks, seen = ticks + user + nice + system + irq + soft + sum(rest[:1]), True
        return ticks * self._tick_s if seen else None

    def _started(self) -> tuple[int, ...]:
        """Processes that this one has started, and theirs."""
        if self._clock() - self._looked_s >= AGAIN_S:
            found: list[int] = []
            queue = [os.getpid()]
            while queue:
                pid = queue.pop()
                for path in (self._root / f"proc/{pid}/task").glob("*/children"):
                    with contextlib.suppress(OSError):
                        queue += (new := [int(name) for name in path.read_text().split()])
                        found += new
            self._children, self._looked_s = tuple(found), self._clock()
        return self._children

    def _throttled(self) -> int | None:
        """Times that cores were throttled, and that the control group let this program wait."""
        found = [n for path in self._throttles if (n := _number(path)) is not None]
        if self._group is not None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                lines = self._group.read_text().splitlines()
                found += [float(line.split()[1]) for line in lines if line.startswith("nr_throttled")]
        return int(sum(found)) if found else None

    def _limits(self) -> Path | None:
        """Accounts of the control group that grants this process less than its cores."""
        found = limiting_group(self._root, len(self._cores))
        return None if found is None else found.folder / "cpu.stat"


class Gpu:
    """State of one GPU, by NVML: no process is started for a look.

    Parameters
    ----------
    gpu : int, str or Unavailable
        Number or UUID.
    nvml : module, optional
        `pynvml`, by default imported.
    """

    def __init__(self, gpu: int | str | Unavailable, nvml: Any = None) -> None:
        self.reason: str | None = gpu.reason if isinstance(gpu, Unavailable) else None
        if self.reason is not None:
            return
        try:
            nvml = importlib.import_module("pynvml") if nvml is None else nvml
            nvml.nvmlInit()
            by = nvml.nvmlDeviceGetHandleByUUID if isinstance(gpu, str) else nvml.nvmlDeviceGetHandleByIndex
            self._handle = by(gpu)
        except ImportError:
            self.reason = "NVML cannot be asked: nvidia-ml-py is not installed"
        except nvml.NVMLError as error:
            self.reason = f"NVML: {error}"
        self._nvml = nvml

    def state(self) -> dict[str, Any]:
        """Clocks, temperature, power and reasons for lower clocks, as far as the GPU tells them."""
        if self.reason is not None:
            return {}
        nvml, handle = self._nvml, self._handle
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        if reasons is None:  # of older packages
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        asked: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "slowed_by": lambda: reasons(handle),
        }
        found: dict[str, Any] = {}
        for name, ask in asked.items():
            with contextlib.suppress(nvml.NVMLError):  # a virtual GPU may not tell some
                found[name] = ask()
        return found


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


@dataclass
class Sides:
    """States of the machine beside the trials of a comparison.

    Parameters
    ----------
    machine : Machine or None
        None: nothing is looked at.

    Examples
    --------
    >>> sides = Sides(machine)  # or Sides.beside(workload)
    >>> result = measure_paired(sides.reference(run_a), sides.candidate(run_b), rule)
    >>> result = sides.judged(result)  # with its doubts
    """

    machine: Machine | None
    states: dict[str, list[MachineState]] = field(default_factory=lambda: {"reference": [], "candidate": []})

    @classmethod
    def beside(cls, workload: object) -> Sides:
        """Look at the machine of a workload (its attribute `machine`), if it has one."""
        return cls(getattr(workload, "machine", None))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Sides:
        """Return the states that were kept with a comparison; of an older one none are known."""
        kept = document.get("machine", {})
        names = ("reference", "candidate")
        return cls(None, {n: [MachineState.from_dict(s) for s in kept.get(n, ())] for n in names})

    def reference(self, run: Callable[[], float]) -> Callable[[], float]:
        """Return a trial of the reference that is looked at."""
        return self._watched("reference", run)

    def candidate(self, run: Callable[[], float]) -> Callable[[], float]:
        """Return a trial of the candidate that is looked at."""
        return self._watched("candidate", run)

    def _watched(self, name: str, run: Callable[[], float]) -> Callable[[], float]:
        machine = self.machine
        if machine is None:
            return run

        def watched() -> float:
            before = machine.look()
            taken = run()
            self.states[name].append(machine.since(before))
            return taken

        return watched

    def judged(self, result: PairedComparison) -> PairedComparison:
        """Return a comparison with what the machine's states put in doubt."""
        return replace(result, doubts=doubts(self.states["reference"], self.states["candidate"]))

    def summary(self) -> dict[str, Any]:
        """State of each side, for a log; empty if nothing was looked at."""
        # by what is kept, so that a log says the same when it is read again
        kept = {
            name: [MachineState.from_dict(s.to_dict()) for s in found] for name, found in self.states.items()
        }
        sides = {name: side(states) for name, states in kept.items()}
        return {name: found.to_dict() for name, found in sides.items() if found is not None}

    def to_dict(self) -> dict[str, Any]:
        """State of every trial, in the order of the pairs; empty if nothing was looked at."""
        return {name: [s.to_dict() for s in states] for name, states in self.states.items() if states}
