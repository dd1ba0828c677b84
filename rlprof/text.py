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
