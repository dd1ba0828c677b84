"""The life of an MPS control daemon: one for each GPU, in a folder of its own, ended on any exit.

What belongs to rlprof is written down in its folder and marked in the environment of its processes. Whatever
is not marked so is somebody else's: it is reported, and never asked to do anything but to say that it is
there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlprof.overlap.quota import mps_guardian
from rlprof.overlap.quota.clients import NO_MPS, Gpu
from rlprof.overlap.quota.errors import MpsAbsentError, MpsError
from rlprof.overlap.quota.foreign import Foreign, find_foreign, process_table
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.probe import VARIABLE as PERCENTAGE

BINARY = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
STATE = mps_guardian.STATE


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
    def abandoned(self) -> bool:
        """The process for which it runs is gone: it ends at any moment."""
        return self.owner is not None and mps_guardian.start_ticks(self.owner) != self.owner_ticks

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
        """Read what `to_dict` wrote.

        Raises
        ------
        TypeError
            If it is another document.
        """
        made = cls(**{**document, "gpu": Gpu(**document["gpu"]), "folder": Path(document["folder"])})
        texts = (made.mark, made.binary, made.started, made.gpu.name, made.gpu.uuid, made.visible or "")
        numbers = (made.owner or 0, made.owner_ticks or 0, made.gpu.ordinal, made.gpu.sm_count)
        if not all(isinstance(t, str) for t in texts) or not all(isinstance(n, int) for n in numbers):
            raise TypeError("no daemon")
        return made


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
            hint="it comes with the NVIDIA driver; rlprof quota --mechanism cores goes without it",
        )
    return found


def daemons(folder: Path | None = None) -> list[Daemon]:
    """Daemons that rlprof started and did not end, also those that have died since."""
    folder = folder or daemons_folder()
    found: list[Daemon] = []
    if not is_own(folder):  # what somebody else wrote is not believed
        return found
    for path in sorted(folder.glob(f"*/{STATE}")):
        # removed, half written, or of somebody else
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            daemon = Daemon.from_dict(json.loads(path.read_text(encoding="utf-8")))
            if daemon.folder.absolute() == path.parent.absolute():  # which is removed when it is ended
                found.append(daemon)
    return found


def is_own(path: Path) -> bool:
    """Whether it is a folder of this user, and no link to one."""
    try:
        about = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()


def running(gpu: Gpu, folder: Path | None = None) -> Daemon | None:
    """Return rlprof's own daemon of a GPU, if one runs that is not about to end."""
    return next((d for d in daemons(folder) if d.gpu.uuid == gpu.uuid and d.alive and not d.abandoned), None)


def foreign_daemons(gpu: Gpu | None = None) -> list[Foreign]:
    """MPS daemons and servers of others that serve a GPU, or any."""
    ours = daemons()
    table = process_table()
    # while the table is read one of ours may begin, which has written itself down before, or end
    ours += [d for d in daemons() if d not in ours]
    pids = {pid for d in ours for pid in d.processes}
    return find_foreign(table, pids, {str(d.pipe) for d in ours}, shutil.which(BINARY), gpu)


def without_mps() -> dict[str, str]:
    """Environment variables with which a process is no client of any daemon."""
    return {PIPE: NO_MPS}
