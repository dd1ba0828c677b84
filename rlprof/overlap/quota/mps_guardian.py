"""Ends an MPS daemon of rlprof: told by `rlprof mps stop`, or because the process that it was for is gone.

A daemon is known by a mark in its environment, which the server that it starts inherits, or by the process id
that it wrote into its private folder. Nothing is ever ended that is neither one of these nor a child of one,
but control programs that still wait at its socket when it is gone.
Run as a script, this file waits until the owner of a daemon is gone, however it ended, and then ends the
daemon. It imports nothing of rlprof.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

#: Environment variable that holds the mark of a daemon and of its server.
VARIABLE = "RLPROF_MPS"
#: Describes a daemon, in its folder.
STATE = "state.json"
#: What the kernel calls control daemons and servers: their names, cut to 15 letters.
NAME = b"nvidia-cuda-mps"
#: How long a daemon is asked to end, and told to, before it is killed; and how long its server may take to
#: let clients finish, in seconds.
ASKED_S, CLIENTS_S = 10.0, 5
#: What ends owners by name, or all at once, which a guardian must outlive until it has done its work.
DEAF_TO = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
#: A daemon that comes up later than so many seconds after its owner has gone is ended by who starts it alone.
STARTING_S = 120.0


def start_ticks(process: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone. With the id it is unique."""
    fields = _stat(process)
    return None if fields is None else int(fields[19])


def _stat(process: int) -> list[bytes] | None:
    """What follows the name in the process's stat file; None if it is gone or a zombie."""
    fields = _read(f"/proc/{process}/stat").rpartition(b")")[2].split()
    return None if not fields or fields[0] in (b"Z", b"X") else fields


def members(folder: str, mark: str) -> list[int]:
    """Ids of the living processes of a daemon: control daemon and servers.

    Parameters
    ----------
    folder : str
        The daemon's own.
    mark : str
        What its processes carry.
    """
    found, parents, wanted = [], dict[int, int](), f"\0{VARIABLE}={mark}\0".encode()
    written = _written(folder)
    for name in os.listdir("/proc"):  # noqa: PTH208
        fields = _stat(int(name)) if name.isdigit() and int(name) != os.getpid() else None
        if fields is None:
            continue
        process = int(name)
        parents[process] = int(fields[1])
        by_id = process == written and _read(f"/proc/{name}/comm").strip() == NAME
        if by_id or wanted in b"\0" + _read(f"/proc/{name}/environ") + b"\0":
            found.append(process)
    # a server may have been started with another environment
    return found + [p for p, parent in parents.items() if parent in found and p not in found]


def askers(folder: str) -> list[int]:
    """Ids of control programs at the pipe of a folder: the daemon itself, and who asks it or will."""
    pipe = os.path.join(folder, "pipe")  # noqa: PTH118
    wanted, found = f"\0CUDA_MPS_PIPE_DIRECTORY={pipe}\0".encode(), []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or _read(f"/proc/{name}/comm").strip() != NAME or _stat(int(name)) is None:
            continue
        if wanted in b"\0" + _read(f"/proc/{name}/environ") + b"\0":
            found.append(int(name))
    return found


def _written(folder: str) -> int | None:
    """Process id that the control daemon wrote down."""
    text = _read(os.path.join(folder, "pipe", "nvidia-cuda-mps-control.pid")).strip()  # noqa: PTH118
    return int(text) if text.isdigit() else None


def _read(path: str) -> bytes:
    """What a file holds; nothing if it is gone, or not ours."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def tell(binary: str, pipe: str, order: str, timeout_s: float = 10.0) -> tuple[int, str]:
    """Give an order to the daemon of a pipe directory; exit code and what was printed, -1 if none came."""
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipe}
    environment.pop(VARIABLE, None)
    try:
        done = subprocess.run(
            [binary],
            input=order + "\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {timeout_s:g} s"
    except OSError as error:
        return -1, str(error)
    return done.returncode, done.stdout


def _left(folder: str, mark: str, seen: dict[int, int]) -> list[int]:
    """Members, and who was one when this was asked before and still runs: `seen`, with their start ticks.

    What is ending has no environment any more, and a server outlives the control daemon that it is known by.
    """
    found = members(folder, mark)
    for process in found:
        ticks = start_ticks(process)
        if ticks is not None:
            seen[process] = ticks
    return sorted({*found, *(p for p, ticks in seen.items() if start_ticks(p) == ticks)})


def _gone(folder: str, mark: str, seen: dict[int, int], within_s: float) -> bool:
    until = time.monotonic() + within_s
    while _left(folder, mark, seen):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def end(binary: str, folder: str, mark: str) -> list[int]:
    """End a daemon and its server and remove their folder; what could not be ended."""
    pipe = os.path.join(folder, "pipe")  # noqa: PTH118
    seen: dict[int, int] = {}
    if _left(folder, mark, seen):
        # the second form is for programs of before the first one was there
        for order in (f"quit -t {CLIENTS_S}", "quit"):
            tell(binary, pipe, order, CLIENTS_S + ASKED_S)
            if _gone(folder, mark, seen, ASKED_S / 2):
                break
    for number in (signal.SIGTERM, signal.SIGKILL):
        # also those that were about to start when this began
        for process in _left(folder, mark, seen):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        if _gone(folder, mark, seen, 3.0):
            break
    left = _left(folder, mark, seen)
    if not left:
        # one whose process was killed while it asked has nobody who ends it
        until = time.monotonic() + 1.0
        while (waiting := askers(folder)) and time.monotonic() < until:
            time.sleep(0.02)
        for process in waiting:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, STATE))  # noqa: PTH108, PTH118
        shutil.rmtree(folder, ignore_errors=True)
    return left


def guard(owner: tuple[int, int], starter: tuple[int, int], binary: str, folder: str, mark: str) -> None:
    """End the daemon once its owner is gone; return when its folder is, since somebody else ended it.

    Parameters
    ----------
    owner, starter : tuple of (int, int)
        Process for which the daemon runs, and the one that starts it, maybe the same: id and start ticks.
    binary, folder, mark : str
        Of the daemon.
    """
    while os.path.isdir(folder):  # noqa: PTH112
        if start_ticks(owner[0]) != owner[1]:
            break
        time.sleep(0.2)
    else:
        return
    end(binary, folder, mark)
    until = time.monotonic() + STARTING_S
    # it may be about to start the daemon
    while start_ticks(starter[0]) == starter[1] and time.monotonic() < until:
        time.sleep(0.2)
        end(binary, folder, mark)
    time.sleep(1.0)  # so may what it has just started
    end(binary, folder, mark)


if __name__ == "__main__":
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DEAF_TO)  # who starts it keeps them from it until here
    ids = [int(word) for word in sys.argv[1:5]]
    guard((ids[0], ids[1]), (ids[2], ids[3]), *sys.argv[5:8])
