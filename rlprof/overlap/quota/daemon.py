"""The life of an MPS control daemon: one for each GPU, in a folder of its own, ended on any exit.

What belongs to rlprof is written down in its folder and marked in the environment of its processes. Whatever
is not marked so is somebody else's: it is reported, and never asked to do anything but to say that it is
there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlprof.overlap.quota import mps_guardian
from rlprof.overlap.quota.clients import NO_MPS, Gpu, choose_gpu, driver_error, list_gpus
from rlprof.overlap.quota.errors import ForeignDaemonError, MpsAbsentError, MpsError
from rlprof.overlap.quota.foreign import Foreign, find_foreign
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.probe import VARIABLE as PERCENTAGE

BINARY = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_STATE = "state.json"
#: Paths of sockets are at most 107 bytes long; the longest name in the pipe directory takes some of them.
_LONGEST_PATH = 80
_START_S = 30.0


def daemons_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Folder of all daemons of this user: ``RLPROF_MPS_FOLDER``, else one in the runtime folder or /tmp."""
    if environ.get("RLPROF_MPS_FOLDER"):
        return Path(environ["RLPROF_MPS_FOLDER"])
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "rlprof-mps"
    return Path(f"/tmp/rlprof-mps-{os.getuid()}")


@dataclass(frozen=True)
class Daemon:
    """An MPS control daemon that rlprof started.

    Parameters
    ----------
    gpu : Gpu
        What it serves.
    folder : pathlib.Path
        Holds its pipe and log directories and this description.
    mark : str
        What its processes carry in their environment.
    binary : str
        The control program.
    visible : str or None
        ``CUDA_VISIBLE_DEVICES`` of the daemon and of its clients; None: as it is, for an only GPU.
    owner : int or None
        Process with which it ends; None: it runs until it is stopped.
    owner_ticks : int or None
        When that process started.
    started : str
        Date and time, ISO 8601, UTC.
    """

    gpu: Gpu
    folder: Path
    mark: str
    binary: str
    visible: str | None
    owner: int | None
    owner_ticks: int | None
    started: str

    @property
    def pipe(self) -> Path:
        """Its pipe directory."""
        return self.folder / "pipe"

    @property
    def log(self) -> Path:
        """Its log directory."""
        return self.folder / "log"

    @property
    def alive(self) -> bool:
        """It has processes."""
        return bool(self.processes)

    @property
    def processes(self) -> list[int]:
        """Ids of the control daemon and its servers."""
        return mps_guardian.members(str(self.folder), self.mark)

    def environment(self, level: Level | None = None) -> dict[str, str]:
        """Environment variables that make a process a client.

        Parameters
        ----------
        level : Level, optional
            Its quota, fixed for the life of the process; all SMs by default.
        """
        found = {PIPE: str(self.pipe), LOG: str(self.log), PERCENTAGE: "100"}
        if level is not None:
            found[PERCENTAGE] = str(level.setting)
        if self.visible is not None:
            found["CUDA_VISIBLE_DEVICES"] = self.visible
        return found

    def ask(self, order: str) -> str:
        """Give an order to the daemon and return what it prints.

        Raises
        ------
        MpsError
            If it does not answer.
        """
        code, text = mps_guardian.tell(self.binary, str(self.pipe), order)
        if code != 0:
            raise MpsError(
                f"the MPS daemon of GPU {self.gpu.ordinal} does not answer to {order!r}: {text or code}",
                hint="rlprof mps stop ends it",
            )
        return text

    def servers(self) -> list[int]:
        """Process ids of its servers: one from the first client on."""
        return _numbers(self.ask("get_server_list"))

    def clients(self) -> list[int]:
        """Process ids of all clients."""
        return [pid for server in self.servers() for pid in _numbers(self.ask(f"get_client_list {server}"))]

    def stop(self, *, even_with_clients: bool = False) -> None:
        """End it, and its folder with it.

        Parameters
        ----------
        even_with_clients : bool
            End it although clients are at work, which then fail.

        Raises
        ------
        MpsError
            If there are clients and that is not wanted, or a process cannot be ended.
        """
        clients: list[int] = []
        if not even_with_clients and self.alive:
            with contextlib.suppress(MpsError):  # one that does not answer has no use for its clients
                clients = self.clients()
        if clients:
            raise MpsError(
                f"the MPS daemon of GPU {self.gpu.ordinal} has clients: processes"
                f" {', '.join(map(str, clients))}",
                hint="end them first, or rlprof mps stop --force",
            )
        left = mps_guardian.end(self.binary, str(self.folder), self.mark)
        if left:
            raise MpsError(
                f"processes {left} of the MPS daemon of GPU {self.gpu.ordinal} cannot be ended",
                hint="end them by hand, before anything else runs on that GPU",
            )

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self) | {"folder": str(self.folder)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Daemon:
        """Read what `to_dict` wrote."""
        return cls(**{**document, "gpu": Gpu(**document["gpu"]), "folder": Path(document["folder"])})


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split() if word.isdecimal()]


