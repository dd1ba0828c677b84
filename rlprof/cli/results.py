"""The files that `rlprof analyze --out` writes: all of them or none."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from rlprof.errors import OutputError
from rlprof.trace.output import output_error, remove

if TYPE_CHECKING:
    from rlprof.analysis.windows import WindowReport
    from rlprof.trace.trace import Trace

FILES = ("report.html", "windows.parquet", "windows.csv", "windows.json")


def check_folder(folder: Path) -> None:
    """Find out before the work whether results can be written.

    Raises
    ------
    OutputError
        If `folder` is a file, lies in no folder, or may not be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError("is a file, a folder is to be written", where=folder, hint="give another --out")
    parent = folder if folder.is_dir() else folder.absolute().parent
    if not parent.is_dir():
        raise OutputError(
            "the folder to write into does not exist", where=folder, hint=f"mkdir -p {folder.parent}"
        )
    for name in FILES:
        if (folder / name).is_dir():
            raise OutputError(
                "is a folder, a file is to be written", where=folder / name, hint="give another --out"
            )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError("no permission to write here", where=folder, hint="write to another folder")


def write_results(report: WindowReport, trace: Trace, folder: Path) -> None:
    """Write the HTML report and the table of windows as parquet, CSV and JSON.

    All four are made under temporary names first. An existing folder keeps whatever else is in it.

    Parameters
    ----------
    report : WindowReport
        The ranking.
    trace : Trace
        The capture, for the charts.
    folder : pathlib.Path
        Folder to write into; made if it is not there.

    Raises
    ------
    OutputError
        If anything cannot be written; then nothing was.
    """
    from rlprof.cli.console import json_bytes
    from rlprof.report.html import write_report

    check_folder(folder)
    unfinished = f".rlprof-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    # inside an existing folder: it may be a file system of its own, across which no rename is possible
    temporary = folder / unfinished if folder.is_dir() else folder.absolute().parent / unfinished
    try:
        temporary.mkdir()
        (temporary / "windows.json").write_bytes(json_bytes(report.to_dict()))
        (temporary / "windows.csv").write_text(csv_text(report), encoding="utf-8")
        report.frame.write_parquet(temporary / "windows.parquet")
        write_report(report, trace, temporary / "report.html")
        if folder.is_dir():
            for name in FILES:
                (temporary / name).replace(folder / name)
        else:
            temporary.rename(folder)
    except OSError as error:
        raise output_error(error, folder) from error
    except OutputError as error:
        # of a file in the temporary folder, which nobody knows
        raise OutputError(error.what, where=folder, hint=error.hint) from error
    finally:
        remove(temporary)


def csv_text(report: WindowReport) -> str:
    """All rows of the ranking as CSV with a header; unknown values are empty."""
    return report.frame.write_csv()
