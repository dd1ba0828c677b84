"""`rlprof doctor`: what a capture holds, what it lacks, and how to record that."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlprof.cli.analyze import AnchorOption, RankFrom, RankFromOption, load
from rlprof.text import shorten

if TYPE_CHECKING:
    from rlprof.doctor import Diagnosis

#: Names come from captures and may have any length.
_LINE_LETTERS = 2_000


class Format(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


def doctor(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE", help="The capture.", show_default=False)],
    format: Annotated[Format, typer.Option(help="What to print.")] = Format.TABLE,
    rank_from: RankFromOption = RankFrom.AUTO,
    anchors: AnchorOption = None,
) -> None:
    """Tell what is in a capture, what is missing, what that makes unanswerable, and how to capture it."""
    from rlprof.cli.console import progress_bar, write, write_json

    with progress_bar() as progress:
        trace = load(traces, None, rank_from, anchors, progress)
        from rlprof.doctor import diagnose

        diagnosis = diagnose(trace, progress=progress)
    if format is Format.JSON:
        write_json(diagnosis.to_dict())
    else:
        write(as_text(diagnosis))


def as_text(diagnosis: Diagnosis, width: int = 80) -> str:
    """Lay out a diagnosis as text: problems first, each with its consequence and its remedy.

    Parameters
    ----------
    diagnosis : Diagnosis
        What was found.
    width : int
        Longest line, but for words that are longer.

    Returns
    -------
    str
        Lines.
    """
    import textwrap

    def wrap(text: str, first: str = "", rest: str = "    ") -> list[str]:
        return textwrap.wrap(
            shorten(text, _LINE_LETTERS),
            width,
            initial_indent=first,
            subsequent_indent=rest,
            break_on_hyphens=False,  # an option of a command stays whole
            break_long_words=False,
        )

    marks = {"missing": "MISSING", "suspect": "SUSPECT", "ok": "ok     "}
    lines = [*wrap(diagnosis.summary), ""]
    for finding in sorted(diagnosis.findings, key=lambda f: list(marks).index(f.status)):
        lines += wrap(f"{marks[finding.status]}  {finding.topic}: {finding.detail}", rest=" " * 9)
        for label, text in (("so", finding.consequence), ("do", finding.remedy)):
            if text:
                lines += wrap(f"{label}: {text}", " " * 9, " " * 13)
    lines += ["", *wrap(diagnosis.verdict)]
    if any(finding.status != "ok" for finding in diagnosis.findings):
        lines += wrap(f"To record everything: {diagnosis.command}")
    lines += [line for note in diagnosis.notes for line in wrap(f"note: {note}")]
    return "\n".join(lines) + "\n"
