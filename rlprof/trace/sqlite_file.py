"""Opening SQLite files that belong to others."""

from __future__ import annotations

from pathlib import Path

#: File format versions in the header (bytes 18 and 19) of a file with a write-ahead log.
_LOGGED = b"\x02\x02"


def read_only_uri(path: Path) -> str:
    """URI by which SQLite reads a file and leaves its folder as it is.

    A file in write-ahead mode makes SQLite put a log and an index beside it, even to read, and fail where the
    folder is read-only. Without a log there is nothing to wait for or to add, so the file is opened as one
    that nobody changes. (With one, the log holds part of the data, and both are opened.)

    Parameters
    ----------
    path : pathlib.Path
        The file.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    path = path.resolve()
    log = path.with_name(path.name + "-wal")
    with path.open("rb") as file:
        logged = file.read(20)[18:] == _LOGGED
    alone = logged and not (log.exists() and log.stat().st_size)
    return f"{path.as_uri()}?mode=ro" + ("&immutable=1" if alone else "")
