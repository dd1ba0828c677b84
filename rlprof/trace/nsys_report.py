"""Reports of Nsight Systems (`.nsys-rep`, `.qdrep`): through an export, made by nsys or found beside them.

The report's own format is NVIDIA's; only nsys reads it.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rlprof.errors import (
    DamagedTraceError,
    NewerReportError,
    NsysError,
    OutputError,
    RlprofError,
    UnreadableError,
)
from rlprof.progress import Progress, silent
from rlprof.trace import nsys_cache
from rlprof.trace.nsys_export import GENERIC, METRICS
from rlprof.trace.nsys_parquet import ArrowTables, ParquetTables
from rlprof.trace.nsys_sqlite import SqliteTables
from rlprof.trace.nsys_tables import NEEDED_TABLES, RawTables, has_nsys_tables, trace_from_raw
from rlprof.trace.nsys_tool import (
    GET_NSYS,
    MORE_SPACE,
    REPORT_MAGIC,
    Nsys,
    disk_full,
    export_command,
    find_nsys,
    installed,
)
from rlprof.trace.output import remove
from rlprof.trace.trace import Trace

#: How much older than its report an export may be and still count as up to date: a clone or an unpacked
#: archive writes both within moments, in any order.
SAME_TIME_NS = 2_000_000_000
#: Bytes of export for each byte of report, seen on captures with GPU metrics: the check for space is rough.
PARQUET_GROWTH, SQLITE_GROWTH = 4, 30
#: The rows of META_DATA_CAPTURE that are kept: the others hold environments, paths, user and host names.
SETTINGS = re.compile(r"(^|:)(COLLECT_\w+|CUDA_GRAPH_TRACE_OPTIONS:\w+|GPU_METRICS_OPTIONS:\w+)$")
CAPTURE = "META_DATA_CAPTURE"


def read_report(path: Path, *, progress: Progress = silent, notes: tuple[str, ...] = ()) -> Trace:
    """Read a report of Nsight Systems.

    An up-to-date export beside it (``run.sqlite``, ``run_pqtdir``, ``run_arwdir`` for ``run.nsys-rep``) is
    used; else nsys exports the tables that rlprof reads to a cache; where nsys is absent or fails, an older
    export beside the report is used, with a note.

    Parameters
    ----------
    path : pathlib.Path
        The report.
    progress : Progress
        Told how far the export is.
    notes : tuple of str
        Notes of the caller, kept in front.

    Returns
    -------
    Trace
        With `meta.format` ``nsys-report``.

    Raises
    ------
    UnreadableError
        If the file cannot be opened.
    NewerReportError
        If every nsys here is too old for it.
    DamagedTraceError
        If nsys finds it truncated or damaged.
    NsysError
        If nsys is absent or fails.
    OutputError
        If there is no space for the export.
    """
    path = Path(path)
    _check_readable(path)
    exports, said = exports_beside(path, progress)
    good = next((e for e in exports if e.doubt is None), None)
    if good is not None:
        raw = good.raw
        said.append(f"read from {raw.path.name} beside the report")
    else:
        try:
            raw, export_notes = _export(path, progress)
            said += export_notes
        except RlprofError as error:
            if not exports:
                raise
            raw = exports[0].raw
            said.append(
                f"read from {raw.path.name} beside the report, which {exports[0].doubt}, because "
                f"{_lower(error.what)}"
            )
    return trace_from_raw(raw, format="nsys-report", file_name=path.name, notes=(*notes, *said))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(len(REPORT_MAGIC))
    except OSError as error:
        raise UnreadableError(
            f"cannot be opened: {error.strerror}", where=path, hint="check the name and permissions"
        ) from error
    if head != REPORT_MAGIC:
        raise DamagedTraceError(
            "the report is empty" if not head else "it does not start as a report of Nsight Systems does",
            where=path,
            hint="copy it again; see that nsys had finished writing it",
        )


# ---- exports beside the report ------------------------------------------------------------------------


@dataclass(frozen=True)
class Beside:
    """An export found beside a report.

    Parameters
    ----------
    raw : RawTables
        Its tables.
    doubt : str or None
        Why nsys is asked first where there is one; None for a whole export as new as the report.
    """

    raw: RawTables
    doubt: str | None


def exports_beside(report: Path, progress: Progress = silent) -> tuple[list[Beside], list[str]]:
    """Find the exports named after a report.

    Parameters
    ----------
    report : pathlib.Path
        The report.
    progress : Progress
        Told which table is read, later on.

    Returns
    -------
    exports : list of Beside
        In the order of preference, the quickest to read first.
    notes : list of str
        What lay there and cannot be used.
    """
    stem = re.sub(r"\.(nsys-rep|qdrep)$", "", report.name)
    stem = report.stem if stem == report.name else stem
    kinds: dict[str, Callable[[Path, Progress], RawTables]] = {
        "_pqtdir": ParquetTables,
        "_arwdir": ArrowTables,
        ".sqlite": SqliteTables,
    }
    exports, notes = [], []
    for suffix, tables_of in kinds.items():
        path = report.with_name(stem + suffix)
        try:
            if path.is_dir() != suffix.endswith("dir"):
                continue
            written = [f.stat().st_mtime_ns for f in (path.iterdir() if path.is_dir() else [path])]
            if not written:  # what a failed export leaves
                continue
            raw = tables_of(path, progress)
            check_whole(raw)
            old = max(written) < report.stat().st_mtime_ns - SAME_TIME_NS
            exports.append(Beside(raw, "is older than it" if old else _partial(raw)))
        except FileNotFoundError:
            continue
        except RlprofError as error:
            notes.append(f"{path.name}, beside the report, was not used: {error.what}")
        except OSError as error:
            notes.append(f"{path.name}, beside the report, was not used: {error.strerror}")
    return exports, notes


def _partial(raw: RawTables) -> str | None:
    """Whether an export says that it was made of some tables or some times only."""
    if "META_DATA_EXPORT" not in raw.tables():
        return None
    said = dict(raw.read("META_DATA_EXPORT", ["name", "value"]).iter_rows())
    chosen = [k for k in ("TABLES", "TIMES") if said.get(f"EXPORT_PARAM_{k}_TO_EXPORT")]
    options = " and ".join(f"--{k.lower()}" for k in chosen)
    return f"holds a part of it only (exported with {options})" if chosen else None


def check_whole(raw: RawTables) -> None:
    """Raise unless an export is one of nsys and every table that rlprof reads can be opened.

    nsys exits with status 0 after it filled the disk, leaving parquet files of 0 bytes.

    Parameters
    ----------
    raw : RawTables
        The export.

    Raises
    ------
    DamagedTraceError
        If it is incomplete.
    """
    tables = raw.tables()
    if not has_nsys_tables(tables):
        raise DamagedTraceError("it holds no table of an nsys export", where=raw.path.name)
    for table in sorted(tables & set(NEEDED_TABLES)):
        raw.columns(table)
        raw.row_count(table)


# ---- exports by nsys ----------------------------------------------------------------------------------


def _export(report: Path, progress: Progress) -> tuple[RawTables, list[str]]:
    """Export with the newest nsys that can, or find what was exported earlier."""
    tools = find_nsys()
    if not tools and (silent_ones := installed()):
        raise NsysError(
            f"reading a report needs nsys, and {silent_ones[0]} does not run (it fails on --version)",
            where=report.name,
            hint=f"run it by hand to see why (it needs /proc mounted); or run {export_command(report.name)}",
        )
    if not tools and os.environ.get("RLPROF_NSYS"):
        raise NsysError(
            "reading a report needs nsys, and RLPROF_NSYS names no program",
            where=report.name,
            hint="correct or unset RLPROF_NSYS",
        )
    if not tools:
        raise NsysError(
            "reading a report needs nsys, and there is none here",
            where=report.name,
            hint=f"{GET_NSYS}; or run {export_command(report.name)}",
        )
    place, note = nsys_cache.open_place()
    said = [note] if note else []
    failures: list[RlprofError] = []
    for nsys in tools:
        key = nsys_cache.report_key(report, nsys.version, NEEDED_TABLES)
        try:
            raw = _held(place, key, progress)
            if raw is None:
                _make(nsys, report, place, key, progress)
                raw = _held(place, key, progress)
                place.prune(key, nsys_cache.max_bytes())
            if raw is None:
                raise NsysError(f"nsys {nsys.version} wrote no export", where=report.name)
        except OutputError:
            raise
        except RlprofError as error:
            failures.append(error)
        else:
            said += [f"nsys {t.version} failed: {e.what}" for t, e in zip(tools, failures, strict=False)]
            return raw, said
    # the newest nsys is the one to believe; but "too new" tells more than a crash does
    raise next((f for f in failures if isinstance(f, NewerReportError)), failures[0])


class _KeptSqlite(SqliteTables):
    """A SQLite export in a folder that goes away with its owner."""

    def __init__(self, path: Path, progress: Progress, *, keep: object) -> None:
        super().__init__(path, progress)
        self._keep = keep


def _held(place: nsys_cache.Place, key: str, progress: Progress) -> RawTables | None:
    """The entry of the cache, if it is there and whole."""
    entry = place.entry(key)
    if (entry / "export_pqtdir").is_dir():
        raw: RawTables = ParquetTables(entry / "export_pqtdir", progress, keep=place.owner)
    elif (entry / "export.sqlite").is_file():
        raw = _KeptSqlite(entry / "export.sqlite", progress, keep=place.owner)
    else:
        return None
    try:
        check_whole(raw)
    except RlprofError:
        shutil.rmtree(entry, ignore_errors=True)
        return None
    nsys_cache.touch(entry)
    return raw


def _make(nsys: Nsys, report: Path, place: nsys_cache.Place, key: str, progress: Progress) -> None:
    """Export one report into the cache."""
    parquet = nsys.exports_parquet
    _check_space(report, place.folder, PARQUET_GROWTH if parquet else SQLITE_GROWTH)
    progress("nsys export", 0.0)
    try:
        with place.making(key) as folder:
            if parquet:
                out = folder / "export_pqtdir"
                nsys.export(report, out, kind="parquetdir", tables=NEEDED_TABLES, progress=progress)
                if out.is_dir():
                    _keep_needed(out)
                    _add_settings(nsys, report, out)
                raw: RawTables = ParquetTables(out)
            else:
                out = folder / "export.sqlite"
                nsys.export(report, out, kind="sqlite", tables=NEEDED_TABLES, progress=progress)
                raw = SqliteTables(out)
            try:
                check_whole(raw)
            except RlprofError as error:
                if shutil.disk_usage(folder).free < 1 << 20:
                    raise disk_full(report.name) from error
                raise NsysError(
                    f"nsys {nsys.version} ended well but its export is not whole ({error.what})",
                    where=report.name,
                    hint=f"see that the disk is not full; else run {export_command(report.name)}",
                ) from error
    except OSError as error:
        raise OutputError(
            f"the export cannot be written: {error.strerror or error}", where=place.folder, hint=MORE_SPACE
        ) from error
    progress("nsys export", 1.0)


def _check_space(report: Path, folder: Path, growth: float) -> None:
    """Raise if the disk cannot even hold a fraction of what an export is likely to take."""
    size, free = report.stat().st_size, shutil.disk_usage(folder).free
    # the growth differs between captures: refuse only below a quarter of what was seen
    if free < size * growth / 4:
        raise OutputError(
            f"not enough space to export the report: about {_gb(size * growth)} are needed for a report of "
            f"{_gb(size)}, {_gb(free)} are free",
            where=folder,
            hint=MORE_SPACE,
        )


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _keep_needed(folder: Path) -> None:
    """Remove tables that rlprof does not read, environments among them: older nsys exports all."""
    held = {file.stem: file for file in folder.glob("*.parquet")}
    for table, file in held.items():
        if table not in NEEDED_TABLES and not (table == GENERIC and METRICS not in held):
            file.unlink()


def _add_settings(nsys: Nsys, report: Path, folder: Path) -> None:
    """Add the capture's settings, which nsys leaves out of parquet exports, without what is personal."""
    target = folder / f"{CAPTURE}.parquet"
    if target.exists():
        frame = ParquetTables(folder).read(CAPTURE, ["name", "value"])
    elif nsys.picks_tables:
        database = folder.parent / "settings.sqlite"
        try:
            nsys.export(report, database, kind="sqlite", tables=[CAPTURE])
            with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as con:
                con.text_factory = lambda b: b.decode("utf-8", "replace")
                rows = con.execute(f"SELECT name, value FROM {CAPTURE}").fetchall()
        except (RlprofError, sqlite3.Error):
            return  # a trace without them says that it does not know them
        finally:
            remove(database)
        frame = pl.DataFrame(rows, schema={"name": pl.String, "value": pl.String}, orient="row", strict=False)
    else:
        return
    frame.filter(pl.col("name").str.contains(SETTINGS.pattern)).write_parquet(target)
