"""Files that people name: what is no regular file is refused before it is opened.

Opening a named pipe waits for who writes to it, for ever if nobody does; opening a device may start it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from rlprof.errors import CHECK, UnreadableError, step_after

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def special_kind(mode: int) -> str | None:
    """What a file is that is neither a regular one nor a folder, for a person; else None."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return next((name for test, name in _KINDS if test(mode)), "a special file")


def is_folder(path: Path, *, why: str = "") -> bool:
    """Whether a path is a folder; an error unless it is a folder or a regular file. Nothing is opened.

    Parameters
    ----------
    path : pathlib.Path
        What somebody named.
    why : str
        Why no other kind of file will do, for the error.

    Raises
    ------
    UnreadableError
        If it is not there, is of another kind, or cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        if path.is_symlink():
            what, hint = "a symbolic link to a file that is not there", "mend the link or give the file"
        else:
            what, hint = "no such file or folder", "check the path"
        raise UnreadableError(what, where=path, hint=hint) from error
    except NotADirectoryError as error:
        raise UnreadableError("a part of this path is a file", where=path, hint="check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise unreadable(error, path) from error
    if kind := special_kind(mode):
        what = f"{kind}, not a file{why and f': {why}'}"
        raise UnreadableError(what, where=path, hint="save it to a file first")
    return stat.S_ISDIR(mode)


def read_bytes(path: Path, *, most_bytes: int | None = None) -> bytes:
    """What a file holds.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    most_bytes : int, optional
        A larger one is none of the kind that is wanted; by default any will do.

    Raises
    ------
    UnreadableError
        If it is not there, is no regular file, is too large, or cannot be read.
    """
    if is_folder(path):
        raise UnreadableError("is a folder, a file is to be read", where=path, hint="give a file in it")
    try:
        if most_bytes is not None and (size := path.stat().st_size) > most_bytes:
            raise UnreadableError(
                f"is too large to be such a file ({size:,} bytes)", where=path, hint="check the path"
            )
        return path.read_bytes()
    except OSError as error:
        raise unreadable(error, path) from error


def unreadable(error: OSError | ValueError, path: Path) -> UnreadableError:
    """Say in one line why `path` cannot be read.

    Parameters
    ----------
    error : OSError or ValueError
        What was raised; ValueError: the name holds a NUL byte.
    path : pathlib.Path
        The file.

    Returns
    -------
    UnreadableError
        To raise.
    """
    shown = Path(str(path).replace("\0", "\\0"))
    if isinstance(error, PermissionError):
        return UnreadableError("no permission to read it", where=shown, hint=step_after(error, writing=False))
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    step = step_after(error, writing=False) if isinstance(error, OSError) else None
    return UnreadableError(f"cannot be read ({reason})", where=shown, hint=step or CHECK)
