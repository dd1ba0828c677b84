"""`rlprof export`: write a capture, or a window of it, in another format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlprof.cli.analyze import AnchorOption, RankFrom, RankFromOption, TracesArgument, WindowOption, load


class Target(StrEnum):
    """Format to write."""

    CHROME = "chrome"
    PARQUET = "parquet"
    SQLITE = "sqlite"
    RLPROF = "rlprof"


def export(
    traces: TracesArgument,
    *,
    to: Annotated[
        Target,
        typer.Option(
            help="chrome: JSON for Perfetto or chrome://tracing; parquet: a folder, one file per table; "
            "sqlite; rlprof: one compact file.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="OUT", help="File or folder to write.", show_default=False),
    ],
    window: WindowOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    rank_from: RankFromOption = RankFrom.AUTO,
    anchors: AnchorOption = None,
) -> None:
    """Write a capture, or a window of it, for another tool."""
    from rlprof.cli.console import progress_bar, say

    with progress_bar() as progress:
        trace = load(traces, window, rank_from, anchors, progress)
        from rlprof.trace.export import export as write

        write(trace, to.value, output, force=force, progress=lambda s, f: progress(s, 0.7 + 0.3 * f))
    say(f"written: {output}")