def find_binary() -> str:
    """Path of the control program.

    Raises
    ------
    MpsAbsentError
        If it is not on the PATH.
    """
    found = shutil.which(BINARY)
    if found is None:
        raise MpsAbsentError(
            f"{BINARY} is not installed (looked on the PATH)",
            hint="it comes with the NVIDIA driver (compute utilities); without it, use --mechanism cores",
        )
    return found


def daemons(folder: Path | None = None) -> list[Daemon]:
    """Daemons that rlprof started and did not end, also those that have died since."""
    folder = folder or daemons_folder()
    found: list[Daemon] = []
    if not _is_own(folder):  # what somebody else wrote is not believed
        return found
    for path in sorted(folder.glob(f"*/{_STATE}")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # removed or half written
            found.append(Daemon.from_dict(json.loads(path.read_text())))
    return found


def _is_own(path: Path) -> bool:
    """Whether it is a folder of this user, and no link to one."""
    try:
        about = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()


def running(gpu: Gpu, folder: Path | None = None) -> Daemon | None:
    """Return rlprof's own daemon of a GPU, if one runs."""
    return next((d for d in daemons(folder) if d.gpu.uuid == gpu.uuid and d.alive), None)


def foreign_daemons(gpu: Gpu | None = None) -> list[Foreign]:
    """MPS daemons and servers of others that serve a GPU, or any."""
    ours = daemons()
    pids = {pid for d in ours for pid in d.processes}
    return find_foreign(pids, {str(d.pipe) for d in ours}, shutil.which(BINARY), gpu)


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
        daemon = Daemon(
            gpu=chosen,
            folder=_make_folder(chosen, root),
            mark=secrets.token_hex(8),
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
        if not _is_own(path):
            raise MpsAbsentError(
                "is not a folder of this user", where=path, hint="set RLPROF_MPS_FOLDER to another one"
            ) from None
    except OSError as error:
        raise MpsAbsentError(
            f"no folder can be made here ({error.strerror})",
            where=path,
            hint="set RLPROF_MPS_FOLDER to a folder that can be written",
        ) from error


def _make_folder(gpu: Gpu, root: Path) -> Path:
    """Make the folder of the daemon of a GPU; there can be one only."""
    path = root / gpu.uuid[4:12]
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise MpsAbsentError(
            "the path is too long for the sockets of MPS",
            where=path,
            hint="set RLPROF_MPS_FOLDER to a shorter one",
        )
    _make(path)
    for old in daemons(root):
        if old.folder != path:
            continue
        if old.alive:
            raise MpsError(
                f"GPU {gpu.ordinal} has an MPS daemon of rlprof already, started {old.started}",
                hint="use it, or end it: rlprof mps stop",
            )
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700, exist_ok=True)
    for name in ("pipe", "log"):
        (path / name).mkdir(mode=0o700, exist_ok=True)
    return path


def _write_state(daemon: Daemon) -> None:
    path = daemon.folder / _STATE
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(daemon.to_dict()))
    temporary.replace(path)


def _start_guardian(daemon: Daemon) -> None:
    arguments = [daemon.owner, daemon.owner_ticks, daemon.binary, daemon.folder, daemon.mark]
    environment = dict(os.environ)
    environment.pop(mps_guardian.VARIABLE, None)
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
    until = time.monotonic() + 5.0
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


def without_mps() -> dict[str, str]:
    """Environment variables with which a process is no client of any daemon."""
    return {PIPE: NO_MPS}
