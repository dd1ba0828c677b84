"""`rlprof optimize report`: the page of an optimisation that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT", help="result.json of an optimisation, or its folder.")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page.", show_default="report.html beside the result"),
    ] = None,
) -> None:
    """Make the HTML report of an optimisation again, or where it ran without the packages of reports."""
    from rlprof.report.optimize_stored import read_result

    found = read_result(result)
    from importlib.util import find_spec

    from rlprof.cli.console import write
    from rlprof.errors import UsageError

    if absent := [name for name in ("polars", "altair") if find_spec(name) is None]:
        raise UsageError(f"a report needs {' and '.join(absent)}", hint=f"pip install {' '.join(absent)}")
    from rlprof.report.optimize import write_optimization_report

    page = out or (result if result.is_dir() else result.parent) / "report.html"
    write_optimization_report(found, page)
    write(str(page))
