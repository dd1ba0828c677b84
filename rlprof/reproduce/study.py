"""Studies: rows computed case by case, so that what is interrupted goes on where it was."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.errors import OutputError, RlprofError
from rlprof.progress import Progress, silent
from rlprof.reproduce.partial import partial
from rlprof.reproduce.raw import RawTable, machine, now, read_raw, versions, write_raw
from rlprof.trace.output import output_error
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

Row = Mapping[str, Any]


def _fresh(_: pl.DataFrame) -> str | None:
    """Nothing to say against a table."""
    return None


@dataclass(frozen=True)
class Study:
    """A raw table that can be computed.

    Parameters
    ----------
    name : str
        "rpeg/weak_scaling": folder and file of the table.
    preset : str
        "smoke", "full".
    seed : int
        Of all random choices.
    parameters : mapping
        All that the rows depend on, plain values. A stored table with others is not used.
    cases : mapping of str to callable
        By the name of the case: gives its rows.
    reads : bool
        Its cases only read what was measured before, in no time: without a stored table they are read.
    stale : callable
        Says what is wrong with a stored table, because the program has changed; None if nothing is.
    missing : str
        Why there are no cases, and what makes them; empty where there are some.
    measured : mapping
        Measurements that its cases read, by name: where, when, with what and by which command each was made.
        Kept beside the table; it makes no other table.
    """

    name: str
    preset: str
    seed: int
    parameters: Mapping[str, Any]
    cases: Mapping[str, Callable[[], Sequence[Row]]]
    reads: bool = False
    stale: Callable[[pl.DataFrame], str | None] = field(default=_fresh)
    missing: str = ""
    measured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Name of the table's file."""
        return f"{self.name.rpartition('/')[2]}.{self.preset}.csv"

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two tables the same."""
        facts = {
            "study": self.name,
            "preset": self.preset,
            "seed": self.seed,
            "parameters": dict(self.parameters),
            "cases": list(self.cases),
        }
        return dict(json.loads(json.dumps(facts)))  # as it comes back from a file

    @property
    def key(self) -> str:
        """Short hash of the identity."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, eq=False)
class Obtained:
    """A raw table, and what was done to get it.

    Parameters
    ----------
    table : RawTable
        The rows.
    computed : int
        Cases that were computed for it; 0 for a stored table.
    notes : tuple of str
        Why stored tables were not used.
    """

    table: RawTable
    computed: int
    notes: tuple[str, ...]


def shipped_path(checkout: Path, study: Study) -> Path:
    """Where the raw table of a study is kept in a checkout."""
    return checkout / "datasets" / "runs" / study.name.partition("/")[0] / study.file


def obtain(
    study: Study,
    out: Path,
    *,
    checkout: Path | None = None,
    fresh: bool = False,
    progress: Progress = silent,
) -> Obtained:
    """Return the raw table of a study: from `out`, from the checkout, or computed.

    Parameters
    ----------
    study : Study
        What is wanted.
    out : pathlib.Path
        Folder that keeps the table, and what an interrupted computation had.
    checkout : pathlib.Path, optional
        Where shipped tables are looked for.
    fresh : bool
        Compute all cases anew.
    progress : callable
        Told how far it is.

    Returns
    -------
    Obtained
        After Ctrl-C the cases that were done are kept, and the next call goes on.

    Raises
    ------
    OutputError
        If `out` cannot be written.
    """
    notes: list[str] = []
    if study.missing:
        return Obtained(_nothing(study), 0, ())
    if not fresh:
        places = [out / study.file] + ([shipped_path(checkout, study)] if checkout else [])
        for path in places:
            stored = _stored(study, path, notes)
            if stored is not None:
                return Obtained(stored, 0, tuple(notes))
    table, computed = _compute(study, out, fresh=fresh, progress=progress)
    return Obtained(table, computed, tuple(notes))


def stored_table(study: Study, checkout: Path) -> RawTable | Unavailable:
    """Return the table that a checkout holds of a study; Unavailable if there is none that can be used."""
    notes: list[str] = []
    if study.missing:
        return _nothing(study)
    stored = _stored(study, shipped_path(checkout, study), notes)
    if stored is None and study.reads:
        frame, about = _table(study, {name: _done(name, rows()) for name, rows in study.cases.items()})
        return RawTable(frame, about)
    return stored or Unavailable(notes[0] if notes else f"no raw table of {study.name} is stored")


def _nothing(study: Study) -> RawTable:
    """A table without rows that says why."""
    frame, about = _table(study, {})
    return RawTable(frame, {**about, "missing": study.missing})


def _stored(study: Study, path: Path, notes: list[str]) -> RawTable | None:
    if not path.exists():
        return None
    try:
        table = read_raw(path)
    except RlprofError as error:
        notes.append(f"not used: {error}")
        return None
    identity = study.identity
    other = sorted(k for k, v in identity.items() if table.about.get(k) != v)
    if other:
        notes.append(f"not used: {path} was computed with other {', '.join(other)}")
        return None
    wrong = study.stale(table.frame)
    if wrong:
        notes.append(f"not used: {path}: {wrong}")
        return None
    return table


def _compute(study: Study, out: Path, *, fresh: bool, progress: Progress) -> tuple[RawTable, int]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with partial(out, f".{study.file.removesuffix('.csv')}.{study.key}", fresh=fresh) as kept:
            done, computed = kept.done, 0
            for n, (case, rows_of) in enumerate(study.cases.items()):
                progress(f"{study.name}: {case}", n / len(study.cases))
                if case in done:
                    continue
                started, clock = now(), time.monotonic()
                kept.add(case, _done(case, rows_of(), started, clock))
                computed += 1
            progress(study.name, 1.0)
            table = write_raw(out / study.file, *_table(study, done))
    except OutputError:
        raise
    except OSError as error:
        raise output_error(error, out) from error
    return table, computed


def _done(
    case: str, rows: Sequence[Row], began: str | None = None, clock: float | None = None
) -> dict[str, Any]:
    """What is kept of a case."""
    seconds = 0.0 if clock is None else time.monotonic() - clock
    return {"case": case, "began": began or now(), "seconds": seconds, "rows": [dict(row) for row in rows]}


def _table(study: Study, done: Mapping[str, Mapping[str, Any]]) -> tuple[pl.DataFrame, dict[str, Any]]:
    """All rows, and the facts about them."""
    import polars as pl

    rows = [{"case": case, **row} for case in study.cases for row in done[case]["rows"]]
    computed = {
        "machine": machine(),
        "versions": versions(),
        "began": min([now(), *(d["began"] for d in done.values())]),
        "ended": now(),
        "seconds": round(sum(d["seconds"] for d in done.values()), 3),
    }
    if study.measured:  # what made the rows is told first; who read them is another matter
        about = {**study.identity, "measured": dict(study.measured), "read": computed}
    else:
        about = {**study.identity, **computed}
    return pl.DataFrame(rows, infer_schema_length=None), about
