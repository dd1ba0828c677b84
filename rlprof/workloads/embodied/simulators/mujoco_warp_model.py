"""The scene of `mujoco_warp`: the arm of `arm_model`, and a tray of loose objects that makes physics heavier.

The objects lie apart from the task, in a tray behind the plates. Cameras see them, and they keep touching
each other and the tray, so that their number sets how much a physics step has to compute.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlprof.workloads.embodied import noise
from rlprof.workloads.embodied.contracts import Floats
from rlprof.workloads.embodied.simulators import arm_model as arm

#: How long an action takes, in seconds; physics steps divide it.
ACTION_S = arm.TIMESTEP_S * arm.SUBSTEPS
#: The tray: least and most x and y of its inside, height and half the thickness of its walls, in metres.
TRAY_M = ((0.46, 0.6), (-0.18, 0.18))
WALL_M = 0.04
_THICK_M = 0.004
#: Objects start in a grid of columns above the tray: distance of two, and height of the lowest, in metres.
_COLUMNS = (3, 7)
_PITCH_M = 0.045
_LOWEST_M = 0.03
#: Shapes in turn: MuJoCo's name, sizes in metres, colour.
_SHAPES: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = (
    ("box", (0.015, 0.015, 0.015), (0.3, 0.5, 0.9)),
    ("sphere", (0.016,), (0.9, 0.8, 0.3)),
    ("capsule", (0.012, 0.012), (0.4, 0.8, 0.4)),
    ("box", (0.018, 0.012, 0.01), (0.8, 0.4, 0.7)),
)
#: Contacts and constraint rows of an environment that there is room for: without objects, and for each.
_CONTACTS = (24, 6)


def make_model(mujoco: Any, *, substeps: int, objects: int) -> Any:
    """Compile the model.

    Parameters
    ----------
    mujoco : module
        MuJoCo's.
    substeps : int
        Physics steps of an action.
    objects : int
        Loose objects in the tray.

    Returns
    -------
    mujoco.MjModel
        Joints: four of the arm, the cube, then the objects.
    """
    spec = mujoco.MjSpec.from_string(arm.mjcf())
    spec.option.timestep = ACTION_S / substeps
    if objects:
        (x0, x1), (y0, y1) = TRAY_M
        middle, half = ((x0 + x1) / 2, (y0 + y1) / 2), ((x1 - x0) / 2, (y1 - y0) / 2)
        long = half[1] + 2 * _THICK_M
        for k, (place, size) in enumerate(
            (
                ((x0 - _THICK_M, middle[1]), (_THICK_M, long)),
                ((x1 + _THICK_M, middle[1]), (_THICK_M, long)),
                ((middle[0], y0 - _THICK_M), (half[0], _THICK_M)),
                ((middle[0], y1 + _THICK_M), (half[0], _THICK_M)),
            )
        ):
            spec.worldbody.add_geom(
                name=f"wall{k}",
                type=mujoco.mjtGeom.mjGEOM_BOX,
                pos=[*place, WALL_M / 2],
                size=[*size, WALL_M / 2],
                rgba=[0.5, 0.45, 0.4, 1],
            )
    for k in range(objects):
        shape, lengths, colour = _SHAPES[k % len(_SHAPES)]
        body = spec.worldbody.add_body(name=f"object{k}", pos=_column(k))
        body.add_freejoint()
        body.add_geom(
            name=f"object{k}",
            type=getattr(mujoco.mjtGeom, f"mjGEOM_{shape.upper()}"),
            size=[*lengths, *[0] * (3 - len(lengths))],
            density=600,
            rgba=[*colour, 1],
        )
    return spec.compile()


def room(objects: int) -> tuple[int, int]:
    """Contacts and constraint rows that an environment has room for."""
    contacts = _CONTACTS[0] + _CONTACTS[1] * objects
    return contacts, 4 * contacts


def object_poses(objects: int, key: tuple[int, ...]) -> Floats:
    """Poses that objects are dropped from, shape (objects, 7): place, then a turn about z as a quaternion."""
    poses = np.zeros((objects, 7))
    if objects:
        draw = noise.generator(key[0], "objects", *key[1:])
        poses[:, :3] = [_column(k) for k in range(objects)]
        poses[:, :2] += draw.uniform(-0.004, 0.004, (objects, 2))
        half = draw.uniform(0, np.pi, objects) / 2
        poses[:, 3], poses[:, 6] = np.cos(half), np.sin(half)
    return poses


def _column(k: int) -> list[float]:
    """Place where object k starts, above the tray."""
    nx, ny = _COLUMNS
    layer, column = divmod(k, nx * ny)
    # neighbours in number are far apart in the tray, so that few objects already fill it
    column = (column * 8) % (nx * ny)
    x, y = divmod(column, ny)
    (x0, x1), (y0, y1) = TRAY_M
    return [
        (x0 + x1) / 2 + (x - (nx - 1) / 2) * _PITCH_M,
        (y0 + y1) / 2 + (y - (ny - 1) / 2) * _PITCH_M,
        _LOWEST_M + layer * _PITCH_M,
    ]
