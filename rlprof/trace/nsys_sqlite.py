"""SQLite exports of Nsight Systems, through the standard library."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl

from rlprof.errors import DamagedTraceError, NotATraceError, UnreadableError
from rlprof.progress import Progress, silent
from rlprof.trace.nsys_tables import Condition, has_nsys_tables, trace_from_raw
from rlprof.trace.sqlite_file import read_only_uri
from rlprof.trace.trace import Trace

#: Rows turned into columns at a time; few enough to stay in the processor's cache.
CHUNK_ROWS = 20_000


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _repaired(text: bytes) -> str:
    return text.decode("utf-8", "replace")


@contextmanager
def _without_collector() -> Iterator[None]:
    """No garbage collection: rows hold no cycles, and looking for some takes as long as reading them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class SqliteTables:
    """The tables of one SQLite export (`rlprof.trace.nsys_tables.RawTables`).

    The file is opened read-only for each call: exports carry no index, so a table is read once, column by
    column, and joined in memory.
    """

    def __init__(self, path: Path, progress: Progress = silent) -> None:
        self.path = path
        self._progress = progress
        self._columns: dict[str, dict[str, str]] = {}

    def _connect(self, text: Callable[[bytes], str] | type[str] = _repaired) -> sqlite3.Connection:
        try:
            con = sqlite3.connect(read_only_uri(self.path), uri=True)
        except sqlite3.Error as e:
            raise UnreadableError(f"cannot be opened: {e}", where=self.path.name) from e
        con.text_factory = text
        con.execute("PRAGMA mmap_size = 1099511627776")
        return con

    def _rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        con = self._connect()
        try:
            return con.execute(sql, parameters).fetchall()
        except sqlite3.DatabaseError as e:
            raise self._damaged(e) from e
        finally:
            con.close()

    def _damaged(self, error: sqlite3.Error) -> DamagedTraceError:
        return DamagedTraceError(
            f"SQLite cannot read it ({error}): truncated or damaged",
            where=self.path.name,
            hint="copy it again, or export it again with `nsys export --type sqlite`",
        )

    def tables(self) -> frozenset[str]:
        """Names of the tables in the file, and of views, which a trimmed export may have in their place."""
        sql = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        return frozenset(str(n) for (n,) in self._rows(sql))

    def _types(self, table: str) -> dict[str, str]:
        if table not in self._columns:
            rows = self._rows(f"PRAGMA table_info({_quoted(table)})")
            self._columns[table] = {str(r[1]): str(r[2]).upper() for r in rows}
        return self._columns[table]

    def columns(self, table: str) -> tuple[str, ...]:
        """Column names of a table."""
        return tuple(self._types(table))

    def row_count(self, table: str) -> int:
        """Number of rows, from the largest rowid: exports are written once and never deleted from."""
        try:
            largest = self._rows(f"SELECT max(rowid) FROM {_quoted(table)}")[0][0]
        except DamagedTraceError:  # a table WITHOUT ROWID, or a view
            largest = None
        if not isinstance(largest, int):  # a view may give null
            largest = self._rows(f"SELECT count(*) FROM {_quoted(table)}")[0][0]
        return largest if isinstance(largest, int) else 0

    @staticmethod
    def _where(where: tuple[Condition, ...]) -> str:
        terms = []
        for column, values in where:
            given = ", ".join(str(int(v)) for v in values if v is not None)
            term = f"{_quoted(column)} IN ({given})"
            terms.append(f"({term} OR {_quoted(column)} IS NULL)" if None in values else term)
        return f" WHERE {' AND '.join(terms)}" if terms else ""

    def exists(self, table: str, where: tuple[Condition, ...]) -> bool:
        """Whether any row satisfies `where`."""
        return bool(self._rows(f"SELECT 1 FROM {_quoted(table)}{self._where(where)} LIMIT 1"))

    def unique(self, table: str, column: str, *, shift: int = 0) -> list[int]:
        """Distinct values of ``column >> shift``, nulls left out."""
        rows = self._rows(f"SELECT DISTINCT {_quoted(column)} >> {int(shift)} FROM {_quoted(table)}")
        return sorted(v for (v,) in rows if isinstance(v, int))

    def read(self, table: str, columns: Sequence[str], where: tuple[Condition, ...] = ()) -> pl.DataFrame:
        """Read columns of the rows that satisfy `where`, in file order."""
        try:
            return self._read(table, columns, where, str)
        except sqlite3.OperationalError as e:
            # one public file holds text that is not UTF-8; strict decoding, in C, is faster where it works
            if "decode to UTF-8" not in str(e):
                raise self._damaged(e) from e
        except sqlite3.DatabaseError as e:
            raise self._damaged(e) from e
        try:
            return self._read(table, columns, where, _repaired)
        except sqlite3.DatabaseError as e:
            raise self._damaged(e) from e

    def _read(
        self,
        table: str,
        columns: Sequence[str],
        where: tuple[Condition, ...],
        text: Callable[[bytes], str] | type[str],
    ) -> pl.DataFrame:
        names = ", ".join(_quoted(c) for c in columns)
        types = self._types(table)
        total = max(1, self.row_count(table))
        parts: list[pl.DataFrame] = []
        con = self._connect(text)
        try:
            cursor = con.execute(f"SELECT {names} FROM {_quoted(table)}{self._where(where)}")
            done = 0
            with _without_collector():
                while rows := list(islice(cursor, CHUNK_ROWS)):
                    parts.append(
                        pl.DataFrame(
                            [
                                _series(c, types[c], v)
                                for c, v in zip(columns, zip(*rows, strict=True), strict=True)
                            ]
                        )
                    )
                    done += len(rows)
                    self._progress(f"reading {table}", min(1.0, done / total))
        finally:
            con.close()
        if not parts:
            return pl.DataFrame({c: _series(c, types[c], ()) for c in columns})
        return pl.concat(parts)


