"""Ends processes by a mark in their environment: all descendants of a worker, wherever they have gone.

A process that is started inherits the environment, so a mark put into a worker's is found in whatever the
worker started, also in sessions of its own and after the worker itself is gone. Run as a script, this file is
the guardian of a process: it waits until that one is gone, however it ended, and then ends what it left. It
imports nothing of rlprof.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

#: Environment variable that holds the marks, each ended by ";": those of a worker in a worker come after.
VARIABLE = "RLPROF_WORKER"
#: Flags of the kernel for a process: it is ending (PF_EXITING), or a thread of the kernel (PF_KTHREAD).
_NO_PROGRAM = 0x4 | 0x200000


def marked(mark: str) -> list[int]:
    """Ids of the processes of this machine whose environment holds `mark`, without this one."""
    found, wanted = [], mark.encode()
    for name in os.listdir("/proc"):  # noqa: PTH208 - a script that starts in milliseconds has no pathlib
        if not name.isdigit() or int(name) == os.getpid():
            continue
        environment = _environment(int(name))
        at = environment.find(f"{VARIABLE}=".encode())
        if at >= 0 and wanted in environment[at : environment.find(b"\0", at)]:
            found.append(int(name))
    return found


def _environment(process: int, within_s: float = 1.0) -> bytes:
    """Environment of a process; nothing if it has ended or is not ours.

    One that is just executing a program has none for a moment, and is waited for: it would be overlooked.
    """
    until = None
    while True:
        found = _read(f"/proc/{process}/environ")
        if found or found is None or not _executing(process):
            return found or b""
        until = until or time.monotonic() + within_s
        if time.monotonic() > until:
            return b""
        time.sleep(0.001)


def _executing(process: int) -> bool:
    """Whether a process is just executing a program: it lives and its memory is not laid out yet."""
    fields = (_read(f"/proc/{process}/stat") or b"").rpartition(b")")[2].split()
    if len(fields) < 48 or fields[0] in (b"Z", b"X") or int(fields[6]) & _NO_PROGRAM:
        return False
    return fields[47] == b"0"  # the address of its environment


def _read(path: str) -> bytes | None:
    """What a file holds; None if it is gone, or not ours."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return None


def end_group(group: int) -> None:
    """Send SIGKILL to a process group, if there is still one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def end_marked(mark: str, *, group: int | None = None, within_s: float = 2.0) -> list[int]:
    """Send SIGKILL to all that carry a mark until none of them runs; what is left after `within_s` seconds.

    Parameters
    ----------
    mark : str
        What they carry.
    group : int, optional
        A process group whose processes are ended too.
    within_s : float
        Longest time that this waits.
    """
    until = time.monotonic() + within_s
    # one that is ending has no environment any more, and may still hold files and devices
    told: dict[int, int] = {}
    while True:
        found = marked(mark) + (_of_group(group) if group is not None else [])
        for process in found:
            state = _state(process)
            if state is not None:
                told[process] = state[1]
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        left = [p for p, ticks in told.items() if (state := _state(p)) is not None and state[1] == ticks]
        if not (found or left) or time.monotonic() > until:
            return left
        time.sleep(0.01)


def _state(process: int) -> tuple[int, int] | None:
    """Group of a process and when it started, in clock ticks since boot; None if it is gone or a zombie."""
    fields = (_read(f"/proc/{process}/stat") or b"").rpartition(b")")[2].split()
    return None if not fields or fields[0] in (b"Z", b"X") else (int(fields[2]), int(fields[19]))


def _of_group(group: int) -> list[int]:
    """Ids of the processes of a group."""
    processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return [p for p in processes if (state := _state(p)) is not None and state[0] == group]


def guard(parent: int, mark: str, lines: int) -> None:
    """Return when told so over `lines`, or end groups and marked processes once `parent` is gone.

    Parameters
    ----------
    parent : int
        Process id of the parent.
    mark : str
        What its workers carry.
    lines : int
        File descriptor: a group to end in each line; "bye" when nothing is left to guard.
    """
    text = b""
    # a forked child of the parent may hold the other end open, so the end of the file is not enough
    while os.getppid() == parent:
        readable, _, _ = select.select([lines], [], [], 0.5)
        if readable:
            new = os.read(lines, 4096)
            if not new:
                break
            text += new
            if text.endswith(b"bye\n"):
                return
    # the parent may have said something more in the moment in which it ended
    while select.select([lines], [], [], 0)[0] and (new := os.read(lines, 4096)):
        text += new
    if text.endswith(b"bye\n"):
        return
    for group in text.decode().split():
        end_group(int(group))
    end_marked(mark, within_s=10.0)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], 0)
