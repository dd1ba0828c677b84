"""The scene of mujoco_warp, moved by MuJoCo's own engine."""

from __future__ import annotations

import numpy as np
import pytest

from rlprof.workloads.embodied.simulators import arm_model
from rlprof.workloads.embodied.simulators.mujoco_warp_model import (
    TRAY_M,
    make_model,
    object_poses,
    room,
)

mujoco = pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")


@pytest.mark.parametrize("objects", [0, 1, 8, 42])
def test_objects_stay_in_the_tray_and_contacts_have_room(objects: int) -> None:
    model = make_model(mujoco, substeps=20, objects=objects)
    data = mujoco.MjData(model)
    data.qpos[:4] = data.ctrl[:4] = arm_model.joint_targets(np.array(arm_model.HOME_M))
    data.qpos[4:11] = (0.3, 0, arm_model.CUBE_HALF_M, 1, 0, 0, 0)
    data.qpos[11:] = object_poses(objects, (0, 0, 0, 0, objects)).ravel()
    contacts = rows = 0
    for _ in range(500):
        mujoco.mj_step(model, data)
        contacts, rows = max(contacts, data.ncon), max(rows, data.nefc)
    (x0, x1), (y0, y1) = TRAY_M
    places = data.qpos[11:].reshape(-1, 7)[:, :3]
    assert ((places[:, 0] > x0) & (places[:, 0] < x1) & (places[:, 1] > y0) & (places[:, 1] < y1)).all()
    assert (places[:, 2] > 0.005).all()
    assert np.abs(data.qvel[10:].reshape(-1, 6)[:, :3]).max(initial=0) < 0.3  # they lie, or roll
    assert contacts >= 2 * objects, "objects that touch nothing cost nothing"
    assert contacts * 1.5 <= room(objects)[0]
    assert rows * 1.5 <= room(objects)[1]


def test_substeps_divide_the_same_action() -> None:
    for substeps in (5, 20, 100):
        model = make_model(mujoco, substeps=substeps, objects=0)
        assert model.opt.timestep * substeps == pytest.approx(arm_model.TIMESTEP_S * arm_model.SUBSTEPS)


def test_objects_are_keyed_and_do_not_start_inside_each_other() -> None:
    one, same, other = (object_poses(42, (0, 1, 2, 0, k)) for k in (0, 0, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    apart = np.linalg.norm(one[:, None, :3] - one[None, :, :3], axis=-1) + np.eye(42)
    assert apart.min() > 0.036  # balls and capsules of up to 2.4 cm reach
    assert object_poses(0, (0, 1, 2, 0, 0)).shape == (0, 7)
