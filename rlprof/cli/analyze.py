"""`rlprof analyze`: rank the low-activity windows of a capture."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlprof.cli.values import anchor, duration_ns, fraction, window_ns

if TYPE_CHECKING:
    from rlprof.progress import Progress
    from rlprof.trace.trace import Trace


class RankFrom(StrEnum):
    """Where the rank of a file comes from."""

    AUTO = "auto"
    FILE = "file"
    NONE = "none"


class Format(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


TracesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE",
        help="A report or export of Nsight Systems, a PyTorch trace, Chrome-trace JSON lines or an .rlprof "
        "file; several are the ranks or processes of one run. Formats are found by content.",
        show_default=False,
    ),
]
WindowOption = Annotated[
    str | None,
    typer.Option(
        metavar="A:B",
        help="Only this part: seconds in the trace's clock, or with units (100ms:2s); an end may be open.",
        show_default=False,
    ),
]
RankFromOption = Annotated[
    RankFrom,
    typer.Option(
        help="Where a file's rank comes from: what it says, else its name (auto); its name, else its place "
        "(file); files have no ranks (none).",
    ),
]
AnchorOption = Annotated[
    list[str] | None,
    typer.Option(
        "--anchor",
        metavar="FILE=TIME",
        help="Unix time at zero of a file's clock, with a unit, where the file does not say or is wrong.",
        show_default=False,
    ),
]


def analyze(
    traces: TracesArgument,
    *,
    iteration: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The range that marks a training iteration.", show_default="found"),
    ] = None,
    tau_abs: Annotated[
        str, typer.Option(metavar="TIME", help="A window is eligible if it lasts this long per iteration, or")
    ] = "1ms",
    tau_rel: Annotated[
        float, typer.Option(metavar="FRACTION", help="this share of an iteration, whichever is less.")
    ] = 0.01,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of the table and markdown.")] = 20,
    window: WindowOption = None,
    exact_names: Annotated[
        bool, typer.Option("--exact-names", help="Keep numbers and ids inside range names.")
    ] = False,
    format: Annotated[Format, typer.Option(help="What to print.")] = Format.TABLE,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also write report.html, windows.parquet, windows.csv and windows.json there.",
            show_default=False,
        ),
    ] = None,
    rank_from: RankFromOption = RankFrom.AUTO,
    anchors: AnchorOption = None,
) -> None:
    """Rank the windows of a training iteration in which the GPU is idle or half used."""
    from rlprof.cli.console import progress_bar, say, write, write_json

    tau_abs_ns = duration_ns(tau_abs, option="--tau-abs", least_ns=0)
    tau_rel_frac = fraction(tau_rel, option="--tau-rel")
    if out is not None:
        from rlprof.cli.results import check_folder

        check_folder(out)
    with progress_bar() as progress:
        trace = load(traces, window, rank_from, anchors, progress)
        progress("ranking windows", 0.7)
        report = trace.windows(
            iteration=iteration, tau_abs_ns=tau_abs_ns, tau_rel_frac=tau_rel_frac, exact_names=exact_names
        )
        if out is not None:
            from rlprof.cli.results import write_results

            progress("writing the report", 0.9)
            write_results(report, trace, out)
    if format is Format.JSON:
        write_json(report.to_dict())
    elif format is Format.CSV:
        from rlprof.cli.results import csv_text

        write(csv_text(report))
    else:
        from rlprof.cli.table import as_markdown, as_table

        lay_out = as_markdown if format is Format.MARKDOWN else as_table
        write(lay_out(report, trace, top, written=out is not None))
    if out is not None:
        say(f"written: {out}/report.html, windows.parquet, windows.csv, windows.json")


def load(
    paths: list[Path],
    window: str | None,
    rank_from: RankFrom,
    anchors: list[str] | None,
    progress: Progress,
) -> Trace:
    """Read the captures that were named, cut to the window that was asked for."""
    bounds = window_ns(window) if window is not None else None
    stated = dict(anchor(a) for a in anchors or ())
    from rlprof.trace.read import read

    trace = read(
        paths[0],
        *paths[1:],
        progress=lambda stage, part: progress(stage, 0.7 * part),
        rank_from=rank_from.value,
        anchors=stated or None,
    )
    if bounds is None:
        return trace
    lo, hi = bounds
    return trace.between(trace.meta.start_ns if lo is None else lo, trace.meta.end_ns if hi is None else hi)
