"""What papers report, number by number, each with where it stands and how it was read."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, cast, get_args

from rlprof.errors import UnreadableError
from rlprof.reproduce.errors import PaperError
from rlprof.unavailable import Unavailable

#: How a number was read: from running text or a table; from a label in a figure; estimated from a drawn
#: figure; or it is printed, and the text that we have of the paper does not tell it.
Read = Literal["text", "table", "figure-label", "figure-estimate", "unreadable"]
READ: tuple[str, ...] = get_args(Read)


@dataclass(frozen=True, slots=True)
class PaperNumber:
    """One number of a paper.

    Parameters
    ----------
    figure : str
        "fig06", "table04", or "text" for what belongs to none.
    series, x : str
        What it is, and of which point; x may be empty.
    value : float or None
        In `unit`; None if it is unreadable.
    unit : str
        "%", "tokens/s", "s", ...
    source : str
        Section, figure or table.
    read : str
        One of `READ`.
    """

    figure: str
    series: str
    x: str
    value: float | None
    unit: str
    source: str
    read: Read


COLUMNS = tuple(f.name for f in fields(PaperNumber))


@dataclass(frozen=True)
class Paper:
    """All numbers of one paper.

    Parameters
    ----------
    name : str
        Name of the file.
    numbers : tuple of PaperNumber
        In the order of the file.
    """

    name: str
    numbers: tuple[PaperNumber, ...]

    def of(self, figure: str) -> list[PaperNumber]:
        """Return the numbers of a figure or table."""
        return [n for n in self.numbers if n.figure == figure]

    def number(self, figure: str, series: str, x: str = "") -> PaperNumber:
        """Return one number.

        Raises
        ------
        PaperError
            If the file does not have it.
        """
        for n in self.numbers:
            if (n.figure, n.series, n.x) == (figure, series, x):
                return n
        raise PaperError(f"there is no number {series!r} {x!r} of {figure}", where=f"{self.name}.csv")

    def value(self, figure: str, series: str, x: str = "") -> float | Unavailable:
        """Return the value of one number; errors as `number`."""
        n = self.number(figure, series, x)
        if n.value is None:
            return Unavailable(f"the text of the paper at hand does not tell it ({n.source})")
        return n.value


def read_paper(path: str | Path) -> Paper:
    """Read a paper's numbers.

    Parameters
    ----------
    path : str or pathlib.Path
        A CSV file with the columns of `PaperNumber`.

    Raises
    ------
    UnreadableError
        If it cannot be opened.
    PaperError
        If a column, a value or a source is missing, or a number is there twice; names the line.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise PaperError(
                    f"the columns are {reader.fieldnames}", where=path, hint=f"use {','.join(COLUMNS)}"
                )
            numbers = tuple(_number(row, f"{path}:{line}") for line, row in enumerate(reader, 2))
    except OSError as error:
        raise UnreadableError(error.strerror or str(error), where=path) from error
    except UnicodeDecodeError as error:
        raise PaperError(f"no text (byte {error.start} is no UTF-8)", where=path) from error
    _check_once(numbers, path)
    return Paper(path.stem, numbers)


def _number(row: dict[str, str | None], where: str) -> PaperNumber:
    if None in row or None in row.values():
        raise PaperError("too many or too few fields", where=where, hint=f"write {','.join(COLUMNS)}")
    text = {name: (value or "").strip() for name, value in row.items()}
    if not (text["figure"] and text["series"] and text["source"]):
        raise PaperError("figure, series or source is empty", where=where, hint="every number has a source")
    if text["read"] not in READ:
        raise PaperError(f"read is {text['read']!r}", where=where, hint=f"use one of {', '.join(READ)}")
    value: float | None = None
    if text["read"] == "unreadable":
        if text["value"]:
            raise PaperError("an unreadable number has a value", where=where, hint="leave it empty")
    else:
        try:
            value = float(text["value"])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise PaperError(f"value is {text['value']!r}", where=where, hint="give a number, or unreadable")
    read = cast(Read, text["read"])
    return PaperNumber(text["figure"], text["series"], text["x"], value, text["unit"], text["source"], read)


def _check_once(numbers: Sequence[PaperNumber], path: Path) -> None:
    seen: set[tuple[str, str, str]] = set()
    for n in numbers:
        key = (n.figure, n.series, n.x)
        if key in seen:
            raise PaperError(f"{n.series!r} {n.x!r} of {n.figure} is there twice", where=path)
        seen.add(key)
