"""Sweeps over sorted intervals: nesting, crossing, minima of slices, numbering. Vectorised, O(n log n)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Nesting:
    """Where each range of a sorted list lies: ``depth``, ``parent`` (position or -1), ``crossing``."""

    depth: I64
    parent: I64
    crossing: Bools


def nest(group: I64, start_ns: I64, end_ns: I64) -> Nesting:
    """Nest ranges within their group.

    Parameters
    ----------
    group, start_ns, end_ns : ndarray of int64, shape (n,)
        Sorted by (group, start, -end). Ranges of one group nest if each pair is disjoint or one holds the
        other; touching at an end is disjoint.

    Returns
    -------
    Nesting
        The parent of a range is the last one that begins before it and holds it wholly; so is that of a
        range that crosses another.
    """
    n = len(start_ns)
    if n == 0:
        return Nesting(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool))
    # one of no duration lies inside another at the same time, but not inside one that ends there, nor inside
    # another of no duration: these are calls in a row under a coarse clock
    empty = end_ns == start_ns
    reach = end_ns + empty
    # The parent is the nearest earlier range that reaches as far. The first candidate is the range before;
    # if it ends too early, so do all that its own candidate skipped, and that one is tried next. Candidates
    # move at the same time, so steps grow: about (depth + log2 n) rounds.
    parent = np.arange(-1, n - 1)
    parent[np.flatnonzero(np.append(True, group[1:] != group[:-1]))] = -1
    active = np.flatnonzero((parent >= 0) & ((reach[parent] < reach) | (empty[parent] & empty)))
    crosses = False
    while len(active):
        passed = parent[active]
        crosses = crosses or bool((end_ns[passed] > start_ns[active]).any())
        parent[active] = now = parent[passed]
        active = active[(now >= 0) & ((reach[now] < reach[active]) | (empty[now] & empty[active]))]
    crossing = _crossing(group, start_ns, end_ns) if crosses else np.zeros(n, dtype=bool)
    return Nesting(levels(parent), parent, crossing)


def levels(parent: I64) -> I64:
    """Number of ancestors of each row of a forest, given each row's parent (or -1), which precedes it."""
    depth = np.zeros(len(parent), dtype=np.int64)
    rows = np.flatnonzero(parent >= 0)
    above = parent[rows]
    while len(rows):
        depth[rows] += 1
        above = parent[above]
        deeper = above >= 0
        rows, above = rows[deeper], above[deeper]
    return depth


def _crossing(group: I64, start_ns: I64, end_ns: I64) -> Bools:
    """Which ranges overlap another of their group without one holding the other."""
    crossing = np.zeros(len(start_ns), dtype=bool)
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    for a, b in zip(first, np.append(first[1:], len(group)), strict=True):
        s, e = start_ns[a:b], end_ns[a:b]
        # one that begins inside me ends after me
        after = np.arange(len(s)) + 1
        latest = -slice_minimum(-e, after, np.maximum(np.searchsorted(s, e, side="left"), after))
        # one that ends inside me began before me
        order = np.argsort(e, kind="stable")
        ends = e[order]
        inside = np.searchsorted(ends, s, side="right"), np.searchsorted(ends, e, side="left")
        crossing[a:b] = (latest > e) | (slice_minimum(s[order], *inside) < s)
    return crossing


def slice_minimum(values: I64, lo: I64, hi: I64) -> I64:
    """Minimum of ``values[lo:hi]`` for each pair; `LARGEST` for an empty slice.

    A sparse table (minima of windows of length 2^k), made and used one level at a time so that memory
    stays O(n).
    """
    answer = np.full(len(lo), LARGEST)
    length = hi - lo
    # 2^level is the largest power of two that is not longer than the slice
    level = np.where(length > 0, np.frexp(np.maximum(length, 1).astype(np.float64))[1] - 1, -1)
    window = values
    for k in range(int(level.max(initial=-1)) + 1):
        if k > 0:
            half = 1 << (k - 1)
            window = np.minimum(window[:-half], window[half:])
        ask = np.flatnonzero(level == k)
        answer[ask] = np.minimum(window[lo[ask]], window[hi[ask] - (1 << k)])
    return answer


def disjoint_layers(end: I64) -> list[I64]:
    """Split intervals, sorted by start, into groups in which the ends are sorted too.

    One group where no interval lies inside another (the API calls of a thread that launch work, as a rule);
    one more for each level of intervals within intervals.

    Returns
    -------
    list of ndarray of int64
        Positions, ascending; together all of them.
    """
    layers: list[I64] = []
    rest = np.arange(len(end))
    while len(rest):
        ends = end[rest]
        # those that end no earlier than all before them
        keep = ends >= np.maximum.accumulate(ends)
        layers.append(rest[keep])
        rest = rest[~keep]
    return layers


def dense(*columns: I64) -> tuple[I64, I64]:
    """Number the distinct rows of some columns, in the order in which they first appear.

    Parameters
    ----------
    *columns : ndarray of int64, shape (n,)
        At least one.

    Returns
    -------
    number : ndarray of int64, shape (n,)
        Number of each row, from 0.
    first : ndarray of int64
        Where each number first appears, ascending.
    """
    n = len(columns[0])
    if n == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    key, bound = np.zeros(n, dtype=np.int64), 1
    for column in columns:
        small, size = _small(column, n)
        if bound * size > LARGEST:
            key, bound = _small(key, -1)
        key, bound = key * size + small, bound * size
    # a table with a place for each possible key, unless that were much longer than the rows
    key, bound = _small(key, 4 * n)
    place = np.full(bound, -1, dtype=np.int64)
    place[key[::-1]] = np.arange(n - 1, -1, -1)  # of several rows with one key, the first is written last
    first = np.sort(place[place >= 0])
    place[key[first]] = np.arange(len(first))
    return place[key], first


def _small(values: I64, most: int) -> tuple[I64, int]:
    """Values as they are if all are in 0..most, else their ranks; and one more than the largest."""
    top = int(values.max())
    if values.min() >= 0 and top <= most:
        return values, top + 1
    distinct = np.unique(values)
    return np.searchsorted(distinct, values), len(distinct)
