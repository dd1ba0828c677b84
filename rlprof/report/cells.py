"""What a section of a report is made of: tables of texts, charts with notes, lists, and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlprof.report.text import esc, sentence
from rlprof.text import shorten
from rlprof.unavailable import Unavailable

#: Letters of a cell.
CELL_LETTERS = 600
#: Letters of a cell where a table is shown as text.
TEXT_LETTERS = 100
#: Letters of a line of a log.
LINE_LETTERS = 4_000


@dataclass(frozen=True)
class Table:
    """A table of texts as they are: whatever shows it escapes them.

    Parameters
    ----------
    heads : tuple of str
        One for each column.
    rows : tuple of tuple of str
        Cells.
    title : str
        Above it.
    note : str
        Below it.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    note: str = ""

    def html(self) -> str:
        """Return it for a page."""
        title = f"<h3>{esc(self.title)}</h3>" if self.title else ""
        cells = "".join(f'<th scope="col"><span>{esc(h)}</span></th>' for h in self.heads)
        head = f"<thead><tr>{cells}</tr></thead>\n" if any(self.heads) else ""
        body = "\n".join(
            f"<tr>{''.join(f'<td>{esc(cell, CELL_LETTERS)}</td>' for cell in row)}</tr>" for row in self.rows
        )
        note = f'<p class="key">{sentence(self.note)}</p>' if self.note else ""
        return f'{title}<div class="scroll"><table>{head}<tbody>\n{body}\n</tbody></table></div>{note}'

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        all_rows = [self.heads, *self.rows] if any(self.heads) else list(self.rows)
        cells = [[shorten(cell, TEXT_LETTERS) for cell in row] for row in all_rows]
        widths = [max(len(row[n]) for row in cells) for n in range(len(self.heads))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        around = [self.title] if self.title else [], [self.note] if self.note else []
        return "\n".join([*around[0], *lines, *around[1]])


@dataclass(frozen=True)
class Figure:
    """A chart.

    Parameters
    ----------
    key : str
        Its place in a page, and its file's name in a folder.
    chart : altair.Chart
        Drawn when it is shown.
    notes : tuple of str
        Below it.
    """

    key: str
    chart: Any
    notes: tuple[str, ...] = ()

    def html(self) -> str:
        """Return its place in a page; the page holds its specification elsewhere."""
        below = f'<p class="key">{sentence("; ".join(self.notes))}.</p>' if self.notes else ""
        return f'<div class="chart" id="{esc(self.key)}"></div>{below}'


@dataclass(frozen=True)
class Lines:
    """Lines of text: a numbered list, or a log that is folded away.

    Parameters
    ----------
    lines : tuple of str
        As they are.
    fold : str
        Title of a fold; empty: a list.
    """

    lines: tuple[str, ...]
    fold: str = ""

    def html(self) -> str:
        """Return them for a page."""
        if self.fold:
            text = "\n".join(esc(line, LINE_LETTERS) for line in self.lines)
            return f'<details><summary>{esc(self.fold)}</summary><pre class="scroll">{text}</pre></details>'
        return (
            f"<ol>{''.join(f'<li><code>{esc(line, CELL_LETTERS)}</code></li>' for line in self.lines)}</ol>"
        )

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return "\n".join([*([self.fold] if self.fold else []), *self.lines])


Item = Table | Figure | Lines | Unavailable


@dataclass(frozen=True)
class Section:
    """A section of a report.

    Parameters
    ----------
    title, lead : str
        What it is, and how to read it.
    items : sequence of Table, Figure, Lines or Unavailable
        What it shows; of what cannot be shown the reason.
    """

    title: str
    lead: str
    items: Sequence[Item]

    @property
    def figures(self) -> list[Figure]:
        """Its charts."""
        return [item for item in self.items if isinstance(item, Figure)]

    def html(self) -> str:
        """Return it for a page."""
        lead = f'<p class="lead">{esc(self.lead, 2_000)}</p>' if self.lead else ""
        inside = "\n".join(
            f'<p class="none">{sentence(item.reason)}</p>' if isinstance(item, Unavailable) else item.html()
            for item in self.items
        )
        return f"<section><h2>{esc(self.title)}</h2>{lead}\n{inside}\n</section>"
