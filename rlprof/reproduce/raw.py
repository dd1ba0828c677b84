"""Raw tables of studies, with where they come from: a CSV file, and a JSON file about it beside."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof import __version__
from rlprof.cores import usable_cores
from rlprof.errors import UnreadableError
from rlprof.reproduce.errors import RawTableError
from rlprof.trace.output import atomic_path, output_error

if TYPE_CHECKING:
    import polars as pl

FORMAT, VERSION = "rlprof.run", 1
#: Libraries whose versions are recorded.
LIBRARIES = ("numpy", "numba", "polars")


@dataclass(frozen=True, eq=False)
class RawTable:
    """Rows that a study computed, and where they come from.

    Parameters
    ----------
    frame : polars.DataFrame
        The rows.
    about : mapping
        Study, preset, seed, parameters, machine, versions, dates, seconds. Of rows that were read from
        measurements: ``measured``, of each what it says of itself, and ``read``, by whom and when.
    path : pathlib.Path or None
        Where it was read from.
    """

    frame: pl.DataFrame
    about: Mapping[str, Any]
    path: Path | None = None

    @property
    def origin(self) -> str:
        """Where the rows come from, in one line for people."""
        a = self.about
        if a.get("missing"):
            return f"no rows: {a['missing']}"
        rows = f"{self.frame.height} rows, preset {a.get('preset')}, seed {a.get('seed')}"
        if isinstance(a.get("measured"), Mapping):
            return f"{rows}: {_measured(a['measured'])}; commands and versions are in the facts beside it"
        machine = a.get("machine", {})
        return (
            f"{rows}: computed "
            f"{a.get('ended', 'at an unknown date')} on {machine.get('processor', 'an unknown processor')} "
            f"in {a.get('seconds', 0):.0f} s with rlprof {a.get('versions', {}).get('rlprof', '?')}"
        )


def _measured(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Where and when runs were measured, in one line for people."""
    places, dates = dict[str, None](), set[str]()
    for run in runs.values():
        gpu = run.get("gpu", "none")
        where = "a processor" if gpu == "none" else str(gpu)
        where += f", driver {run['driver']}" if run.get("driver") else ""
        where += f", {run['cores']} cores" if run.get("cores") else ""
        where += f", torch {run['torch']}" if run.get("torch") else ""
        places[where] = None
        dates.add(str(run.get("date", "an unknown date")))
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    return f"measured on {' and on '.join(places)}; {' and '.join(sorted(dates))} ({count})"


def machine() -> dict[str, Any]:
    """Return what computes here: processor and cores. Nothing in it names the host or a person."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = " ".join(line.partition(":")[2].split())
                break
    return {"processor": name, "cores": usable_cores()}


def versions() -> dict[str, str]:
    """Return the versions of rlprof, Python and the libraries that results rest on."""
    found = {"rlprof": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    return found


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def about_path(path: Path) -> Path:
    """Where the facts about a table are."""
    return path.with_suffix(".json")


def write_raw(path: Path, frame: pl.DataFrame, about: Mapping[str, Any]) -> RawTable:
    """Write a table and the facts about it, each whole or not at all, and return what was written.

    Parameters
    ----------
    path : pathlib.Path
        Ends in ``.csv``.
    frame : polars.DataFrame
        The rows.
    about : mapping
        Facts, plain values.

    Raises
    ------
    OutputError
        If they cannot be written.
    """
    content = frame.write_csv().encode()
    facts = {
        "format": FORMAT,
        "version": VERSION,
        **about,
        "rows": frame.height,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    text = json.dumps(facts, indent=1, allow_nan=False) + "\n"
    try:
        with (
            _locked(path.parent, fcntl.LOCK_EX),
            atomic_path(about_path(path), force=True) as about_it,
            atomic_path(path, force=True) as table,
        ):
            table.write_bytes(content)
            about_it.write_text(text, encoding="utf-8")
    except OSError as error:
        raise output_error(error, path) from error
    return RawTable(_frame(content), json.loads(text), path)


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    """Hold the lock of a folder: both files of a table are of one computation."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _frame(content: bytes) -> pl.DataFrame:
    import polars as pl

    return pl.read_csv(content, infer_schema_length=None, try_parse_dates=False)


def read_raw(path: Path) -> RawTable:
    """Read a table and the facts about it.

    Raises
    ------
    UnreadableError
        If one of the files cannot be opened.
    RawTableError
        If the facts are damaged, or are of another table.
    """
    try:
        with _locked(path.parent, fcntl.LOCK_SH):
            content, text = path.read_bytes(), about_path(path).read_bytes()
    except OSError as error:
        raise UnreadableError(error.strerror or str(error), where=error.filename or path) from error
    try:
        about = json.loads(text)
    except ValueError as error:
        raise RawTableError(f"no JSON: {error}", where=about_path(path), hint="compute it again") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != VERSION:
        raise RawTableError(f"no facts about a raw table ({FORMAT} {VERSION})", where=about_path(path))
    if about.get("sha256") != hashlib.sha256(content).hexdigest():
        raise RawTableError(
            "the table is another than the one its facts are about", where=path, hint="compute it again"
        )
    return RawTable(_frame(content), about, path)
