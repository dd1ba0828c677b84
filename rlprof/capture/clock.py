"""The host's clock of a capture, its place in UTC, and the map from a device's clock to it.

All host times of a capture are `time.monotonic_ns` (CLOCK_MONOTONIC), which all processes of a host share and
which no time service steps. A reading of another clock is bracketed by two readings of this one: it happened
somewhere between them, so half their distance bounds the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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


@dataclass(frozen=True)
class ClockMap:
    """Maps a device's clock to the host's: ``host = host_origin + (t - origin) (1 + drift)``.

    Parameters
    ----------
    origin_ns, host_origin_ns : int
        One instant in the device's clock and in the host's.
    drift : float
        Nanoseconds that the host's clock gains on the device's, per nanosecond of the device's.
    uncertainty_ns : int
        Bound of the error at the pairs it was measured from.
    pair_count : int
        How many those were; with one, drift is unknown and taken as 0.
    """

    origin_ns: int
    host_origin_ns: int
    drift: float
    uncertainty_ns: int
    pair_count: int

    @property
    def offset_ns(self) -> int:
        """Host's clock minus device's clock, at the origin."""
        return self.host_origin_ns - self.origin_ns

    def to_host_ns(self, device_ns: Any) -> Any:
        """Instants of the device's clock in the host's.

        Parameters
        ----------
        device_ns : int, or ndarray of int64
            Any shape.

        Returns
        -------
        int, or ndarray of int64
            Same shape.
        """
        # only the small product goes through float64: absolute times since 1970 need 61 bits
        since = device_ns - self.origin_ns
        gained = since * self.drift
        if isinstance(gained, float):
            return self.host_origin_ns + since + round(gained)
        return self.host_origin_ns + since + gained.round().astype("int64")

    def to_dict(self) -> dict[str, float]:
        """As JSON, with the offset."""
        return {**asdict(self), "offset_ns": self.offset_ns}


def fit_clock(pairs: Sequence[ClockPair]) -> ClockMap:
    """Measure offset and drift of a device's clock from bracketed readings.

    Parameters
    ----------
    pairs : sequence of ClockPair
        Readings of the device's clock, over as long a time as the map is to hold.

    Returns
    -------
    ClockMap
        Least squares, narrow brackets weighing more; its uncertainty is the largest residual plus that
        reading's own.

    Raises
    ------
    UsageError
        If there is no pair.
    """
    if not pairs:
        raise UsageError("no reading of the device's clock: it cannot be mapped to the host's")
    base = min(pairs, key=lambda p: p.uncertainty_ns)
    # relative to one pair all numbers are small enough for float64
    points = [
        (
            float(p.other_ns - base.other_ns),
            float((p.host_ns - base.host_ns) - (p.other_ns - base.other_ns)),
            1 / max(1, p.uncertainty_ns) ** 2,
        )
        for p in pairs
    ]
    total = sum(w for _, _, w in points)
    mean_x = sum(w * x for x, _, w in points) / total
    mean_y = sum(w * y for _, y, w in points) / total
    spread = sum(w * (x - mean_x) ** 2 for x, _, w in points)
    drift = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points) / spread if spread else 0.0
    at_base = mean_y - drift * mean_x
    error = max(
        abs(y - at_base - drift * x) + p.uncertainty_ns for (x, y, _), p in zip(points, pairs, strict=True)
    )
    return ClockMap(base.other_ns, base.host_ns + round(at_base), drift, int(error) + 1, len(pairs))
