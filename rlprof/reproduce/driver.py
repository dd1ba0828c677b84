"""Running a figure's notebook with papermill."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.errors import NotebookError
from rlprof.trace.output import remove

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The kernel says nothing by itself: how it is reached is of no interest, and the interrupt that its client
#: sends before it ends it may find it still at work and be called an error. What cells do comes as messages.
QUIET = ["--IPKernelApp.log_level=CRITICAL"]


def need_papermill() -> None:
    """Check that notebooks can be run here.

    Raises
    ------
    NotebookError
        If papermill or the Python kernel is missing.
    """
    from importlib.util import find_spec

    missing = [name for name in ("papermill", "ipykernel") if find_spec(name) is None]
    if missing:
        raise NotebookError(
            f"notebooks need {' and '.join(missing)}",
            hint="pip install 'rlprof[notebook]', or --no-notebook for the tables alone",
        )


def run_notebook(notebook: Path, target: Path, parameters: Mapping[str, Any], checkout: Path) -> None:
    """Run a notebook and keep it with its outputs.

    Parameters
    ----------
    notebook : pathlib.Path
        Has one cell tagged `parameters`.
    target : pathlib.Path
        The notebook with outputs; written whole or not at all.
    parameters : mapping
        Values for that cell.
    checkout : pathlib.Path
        Its rlprof is imported.

    Raises
    ------
    NotebookError
        If the notebook is missing, lacks a parameter, or fails: it is then kept as ``NAME.failed.ipynb``.
    """
    need_papermill()
    import papermill  # type: ignore[import-untyped]
    from papermill.exceptions import PapermillExecutionError  # type: ignore[import-untyped]

    if not notebook.is_file():
        raise NotebookError("there is no such notebook", where=notebook, hint="update the checkout")
    known = set(papermill.inspect_notebook(str(notebook)))
    if unknown := sorted(set(parameters) - known):
        raise NotebookError(f"it has no parameter {unknown[0]!r}", where=notebook, hint="update the checkout")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".rlprof-{os.getpid()}-{target.name}"
    failed = target.with_suffix(".failed.ipynb")
    try:
        with _importable(checkout):
            papermill.execute_notebook(
                str(notebook),
                str(temporary),
                parameters=dict(parameters),
                cwd=str(target.parent),
                kernel_name="python3",
                progress_bar=False,
                extra_arguments=QUIET,
            )
        temporary.replace(target)
        failed.unlink(missing_ok=True)
    except PapermillExecutionError as error:
        if temporary.exists():
            temporary.replace(failed)
        raise NotebookError(
            f"cell {error.exec_count} failed: {error.ename}: {error.evalue}",
            where=notebook,
            hint=f"look at {failed}",
        ) from error
    finally:
        remove(temporary)


@contextmanager
def _importable(checkout: Path) -> Iterator[None]:
    """Let the kernel, which runs in another folder, find this checkout even if rlprof is not installed."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(checkout), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
