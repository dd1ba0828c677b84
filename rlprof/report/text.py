"""Numbers and names for a page: units that a person reads, everything from a capture escaped."""

from __future__ import annotations

import html

from rlprof.plots.theme import short_path
from rlprof.text import shorten

#: Letters of a name from a capture that a page shows.
NAME_LETTERS = 300


def esc(text: str, chars: int = NAME_LETTERS) -> str:
    """`text` for HTML, as content or in a quoted attribute; cut at its end where it is very long."""
    return html.escape(shorten(str(text), chars), quote=True)


def esc_path(path: str, chars: int = NAME_LETTERS) -> str:
    """A node path for HTML; of a very long one the end is kept, and lines may break after slashes."""
    return html.escape(short_path(path, chars), quote=True).replace("/", "/<wbr>")


def sentence(text: str) -> str:
    """A note for HTML, in full up to 2,000 letters, beginning with a capital."""
    line = shorten(text, 2_000)
    return html.escape(line[:1].upper() + line[1:], quote=True)


def duration(seconds: float | None) -> str:
    """Seconds with three digits and a fitting unit; an en dash if unknown."""
    if seconds is None:
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size * 0.9995:
            return f"{_digits(seconds / size)} {unit}"
    return "0 s" if seconds == 0 else f"{_digits(seconds / 1e-9)} ns"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share 0..1 in per cent; an en dash if unknown. Never rounded to 0 or 100 where it is neither."""
    if share is None:
        return "–"
    text = f"{share * 100:.{digits}f}"
    if share > 0 and float(text) == 0:
        return f"<{10**-digits:g} %"
    if share < 1 and float(text) == 100:
        return f">{100 - 10**-digits:g} %"
    return f"{text} %"


def count(number: int | None) -> str:
    """An integer with separators; an en dash if unknown."""
    return "–" if number is None else f"{number:,}"
