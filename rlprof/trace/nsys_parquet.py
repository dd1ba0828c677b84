"""Parquet and Arrow directory exports of Nsight Systems (`nsys export -t parquetdir`, `-t arrowdir`).

Both are folders of one file per table: TABLE.parquet, or TABLE.arrow in Arrow's stream format. nsys stores
ids as unsigned 64-bit numbers and other whole numbers in several widths; here all are Int64, as in SQLite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from rlprof.errors import DamagedTraceError, NotATraceError, UnreadableError
from rlprof.progress import Progress, silent
from rlprof.trace.nsys_tables import Condition, has_nsys_tables, trace_from_raw
from rlprof.trace.trace import Trace

#: An Arrow stream ends with a continuation mark and length 0; one that was cut may lack it.
ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class _FolderTables(ABC):
    """What the two kinds of folder have in common; see `rlprof.trace.nsys_tables.RawTables`.

    Parameters
    ----------
    path : pathlib.Path
        The folder.
    progress : Progress
        Told which table is read.
    keep : object, optional
        Held as long as this object is: the owner of a temporary folder.
    """

    suffix = ""

    def __init__(self, path: Path, progress: Progress = silent, *, keep: object = None) -> None:
        self.path = path
        self._progress = progress
        self._keep = keep
        self._schemas: dict[str, pa.Schema] = {}

    def _file(self, table: str) -> Path:
        return self.path / f"{table}{self.suffix}"

    @cached_property
    def _names(self) -> frozenset[str]:
        try:
            files = list(self.path.iterdir())
        except OSError as error:
            raise UnreadableError(
                f"cannot be opened: {error.strerror}",
                where=self.path.name,
                hint="check the name and permissions",
            ) from error
        return frozenset(f.name[: -len(self.suffix)] for f in files if f.name.endswith(self.suffix))

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise UnreadableError(
                "the file has gone since the folder was opened",
                where=f"{self.path.name}/{self._file(table).name}",
            ) from error
        except PermissionError as error:
            raise UnreadableError(
                "no permission to read it",
                where=f"{self.path.name}/{self._file(table).name}",
                hint="chmod u+r",
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise DamagedTraceError(
                f"cannot be read: truncated or damaged ({_first_line(error)})",
                where=f"{self.path.name}/{self._file(table).name}",
                hint="copy the folder again, or export the report again",
            ) from error

    def tables(self) -> frozenset[str]:
        """Names of the tables in the folder."""
        return self._names

    def _schema(self, table: str) -> pa.Schema:
        if table not in self._schemas:
            with self._reading(table):
                self._schemas[table] = self._read_schema(table)
        return self._schemas[table]

    def columns(self, table: str) -> tuple[str, ...]:
        """Column names of a table."""
        return tuple(self._schema(table).names)

    def read(self, table: str, columns: Sequence[str], where: tuple[Condition, ...] = ()) -> pl.DataFrame:
        """Read columns of the rows that satisfy `where`, in file order.

        Parameters
        ----------
        table : str
            Table name.
        columns : sequence of str
            Columns, in the order wanted; no other is read, but for those in `where`.
        where : tuple of Condition
            Row filters; all must hold.

        Returns
        -------
        polars.DataFrame
            Whole numbers and flags as Int64, reals as Float64, text as String with bad bytes replaced.

        Raises
        ------
        DamagedTraceError
            If the file cannot be read.
        """
        self._progress(f"reading {table}", 0.0)
        schema = self._schema(table)
        test = _filter(schema, where)
        with self._reading(table):
            content = self._read(table, list(dict.fromkeys(columns)), test)
        frame = pl.DataFrame([_series(c, content.column(c)) for c in columns])
        self._progress(f"reading {table}", 1.0)
        return frame

    def exists(self, table: str, where: tuple[Condition, ...]) -> bool:
        """Whether any row satisfies `where`."""
        if not where:
            return self.row_count(table) > 0
        return self.read(table, [where[0][0]], where).height > 0

    def unique(self, table: str, column: str, *, shift: int = 0) -> list[int]:
        """Distinct values of ``column >> shift``, ascending, nulls left out."""
        with self._reading(table):
            content = self._read(table, [column], None).column(column)
        values = pc.unique(content)  # before the conversion: ids repeat often
        whole = _series(column, values).drop_nulls().to_list()
        return sorted({int(v) >> shift for v in whole})

    def row_count(self, table: str) -> int:
        """Number of rows."""
        with self._reading(table):
            return self._row_count(table)

    @abstractmethod
    def _read_schema(self, table: str) -> pa.Schema:
        """Columns and types of a table."""

    @abstractmethod
    def _read(self, table: str, columns: list[str], test: pc.Expression | None) -> pa.Table:
        """Columns of the rows that satisfy `test`."""

    @abstractmethod
    def _row_count(self, table: str) -> int:
        """Number of rows."""


class ParquetTables(_FolderTables):
    """The tables of a parquet directory export."""

    suffix = ".parquet"

    def read(self, table: str, columns: Sequence[str], where: tuple[Condition, ...] = ()) -> pl.DataFrame:
        """See `_FolderTables.read`; polars reads it where it can, which is several times faster."""
        schema = self._schema(table)
        types = {c: schema.field(c).type for c in columns}
        if all(_plain(t) for t in types.values()):
            self._progress(f"reading {table}", 0.0)
            try:
                scan = self._scan(table, where)
                return scan.select(_converted(c, t) for c, t in types.items()).collect()
            except (pl.exceptions.PolarsError, OSError):
                pass  # text that is not UTF-8, or a damaged file: the slower way mends or tells
        return super().read(table, columns, where)

    def unique(self, table: str, column: str, *, shift: int = 0) -> list[int]:
        """Distinct values of ``column >> shift``, ascending, nulls left out."""
        type_ = self._schema(table).field(column).type
        with self._reading(table):
            try:
                found = self._scan(table, ()).select(_converted(column, type_).unique()).collect()
            except pl.exceptions.PolarsError as error:
                raise pa.ArrowInvalid(str(error)) from error
        return sorted({int(v) >> shift for v in found[column].drop_nulls()})

    def _scan(self, table: str, where: tuple[Condition, ...]) -> pl.LazyFrame:
        schema = self._schema(table)
        scan = pl.scan_parquet(self._file(table), glob=False)
        for column, values in where:
            given = _values(schema.field(column).type, values)
            test = pl.any_horizontal(pl.lit(False), *(pl.col(column) == v for v in given)).fill_null(False)
            scan = scan.filter(test | pl.col(column).is_null() if None in values else test)
        return scan

    def _read_schema(self, table: str) -> pa.Schema:
        return pq.read_schema(self._file(table))

    def _row_count(self, table: str) -> int:
        return cast(int, pq.read_metadata(self._file(table)).num_rows)

    def _read(self, table: str, columns: list[str], test: pc.Expression | None) -> pa.Table:
        # a dataset drops the rows that are not wanted batch by batch, and keeps the order
        return ds.dataset(self._file(table), format="parquet").to_table(columns=columns, filter=test)


def _plain(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_string(type_))


def _converted(name: str, type_: pa.DataType) -> pl.Expr:
    if pa.types.is_integer(type_):
        return pl.col(name).cast(pl.Int64(), wrap_numerical=True)
    return pl.col(name).cast(pl.Float64() if pa.types.is_floating(type_) else pl.String())


class ArrowTables(_FolderTables):
    """The tables of an Arrow directory export; files are mapped, so columns not asked for are not read."""

    suffix = ".arrow"

    def _read_schema(self, table: str) -> pa.Schema:
        with pa.memory_map(str(self._file(table))) as file, pa.ipc.open_stream(file) as stream:
            return stream.schema

    def _row_count(self, table: str) -> int:
        names = self._schema(table).names
        return sum(b.num_rows for b in self._batches(table, names[:1]))

    def _batches(self, table: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        schema = self._schema(table)
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(c) for c in columns])
        with pa.memory_map(str(self._file(table))) as file:
            with pa.ipc.open_stream(file, options=options) as stream:
                yield from stream
            size = file.size()
            file.seek(size - len(ARROW_END))
            if size < len(ARROW_END) or file.read(len(ARROW_END)) != ARROW_END:
                raise pa.ArrowInvalid("the stream has no end mark")

    def _read(self, table: str, columns: list[str], test: pc.Expression | None) -> pa.Table:
        schema = self._schema(table)
        needed = list(dict.fromkeys([*columns, *_fields(test, schema)]))
        kept = []
        for batch in self._batches(table, needed):
            part = pa.Table.from_batches([batch])
            kept.append((part if test is None else part.filter(test)).select(columns))
        if not kept:
            return schema.empty_table().select(columns)
        return pa.concat_tables(kept)


def _fields(test: pc.Expression | None, schema: pa.Schema) -> list[str]:
    # an expression does not list its fields, so look for their names in its text; a name too many costs
    # a column read, no wrong row
    return [] if test is None else [n for n in schema.names if n in str(test)]


def _filter(schema: pa.Schema, where: tuple[Condition, ...]) -> pc.Expression | None:
    """The conditions as an Arrow expression in the column's own type; values it cannot hold never match."""
    test: pc.Expression | None = None
    for column, values in where:
        type_ = schema.field(column).type
        term = pc.field(column).isin(pa.array(_values(type_, values), type=type_))
        if None in values:
            term = term | pc.field(column).is_null()
        # isin is false, not null, for a null
        test = term if test is None else test & term
    return test


