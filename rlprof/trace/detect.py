"""Which format a capture has, found by its content and never by its name.

Only the head of a file is read (and the table list of a SQLite file, the member list of a zip archive).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlprof.errors import DamagedTraceError, NotATraceError, UnreadableError
from rlprof.files import is_folder, unreadable
from rlprof.trace.detect_json import detect_json
from rlprof.trace.foreign import OTHERS, describe_sqlite, some
from rlprof.trace.formats import (
    GZIP_MAGIC,
    HEAD_BYTES,
    NSYS_REPORT_MAGIC,
    SQLITE_MAGIC,
    ZIP_EMPTY_MAGIC,
    ZIP_MAGIC,
    Format,
)
from rlprof.trace.sqlite_file import read_only_uri


@dataclass(frozen=True)
class Capture:
    """One capture on disk: its path and its format."""

    path: Path
    format: Format


@dataclass(frozen=True)
class Found:
    """The captures that a path stands for, and names of other files that lay in the folder."""

    captures: tuple[Capture, ...]
    left_aside: tuple[str, ...] = ()


def detect(path: Path) -> Format:
    """Find the format of one capture.

    Parameters
    ----------
    path : pathlib.Path
        A file, or a directory that `nsys export` wrote.

    Returns
    -------
    Format
        ``nsys-report``, ``nsys-sqlite``, ``nsys-parquet``, ``nsys-arrow``, ``rlprof``, ``kineto`` or
        ``chrome-jsonl``.

    Raises
    ------
    UnreadableError
        If it does not exist, may not be read, or is neither file nor directory.
    NotATraceError
        If it is empty or of no known format.
    DamagedTraceError
        If it is of a known format but cut short.
    """
    if _is_directory(path):
        found = _detect_export_directory(path)
        if found is None:
            raise _not_an_export(path)
        return found
    with _reading(path):
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        return _detect_file(path, head)


def captures(path: Path) -> Found:
    """Find the captures that a path stands for.

    Parameters
    ----------
    path : pathlib.Path
        A file, a directory that `nsys export` wrote, or a folder of PyTorch or Chrome-trace files: those
        are one capture for each rank or worker.

    Returns
    -------
    Found
        At least one capture, in the order of the file names (numbers in them by value).

    Raises
    ------
    UnreadableError, NotATraceError, DamagedTraceError
        As `detect`; a damaged or empty trace in a folder is an error too, so that no rank is lost silently.
    """
    if not _is_directory(path) or _detect_export_directory(path) is not None:
        return Found((Capture(path, detect(path)),))
    traces: list[Capture] = []
    others: list[str] = []
    left_aside: list[str] = []
    for file in _files(path):
        try:
            format = detect(file)
        except NotATraceError:
            # an empty file is the trace of a rank that wrote none, if it is called like one
            if file.stat().st_size == 0 and {".json", ".jsonl"} & set(file.suffixes):
                raise
            left_aside.append(file.name)
            continue
        if format in ("kineto", "chrome-jsonl"):
            traces.append(Capture(file, format))
        else:
            others.append(file.name)
    if others:
        raise NotATraceError(
            f"a folder with {len(others) + len(traces)} capture(s), not one capture",
            where=path,
            hint=f"give the captures themselves, for example {others[0]}",
        )
    if not traces:
        raise _not_an_export(path)
    return Found(tuple(traces), tuple(left_aside))


# --- files ---------------------------------------------------------------------------------------------


def _detect_file(path: Path, head: bytes) -> Format:
    if not head:
        raise NotATraceError(
            "the file is empty (0 bytes)",
            where=path,
            hint="if the program or nsys was still writing, wait for it to finish; otherwise capture again",
        )
    if head.startswith(NSYS_REPORT_MAGIC):
        return "nsys-report"
    if NSYS_REPORT_MAGIC.startswith(head[: len(NSYS_REPORT_MAGIC)]) and len(head) >= 8:
        raise DamagedTraceError(
            f"an Nsight Systems report cut short after {len(head)} bytes", where=path, hint="copy it again"
        )
    if head.startswith(SQLITE_MAGIC):
        return _detect_sqlite(path, head)
    if head.startswith((ZIP_MAGIC, ZIP_EMPTY_MAGIC)):
        return _detect_zip(path)
    if head.startswith(GZIP_MAGIC):
        return detect_json(path, _gunzip_head(path), compressed=True)
    for magic, what, hint in OTHERS:
        if head.startswith(magic):
            raise NotATraceError(f"not a trace: it is {what}", where=path, hint=hint)
    return detect_json(path, lambda size: _head(path, size), compressed=False)


def _detect_sqlite(path: Path, head: bytes) -> Format:
    import sqlite3

    page_bytes = int.from_bytes(head[16:18], "big") or 0
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    # The page count is valid only where the two change counters agree (SQLite file format, 1.3.7).
    pages = int.from_bytes(head[28:32], "big") if head[24:28] == head[92:96] else 0
    size = path.stat().st_size
    if size < 512 or size < page_bytes * pages:
        raise DamagedTraceError(
            f"the SQLite file is cut short: {size:,} of {max(page_bytes * pages, 512):,} bytes are there",
            where=path,
            hint="copy it again, or export the report again: nsys export --type sqlite REPORT",
        )
    try:
        with closing(sqlite3.connect(read_only_uri(path), uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            rows = connection.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
            ).fetchall()
    except (sqlite3.DatabaseError, UnicodeError) as error:  # UnicodeError: of the damaged schema in a message
        if "locked" in str(error) or "unable to open" in str(error):
            raise UnreadableError(
                f"the SQLite file cannot be opened ({error})",
                where=path,
                hint="close the program that writes it, or copy it, with its -wal file, to a folder of yours",
            ) from error
        raise DamagedTraceError(
            f"the SQLite file cannot be opened ({error})",
            where=path,
            hint="copy it again, or export the report again: nsys export --type sqlite REPORT",
        ) from error
    tables = sorted(name for (name,) in rows)
    if is_nsys_export(tables):
        return "nsys-sqlite"
    raise NotATraceError(
        f"a SQLite file, but not an Nsight Systems export: {describe_sqlite(tables)}",
        where=path,
        hint="make an export of a report with: nsys export --type sqlite REPORT",
    )


def is_nsys_export(tables: Sequence[str]) -> bool:
    """Whether these table names are those of an Nsight Systems export (any schema version)."""
    from rlprof.trace.nsys_tables import has_nsys_tables

    return has_nsys_tables(tables)


def _detect_zip(path: Path) -> Format:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError) as error:  # NotImplementedError: a damaged version field
        raise DamagedTraceError(
            "a zip archive (.rlprof?) that is cut short or damaged",
            where=path,
            hint="copy it again, or export it again: rlprof export TRACE --to rlprof",
        ) from error
    if "meta.json" in names:
        return "rlprof"
    raise NotATraceError(
        f"a zip archive that is no .rlprof file: it holds {some(names) if names else 'nothing'}",
        where=path,
        hint="unpack it and give the capture inside",
    )


def _head(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def _gunzip_head(path: Path) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        # zlib directly: gzip.open raises at a cut end instead of giving what is there
        inflate = zlib.decompressobj(wbits=31)
        out = b""
        try:
            with path.open("rb") as file:
                while len(out) < size and (block := file.read(HEAD_BYTES)):
                    out += inflate.decompress(block, size - len(out))
        except zlib.error as error:
            if not out:
                raise DamagedTraceError(
                    f"a gzip file that cannot be decompressed ({error})", where=path, hint="copy it again"
                ) from error
        return out

    return read


# --- directories ---------------------------------------------------------------------------------------


def _detect_export_directory(path: Path) -> Format | None:
    names = [file.name for file in _files(path)]
    by_suffix: tuple[tuple[str, Format], ...] = ((".parquet", "nsys-parquet"), (".arrow", "nsys-arrow"))
    for suffix, format in by_suffix:
        if is_nsys_export([n[: -len(suffix)] for n in names if n.endswith(suffix)]):
            return format
    return None


def _not_an_export(path: Path) -> NotATraceError:
    names = [file.name for file in _files(path)]
    if not names:
        inside = [entry.name for entry in sorted(path.iterdir()) if entry.is_dir()]
        what = f"a folder that holds only folders ({some(inside)})" if inside else "an empty folder"
        return NotATraceError(f"not a trace: {what}", where=path, hint="give a capture inside it")
    if "meta.json" in names and any(n.endswith(".parquet") for n in names):
        return NotATraceError(
            "a Parquet export by rlprof for other tools, not a capture",
            where=path,
            hint="give the capture that it was made from, or export with --to rlprof",
        )
    return NotATraceError(
        f"not a trace: a folder that holds {some(names)}",
        where=path,
        hint="give a file, the folder of an nsys export, or a folder of traces",
    )


def _files(path: Path) -> list[Path]:
    with _reading(path):
        visible = (f for f in path.iterdir() if f.is_file() and not f.name.startswith("."))
        return sorted(visible, key=lambda f: natural_key(f.name))


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which ``rank-2`` comes before ``rank-10``."""
    import re

    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in re.split(r"(\d+)", name) if p)


# --- common --------------------------------------------------------------------------------------------


def _is_directory(path: Path) -> bool:
    """Whether `path` is a directory; an error unless it is a directory or a regular file."""
    if not _is_text(path.name):
        raise UnreadableError(
            "its name holds bytes that are no UTF-8, and results show the name",
            where=path,
            hint="rename it, or give a symbolic link to it",
        )
    return is_folder(path, why="captures are read more than once")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what the operating system says about `path` into a typed error."""
    try:
        yield
    except OSError as error:
        raise unreadable(error, path) from error
