"""Small text files, read with clear errors and written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from rlprof.files import read_bytes
from rlprof.planning.errors import PlanningError
from rlprof.trace.output import atomic_path


def read_text(path: str | Path, not_text: type[PlanningError]) -> str:
    """Read a file of UTF-8 text.

    Raises
    ------
    UnreadableError
        If it cannot be opened, or is no regular file.
    not_text
        If it is not UTF-8.
    """
    try:
        return read_bytes(Path(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_text(f"{path}: not a text file (byte {error.start} is no UTF-8)") from error


def write_text(text: str, path: str | Path, *, force: bool = True) -> None:
    """Write a file whole, in place of what is there, or leave that as it is.

    Raises
    ------
    OutputError
        If it cannot be written, or is there and `force` is not set.
    """
    with atomic_path(Path(path), force=force) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
