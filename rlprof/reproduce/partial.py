"""What an interrupted computation had done, kept in a file of its own until it is done.

Two computations of the same into one folder each have their file: that of one at work is locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

SUFFIX = ".partial.jsonl"


@dataclass(frozen=True)
class Partial:
    """Cases that are done.

    Parameters
    ----------
    file : binary file
        Locked, and empty or at its end.
    done : dict of str to mapping
        What was kept of each case.
    """

    file: BinaryIO
    done: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, case: str, entry: Mapping[str, Any]) -> None:
        """Keep a case, on disk before this returns; it is plain values."""
        line = json.dumps(entry, allow_nan=False)
        if self.file.tell():  # a line that was cut off stays a line of its own
            self.file.seek(-1, os.SEEK_END)
            line = line if self.file.read(1) == b"\n" else f"\n{line}"
        self.file.seek(0, os.SEEK_END)
        self.file.write(f"{line}\n".encode())
        self.file.flush()
        self.done[case] = entry


@contextmanager
def partial(folder: Path, stem: str, *, fresh: bool = False) -> Iterator[Partial]:
    """Give what an earlier computation had done, and keep what this one does.

    Parameters
    ----------
    folder : pathlib.Path
        Exists.
    stem : str
        Tells one computation from another.
    fresh : bool
        Forget what was done.

    Yields
    ------
    Partial
        Its file is removed if the block ends well, and is there for the next computation otherwise.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    file, path = _own(folder, stem)
    with file:
        if fresh:
            file.truncate(0)
        file.seek(0)
        yield Partial(file, _entries(file.read()))
        path.unlink(missing_ok=True)


def _own(folder: Path, stem: str) -> tuple[BinaryIO, Path]:
    """The first file that nobody is at work on, open and locked."""
    for number in count(1):
        path = folder / f"{stem}{'' if number == 1 else f'.{number}'}{SUFFIX}"
        file = path.open("ab+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file, path
        file.close()  # another one has removed it in between
    raise AssertionError


def _entries(content: bytes) -> dict[str, Mapping[str, Any]]:
    """Cases of a file; a line that was cut off or damaged is left out."""
    done: dict[str, Mapping[str, Any]] = {}
    for line in content.splitlines():
        try:
            entry = json.loads(line)
            if {"began", "seconds", "rows"} <= entry.keys():
                done[entry["case"]] = entry
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return done
