"""How long a node takes on a part of its batch, from measured durations: a line, with what it leaves over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rlprof.unavailable import Unavailable

#: Observations of one node and batch size that are kept: the latest.
MOST_KEPT = 64


@dataclass(frozen=True)
class BatchFit:
    """``T(b) = fixed_s + per_sample_s b``.

    Parameters
    ----------
    fixed_s, per_sample_s : float
        Neither below zero, seconds.
    sizes : tuple of int
        Batch sizes that were measured, ascending.
    medians_s, residuals_s : tuple of float
        Median duration at each size, and what it is above the line, in seconds. A line through two sizes
        leaves none.
    residual_frac : float
        Median of |duration - line| as a share of the line, over all single durations.
    observations : int
        How many durations.
    """

    fixed_s: float
    per_sample_s: float
    sizes: tuple[int, ...]
    medians_s: tuple[float, ...]
    residuals_s: tuple[float, ...]
    residual_frac: float = 0.0
    observations: int = 0

    def at(self, batch: float) -> float:
        """Seconds on the line."""
        return self.fixed_s + self.per_sample_s * batch

    @property
    def worst_residual_frac(self) -> float:
        """Largest residual as a share of its median."""
        return max(abs(r) / m if m else 0.0 for r, m in zip(self.residuals_s, self.medians_s, strict=True))


class Estimated(NamedTuple):
    """Duration of a node on a part of its batch.

    Parameters
    ----------
    time_s : float
        Seconds.
    guess : bool
        In proportion to the batch: nothing but one size was measured.
    basis : str
        What it rests on, for people.
    """

    time_s: float
    guess: bool
    basis: str = ""


@dataclass(frozen=True)
class BatchTimes:
    """Durations of nodes by batch size.

    Parameters
    ----------
    observed : mapping of (str, int) to tuple of float
        Seconds by node and batch size, each with nothing beside it.
    """

    observed: Mapping[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)

    def with_observation(self, node: str, batch: int, duration_s: float) -> BatchTimes:
        """Return this with one more duration; the latest `MOST_KEPT` of a node and size are kept."""
        kept = (*self.observed.get((node, batch), ()), duration_s)[-MOST_KEPT:]
        return BatchTimes({**self.observed, (node, batch): kept})

    def medians_s(self, node: str) -> dict[int, float]:
        """Median duration of a node by batch size, ascending."""
        found = {b: float(np.median(times)) for (n, b), times in self.observed.items() if n == node}
        return dict(sorted(found.items()))

    def fit(self, node: str) -> BatchFit | Unavailable:
        """Fit a line to a node's medians by least squares, with neither part below zero.

        Returns
        -------
        BatchFit or Unavailable
            Unavailable with fewer than two batch sizes.
        """
        known = self.medians_s(node)
        if len(known) < 2:
            return Unavailable(f"{node} was measured at {len(known)} batch sizes; a line needs two")
        sizes, medians = np.array(list(known), float), np.array(list(known.values()))
        slope, fixed = np.polyfit(sizes, medians, 1)
        if slope < 0:
            slope, fixed = 0.0, float(medians.mean())
        elif fixed < 0:
            slope, fixed = float((sizes * medians).sum() / (sizes**2).sum()), 0.0
        left = medians - (fixed + slope * sizes)
        shares = [
            abs(time - line) / line
            for size in known
            if (line := fixed + slope * size) > 0
            for time in self.observed[node, size]
        ]
        return BatchFit(
            float(fixed),
            float(slope),
            tuple(known),
            tuple(map(float, medians)),
            tuple(map(float, left)),
            float(np.median(shares)) if shares else 0.0,
            sum(len(self.observed[node, size]) for size in known),
        )

    def at(self, node: str, size: float) -> Estimated | None:
        """Duration of a node on so many samples; None if it was never measured.

        Returns
        -------
        Estimated or None
            The median if that size was measured, a point of the line if two others were, otherwise the
            largest one in proportion.
        """
        known = self.medians_s(node)
        if not known:
            return None
        found = self.fit(node)
        if isinstance(found, BatchFit):
            sizes = f"{len(found.sizes)} sizes, residual {found.residual_frac:.1%}"
            if size in known:
                return Estimated(known[int(size)], False, f"measured, as one of {sizes}")
            return Estimated(found.at(size), False, f"estimated from {sizes}")
        full = max(known)
        if size == full:
            return Estimated(known[full], False, "measured")
        return Estimated(known[full] * size / full, True)

    def share(self, node: str, share: float) -> tuple[float, bool] | None:
        """Duration of a node on a share of its largest batch.

        Returns
        -------
        (float, bool) or None
            Seconds, and whether that is a guess (in proportion to the batch): the median if that size was
            measured, a point of the line if two sizes were. None if the node was never measured.
        """
        known = self.medians_s(node)
        found = self.at(node, max(known) * share) if known else None
        return None if found is None else (found.time_s, found.guess)
