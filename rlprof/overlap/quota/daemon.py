"""Starting an MPS control daemon: whatever happens meanwhile, it is whole or nothing is left of it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rlprof.interrupts import kept_from_children
from rlprof.overlap.quota import mps_guardian
from rlprof.overlap.quota.clients import Gpu, choose_gpu, driver_error, list_gpus
from rlprof.overlap.quota.daemons import (
    BINARY,
    LOG,
    PIPE,
    STATE,
    Daemon,
    daemons,
    daemons_folder,
    find_binary,
    foreign_daemons,
    is_own,
    running,
)
from rlprof.overlap.quota.errors import ForeignDaemonError, MpsAbsentError, MpsError
from rlprof.overlap.quota.probe import VARIABLE as PERCENTAGE

#: Paths of sockets are at most 107 bytes long; the longest name in the pipe directory takes some of them.
_LONGEST_PATH = 80
_START_S = 30.0


def start(gpu: int = 0, *, owner: int | None = None, folder: Path | None = None) -> Daemon:
    """Start a daemon for a GPU and see that a client reaches it.

    Parameters
    ----------
    gpu : int
        Ordinal, as CUDA counts here.
    owner : int, optional
        Process id: when it is gone, however it ended, a guardian ends the daemon. None: the daemon runs until
        `Daemon.stop`.
    folder : pathlib.Path, optional
        For all daemons; `daemons_folder` by default.

    Raises
    ------
    MpsAbsentError
        If there is no control program, driver or GPU, or no permission.
    ForeignDaemonError
        If somebody else's daemon serves the GPU.
    MpsError
        If rlprof runs one there already, or it does not come up. Nothing is left then.
    """
    binary = find_binary()
    gpus = list_gpus()
    chosen = choose_gpu(gpus, gpu)
    others = foreign_daemons(chosen)
    if others:
        raise ForeignDaemonError(
            f"GPU {gpu} is served by an MPS daemon that rlprof did not start: {others[0]}",
            hint=f"whoever started it ends it (echo quit | {BINARY}), or use another GPU",
        )
    visible = None
    if len(gpus) > 1 or os.environ.get("CUDA_VISIBLE_DEVICES"):
        visible = chosen.uuid  # ordinals would mean something else to clients than to the daemon
    root = folder or daemons_folder()
    _make(root)
    with _only_one(root):
        mark = secrets.token_hex(8)
        daemon = Daemon(
            gpu=chosen,
            folder=_make_folder(chosen, root, mark),
            mark=mark,
            binary=binary,
            visible=visible,
            owner=owner,
            owner_ticks=None if owner is None else mps_guardian.start_ticks(owner),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        try:
            if owner is not None and daemon.owner_ticks is None:
                raise MpsError(f"there is no process {owner} for the daemon to end with")
            _write_state(daemon)
            if owner is not None:
                _start_guardian(daemon)
            _bring_up(daemon)
            if owner is not None and mps_guardian.start_ticks(owner) != daemon.owner_ticks:
                raise MpsError(f"process {owner}, for which the daemon was started, is gone")
        except BaseException:
            with contextlib.suppress(MpsError):
                daemon.stop(even_with_clients=True)
            shutil.rmtree(daemon.folder, ignore_errors=True)
            raise
    return daemon


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """Keep other processes from starting a daemon while the body does."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    """Make a folder of this user's own, unless it is there."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not is_own(path):
            raise MpsAbsentError(
                "is not a folder of this user", where=path, hint="set RLPROF_MPS_FOLDER to another one"
            ) from None
    except OSError as error:
        raise MpsAbsentError(
            f"no folder can be made here ({error.strerror})",
            where=path,
            hint="set RLPROF_MPS_FOLDER to a folder that can be written",
        ) from error


def _make_folder(gpu: Gpu, root: Path, mark: str) -> Path:
    """Make the folder of a new daemon of a GPU; there can be one only.

    Each has a folder and so sockets of its own: whoever still ends the one before could otherwise tell it to
    quit, or remove its files.
    """
    place = gpu.uuid[4:12]
    path = root / f"{place}-{mark[:8]}"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise MpsAbsentError(
            "the path is too long for the sockets of MPS",
            where=path,
            hint="set RLPROF_MPS_FOLDER to a shorter one",
        )
    for old in daemons(root):
        if old.gpu.uuid != gpu.uuid:
            continue
        if old.abandoned:
            old.stop(even_with_clients=True)  # its guardian may be at it, or gone too
        elif old.alive:
            raise MpsError(
                f"GPU {gpu.ordinal} has an MPS daemon of rlprof already, started {old.started}",
                hint="use it, or end it: rlprof mps stop",
            )
    for left in root.glob(f"{place}*"):  # of those that ended, or never began: nobody else is starting one
        shutil.rmtree(left, ignore_errors=True)
    for made in (path, path / "pipe", path / "log"):
        _make(made)
    return path


