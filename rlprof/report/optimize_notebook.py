"""The report of an optimisation as a notebook: a template that reads a result, and what its cells call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlprof.errors import OutputError
from rlprof.report.cells import Figure, Section
from rlprof.trace.output import atomic_path
from rlprof.unavailable import Unavailable

TEMPLATE = "optimize.ipynb"


def write_optimization_notebook(result_path: Path, path: Path) -> None:
    """Write a notebook that shows a stored result, without outputs; it is run by whoever opens it.

    Parameters
    ----------
    result_path : pathlib.Path
        The ``result.json``.
    path : pathlib.Path
        File to write; replaced if it is there.

    Raises
    ------
    OutputError
        If it cannot be written; nothing is left half written.
    """
    notebook = json.loads(files("rlprof.report").joinpath(TEMPLATE).read_text(encoding="utf-8"))
    source = parameters(notebook)["source"]
    # ASCII, so that a name of a file that is no text stays what it is
    source[0] = f"result_path = {str(Path(result_path).absolute())!a}  # the result.json that is shown\n"
    try:
        with atomic_path(Path(path), force=True) as temporary:
            temporary.write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written ({error.strerror})", where=path) from error


def parameters(notebook: Mapping[str, Any]) -> Any:
    """Return the cell of a notebook that papermill gives other values."""
    return next(c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", ()))


def stored_beside(result_path: str) -> Path:
    """Return where a result is: at its path, or beside the notebook, if the folder was moved."""
    path = Path(result_path)
    return path if path.exists() else Path(path.name)


def show(section: Section, folder: Path | None = None) -> None:
    """Show a section in a notebook: its lead, tables, charts with their notes, and reasons.

    Parameters
    ----------
    section : Section
        As of `rlprof.report.optimize_sections.sections`.
    folder : pathlib.Path, optional
        Its charts are kept there, as SVG.
    """
    from IPython.display import display

    from rlprof.plots import save

    if section.lead:
        print(section.lead)
    for item in section.items:
        if isinstance(item, Unavailable):
            print(f"{item.reason[:1].upper()}{item.reason[1:]}.")
        elif isinstance(item, Figure):
            if folder is not None:
                save(item.chart, folder / f"{item.key}.svg")
            display(item.chart)  # type: ignore[no-untyped-call]
            for note in item.notes:
                print(note)
        else:
            display(item)  # type: ignore[no-untyped-call]
