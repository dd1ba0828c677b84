"""The answer to a question that a capture cannot answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unavailable:
    """A question that cannot be answered, and why.

    Returned in place of a number or a table, so that "cannot tell" is never read as zero or empty.
    It is false in a boolean context.

    Parameters
    ----------
    reason : str
        One sentence for a person: what is missing and what would provide it.
    """

    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"unavailable: {self.reason}"