def _values(type_: pa.DataType, values: tuple[int | None, ...]) -> list[int]:
    """Those of the values of a condition that a column can hold."""
    held = []
    for value in values:
        if value is not None:
            with suppress(pa.ArrowInvalid, OverflowError):
                held.append(cast(int, pa.scalar(value, type=type_).as_py()))
    return held


def _series(name: str, column: pa.ChunkedArray | pa.Array) -> pl.Series:
    type_ = column.type
    if pa.types.is_dictionary(type_):
        column, type_ = column.cast(type_.value_type), type_.value_type
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        # ids are below 2^63; where one is not (a payload), SQLite wraps it as well
        column = column.cast(pa.int64(), safe=False)
    elif pa.types.is_floating(type_):
        column = column.cast(pa.float64())
    else:
        column = _clean_text(column)
    return cast(pl.Series, pl.from_arrow(column)).alias(name)


def _clean_text(column: Any) -> Any:
    """Text with undecodable bytes replaced; polars takes Arrow's word for it that text is UTF-8."""
    raw = column if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) else None
    try:
        if raw is None:
            raw = column.cast(pa.large_binary())
        return raw.cast(pa.large_string())  # checks every byte
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if raw is None:
            raise
    values = [None if v is None else v.decode("utf-8", "replace") for v in raw.to_pylist()]
    return pa.array(values, pa.large_string())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def read_parquetdir(path: Path, *, progress: Progress = silent, notes: tuple[str, ...] = ()) -> Trace:
    """Read a folder made by ``nsys export --type parquetdir``.

    Parameters
    ----------
    path : pathlib.Path
        The folder.
    progress : Progress
        Told which table is read.
    notes : tuple of str
        Notes of the caller, kept in front of the reader's.

    Returns
    -------
    Trace
        Tables are read when first asked for.

    Raises
    ------
    NotATraceError
        If the folder is no such export.
    DamagedTraceError
        If a file in it cannot be read.
    """
    return _read(ParquetTables(Path(path), progress), "nsys-parquet", notes)


def read_arrowdir(path: Path, *, progress: Progress = silent, notes: tuple[str, ...] = ()) -> Trace:
    """Read a folder made by ``nsys export --type arrowdir``; see `read_parquetdir`."""
    return _read(ArrowTables(Path(path), progress), "nsys-arrow", notes)


def _read(raw: _FolderTables, format_: str, notes: tuple[str, ...]) -> Trace:
    names = raw.tables()
    if not has_nsys_tables(names):
        raise NotATraceError(
            f"a folder, but not an export of Nsight Systems ({len(names)} {raw.suffix} files)",
            where=raw.path.name,
            hint="export the report with `nsys export --type parquetdir REPORT.nsys-rep`",
        )
    return trace_from_raw(raw, format=format_, file_name=raw.path.name, notes=notes)
