"""One figure at work: its raw tables, the paper's numbers, and a folder for results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlprof.progress import Progress, silent
from rlprof.reproduce.checkout import find_checkout
from rlprof.reproduce.compare import Compared, comparison_frame, comparison_text
from rlprof.reproduce.errors import RawTableError
from rlprof.reproduce.papers import Paper, read_paper
from rlprof.reproduce.raw import RawTable
from rlprof.reproduce.registry import Figure, figure_named
from rlprof.reproduce.study import obtain, stored_table
from rlprof.trace.output import atomic_path, output_error
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class Session:
    """What a notebook or the command line works with.

    Parameters
    ----------
    figure : Figure
        What is reproduced.
    tables : mapping of str to RawTable
        By the last part of the study's name.
    paper : Paper
        The paper's numbers.
    checkout, out : pathlib.Path
        Where notebooks and numbers are; where results go.
    computed : int
        Cases that were computed now; 0 if everything was stored.
    notes : tuple of str
        Why stored tables were not used.
    """

    figure: Figure
    tables: Mapping[str, RawTable]
    paper: Paper
    checkout: Path
    out: Path
    computed: int
    notes: tuple[str, ...]

    def frame(self, study: str) -> pl.DataFrame:
        """Return the raw table of a study."""
        return self.tables[study].frame

    @property
    def origins(self) -> str:
        """Where the raw tables come from, a line each."""
        lines = [f"{name}: {table.origin}" for name, table in self.tables.items()]
        notes = list(self.notes)
        small = {n: t.about for n, t in self.tables.items() if t.about.get("preset") == "smoke"}
        redrawn = {name: about["measured"] for name, about in small.items() if about.get("measured")}
        for name, runs in redrawn.items():
            files = " and ".join(runs)
            notes.append(f"{name} is read from what is stored ({files}); nothing is measured for it now")
        if small:
            notes.append("the preset smoke shows that everything runs; its numbers are not to be compared")
        return "\n".join([*lines, *(f"note: {note}" for note in notes)])

    def compared(self) -> list[Compared]:
        """Return ours beside the paper's."""
        frames = {name: table.frame for name, table in self.tables.items()}
        return list(self.figure.compared(frames, self.paper))

    def comparison(self) -> str:
        """Return ours beside the paper's as text, and write it as ``NAME.comparison.csv`` into `out`.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        rows = self.compared()
        with atomic_path(self.out / f"{self.figure.short}.comparison.csv", force=True) as temporary:
            temporary.write_bytes(comparison_frame(rows).write_csv().encode())
        return comparison_text(rows)


def begin(
    name: str,
    *,
    preset: str,
    seed: int = 0,
    out: str | Path,
    repository: str | Path | None = None,
    fresh: bool = False,
    progress: Progress = silent,
) -> Session:
    """Get everything that a figure needs: stored raw tables where there are such, computed ones otherwise.

    Parameters
    ----------
    name : str
        "rpeg/fig06".
    preset : str
        "smoke", "full", ...
    seed : int
        Of all random choices.
    out : str or pathlib.Path
        Folder for raw tables and results; made if it is not there.
    repository : str or pathlib.Path, optional
        A folder in a checkout of rlprof.
    fresh : bool
        Compute anew what is stored.
    progress : callable
        Told how far it is.

    Raises
    ------
    UnknownFigureError
        If there is no such figure or preset.
    CheckoutError
        If there is no checkout.
    OutputError
        If `out` cannot be written.
    """
    figure, checkout, out = figure_named(name), find_checkout(repository), Path(out)
    paper = read_paper(checkout / "datasets" / "papers" / f"{figure.paper}.csv")
    studies = figure.make_studies(preset, seed, checkout)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(error, out) from error
    tables: dict[str, RawTable] = {}
    computed, notes = 0, list[str]()
    for short, study in studies.items():
        got = obtain(study, out, checkout=checkout, fresh=fresh, progress=progress)
        tables[short] = got.table
        computed += got.computed
        notes += got.notes
    return Session(figure, tables, paper, checkout, out, computed, tuple(notes))


def stored(name: str, *, preset: str, seed: int = 0, repository: str | Path | None = None) -> Session:
    """The same from what a checkout holds, computing nothing.

    Raises
    ------
    RawTableError
        If the checkout has no raw table for it.
    UnknownFigureError, CheckoutError
        As `begin`.
    """
    figure, checkout = figure_named(name), find_checkout(repository)
    paper = read_paper(checkout / "datasets" / "papers" / f"{figure.paper}.csv")
    tables: dict[str, RawTable] = {}
    for short, study in figure.make_studies(preset, seed, checkout).items():
        table = stored_table(study, checkout)
        if isinstance(table, Unavailable):
            raise RawTableError(
                f"nothing to show with preset {preset} and seed {seed}: {table.reason}",
                hint=f"rlprof reproduce run {name} --preset {preset} computes it",
            )
        tables[short] = table
    return Session(figure, tables, paper, checkout, Path(), 0, ())
