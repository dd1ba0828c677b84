"""Text from captures on one line: labels may hold any character and have any length."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]+")


def clean(text: str) -> str:
    """`text` on one line: control and text-direction characters become spaces."""
    return _UNSAFE.sub(" ", text)


def shorten(text: str, chars: int) -> str:
    """`text` on one line, cut at its end to at most `chars` characters."""
    line = clean(text)
    return line if len(line) <= chars else f"{line[: chars - 1]}…"


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: ``1 fault``, ``2 faults``, ``1,200 entries``.

    Parameters
    ----------
    number : int or float
        How many.
    noun : str
        For one.
    plural : str, optional
        For several; by default with ``s``.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def with_article(noun: str) -> str:
    """Return a noun with its article: ``a read``, ``an update``, ``an int``."""
    start = noun[:3].lower()
    vowel = start[:1] in tuple("aeio") or (start[:2] in _AN and start != "uni")
    return f"{'an' if vowel else 'a'} {noun}"


#: An update, but a unit and a use.
_AN = frozenset({"ul", "um", "un", "up", "ur"})
