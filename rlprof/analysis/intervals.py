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


def cut_steps(start: I64, end: I64, value: F64, keep_start: I64, keep_end: I64) -> tuple[I64, I64, F64]:
    """The parts of a step function inside some intervals.

    Parameters
    ----------
    start, end : ndarray of int64, shape (n,)
        Disjoint, sorted steps.
    value : ndarray of float64, shape (n,)
        The function on each step.
    keep_start, keep_end : ndarray of int64, shape (m,)
        Disjoint, sorted intervals to keep.

    Returns
    -------
    start, end, value : ndarrays
        Disjoint, sorted steps.
    """
    first = np.searchsorted(end, keep_start, side="right")
    last = np.searchsorted(start, keep_end, side="left")
    count = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(keep_start)), count)
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    step = first[which] + within
    s = np.maximum(start[step], keep_start[which])
    e = np.minimum(end[step], keep_end[which])
    full = e > s
    return s[full], e[full], value[step][full]


@dataclass(frozen=True)
class StepIntegral:
    """Integrals of step functions that share their steps; zero outside them.

    Parameters
    ----------
    start, end : ndarray of int64, shape (n,)
        Disjoint, sorted steps.
    values : ndarray of float64, shape (k, n)
        The functions on each step.
    before : ndarray of float64, shape (k, n + 1)
        Integrals up to the start of each step, and the totals.
    """

    start: I64
    end: I64
    values: F64
    before: F64

    @classmethod
    def of(cls, start: I64, end: I64, *values: F64) -> StepIntegral:
        """Prepare the integrals of `values`; of 1, which measures length, if there are none."""
        rows = np.vstack(values) if values else np.ones((1, len(start)))
        before = np.zeros((len(rows), len(start) + 1))
        np.cumsum((end - start) * rows, axis=1, out=before[:, 1:])
        return cls(start, end, rows, before)

    def over(self, start: I64, end: I64) -> F64:
        """Integrals over each interval [start, end), shape (k, len(start))."""
        if len(self.start) == 0:
            return np.zeros((len(self.values), len(start)))
        i, j = self._step(start), self._step(end)
        first, last = np.maximum(i, 0), np.maximum(j, 0)
        apart = i != j
        # From the interval's start to the end of its first step, whole steps, and into its last one. As a
        # difference of two integrals from the beginning, what is short would drown in their rounding.
        head_to = np.where(apart, self.end[first], np.minimum(end, self.end[first]))
        head = np.where(i >= 0, np.maximum(head_to - start, 0), 0)
        tail = np.where(apart & (j >= 0), np.minimum(end, self.end[last]) - self.start[last], 0)
        between = self.before[:, last] - self.before[:, np.minimum(i + 1, last)]
        out: F64 = self.values[:, first] * head + between + self.values[:, last] * tail
        return out

    def _step(self, t: I64) -> I64:
        """Last step that starts at or before each time; -1: none."""
        return np.searchsorted(self.start, t, side="right") - 1


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
