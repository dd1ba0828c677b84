"""Ways to give a process less: SMs under MPS, cores, or weight in the scheduler of the processor."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from rlprof.cores import usable_cores
from rlprof.errors import UsageError
from rlprof.overlap.quota import launch
from rlprof.overlap.quota.clients import STEP, ProbedLevels, probe_levels, read_cached, write_cached
from rlprof.overlap.quota.daemons import Daemon, without_mps
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.products import LIMIT_S, Products, ask_client
from rlprof.unavailable import Unavailable

Progress = Callable[[str, float], None]


class Mechanism(ABC):
    """A way to set quotas, fixed for the life of a process.

    Attributes
    ----------
    name : str
        As on the command line.
    unit, setting : str
        What an amount counts, and what a setting is.
    alters_products : bool
        Some levels are known to make matrix products wrong, so that one looks before a level is used.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    setting: ClassVar[str]
    alters_products: ClassVar[bool] = False

    @property
    def resource(self) -> str:
        """What all its processes share."""
        return "processor"

    @abstractmethod
    def levels(self, _progress: Progress, /) -> tuple[Level, ...]:
        """All levels, weakest first; the last one is no quota."""

    def environment(self, _level: Level | None, /) -> dict[str, str]:
        """Environment variables of a process under a level; None: no quota."""
        return {}

    def prefix(self, _level: Level | None, /) -> tuple[str, ...]:
        """What goes before a command under a level; None: no quota."""
        return ()

    def clients(self, _processes: Collection[int], /) -> bool:
        """Whether one of these processes is one that quotas have an effect on."""
        return True

    def unmanaged(self) -> dict[str, str] | None:
        """Environment variables without the mechanism; None if there is no such difference."""
        return None

    def products(self, _level: Level, /, *, limit_s: float = LIMIT_S) -> Products | Unavailable:  # noqa: ARG002
        """Whether matrix products are right under a level; looking ends after so many seconds."""
        return Unavailable("only a share of the SMs is known to change what is computed")


@dataclass(frozen=True)
class Mps(Mechanism):
    """Share of the SMs of a GPU, by an MPS daemon.

    Parameters
    ----------
    daemon : Daemon
        That runs.
    cache : pathlib.Path or None
        Folder in which probed levels are kept; None: nowhere.
    step : int
        Step of the percentages that are probed.
    """

    daemon: Daemon
    cache: Path | None = None
    step: int = STEP
    name: ClassVar[str] = "mps"
    unit: ClassVar[str] = "SMs"
    setting: ClassVar[str] = "%"
    alters_products: ClassVar[bool] = True

    @property
    def resource(self) -> str:
        """The GPU."""
        return f"GPU {self.daemon.gpu.ordinal}"

    def probed(self, progress: Progress, *, refresh: bool = False) -> ProbedLevels:
        """Levels of the GPU, from the cache or from fresh clients.

        Raises
        ------
        QuotaError
            If they cannot be probed.
        """
        gpu = self.daemon.gpu
        known = None if self.cache is None or refresh else read_cached(self.cache, gpu, self.step)
        if known is not None:
            return known
        found = probe_levels(
            gpu,
            self.daemon.environment(),
            step=self.step,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            progress=progress,
        )
        if self.cache is not None:
            write_cached(self.cache, found)
        return found

    def levels(self, progress: Progress, /) -> tuple[Level, ...]:
        """All levels, weakest first."""
        return self.probed(progress).levels

    def environment(self, level: Level | None, /) -> dict[str, str]:
        """Environment variables of a client."""
        return self.daemon.environment(level)

    def clients(self, processes: Collection[int], /) -> bool:
        """Whether one of these processes is a client of the MPS server."""
        known = self.daemon.clients()
        if known and not any(Path(f"/proc/{pid}").exists() for pid in known):
            return True  # ids of another process namespace: it cannot be told whose they are
        return not set(processes).isdisjoint(known)

    def products(self, level: Level, /, *, limit_s: float = LIMIT_S) -> Products | Unavailable:
        """What a fresh client finds; nothing if it had other SMs than those of the level."""
        found = ask_client(self.daemon.environment(level), limit_s=limit_s)
        if isinstance(found, Products) and found.sms != level.amount:  # as where the daemon has died
            return Unavailable(
                f"a client of {level.setting} % had {found.sms} SMs in place of {level.amount}: see"
                " rlprof mps status, and rlprof mps levels --refresh"
            )
        return found

    def unmanaged(self) -> dict[str, str] | None:
        """Without MPS: processes are time-sliced."""
        found = without_mps()
        if self.daemon.visible is not None:
            found["CUDA_VISIBLE_DEVICES"] = self.daemon.visible
        return found


def _launcher(kind: str, value: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", launch.__file__, kind, value)


@dataclass(frozen=True)
class Cores(Mechanism):
    """Number of cores that a process may run on.

    Parameters
    ----------
    cores : tuple of int
        Those that both processes may use without a quota.
    usable : int or None
        How many of them the CPU quota of the control group lets both keep busy; None: all.
    """

    cores: tuple[int, ...]
    usable: int | None = None
    name: ClassVar[str] = "cores"
    unit: ClassVar[str] = "cores"
    setting: ClassVar[str] = "cores"

    def levels(self, _progress: Progress, /) -> tuple[Level, ...]:
        """One core to all; none that gives more time than there is, but for that without a quota."""
        most = len(self.cores) if self.usable is None else min(self.usable, len(self.cores))
        return (*(Level(n, n) for n in range(1, most)), Level(most, len(self.cores)))

    def prefix(self, level: Level | None, /) -> tuple[str, ...]:
        """Run on the last cores, since those who choose for themselves begin with the first."""
        count = len(self.cores) if level is None else level.setting
        return _launcher("cores", ",".join(map(str, self.cores[-count:])))


@dataclass(frozen=True)
class Nice(Mechanism):
    """Weight in the scheduler of the processor: nice values from 19 to that of this process.

    Parameters
    ----------
    base : int
        Nice value of a process without a quota.
    """

    base: int
    name: ClassVar[str] = "nice"
    unit: ClassVar[str] = "steps of priority"
    setting: ClassVar[str] = "nice"

    def levels(self, _progress: Progress, /) -> tuple[Level, ...]:
        """Nice 19 to the base."""
        return tuple(Level(20 - value, value) for value in range(19, self.base - 1, -1))

    def prefix(self, level: Level | None, /) -> tuple[str, ...]:
        """Set the nice value."""
        return _launcher("nice", str(self.base if level is None else level.setting))


def processor(name: str) -> Mechanism:
    """Return a mechanism of this machine's processor.

    Parameters
    ----------
    name : {"cores", "nice"}
        Which.

    Raises
    ------
    UsageError
        If it has no two levels here.
    """
    if name == "cores":
        cores = tuple(sorted(os.sched_getaffinity(0)))
        usable = usable_cores()
        if usable < 2:
            only = "there is one core only" if len(cores) < 2 else "the CPU quota is one core's time at most"
            raise UsageError(f"{only}, so no number of cores to choose", hint="--mechanism nice")
        return Cores(cores, usable)
    base = max(os.getpriority(os.PRIO_PROCESS, 0), -20)
    if base > 18:
        raise UsageError(
            f"this process has nice value {base} already",
            hint="start it with a lower one, or --mechanism cores",
        )
    return Nice(base)