def _series(name: str, declared: str, values: tuple[object, ...]) -> pl.Series:
    """One column of a chunk; SQLite types values, not columns, so the odd ones are cast."""
    if "CHAR" in declared or "TEXT" in declared or "CLOB" in declared:
        return pl.Series(name, values, dtype=pl.String, strict=False)
    if "REAL" in declared or "FLOA" in declared or "DOUB" in declared:
        return pl.Series(name, values, dtype=pl.Float64, strict=False)
    try:
        return pl.Series(name, np.fromiter(values, dtype=np.int64, count=len(values)))
    except (TypeError, ValueError, OverflowError):  # NULLs, or text and reals among the integers
        return pl.Series(name, values, dtype=pl.Int64, strict=False)


def read_sqlite(path: Path, *, progress: Progress = silent, notes: tuple[str, ...] = ()) -> Trace:
    """Read an Nsight Systems SQLite export.

    Parameters
    ----------
    path : pathlib.Path
        The file; it is not modified and needs no nsys.
    progress : Progress
        Told how far the reading of each table is.
    notes : tuple of str
        Notes of the caller, kept in front of the reader's.

    Returns
    -------
    Trace
        Tables are read when first asked for.

    Raises
    ------
    NotATraceError
        If it is a SQLite file of something else.
    DamagedTraceError
        If SQLite cannot read it.
    """
    raw = SqliteTables(path, progress)
    names = raw.tables()
    if not has_nsys_tables(names):
        held = ", ".join(sorted(names)[:4]) or "no table"
        raise NotATraceError(
            f"a SQLite file, but not an export of Nsight Systems (it holds {held})",
            where=path.name,
            hint="export the report with `nsys export --type sqlite REPORT.nsys-rep`",
        )
    return trace_from_raw(raw, format="nsys-sqlite", file_name=path.name, notes=notes)
