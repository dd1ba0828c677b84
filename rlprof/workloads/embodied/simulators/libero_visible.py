"""Which parts of a scene a camera cannot see: to leave them out changes no pixel."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlprof.workloads.embodied.contracts import Array, Floats

#: Spheres are taken to be larger by this factor and so many metres: MuJoCo draws in single precision.
_WIDER, _WIDER_M = 1.001, 1e-3


class Visible:
    """What is out of sight of cameras with square images.

    A geom is out of sight if the sphere around it is outside the pyramid that the camera sees, and so is what
    a mirror makes of it: MuJoCo draws the scene once more as it is seen in the first plane or box (its upper
    side) that reflects. Where something casts shadows, nothing is.

    Parameters
    ----------
    mujoco : module
        MuJoCo.
    model : mujoco.MjModel
        With which `hidden` is called.
    look : mujoco.MjvOption
        Whose groups of geoms are drawn.
    """

    def __init__(self, mujoco: Any, model: Any, look: Any) -> None:
        self._model = model
        self._box = int(mujoco.mjtGeom.mjGEOM_BOX)
        self._perspective = not model.cam_orthographic.any() and not model.cam_sensorsize.any()
        self._shadows = bool(model.light_castshadow.any()) and model.vis.quality.shadowsize > 0
        shown = np.asarray(look.geomgroup, dtype=bool)[np.clip(model.geom_group, 0, 5)]
        made = (
            np.where(model.geom_matid >= 0, model.mat_reflectance[model.geom_matid], 0) if model.nmat else 0
        )
        flat = np.isin(model.geom_type, (int(mujoco.mjtGeom.mjGEOM_PLANE), self._box))
        mirror = shown & flat & (made > 0)
        self._mirrors = np.flatnonzero(mirror)
        # planes have no sphere; without the first of several mirrors the next one would be one
        keep = mirror if len(self._mirrors) > 1 else np.zeros_like(mirror)
        self._which = np.flatnonzero(shown & (model.geom_rbound > 0) & ~keep)
        self._radius = model.geom_rbound[self._which] * _WIDER + _WIDER_M

    def hidden(self, data: Any, camera: int) -> Array:
        """Geoms that a camera cannot see, by index, after `mj_kinematics` and `mj_camlight`."""
        if self._shadows or not self._perspective:
            none: Array = self._which[:0]
            return none
        model, eye = self._model, data.cam_xpos[camera]
        turn = data.cam_xmat[camera].reshape(3, 3)  # to the right, up, back
        half = np.deg2rad(model.cam_fovy[camera]) / 2

        def outside(centres: Floats, radius: Floats) -> Array:
            right, up, back = ((centres - eye) @ turn).T
            beside = np.maximum(np.abs(right), np.abs(up)) * np.cos(half) + back * np.sin(half)
            found: Array = (beside > radius) | (back > radius)
            return found

        def cone(centres: Floats, radius: Floats) -> tuple[Floats, Floats]:
            away = centres - eye
            far = np.linalg.norm(away, axis=1)
            inside = far <= radius
            wide = np.where(inside, np.pi, np.arcsin(np.where(inside, 1, radius / far)))
            return away / np.maximum(far, _WIDER_M)[:, None], wide

        at = data.geom_xpos[self._which]
        gone = outside(at, self._radius)
        for mirror in self._mirrors:
            normal = data.geom_xmat[mirror].reshape(3, 3)[:, 2]
            on = data.geom_xpos[mirror] + normal * (
                model.geom_size[mirror, 2] if model.geom_type[mirror] == self._box else 0
            )
            behind = at - 2 * ((at - on) @ normal)[:, None] * normal
            unseen = outside(behind, self._radius)
            if model.geom_rbound[mirror] > 0:
                frame, around = data.geom_xpos[[mirror]], model.geom_rbound[[mirror]] * _WIDER + _WIDER_M
                if outside(frame, around).any():
                    continue
                # a sphere is seen in the mirror only if the one around the mirror covers a part of it
                (ahead, half_frame), (way, half_ball) = cone(frame, around), cone(behind, self._radius)
                apart = np.arccos(np.clip(way @ ahead[0], -1, 1))
                unseen |= apart > half_frame + half_ball + _WIDER_M
            gone &= unseen
        hidden: Array = self._which[gone]
        return hidden
