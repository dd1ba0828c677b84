"""MPS daemons of others: found in the process table and by their control sockets, and left alone."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from rlprof.overlap.quota import mps_guardian
from rlprof.overlap.quota.clients import Gpu

#: Where a daemon listens that was not told otherwise.
DEFAULT_PIPE = "/tmp/nvidia-mps"
#: The control program. With an option it becomes a daemon (-d, -f), without one it hands orders to one.
_ASKER = b"nvidia-cuda-mps-control"


@dataclass(frozen=True)
class Foreign:
    """A daemon or server that rlprof did not start.

    Parameters
    ----------
    process : int or None
        Its id; None if it runs in another process namespace and only its socket is seen.
    user : str or None
        Whose it is.
    pipe : str or None
        Its pipe directory; None if not known.
    visible : str or None
        Its ``CUDA_VISIBLE_DEVICES``; None if not known or not set: it may serve any GPU.
    """

    process: int | None
    user: str | None
    pipe: str | None
    visible: str | None

    def __str__(self) -> str:
        who = "one that answers" if self.process is None else f"process {self.process}"
        whose = f" of user {self.user}" if self.user else ""
        return f"{who}{whose}{f' at {self.pipe}' if self.pipe else ''}"

    def serves(self, gpu: Gpu) -> bool:
        """Whether it may serve a GPU; only a list of other GPUs' UUIDs says that it does not."""
        names = [name.strip() for name in (self.visible or "").split(",") if name.strip()]
        if not names or not all(name.startswith("GPU-") for name in names):
            return True
        return any(gpu.uuid.startswith(name) for name in names)


def find_foreign(
    table: Iterable[Foreign],
    own_processes: Collection[int],
    own_pipes: Collection[str],
    binary: str | None,
    gpu: Gpu | None = None,
) -> list[Foreign]:
    """Find daemons and servers of others.

    Parameters
    ----------
    table : iterable of Foreign
        All daemons and servers, from `process_table`.
    own_processes, own_pipes : collection
        Process ids and pipe directories that are not foreign.
    binary : str or None
        The control program, to ask at sockets whose process is not seen; None: do not ask.
    gpu : Gpu, optional
        Only those that may serve it.
    """
    found = [f for f in table if f.process not in own_processes and f.pipe not in own_pipes]
    seen = {f.pipe for f in found if f.pipe} | set(own_pipes)
    for pipe in dict.fromkeys((os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPE, DEFAULT_PIPE)):
        # of a daemon in another process namespace nothing is seen but its socket
        if pipe in seen or binary is None or not (Path(pipe) / "control").exists():
            continue
        if any(f.pipe is None for f in found):
            continue  # it is probably the one whose environment cannot be read
        if mps_guardian.tell(binary, pipe, "get_server_list")[0] == 0:
            found.append(Foreign(None, None, pipe, None))
    return [f for f in found if gpu is None or f.serves(gpu)]


def process_table() -> list[Foreign]:
    """Daemons and servers of whomever that run now, without those that only ask one."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if (folder / "comm").read_bytes().strip() != mps_guardian.NAME:
                continue
            owner = folder.stat().st_uid
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        if words[-1].endswith(_ASKER) or words == [b""]:  # without an argument; or one that is ending
            continue
        process = int(folder.name)
        if process == os.getpid() or mps_guardian.start_ticks(process) is None:
            continue
        try:
            pairs = (folder / "environ").read_bytes().split(b"\0")
            environment = dict(p.split(b"=", 1) for p in pairs if b"=" in p)
        except OSError:
            environment = None
        try:
            user = pwd.getpwuid(owner).pw_name
        except KeyError:
            user = str(owner)
        if environment is None:
            found.append(Foreign(process, user, None, None))
            continue
        pipe = environment.get(b"CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE.encode())
        visible = environment.get(b"CUDA_VISIBLE_DEVICES")
        found.append(
            Foreign(process, user, os.fsdecode(pipe), None if visible is None else os.fsdecode(visible))
        )
    return found
