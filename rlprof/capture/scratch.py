"""Folders of sessions that nobody assembles: whose they are, and removing those that are nobody's.

A session that is only looked at while it runs keeps its samples in a folder beside the output of the program.
Its process holds a lock on a file in there. The operating system gives the lock back however that process
ends, so a folder whose lock can be had belongs to nobody, also where the folder is shared between machines or
a process id has come around again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

#: The file that is locked.
LOCK = "owner.lock"
#: A folder without that file is being made, for this long at most, or its process was killed in between.
MAKING_S = 60.0
_PREFIX, _SUFFIX = ".activity-", ".parts"


def scratch_name() -> str:
    """Name of this process's output that will never be made; its parts are in ``NAME.parts``."""
    return f"{_PREFIX}{os.getpid()}"


def claim(folder: Path) -> int:
    """Mark a folder as this process's.

    Returns
    -------
    int
        A file descriptor; the folder is this process's until it is closed.

    Raises
    ------
    OSError
        If the file cannot be made.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # a file system without locks: then nobody else gets one either
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def sweep(beside: Path) -> None:
    """Remove the folders in `beside` that sessions left which were killed; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for folder in beside.glob(f"{_PREFIX}*{_SUFFIX}"):
            if _is_nobodys(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_nobodys(folder: Path) -> bool:
    pid = folder.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    if not pid.isdecimal() or folder.is_symlink():
        return False  # not made here
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            is_old = time.time() - folder.stat().st_mtime > MAKING_S
            return is_old and not Path(f"/proc/{pid}").exists()
        return False
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
