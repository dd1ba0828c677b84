"""What the actions of a chunk are rewarded with.

Sparse: 1 for the first action after which the task is done. Dense: besides, what each action gains in a
potential, counted from the best that the episode has reached, so that the sum says how far it got and not how
long it stayed there, and going to and fro gains nothing.
"""

from __future__ import annotations

import numpy as np

from rlprof.workloads.embodied.contracts import Array, Floats
from rlprof.workloads.embodied.errors import ConfigurationError

SPARSE, DENSE = "sparse", "dense"
REWARDS = (SPARSE, DENSE)


def is_dense(reward: str) -> bool:
    """Whether rewards are dense.

    Raises
    ------
    ConfigurationError
        If there are none of this name.
    """
    if reward not in REWARDS:
        raise ConfigurationError(f"no reward is called {reward!r}", hint=f"use {', '.join(REWARDS)}")
    return reward == DENSE


def firsts(before: Array, done: Array) -> tuple[Floats, Array]:
    """Reward the first action after which the task is done.

    Parameters
    ----------
    before : ndarray of bool, shape (batch,)
        Whether it was done before.
    done : ndarray of bool, shape (batch, steps)
        Whether it is done after each action.

    Returns
    -------
    tuple of ndarray
        1 for the first such action, shape (batch, steps); whether it has been done now, shape (batch,).
    """
    once = np.logical_or.accumulate(np.column_stack([before, done]), axis=1)
    return np.diff(once.astype(np.float64), axis=1), once[:, -1]


def gains(best: Floats, potential: Floats) -> tuple[Floats, Floats]:
    """Reward what actions gain in a potential.

    Parameters
    ----------
    best : ndarray, shape (batch,)
        The highest that the episode has reached before.
    potential : ndarray, shape (batch, steps)
        After each action.

    Returns
    -------
    tuple of ndarray
        Gains, 0 or more, shape (batch, steps); the highest that has been reached now, shape (batch,).
    """
    reached = np.maximum.accumulate(np.column_stack([best, potential]), axis=1)
    return np.diff(reached, axis=1), reached[:, -1]
