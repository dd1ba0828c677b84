"""The parts of a running session: one append-only file per process and table, readable after any crash.

A session's folder holds, for each process, ``PID-STARTTIME.json`` (what the process is, and its clock) and
``PID-STARTTIME-TABLE.arrows``, an Arrow IPC stream to which whole record batches are appended. A file that
ends within a batch (the process was killed, the disk filled up) is read up to its last whole batch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.capture.columns import arrow_array
from rlprof.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

#: Tables of a part that are not (or not so) in a finished capture.
PART_TABLES = ("open_ranges", "alive", "loop_counts", "notes")


def part_schema(table: str) -> pa.Schema:
    """Columns of a table of parts: those of a finished capture without ``process``.

    Times are CLOCK_MONOTONIC. Further tables: ``open_ranges`` (ranges that were open when their process
    flushed), ``alive`` (instants at which a process flushed), ``loop_counts`` (cumulative: the last row of a
    path holds), ``notes``.

    Raises
    ------
    UsageError
        If there is no such table.
    """
    import pyarrow as pa

    from rlprof.trace.archive import ARROW_SCHEMAS

    text = pa.dictionary(pa.int32(), pa.string())
    if table == "open_ranges":
        return pa.schema([f for f in part_schema("ranges") if f.name not in ("end_ns", "cut")])
    if table == "alive":
        return pa.schema([("time_ns", pa.int64())])
    if table == "loop_counts":
        return pa.schema([("path", text), ("count", pa.int64())])
    if table == "notes":
        return pa.schema([("text", pa.string())])
    if table not in ARROW_SCHEMAS or table == "processes":
        known = sorted({*ARROW_SCHEMAS, *PART_TABLES} - {"processes"})
        raise UsageError(f"no part is called {table!r}", hint=f"one of {', '.join(known)}")
    return pa.schema([f for f in ARROW_SCHEMAS[table] if f.name != "process"])


def process_stem() -> str:
    """``PID-STARTTIME`` of this process, the time being when this was first asked (CLOCK_MONOTONIC, ns).

    A pid that comes around again and a program that replaces itself (exec) both get another one.
    """
    return _stem_of(os.getpid())


@functools.cache
def _stem_of(pid: int) -> str:
    return f"{pid}-{time.monotonic_ns()}"


def stem_pid(stem: str) -> int:
    """The pid in a `process_stem`."""
    return int(stem.partition("-")[0])


def write_process(folder: Path, facts: Mapping[str, Any], stem: str | None = None) -> Path:
    """Write ``PID-STARTTIME.json`` whole or not at all.

    Parameters
    ----------
    folder : pathlib.Path
        The session's.
    facts : mapping
        JSON values: ``rank``, ``label``, ``anchors``, ...; never a name of a user, host, path or environment
        variable. ``pid`` is added.
    stem : str, optional
        As `process_stem`.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    OSError
        As the operating system says.
    """
    stem = stem or process_stem()
    path = Path(folder) / f"{stem}.json"
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps({"pid": stem_pid(stem), **facts}, indent=1))
    temporary.replace(path)
    return path


class PartWriter:
    """Appends record batches of one table to this process's part. Not to be shared between threads.

    Nothing here raises for a full disk or a folder that cannot be written: a program that is profiled goes
    on. What could not be written is tried again with the next batch, while further rows are counted as lost.

    Parameters
    ----------
    folder : pathlib.Path
        The session's folder.
    table : str
        A name that `part_schema` knows. A second writer of one table in one process makes a file of its own.
    stem : str, optional
        As `process_stem`.

    Attributes
    ----------
    error : OSError or None
        Why the last batch could not be written.
    """

    def __init__(self, folder: Path, table: str, stem: str | None = None) -> None:
        self.table = table
        self._stem = Path(folder) / f"{stem or process_stem()}-{table}"
        self.path = self._stem.with_suffix(".arrows")
        self.schema = part_schema(table)
        self.error: OSError | None = None
        self._refused_rows = 0
        self._pending = bytearray()
        self._pending_rows = 0
        self._file: int | None = None
        self._size = 0
        self._stream: Any = None
        self._closed = False

    @property
    def lost_rows(self) -> int:
        """Rows that were given and are not in the file."""
        return self._refused_rows + self._pending_rows

    def write(self, columns: Mapping[str, Any]) -> bool:
        """Append one batch.

        Parameters
        ----------
        columns : mapping of column name to sequence, ndarray or pyarrow.Array
            Equal lengths; a column that is not given is null.

        Returns
        -------
        bool
            Whether all rows given so far are in the file.

        Raises
        ------
        UsageError
            If a column is unknown, or the lengths differ.
        """
        batch = self._batch(columns)
        if not batch.num_rows:
            return self._append()
        if self._pending and not self._append():
            self._refused_rows += batch.num_rows
            return False
        if self._stream is None:
            self._stream = _stream(self._pending, self.schema)
        self._stream.write_batch(batch)
        self._pending_rows += batch.num_rows
        return self._append()

    def _batch(self, columns: Mapping[str, Any]) -> pa.RecordBatch:
        import pyarrow as pa

        unknown = sorted(set(columns) - set(self.schema.names))
        lengths = {len(c) for c in columns.values()}
        if unknown or len(lengths) > 1:
            what = f"unknown column(s) {', '.join(unknown)}" if unknown else f"columns of lengths {lengths}"
            known = ", ".join(self.schema.names)
            raise UsageError(f"table {self.table}: {what}", hint=f"columns are {known}")
        size = next(iter(lengths), 0)
        arrays = []
        for field in self.schema:
            values = columns.get(field.name)
            if values is None:
                arrays.append(pa.nulls(size, field.type))
            else:
                arrays.append(arrow_array(values, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _append(self) -> bool:
        """Write what is pending; on failure the file ends where it ended before."""
        if self._closed:
            return not self._pending
        try:
            if self._file is None and self._pending:
                self._file = self._create()
            done = 0
            view = bytes(self._pending)
            while done < len(view):
                assert self._file is not None
                done += os.write(self._file, view[done:])
        except OSError as error:
            self.error = error
            if self._file is not None:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._size)
            return False
        self._size += len(self._pending)
        self._pending.clear()
        self._pending_rows = 0
        self.error = None
        return True

    def _create(self) -> int:
        """Open a file that does not exist yet: to continue another's stream would spoil both."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        number = 1
        while True:
            try:
                return os.open(self.path, flags, 0o666)
            except FileExistsError:
                number += 1
                self.path = self._stem.with_suffix(f".{number}.arrows")

    def close(self) -> None:
        """End the stream and close the file; rows still pending are lost."""
        if self._closed:
            return
        if self._stream is not None and self._append():
            self._stream.close()
            self._append()
        self._closed = True
        self._drop_file()

    def abandon(self) -> None:
        """Let go of the file without writing, as the child of a fork must: the file is its parent's."""
        self._closed = True
        self._drop_file()

    def _drop_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None


class _Sink:
    """Collects what an IPC stream writes."""

    closed = False

    def __init__(self, into: bytearray) -> None:
        self._into = into
        self._at = 0

    def write(self, data: Any) -> int:
        self._into += memoryview(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _stream(into: bytearray, schema: pa.Schema) -> Any:
    import pyarrow as pa

    # a name is written once, with the first batch that has it
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True, compression="zstd", use_threads=False)
    return pa.ipc.new_stream(pa.PythonFile(_Sink(into), mode="w"), schema, options=options)
