"""What was observed at each point: the median over all its times, and their spread."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from rlprof.planning.calibration.raw import Measurement, Point, Raw
from rlprof.planning.shapes import ModelShape

#: Whether a fit to operators may use a configuration.
Split = Literal["fit", "held_out"]


@dataclass(frozen=True)
class Observation:
    """All visits of one point, together.

    Parameters
    ----------
    kind, key
        Of the point.
    seconds : float
        Median of all times.
    spread_frac : float
        Half the distance between the quartiles over the median.
    samples, rounds : int
        Times, and visits that they come from.
    parts_s : dict of str to float
        Medians of the times of parts.
    peak_bytes : int or None
        Most memory of any visit; None where it was not measured.
    date : str
        Of the last visit, ISO 8601.
    """

    kind: str
    key: Mapping[str, Any]
    seconds: float
    spread_frac: float
    samples: int
    rounds: int
    parts_s: Mapping[str, float]
    peak_bytes: int | None
    date: str

    @property
    def identity(self) -> str:
        """Kind and sizes as one canonical string."""
        return Point(self.kind, self.key).identity

    @property
    def shape(self) -> ModelShape:
        """The model that it is about."""
        return ModelShape(**self.key["shape"])

    @property
    def label(self) -> str:
        """Kind and sizes for people."""
        sizes = [
            f"{name} {value}" for name, value in self.key.items() if name not in ("shape", "tier") and value
        ]
        model = [str(self.key["shape"]["name"])] if "shape" in self.key else []
        return f"{self.kind}: {', '.join([*model, *sizes]).replace('_', ' ')}"


def observe(raw: Raw, *kinds: str) -> list[Observation]:
    """Return the observations of these kinds, in the order in which they were first measured."""
    visits: dict[Point, list[Measurement]] = {}
    for m in raw.of(*kinds):
        visits.setdefault(m.point, []).append(m)
    return [_together(point, found) for point, found in visits.items()]


def alone(observed: Observation) -> bool:
    """Whether one device did all of it."""
    return not {"tensor", "data"} & observed.key.keys()


def split_of(observed: Observation, seed: int = 0) -> Split:
    """Put a configuration into a half, by a hash of what it is: the same whatever else was measured.

    Of operators of several devices all but generation are held out: only the latency of collectives in decode
    steps may be fitted to half of that.
    """
    if not alone(observed) and observed.kind != "generation":
        return "held_out"
    digest = hashlib.sha256(f"{seed} {observed.identity}".encode()).digest()
    return "held_out" if digest[0] % 2 else "fit"


def _together(point: Point, found: Sequence[Measurement]) -> Observation:
    times = sorted(t for m in found for t in m.seconds)
    middle = median(times)
    quartiles = [_quantile(times, q) for q in (0.25, 0.75)]
    parts = {
        name: median(t for m in found for t in m.parts.get(name, ()))
        for name in dict.fromkeys(n for m in found for n in m.parts)
    }
    peaks = [m.peak_bytes for m in found if m.peak_bytes is not None]
    return Observation(
        point.kind,
        point.key,
        middle,
        (quartiles[1] - quartiles[0]) / 2 / middle,
        len(times),
        len(found),
        parts,
        max(peaks) if peaks else None,
        max(m.date for m in found),
    )


def _quantile(ascending: Sequence[float], frac: float) -> float:
    at = frac * (len(ascending) - 1)
    low = int(at)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (at - low) * (ascending[high] - ascending[low])
