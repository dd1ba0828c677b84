"""Largest numbers that planning takes: beyond them 64-bit numbers overflow, or a plan takes hours."""

from __future__ import annotations

from typing import Any, Final

MOST: Final = 10**9
"""Of prompts, tokens, layers, widths: a product of two is exact in 64 bits."""
MOST_GPUS: Final = 2**20
"""GPUs of a cluster."""
MOST_STEPS: Final = 10_000
"""Steps that are unrolled, and steps by which weights lag."""


def is_count(value: Any, *, most: int = MOST) -> bool:
    """Return whether a value is a whole number from 1 to `most`; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
