"""From a device's clock to the host's: measured offset, drift and uncertainty.

A *reading* brackets one look at the device's clock between two looks at the host's, so that the offset
(device minus host) lies between ``device - after`` and ``device - before`` (Cristian, Probabilistic clock
synchronization, Distributed Computing 3, 1989). Readings are taken in bursts, of which the bounds intersect,
again and again through a run; between two bursts the offset is interpolated linearly.

On a busy GPU the look itself waits for its turn, so that the upper bound is far away. The lower bound is not:
the host sees the answer at once. Such a burst is placed above its lower bound by what an undisturbed burst
showed, and how far these lie from the line through the undisturbed ones is part of the uncertainty.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: A burst whose bounds lie more than this many times further apart than the closest ones was disturbed.
DISTURBED = 3


@dataclass(frozen=True)
class Reading:
    """One look at a device's clock.

    Parameters
    ----------
    before_ns, after_ns : int
        Host's clock before and after.
    device_ns : int
        Device's clock in between.
    """

    before_ns: int
    device_ns: int
    after_ns: int


@dataclass(frozen=True)
class Knot:
    """What one burst of readings says.

    Parameters
    ----------
    device_ns : int
        When, in the device's clock.
    low_ns, high_ns : int
        Bounds of the offset, device minus host.
    """

    device_ns: int
    low_ns: int
    high_ns: int

    @property
    def width_ns(self) -> int:
        """Distance of the bounds."""
        return self.high_ns - self.low_ns


def knot(readings: Sequence[Reading]) -> Knot:
    """Intersect the bounds of a burst.

    Parameters
    ----------
    readings : sequence of Reading
        Taken within milliseconds, so that drift within the burst is far below the bounds' distance.

    Returns
    -------
    Knot

    Raises
    ------
    ValueError
        If there is no reading.
    """
    if not readings:
        raise ValueError("no reading of the device's clock")
    best = min(readings, key=lambda r: r.after_ns - r.before_ns)
    low = max(r.device_ns - r.after_ns for r in readings)
    high = min(r.device_ns - r.before_ns for r in readings)
    if low > high:  # a clock was stepped within the burst: trust the closest bracket alone
        low, high = best.device_ns - best.after_ns, best.device_ns - best.before_ns
    return Knot(best.device_ns, low, high)


class DeviceClockMap:
    """Maps times of one device's clock to the host's."""

    def __init__(self) -> None:
        self._knots: list[Knot] = []
        self._offsets: list[int] = []
        self._since: list[int] = []  # device time since the first burst
        self._closest: int | None = None

    def add(self, new: Knot) -> None:
        """Take in the next burst; one that is not later than the last is ignored."""
        if self._knots and new.device_ns <= self._knots[-1].device_ns:
            return
        self._knots.append(new)
        self._since.append(new.device_ns - self._knots[0].device_ns)
        self._closest = min(new.width_ns, new.width_ns if self._closest is None else self._closest)
        steady = new.width_ns <= DISTURBED * self._closest
        self._offsets.append(new.low_ns + (new.width_ns if steady else self._closest) // 2)

    @property
    def known_until_ns(self) -> int | None:
        """Device time of the last burst; times up to it can be mapped for good. None before the first."""
        return self._knots[-1].device_ns if self._knots else None

    @property
    def closest_ns(self) -> int | None:
        """Distance of the closest bounds so far."""
        return self._closest

    def to_host(self, device_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map times of the device's clock.

        Parameters
        ----------
        device_ns : ndarray of int64, shape (n,)
            Before the first burst and after the last, the offset there holds on.

        Returns
        -------
        ndarray of int64, shape (n,)
            In the host's clock. Never decreases where `device_ns` does not.

        Raises
        ------
        ValueError
            Before the first burst.
        """
        import numpy as np

        if not self._knots:
            raise ValueError("no reading of the device's clock")
        if not len(device_ns):
            return device_ns
        # differences are small, times since the epoch are too large for floats; only the end of a long run
        # is asked for
        origin, base = self._knots[0].device_ns, self._offsets[0]
        first = max(0, bisect_right(self._since, int(device_ns.min()) - origin) - 1)
        at = np.array(self._since[first:], dtype=np.float64)
        offset = np.array([o - base for o in self._offsets[first:]], dtype=np.float64)
        moved = np.interp((device_ns - origin).astype(np.float64), at, offset)
        return device_ns - base - np.rint(moved).astype(np.int64)

    @property
    def drift_ppm(self) -> float | None:
        """How much faster the device's clock runs than the host's; None while the run is under a second."""
        return None if self._span_ns() < 1e9 else self._slope() * 1e6

    @property
    def uncertainty_ns(self) -> int | None:
        """Bound of the error of `to_host`: of undisturbed bursts, and beyond that how far others strayed."""
        if not self._knots:
            return None
        steady = self._steady()
        half = max(
            max(self._offsets[i] - self._knots[i].low_ns, self._knots[i].high_ns - self._offsets[i])
            for i in steady
        )
        line = self._line(steady)
        return half + max(
            (abs(self._offsets[i] - round(line(i))) for i in range(len(self._knots)) if i not in steady),
            default=0,
        )

    def facts(self) -> dict[str, Any]:
        """What is told about the mapping: offset, drift, uncertainty, number of bursts."""
        drift = self.drift_ppm
        return {
            "offset_ns": self._offsets[0] if self._offsets else None,
            "drift_ppm": None if drift is None else round(drift, 4),
            "uncertainty_ns": self.uncertainty_ns,
            "closest_bracket_ns": self.closest_ns,
            "readings": len(self._knots),
            "disturbed_readings": len(self._knots) - len(self._steady()) if self._knots else 0,
        }

    def _span_ns(self) -> int:
        return self._knots[-1].device_ns - self._knots[0].device_ns if self._knots else 0

    def _slope(self) -> float:
        return (self._offsets[-1] - self._offsets[0]) / self._span_ns()

    def _steady(self) -> set[int]:
        limit = DISTURBED * max(1, self._closest or 0)
        return {i for i, k in enumerate(self._knots) if k.width_ns <= limit}

    def _line(self, steady: set[int]) -> _Line:
        import numpy as np

        chosen = sorted(steady)
        origin, base = self._knots[0].device_ns, self._offsets[0]
        at = np.array([self._knots[i].device_ns - origin for i in chosen], dtype=np.float64)
        offset = np.array([self._offsets[i] - base for i in chosen], dtype=np.float64)
        if len(chosen) > 1:
            slope, start = np.polyfit(at, offset, 1)
        else:
            slope, start = self._slope() if len(self._knots) > 1 else 0.0, float(offset[0])
        return _Line(self._knots, origin, base, float(slope), float(start))


@dataclass(frozen=True)
class _Line:
    knots: Sequence[Knot]
    origin: int
    base: int
    slope: float
    start: float

    def __call__(self, i: int) -> float:
        return self.base + self.start + self.slope * (self.knots[i].device_ns - self.origin)
