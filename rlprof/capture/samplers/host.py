"""Activity of the host's cores by the kernel's own accounting: works everywhere, needs nothing.

The busy share of the cores that this process may run on. Where a control group (version 2) grants fewer cores
than that, the share of the granted time that the group has used. Time stolen by a hypervisor was available
to nobody and counts neither way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof.capture.samplers.base import Device, Losses, SamplerError, Samples, Source, check_period
from rlprof.cores import limiting_group

HOST = -1


@dataclass(frozen=True)
class Accounts:
    """What the kernel has accounted up to now, in one unit (ticks or microseconds).

    Parameters
    ----------
    busy : dict of core to int
        Time spent working; for a control group under the key -1.
    idle : dict of core to int
        Time spent idle or waiting for input and output.
    """

    busy: dict[int, int]
    idle: dict[int, int]


def busy_share(before: Accounts, after: Accounts) -> float | None:
    """Share of the time between two looks that was spent working.

    Parameters
    ----------
    before, after : Accounts
        Two looks. Cores that are missing from one are left out.

    Returns
    -------
    float or None
        0..1; None while the kernel has accounted nothing in between.
    """
    cores = before.busy.keys() & after.busy.keys()
    # the kernel may take back a little of what it called idle (waiting for input and output)
    busy = sum(max(0, after.busy[c] - before.busy[c]) for c in cores)
    idle = sum(max(0, after.idle[c] - before.idle[c]) for c in cores)
    return busy / (busy + idle) if busy + idle else None


def parse_stat(text: str, cores: frozenset[int]) -> Accounts:
    """Read `/proc/stat`.

    Parameters
    ----------
    text : str
        Its content.
    cores : frozenset of int
        Cores to read.

    Returns
    -------
    Accounts
        In ticks of 10 ms.
    """
    busy, idle = {}, {}
    for line in text.splitlines():
        if not line.startswith("cpu") or not line[3:4].isdigit():
            continue
        name, *numbers = line.split()
        core = int(name[3:])
        if core in cores:
            # user nice system idle iowait irq softirq steal; guest time is part of user
            user, nice, system, rest, wait, irq, soft = (int(n) for n in numbers[:7])
            busy[core], idle[core] = user + nice + system + irq + soft, rest + wait
    return Accounts(busy, idle)


class HostSampler:
    """Activity of the host's cores; see `rlprof.capture.samplers.base.Sampler`.

    Parameters
    ----------
    period_ns : int
        20 ms to 10 s.
    root : pathlib.Path
        Root of the file system.
    now : function giving int
        The clock.

    Raises
    ------
    UsageError
        If the period is out of range.
    """

    source: Source = "host_cores"

    def __init__(
        self, period_ns: int, root: Path = Path("/"), now: Callable[[], int] = time.monotonic_ns
    ) -> None:
        check_period("host", period_ns)
        self.period_ns = self.poll_ns = period_ns
        self._root, self._now = root, now
        self._cores = frozenset(os.sched_getaffinity(0))
        self._group = limiting_group(root, len(self._cores))
        self._losses = Losses()
        self._bracket_ns = 0

    def start(self) -> Sequence[Device]:
        """Take the first look.

        Raises
        ------
        SamplerError
            If the kernel's accounting cannot be read.
        """
        try:
            self._at, self._accounts = self._look()
        except (OSError, ValueError) as error:
            raise SamplerError(
                "the kernel's accounting cannot be read (/proc/stat)", hint="mount /proc in this container"
            ) from error
        facts: dict[str, Any] = {"cores": len(self._cores), "scope": "cores"}
        if self._group:
            facts |= {"cores": self._group.cores, "scope": "control group"}
        return [Device(HOST, facts=facts)]

    def drain(self) -> Sequence[Samples]:
        """One sample since the last, if the kernel has accounted anything meanwhile."""
        import numpy as np

        at, accounts = self._look()
        share = busy_share(self._accounts, accounts)
        if share is None or at <= self._at:
            return []
        sample = Samples(
            HOST, np.array([self._at], np.int64), np.array([at], np.int64), np.array([share], np.float64)
        )
        self._at, self._accounts = at, accounts
        return [sample]

    def stop(self) -> Sequence[Samples]:
        """The last, shorter sample."""
        return self.drain()

    def losses(self) -> Losses:
        """Never any: accounts add up, a late look makes a longer sample."""
        return self._losses

    def clock(self) -> dict[str, Any]:
        """The looks bear the host's own clock; how long the longest took."""
        return {"host": {"method": "own clock", "offset_ns": 0, "uncertainty_ns": self._bracket_ns // 2}}

    def _look(self) -> tuple[int, Accounts]:
        before = self._now()
        accounts = self._group_accounts() if self._group else self._core_accounts()
        after = self._now()
        self._bracket_ns = max(self._bracket_ns, after - before)
        return (before + after) // 2, accounts

    def _core_accounts(self) -> Accounts:
        accounts = parse_stat((self._root / "proc/stat").read_text(), self._cores)
        if not accounts.busy:
            raise ValueError("no core of this process is listed")
        return accounts

    def _group_accounts(self) -> Accounts:
        assert self._group is not None
        lines = (self._group.folder / "cpu.stat").read_text().splitlines()
        used = next(int(line.split()[1]) for line in lines if line.startswith("usage_usec"))
        granted = int(self._now() / 1000 * self._group.cores)
        return Accounts({HOST: used}, {HOST: granted - used})
