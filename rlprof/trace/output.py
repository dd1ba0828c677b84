"""Writing results whole or not at all: a temporary beside the target, then a rename."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlprof.errors import CHECK, OutputError, step_after
from rlprof.files import special_kind


@contextmanager
def atomic_path(path: Path, *, force: bool = False, folder: bool = False) -> Iterator[Path]:
    """Give a temporary path to write to; it takes the place of `path` if the block ends well.

    Parameters
    ----------
    path : pathlib.Path
        The file (or folder) to make.
    force : bool
        Replace what is there. A folder is never replaced by a file, nor a file by a folder.
    folder : bool
        Make a folder; the temporary one exists when the block starts.

    Yields
    ------
    pathlib.Path
        Temporary path in the same folder; removed if the block raises, Ctrl-C included.

    Raises
    ------
    OutputError
        If `path` exists and `force` is not set, or the operating system refuses (disk full, no
        permission, no such folder).
    """
    path = Path(path)
    temporary = path.parent / f".rlprof-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        _check_free(path, force=force, folder=folder)
        if folder:
            temporary.mkdir()
        yield temporary
        if folder:
            _replace_folder(temporary, path)
        else:
            temporary.replace(path)
    except OSError as error:
        raise output_error(error, path) from error
    finally:
        remove(temporary)


def check_free(path: Path, *, force: bool = False) -> None:
    """Check what can be checked before the work: that the file `path` may be made where it is to be.

    Raises
    ------
    OutputError
        As `atomic_path` would after the work.
    """
    try:
        _check_free(path, force=force, folder=False)
    except OSError as error:
        raise output_error(error, path) from error


def check_kind(path: Path) -> None:
    """Check that what is at `path`, if anything, may be written or replaced: no pipe, no device.

    Raises
    ------
    OutputError
        If it is a special file, or cannot be looked at.
    """
    try:
        kind = special_kind(path.stat().st_mode) if path.exists() else None
    except OSError as error:
        raise output_error(error, path) from error
    if kind:
        raise OutputError(f"is {kind}, a file is to be written", where=path, hint="give another name")


def output_error(error: OSError, path: Path) -> OutputError:
    """Say in one line why `path` cannot be written.

    Parameters
    ----------
    error : OSError
        What the operating system (or a library on top of it) raised.
    path : pathlib.Path
        The result that was to be made.

    Returns
    -------
    OutputError
        To raise.
    """
    # pyarrow raises bare OSErrors whose number is only in the text
    number = error.errno or next(
        (n for n in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS) if f"[errno {n}]" in str(error)),
        None,
    )
    if number in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(
            "the disk is full; nothing was written", where=path, hint="free space or write elsewhere"
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return OutputError("no permission to write here", where=path, hint="write to another folder")
    if number in (errno.ENOENT, errno.ENOTDIR):
        return OutputError(
            "the folder to write into does not exist", where=path, hint=f"mkdir -p {path.parent}"
        )
    hint = step_after(error, writing=True) or CHECK
    return OutputError(f"cannot be written: {error.strerror or error}", where=path, hint=hint)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there; never raises for what it cannot remove."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _check_free(path: Path, *, force: bool, folder: bool) -> None:
    check_kind(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if path.is_dir() and not folder:
        raise OutputError("is a folder, a file is to be written", where=path, hint="give a file name")
    if path.exists() and not path.is_dir() and folder:
        raise OutputError("is a file, a folder is to be written", where=path, hint="give another name")
    if not force and (path.exists() or path.is_symlink()):
        raise OutputError(
            "exists already", where=path, hint="remove it, give another name, or force replacing it"
        )


def _replace_folder(temporary: Path, path: Path) -> None:
    if not path.exists():
        temporary.rename(path)
        return
    # a folder cannot be replaced in one step: move the old one aside, and back if the second step fails
    aside = path.parent / f".rlprof-{os.getpid()}-{secrets.token_hex(4)}.old"
    path.rename(aside)
    try:
        temporary.rename(path)
    except OSError:
        aside.rename(path)
        raise
    remove(aside)
