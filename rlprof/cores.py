"""Cores of this machine that this process may use: by its affinity, and by quotas of its control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Where control groups are mounted, below the root of the file system.
_MOUNT = "sys/fs/cgroup"


@dataclass(frozen=True)
class Group:
    """A control group that limits processor time.

    Parameters
    ----------
    folder : pathlib.Path
        Where it is.
    cores : float
        How many cores' time it grants.
    """

    folder: Path
    cores: float


def usable_cores(root: Path = Path("/")) -> int:
    """How many cores this process can keep busy.

    A container that is given the time of two cores may see, and run on, all cores of its machine.

    Parameters
    ----------
    root : pathlib.Path
        Root of the file system.

    Returns
    -------
    int
        `granted_cores`, rounded up: at least 1.
    """
    return max(1, math.ceil(granted_cores(root)))


def granted_cores(root: Path = Path("/")) -> float:
    """How many cores' time this process gets at most: of those it may run on, or less by a quota.

    Parameters
    ----------
    root : pathlib.Path
        Root of the file system.
    """
    may = getattr(os, "sched_getaffinity", None)  # of Linux
    cores = len(may(0)) if may is not None else os.cpu_count() or 1
    return min([float(cores), *(group.cores for group in (*_groups(root), *_first_groups(root)))])


def limiting_group(root: Path, cores: int) -> Group | None:
    """The control group (version 2, with accounts) that grants the least time, if less than `cores` cores.

    Parameters
    ----------
    root : pathlib.Path
        Root of the file system.
    cores : int
        Cores that this process may run on.

    Returns
    -------
    Group or None
    """
    found = [group for group in _groups(root) if (group.folder / "cpu.stat").is_file()]
    least = min(found, key=lambda g: g.cores, default=None)
    return least if least is not None and least.cores < cores else None


def _groups(root: Path) -> Iterator[Group]:
    """Limits of version 2: of the process's own group, and of those above it."""
    for own in _own(root, ""):
        for folder in _upwards(root / _MOUNT, own):
            quota, period = [*_text(folder / "cpu.max").split(), "", ""][:2]
            yield from _limit(folder, quota, period)


def _first_groups(root: Path) -> Iterator[Group]:
    """Limits of version 1, which has a hierarchy for each controller."""
    for own in _own(root, "cpu"):
        for mount in ("cpu", "cpu,cpuacct"):
            for folder in _upwards(root / _MOUNT / mount, own):
                quota = _text(folder / "cpu.cfs_quota_us").strip()
                yield from _limit(folder, quota, _text(folder / "cpu.cfs_period_us").strip())


def _own(root: Path, controller: str) -> Iterator[str]:
    """Path of the process's group of a controller; of version 2 it has no name."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if controller in names.split(","):
            yield path


def _upwards(mount: Path, own: str) -> Iterator[Path]:
    """Folders of a group and of those above it; in a container its own may be the mount itself."""
    folder = mount / own.strip("/")
    return (place for place in (folder, *folder.parents) if place.is_relative_to(mount))


def _limit(folder: Path, quota: str, period: str) -> Iterator[Group]:
    # no limit is "max", or -1
    if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
        yield Group(folder, int(quota) / int(period))


def _text(path: Path) -> str:
    """Content of a file of the kernel; nothing if it is not there, or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
