"""What libraries and the operating system raise while a capture is read, turned into typed errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rlprof.errors import DamagedTraceError, OutputError, RlprofError, UnreadableError
from rlprof.trace.tables import TableName
from rlprof.trace.trace import Loaded, Loader, Trace

# Judged by the package that defines the exception, so that none of them is imported for it.
_PARSERS = frozenset({"sqlite3", "pyarrow", "polars", "zlib", "gzip", "zipfile", "orjson", "json", "struct"})


def typed_error(error: Exception, path: Path) -> RlprofError | None:
    """Say what an exception raised while reading `path` means to a person.

    Parameters
    ----------
    error : Exception
        What was raised.
    path : pathlib.Path
        The capture that was being read.

    Returns
    -------
    RlprofError or None
        None if it is none of the known kinds: then it is a fault of rlprof, not of the file.
    """
    if isinstance(error, RlprofError):
        return error
    text = " ".join(str(error).split())[:200]
    if isinstance(error, MemoryError) or "out of memory" in text.lower():
        return UnreadableError(
            "not enough memory to read it",
            where=path,
            hint="cut it (rlprof export --window A:B --to rlprof) on a machine with more memory",
        )
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or "disk is full" in text or "[errno 28]" in text.lower():
        return OutputError(
            "the disk is full while reading it (temporary files)",
            where=path,
            hint="free space, or point TMPDIR at another disk",
        )
    package = type(error).__module__.split(".")[0]
    if package == "sqlite3" and ("unable to open" in text or "locked" in text):
        return UnreadableError(
            f"the SQLite file cannot be opened ({text})",
            where=path,
            hint="close the program that writes it, or read a copy",
        )
    # zipfile raises NotImplementedError at version or compression fields that are damaged
    if package in _PARSERS or isinstance(error, (EOFError, UnicodeDecodeError, NotImplementedError)):
        return DamagedTraceError(
            f"damaged or cut short ({text or type(error).__name__})",
            where=path,
            hint="copy it again, or export or capture it again",
        )
    if isinstance(error, OSError):
        reason = os.strerror(error.errno) if error.errno else text
        return UnreadableError(
            f"cannot be read ({reason})", where=path, hint="check the disk and permissions"
        )
    return None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise typed errors in place of what libraries raise inside the block."""
    try:
        yield
    except Exception as error:
        typed = typed_error(error, path)
        if typed is None or typed is error:
            raise
        raise typed from error


def guarded(trace: Trace, path: Path) -> Trace:
    """The same trace, whose tables raise typed errors also when they are read later."""

    def wrap(loader: Loader) -> Loader:
        def load(columns: Sequence[str] | None) -> Loaded:
            with reading(path):
                return loader(columns)

        return load

    loaders: dict[TableName, Loader] = {name: wrap(loader) for name, loader in trace.loaders.items()}
    return replace(trace, loaders=loaders)
