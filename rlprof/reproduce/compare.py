"""Ours beside the paper's: quantity by quantity, the difference, and what causes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlprof.planning.report import table
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

#: Units of shares: their differences are in points, not in percent of the paper's.
SHARES = ("%", "points", "1")
#: What a preset leaves out.
NOT_COMPUTED = Unavailable("not computed at this preset")
SCHEMA = ("quantity", "unit", "ours", "paper", "difference", "cause")


@dataclass(frozen=True, slots=True)
class Compared:
    """One quantity, ours and the paper's.

    Parameters
    ----------
    quantity : str
        What it is.
    unit : str
        Of both.
    ours, paper : float, str or Unavailable
        The values; text for an order or a name.
    cause : str
        Named cause of the difference; empty where there is none to speak of.
    """

    quantity: str
    unit: str
    ours: float | str | Unavailable
    paper: float | str | Unavailable
    cause: str = ""

    @property
    def difference(self) -> str:
        """Ours against the paper's, for people."""
        ours, paper = self.ours, self.paper
        if isinstance(ours, Unavailable) or isinstance(paper, Unavailable):
            return "cannot tell"
        if isinstance(ours, str) and isinstance(paper, str):
            return "same" if ours == paper else "differs"
        if isinstance(ours, str) or isinstance(paper, str):
            return ""  # a number beside a bound in words
        if self.unit in SHARES or not paper:
            return f"{ours - paper + 0.0:+.3g}{' points' if self.unit == '%' else ''}"
        return f"{ours / paper - 1:+.1%}"


def amount(value: Any, scale: float = 1.0, missing: str = "no case has it") -> float | Unavailable:
    """Return a number of a table, scaled; Unavailable where the table has none."""
    return Unavailable(missing) if value is None else scale * float(value)


def yes(truth: bool) -> str:
    """Return "yes" or "no"."""
    return "yes" if truth else "no"


def _shown(value: float | str | Unavailable) -> str:
    if isinstance(value, Unavailable):
        return "unavailable"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def comparison_frame(compared: Sequence[Compared]) -> pl.DataFrame:
    """Return a table of text: ``quantity``, ``unit``, ``ours``, ``paper``, ``difference``, ``cause``."""
    import polars as pl

    rows = [(c.quantity, c.unit, _shown(c.ours), _shown(c.paper), c.difference, c.cause) for c in compared]
    return pl.DataFrame(rows, schema=dict.fromkeys(SCHEMA, pl.String), orient="row")


def comparison_text(compared: Sequence[Compared]) -> str:
    """Lay the comparison out as text; causes below, numbered."""
    causes = list(dict.fromkeys(c.cause for c in compared if c.cause))
    rows = [
        (
            c.quantity,
            c.unit,
            _shown(c.ours),
            _shown(c.paper),
            c.difference,
            f"[{causes.index(c.cause) + 1}]" if c.cause else "",
        )
        for c in compared
    ]
    text = table(SCHEMA, rows, right=(2, 3, 4))
    if causes:
        text += "\n\n" + "\n".join(f"[{n}] {cause}" for n, cause in enumerate(causes, 1))
    return text
