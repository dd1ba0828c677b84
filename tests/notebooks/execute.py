"""Run a notebook as a reader would run it in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import papermill


def known_parameters(notebook: Path) -> set[str]:
    """Names that the notebook's `parameters` cell sets."""
    return set(papermill.inspect_notebook(str(notebook)))


def execute(notebook: Path, folder: Path, **parameters: Any) -> nbformat.NotebookNode:
    """Execute `notebook` in `folder` and return it with its outputs.

    papermill only logs a warning for a parameter that the notebook does not have, and then runs with the
    default: a misspelt name would test nothing, so it is an error here.
    """
    unknown = set(parameters) - known_parameters(notebook)
    if unknown:
        raise ValueError(f"{notebook.name} has no parameter {sorted(unknown)}")
    target = folder / notebook.name
    papermill.execute_notebook(
        str(notebook),
        str(target),
        parameters=parameters,
        cwd=str(folder),
        progress_bar=False,
        kernel_name="python3",
    )
    return nbformat.read(target, as_version=4)


def printed(notebook: nbformat.NotebookNode) -> str:
    """Everything that the notebook printed or showed as text."""
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            texts.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(texts)


def mime_types(notebook: nbformat.NotebookNode) -> list[set[str]]:
    """The kinds of each displayed output, in order."""
    return [
        set(output["data"])
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "data" in output
    ]
