"""Small text files, read with clear errors and written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rlprof.errors import OutputError, UnreadableError
from rlprof.planning.errors import PlanningError


def read_text(path: str | Path, not_text: type[PlanningError]) -> str:
    """Read a file of UTF-8 text.

    Raises
    ------
    UnreadableError
        If it cannot be opened.
    not_text
        If it is not UTF-8.
    """
    try:
        return Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise UnreadableError(error.strerror or str(error), where=path) from error
    except UnicodeDecodeError as error:
        raise not_text(f"{path}: not a text file (byte {error.start} is no UTF-8)") from error


def write_text(text: str, path: str | Path) -> None:
    """Write a file whole, in place of what is there, or leave that as it is.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise OutputError(error.strerror or str(error), where=path, hint="write to another place") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(target)
    except OSError as error:
        raise OutputError(error.strerror or str(error), where=path, hint="write to another place") from error
    finally:
        Path(name).unlink(missing_ok=True)
