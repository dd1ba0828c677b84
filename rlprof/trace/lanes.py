"""Rows of a timeline for intervals that overlap: which interval goes on which lane."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray


def assign_lanes(
    start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], rule: Literal["disjoint", "nested"]
) -> NDArray[np.int32]:
    """Put intervals on lanes so that no lane holds two that its rule forbids.

    Trace viewers draw one lane as a stack of slices: two that cross are drawn wrongly or dropped.

    Parameters
    ----------
    start_ns, end_ns : (n,) int64
        Intervals [start, end), sorted by start and, among equal starts, the longest first.
    rule : {"disjoint", "nested"}
        ``disjoint``: intervals of a lane do not overlap. ``nested``: they lie apart or one in the other.

    Returns
    -------
    (n,) int32
        Lane of each interval: the first one free, from 0.
    """
    lanes = np.zeros(len(start_ns), dtype=np.int32)
    if len(start_ns) < 2 or bool(np.all(start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1])):
        return lanes  # nothing overlaps: the common case of one stream
    open_ends: list[list[int]] = []  # for each lane the ends of what is open, innermost last
    for i, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        for lane, ends in enumerate(open_ends):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or (rule == "nested" and end <= ends[-1]):
                ends.append(end)
                lanes[i] = lane
                break
        else:
            lanes[i] = len(open_ends)
            open_ends.append([end])
    return lanes
