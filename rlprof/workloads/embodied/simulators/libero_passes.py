"""Physics of LIBERO with one pass of MuJoCo for each physics step, where robosuite makes three.

robosuite brings everything up to date before a physics step (``sim.forward``), its controller does so again,
and ``sim.step`` begins with the same. Nothing but the controls changes in between, and what the controller
reads (poses, Jacobians, masses, velocities, bias forces) is made by the stages of position and velocity. So
these run once, and the physics step does the rest: the same operations on the same numbers, the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: From this version on a forward pass leaves the warm start of the solver alone, so that it may be left out.
IDEMPOTENT = (3, 3, 6)


def can_share(mujoco: Any, model: Any) -> bool:
    """Whether leaving out forward passes keeps the bits: not before MuJoCo 3.3.6, not with Runge-Kutta."""
    version = tuple(map(int, mujoco.__version__.split(".")[:3]))
    kinds = mujoco.mjtIntegrator
    in_two_parts = (kinds.mjINT_EULER, kinds.mjINT_IMPLICIT, kinds.mjINT_IMPLICITFAST)
    return version >= IDEMPOTENT and model.opt.integrator in in_two_parts


@contextmanager
def one_pass(mujoco: Any, sim: Any) -> Iterator[None]:
    """While open, ``forward`` and ``step`` of robosuite's simulation share one pass of MuJoCo.

    Between a ``forward`` and the next ``step`` only controls may change, and only what comes of positions and
    velocities may be read: accelerations, forces and sensors are those of the last ``step``.

    Parameters
    ----------
    mujoco : module
        MuJoCo.
    sim : robosuite.utils.binding_utils.MjSim
        It has its own methods again afterwards. Where bits would change (`can_share`) it keeps them.
    """
    model, data = sim.model._model, sim.data._data
    if not can_share(mujoco, model):
        yield
        return
    norm, largest = mujoco.mju_norm, mujoco.mjMAXVAL
    fresh = split = False

    def forward() -> None:
        nonlocal fresh, split
        if fresh:
            return
        # a step begins anew where a number is none, or beyond mjMAXVAL: a pass cut in two would do so before
        # the controller has run, robosuite does after it
        fresh, split = True, norm(data.qpos) < largest and norm(data.qvel) < largest
        (mujoco.mj_step1 if split else mujoco.mj_forward)(model, data)

    def step() -> None:
        nonlocal fresh, split
        (mujoco.mj_step2 if split else mujoco.mj_step)(model, data)
        fresh = split = False

    sim.forward, sim.step = forward, step
    try:
        yield
    finally:
        del sim.forward, sim.step
