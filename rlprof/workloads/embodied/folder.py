"""The folder of a run or of an optimisation: one process writes it, and it holds one of both."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlprof.errors import OutputError
from rlprof.workloads.embodied import checkpoint

#: What only a run, or only an optimisation, leaves; both leave ``checkpoint.pt`` and ``config.json``.
RUN, OPTIMISATION = "metrics.jsonl", "decisions.jsonl"


def refuse_other(out: Path, other: str) -> None:
    """Refuse a folder of the other kind that has a checkpoint, which would be replaced.

    Parameters
    ----------
    out : pathlib.Path
        The folder.
    other : str
        `RUN` or `OPTIMISATION`: what must not be there.

    Raises
    ------
    OutputError
        If it is.
    """
    if (out / other).exists() and (out / checkpoint.NAME).exists():
        kind, hint = "a run", "use another --out"
        if other == OPTIMISATION:
            kind = "an optimisation"
            hint = "--resume goes on from it, with --graph of its folder; or use another --out"
        raise OutputError(f"the folder holds {kind}, whose checkpoint is kept", where=out, hint=hint)


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Make a folder and hold it, until the block or this process ends, however it ends.

    Parameters
    ----------
    out : pathlib.Path
        The folder. Nothing is left in it.

    Raises
    ------
    OutputError
        If another run or optimisation is at work in it, or it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise OutputError(f"the folder cannot be written ({error.strerror})", where=out) from error
    try:
        if not os.access(out, os.W_OK | os.X_OK):  # said now, not when there is something to write
            hint = "write to another folder, or run as the owner of this one"
            raise OutputError("the folder cannot be written", where=out, hint=hint)
        # a file system without locks: then nobody else gets one either
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OutputError(
                    "another run or optimisation is at work in this folder",
                    where=out,
                    hint="wait until it has ended, or use another --out",
                ) from error
        yield
    finally:
        os.close(descriptor)
