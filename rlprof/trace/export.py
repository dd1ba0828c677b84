"""Export a trace to other tools: Chrome JSON, parquet, SQLite, `.rlprof`."""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from rlprof.errors import UsageError
from rlprof.progress import Progress, silent
from rlprof.trace.archive import META_MEMBER, write_parquet
from rlprof.trace.native import arrow_table, trace_document, write_rlprof
from rlprof.trace.output import atomic_path
from rlprof.trace.tables import TABLE_NAMES
from rlprof.trace.trace import Trace

Target = Literal["chrome", "parquet", "sqlite", "rlprof"]
TARGETS: tuple[Target, ...] = get_args(Target)
CHUNK_ROWS = 50_000
_SQL_TYPES = {
    pl.Float64: "REAL",
    pl.String: "TEXT",
    pl.Categorical: "TEXT",
    pl.Enum: "TEXT",
    pl.List: "TEXT",
}


def export(
    trace: Trace,
    to: Target,
    out: Path,
    *,
    window_ns: tuple[int, int] | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Path:
    """Write a trace, or a window of it, for another tool.

    Parameters
    ----------
    trace : Trace
        Any trace.
    to : {"chrome", "parquet", "sqlite", "rlprof"}
        ``chrome``: Chrome trace JSON for Perfetto (``.json``, or compressed as ``.json.gz``).
        ``parquet``: a folder with one file per table of rlprof, and meta.json.
        ``sqlite``: one SQLite file with the same tables, and a table ``meta``.
        ``rlprof``: rlprof's own format, which alone is read back exactly.
    out : pathlib.Path
        File or folder to make.
    window_ns : (start, end), optional
        Only what lies in this span of the trace's clock.
    force : bool
        Replace what is there.
    progress : Progress
        Told the table being written.

    Returns
    -------
    pathlib.Path
        `out`.

    Raises
    ------
    UsageError
        If `to` is none of these, or nothing of the trace lies in the window.
    OutputError
        If `out` exists and `force` is not set, or cannot be written; nothing is left half written.
    """
    writers: dict[str, Callable[..., Path]] = {
        "chrome": _write_chrome,
        "parquet": write_parquet_folder,
        "sqlite": write_sqlite,
        "rlprof": write_rlprof,
    }
    if to not in writers:
        raise UsageError(f"cannot export to {to!r}", hint=f"choose one of {', '.join(TARGETS)}")
    if window_ns is not None:
        trace = trace.between(*window_ns)
    return writers[to](trace, Path(out), force=force, progress=progress)


def _write_chrome(trace: Trace, out: Path, *, force: bool, progress: Progress) -> Path:
    from rlprof.trace.chrome_export import write_chrome

    return write_chrome(trace, out, force=force, progress=progress)


def write_parquet_folder(
    trace: Trace, out: Path, *, force: bool = False, progress: Progress = silent
) -> Path:
    """Write a folder with TABLE.parquet for each table of a trace, and meta.json; see `export`."""
    held = [name for name in TABLE_NAMES if trace.has(name)]
    with atomic_path(out, force=force, folder=True) as temporary:
        for i, name in enumerate(held):
            progress(f"writing {name}", i / len(held))
            write_parquet(arrow_table(trace.table(name), name), str(temporary / f"{name}.parquet"))
        (temporary / META_MEMBER).write_text(json.dumps(trace_document(trace), indent=1), encoding="utf-8")
    progress("writing", 1.0)
    return out


def write_sqlite(trace: Trace, out: Path, *, force: bool = False, progress: Progress = silent) -> Path:
    """Write one SQLite file with the tables of a trace, and a table meta(key, value); see `export`.

    Names are text, flags 0 or 1; lists and the values of `meta` are JSON.
    """
    held = [name for name in TABLE_NAMES if trace.has(name)]
    with atomic_path(out, force=force) as temporary:
        try:
            with closing(sqlite3.connect(temporary)) as con:
                # the file appears whole or not at all, so SQLite's own safety costs time for nothing
                con.execute("PRAGMA journal_mode = OFF")
                con.execute("PRAGMA synchronous = OFF")
                for i, name in enumerate(held):
                    progress(f"writing {name}", i / len(held))
                    _write_table(con, name, trace.table(name))
                con.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)")
                document = trace_document(trace)
                con.executemany(
                    "INSERT INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in document.items()]
                )
                con.commit()
        except sqlite3.OperationalError as error:
            full = "full" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error
    progress("writing", 1.0)
    return out


def _write_table(con: sqlite3.Connection, name: str, frame: pl.DataFrame) -> None:
    columns = ", ".join(f"{c} {_SQL_TYPES.get(type(t), 'INTEGER')}" for c, t in frame.schema.items())
    lists = [c for c, t in frame.schema.items() if isinstance(t, pl.List)]
    con.execute(f"CREATE TABLE {name} ({columns})")
    marks = ", ".join("?" for _ in frame.columns)
    for rows in frame.iter_slices(CHUNK_ROWS):
        plain = rows.with_columns(
            pl.col(c).map_elements(lambda v: json.dumps(list(v)), return_dtype=pl.String) for c in lists
        )
        con.executemany(f"INSERT INTO {name} VALUES ({marks})", plain.iter_rows())
