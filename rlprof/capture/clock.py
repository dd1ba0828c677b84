"""The host's clock of a capture and its place in UTC.

All host times of a capture are `time.monotonic_ns` (CLOCK_MONOTONIC), which all processes of a host share and
which no time service steps. A reading of another clock is bracketed by two readings of this one: it happened
somewhere between them, so half their distance bounds the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rlprof.errors import UsageError

#: Readings per measurement; the one with the narrowest bracket is kept.
READINGS = 15


@dataclass(frozen=True)
class Anchor:
    """One instant in the host's clock and in UTC.

    Parameters
    ----------
    monotonic_ns : int
        CLOCK_MONOTONIC.
    utc_ns : int
        Nanoseconds since the Unix epoch at that instant.
    uncertainty_ns : int
        The two belong together within plus or minus this much.
    """

    monotonic_ns: int
    utc_ns: int
    uncertainty_ns: int

    @classmethod
    def now(cls) -> Anchor:
        """Measure one."""
        pair = bracket(time.time_ns)
        return cls(pair.host_ns, pair.other_ns, pair.uncertainty_ns)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Anchor:
        """The reverse of `to_dict`.

        Raises
        ------
        ValueError
            If a field is missing or no number.
        """
        try:
            return cls(*(int(fields[k]) for k in ("monotonic_ns", "utc_ns", "uncertainty_ns")))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an anchor: {error}") from error

    def to_dict(self) -> dict[str, int]:
        """As JSON."""
        return asdict(self)

    def utc_of(self, monotonic_ns: int) -> int:
        """UTC, in nanoseconds since the epoch, of an instant of the host's clock."""
        return self.utc_ns + (monotonic_ns - self.monotonic_ns)


def utc_shift_ns(first: Anchor, last: Anchor) -> int:
    """How far UTC moved against the host's clock between two anchors: a time service stepped or slewed it."""
    return (last.utc_ns - last.monotonic_ns) - (first.utc_ns - first.monotonic_ns)


@dataclass(frozen=True)
class ClockPair:
    """One reading of another clock, placed in the host's clock.

    Parameters
    ----------
    host_ns : int
        Middle of the bracket, CLOCK_MONOTONIC.
    other_ns : int
        What the other clock said.
    uncertainty_ns : int
        Half the bracket, rounded up.
    """

    host_ns: int
    other_ns: int
    uncertainty_ns: int


def bracket(read_other: Callable[[], int], readings: int = READINGS) -> ClockPair:
    """Read another clock between two readings of the host's; the narrowest of several brackets.

    Parameters
    ----------
    read_other : function giving int
        Reads the other clock, in nanoseconds.
    readings : int
        How often to try.

    Returns
    -------
    ClockPair

    Raises
    ------
    UsageError
        If `readings` is under 1.
    """
    if readings < 1:
        raise UsageError(f"readings is {readings}, at least 1 is needed")
    best: ClockPair | None = None
    for _ in range(readings):
        before = time.monotonic_ns()
        other = read_other()
        after = time.monotonic_ns()
        half = (after - before + 1) // 2
        if best is None or half < best.uncertainty_ns:
            best = ClockPair(before + (after - before) // 2, other, half)
    assert best is not None
    return best
