"""Sets of intervals and integrals of step functions over them, vectorised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


def union(start: I64, end: I64) -> tuple[I64, I64]:
    """Disjoint, sorted intervals that cover what the given ones cover.

    Parameters
    ----------
    start, end : ndarray of int64, shape (n,)
        Intervals [start, end), any order; empty ones vanish.

    Returns
    -------
    start, end : ndarray of int64, shape (m,)
        Touching intervals are joined.
    """
    full = end > start
    start, end = start[full], end[full]
    if len(start) == 0:
        return start, end
    order = np.argsort(start, kind="stable")
    s, e = start[order], np.maximum.accumulate(end[order])
    first = np.ones(len(s), dtype=bool)
    first[1:] = s[1:] > e[:-1]
    at = np.flatnonzero(first)
    return s[at], e[np.append(at[1:] - 1, len(s) - 1)]


def clip(start: I64, end: I64, lo: int, hi: int) -> tuple[I64, I64]:
    """The parts of intervals inside [lo, hi); empty ones are left out."""
    s, e = np.maximum(start, lo), np.minimum(end, hi)
    keep = e > s
    return s[keep], e[keep]


@dataclass(frozen=True)
class StepIntegral:
    """Integral of a step function on disjoint, sorted intervals; zero elsewhere.

    Parameters
    ----------
    start, end : ndarray of int64, shape (n,)
        The steps.
    before : ndarray of float64, shape (n + 1,)
        Integral up to the start of each step, and the total.
    value : ndarray of float64, shape (n,)
        The function on each step.
    """

    start: I64
    end: I64
    before: F64
    value: F64

    @classmethod
    def of(cls, start: I64, end: I64, value: F64 | None = None) -> StepIntegral:
        """Prepare the integral of `value`, or of 1 (so that it measures length)."""
        one = np.ones(len(start)) if value is None else value
        before = np.concatenate([[0.0], np.cumsum((end - start) * one)])
        return cls(start, end, before, one)

    def up_to(self, t: I64) -> F64:
        """Integral from minus infinity to each time of `t`."""
        if len(self.start) == 0:
            return np.zeros(len(t))
        i = np.searchsorted(self.start, t, side="right") - 1
        inside = np.maximum(i, 0)
        partial = (np.minimum(t, self.end[inside]) - self.start[inside]) * self.value[inside]
        out: F64 = np.where(i >= 0, self.before[inside] + partial, 0.0)
        return out

    def over(self, start: I64, end: I64) -> F64:
        """Integral over each interval [start, end), shape of `start`."""
        return self.up_to(end) - self.up_to(start)


def load(start: I64, end: I64, weight: I64) -> tuple[I64, I64, I64]:
    """Sum of the weights of the intervals in flight, as a step function.

    Parameters
    ----------
    start, end, weight : ndarray of int64, shape (n,)
        Intervals and their weights; integers, so that sums are exact.

    Returns
    -------
    start, end, total : ndarray of int64
        Disjoint, sorted steps where the sum is positive.
    """
    full = (end > start) & (weight > 0)
    start, end, weight = start[full], end[full], weight[full]
    times = np.concatenate([start, end])
    change = np.concatenate([weight, -weight])
    order = np.argsort(times, kind="stable")
    t, c = times[order], np.cumsum(change[order])
    if len(t) == 0:
        return t, t, c
    last = np.append(t[1:] != t[:-1], True)
    t, c = t[last], c[last]
    s, e, total = t[:-1], t[1:], c[:-1]
    keep = total > 0
    return s[keep], e[keep], total[keep]
