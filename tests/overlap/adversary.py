"""Runs that try every order that a graph allows: a missing edge shows as another result."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlprof.taskgraph import TaskGraph


class RandomOrder:
    """Priorities for one task at a time (`SerialBackend`): each run another order of those that are allowed.

    Every order that respects the edges can come up; a seed always gives the same orders.
    """

    def __init__(self, seed: int) -> None:
        self._draws = np.random.default_rng(seed)

    def __call__(self, tasks: TaskGraph) -> npt.NDArray[np.float64]:
        return self._draws.permutation(len(tasks)).astype(np.float64)


def last_first(tasks: TaskGraph) -> npt.NDArray[np.float64]:
    """Whatever comes last natively goes first if it may."""
    return np.arange(len(tasks), dtype=np.float64)
