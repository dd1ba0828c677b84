"""`rlprof reproduce`: figures and tables of papers, computed again beside the papers' numbers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlprof.cli.values import Seed

if TYPE_CHECKING:
    from rlprof.reproduce.session import Session

app = typer.Typer(help="Compute figures and tables of papers again.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Compute figures and tables of papers again, beside the papers' numbers."""


class Format(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


FigureArgument = Annotated[str, typer.Argument(metavar="FIGURE", help="Like rpeg/fig06.")]
Repository = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A checkout of rlprof.", show_default="the working folder, or rlprof's"),
]
FormatOption = Annotated[Format, typer.Option(help="What to print.")]


@app.command("list")
def list_figures(*, format: FormatOption = Format.TABLE, repository: Repository = None) -> None:
    """Show what can be reproduced, with which presets, and for which raw tables are stored."""
    from rlprof.cli.console import write, write_json
    from rlprof.planning.report import table
    from rlprof.reproduce.checkout import find_checkout
    from rlprof.reproduce.errors import CheckoutError
    from rlprof.reproduce.registry import FIGURES, PAPERS
    from rlprof.reproduce.study import shipped_path

    try:
        checkout: Path | None = find_checkout(repository)
    except CheckoutError:
        if repository is not None:
            raise
        checkout = None
    rows = []
    for figure in FIGURES:
        stored = []
        for preset in figure.presets:
            if checkout is None:
                continue
            studies = figure.make_studies(preset, 0, checkout).values()
            if all(shipped_path(checkout, s).is_file() for s in studies):
                stored.append(preset)
        rows.append((figure, stored))
    if format is Format.JSON:
        write_json(
            [
                {
                    "figure": f.name,
                    "title": f.title,
                    "paper": PAPERS[f.paper],
                    "presets": list(f.presets),
                    "stored": stored,
                }
                for f, stored in rows
            ]
        )
        return
    lines = [(f.name, ", ".join(f.presets), ", ".join(stored) or "-", f.title) for f, stored in rows]
    papers = "\n".join(f"{short}: {long}" for short, long in PAPERS.items())
    write(table(("figure", "presets", "stored", "shows"), lines) + f"\n\n{papers}")


@app.command()
def run(
    figure: FigureArgument,
    *,
    preset: Annotated[str, typer.Option(metavar="NAME", help="smoke, full, ...")] = "smoke",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for results.", show_default="reproduced/FIGURE")
    ] = None,
    seed: Seed = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute anew what is stored.")] = False,
    notebook: Annotated[
        bool, typer.Option("--notebook/--no-notebook", help="Draw it, or the tables alone.")
    ] = True,
    repository: Repository = None,
    format: FormatOption = Format.TABLE,
) -> int:
    """Compute a figure, run its notebook, and print ours beside the paper's.

    Stored raw tables are used where they are of this version. Ctrl-C ends it; the same command goes on
    where it ended.
    """
    from rlprof.cli.console import progress_bar, say, write
    from rlprof.reproduce.driver import need_papermill, run_notebook
    from rlprof.reproduce.registry import figure_named
    from rlprof.reproduce.session import begin

    chosen = figure_named(figure)
    folder = out or Path("reproduced") / chosen.name
    if notebook:
        need_papermill()
    before = _files(folder)
    try:
        with progress_bar() as progress:
            session = begin(
                chosen.name,
                preset=preset,
                seed=seed,
                out=folder,
                repository=repository,
                fresh=fresh,
                progress=progress,
            )
            comparison = session.comparison()
            if notebook:
                progress("running the notebook", 0.0)
                parameters = {
                    "preset": preset,
                    "seed": seed,
                    "out_dir": str(folder.resolve()),
                    "repository": str(session.checkout),
                }
                target = folder / f"{chosen.short}.ipynb"
                run_notebook(chosen.notebook(session.checkout), target, parameters, session.checkout)
    except KeyboardInterrupt:
        say(f"interrupted: {folder} holds what was computed; the same command goes on from there")
        return 130
    _print(session, comparison, format)
    names = [name for name, written in sorted(_files(folder).items()) if before.get(name) != written]
    if format is Format.TABLE:
        write("")
    say(f"written: {folder}: {', '.join(names)}")
    return 0


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """What lies in a folder, and when it was written: another preset may have left some of it."""
    if not folder.is_dir():
        return {}
    there = [p for p in folder.iterdir() if not p.name.startswith(".")]
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in there}


@app.command()
def show(
    figure: FigureArgument,
    *,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the raw tables.", show_default="the largest")
    ] = None,
    seed: Seed = 0,
    repository: Repository = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Print ours beside the paper's from stored raw tables, computing nothing."""
    from rlprof.reproduce.compare import comparison_text
    from rlprof.reproduce.registry import figure_named
    from rlprof.reproduce.session import stored

    chosen = figure_named(figure)
    session = stored(chosen.name, preset=preset or chosen.presets[-1], seed=seed, repository=repository)
    _print(session, comparison_text(session.compared()), format)


def _print(session: Session, comparison: str, format: Format) -> None:
    from rlprof.cli.console import write, write_json
    from rlprof.reproduce.registry import PAPERS

    figure = session.figure
    if format is Format.TABLE:
        write(f"{figure.name}: {figure.title}\n{session.origins}\n\n{comparison}")
        return
    rows: list[dict[str, Any]] = []
    for c in session.compared():
        plain = [v if isinstance(v, int | float | str) else None for v in (c.ours, c.paper)]
        rows.append(
            {
                "quantity": c.quantity,
                "unit": c.unit,
                "ours": plain[0],
                "paper": plain[1],
                "difference": c.difference,
                "cause": c.cause,
            }
        )
    write_json(
        {
            "figure": figure.name,
            "title": figure.title,
            "paper": PAPERS[figure.paper],
            "tables": {name: dict(table.about) for name, table in session.tables.items()},
            "notes": list(session.notes),
            "compared": rows,
        }
    )