def _write_state(daemon: Daemon) -> None:
    path = daemon.folder / STATE
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(daemon.to_dict()))
    temporary.replace(path)


def _start_guardian(daemon: Daemon) -> None:
    starter = os.getpid()
    ids = [daemon.owner, daemon.owner_ticks, starter, mps_guardian.start_ticks(starter)]
    arguments = [*ids, daemon.binary, daemon.folder, daemon.mark]
    environment = dict(os.environ)
    environment.pop(mps_guardian.VARIABLE, None)
    with kept_from_children():  # what reaches it before it ignores them must not end it either
        subprocess.Popen(
            [sys.executable, "-I", "-S", mps_guardian.__file__, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
            cwd="/",
        )


def _bring_up(daemon: Daemon) -> None:
    environment = {**os.environ, PIPE: str(daemon.pipe), LOG: str(daemon.log)}
    environment |= {mps_guardian.VARIABLE: daemon.mark}
    environment.pop(PERCENTAGE, None)  # it would be the default of all clients
    if daemon.visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = daemon.visible
    words = daemon.folder / "start.txt"
    with words.open("wb") as file:  # a pipe would stay open as long as the daemon
        try:
            code = subprocess.Popen(
                [daemon.binary, "-d"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                cwd=daemon.folder,
                start_new_session=True,
            ).wait(_START_S)
        except subprocess.TimeoutExpired:
            raise MpsError(f"{BINARY} -d did not return within {_START_S:g} s") from None
        except OSError as error:
            raise MpsAbsentError(
                f"cannot be run ({error.strerror})", where=daemon.binary, hint="check its permissions"
            ) from error
    said = " ".join(words.read_text(errors="replace").split())
    if code != 0 or not _answers(daemon):
        raise MpsError(f"{BINARY} -d ended with {code}{f': {said}' if said else ''}{_log_tail(daemon)}")
    failed = driver_error(daemon.environment())
    if failed is None and not daemon.servers():  # a driver that connects no sooner than with a context
        failed = driver_error(daemon.environment(), context=True)
    if failed is not None:
        failed.what += _log_tail(daemon)
        raise failed
    if not daemon.servers():
        raise MpsError(
            f"a client of GPU {daemon.gpu.ordinal} did not go through the MPS daemon{_log_tail(daemon)}",
            hint="see the log of the daemon, or run without MPS",
        )


def _answers(daemon: Daemon) -> bool:
    until = time.monotonic() + _START_S
    while True:
        if mps_guardian.tell(daemon.binary, str(daemon.pipe), "get_server_list")[0] == 0:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.05)


def _log_tail(daemon: Daemon) -> str:
    lines: list[str] = []
    for name in ("control.log", "server.log"):
        with contextlib.suppress(OSError):
            lines += (daemon.log / name).read_text(errors="replace").splitlines()[-2:]
    return f" (its log: {' | '.join(line.strip()[:200] for line in lines)})" if lines else ""


@contextmanager
def mps(gpu: int = 0, *, folder: Path | None = None) -> Iterator[Daemon]:
    """Run the body with an MPS daemon, and end it whatever happens.

    A daemon that rlprof runs on the GPU already is used, and left running. One that is started here ends with
    the body; if this process is killed, a guardian ends it.

    Parameters
    ----------
    gpu, folder
        As of `start`.

    Raises
    ------
    MpsError
        As of `start`.
    """
    there = None
    if daemons(folder):
        there = running(choose_gpu(list_gpus(), gpu), folder)
    if there is not None:
        yield there
        return
    daemon = start(gpu, owner=os.getpid(), folder=folder)
    try:
        yield daemon
    finally:
        if os.getpid() == daemon.owner:  # not in a forked process that leaves the body too
            daemon.stop(even_with_clients=True)
