"""What an environment is asked to do: checked before anything moves."""

from __future__ import annotations

import numpy as np

from rlprof.workloads.embodied.contracts import Array, Floats, SimulatorSpec
from rlprof.workloads.embodied.errors import SimulatorError


def checked_moves(actions: Floats, spec: SimulatorSpec, elapsed: Array) -> Floats:
    """Return the actions of a chunk as numbers of 64 bits in -1 .. 1.

    Parameters
    ----------
    actions : ndarray, shape (batch, chunk_steps, action_dim)
        Of the environments that are stepped.
    spec : SimulatorSpec
        Of the simulator.
    elapsed : ndarray of int, shape (batch,)
        Steps of their episodes so far; below 0: never reset.

    Raises
    ------
    SimulatorError
        If actions have another shape or are not finite, or an environment was not reset.
    """
    wanted = (len(elapsed), spec.chunk_steps, spec.action_dim)
    if actions.shape != wanted:
        raise SimulatorError(f"actions of shape {actions.shape} for environments that take {wanted}")
    if not np.isfinite(actions).all():
        raise SimulatorError(
            "actions that are not finite",
            hint="look at the policy's losses; under MPS at rlprof mps levels --check-products",
        )
    if (elapsed < 0).any():
        raise SimulatorError("environments were stepped before they were reset", hint="call reset first")
    moves: Floats = np.clip(actions.astype(np.float64), -1, 1)
    return moves
