"""Camera images of LIBERO: views of environments are drawn with MuJoCo's renderer, whoever simulated them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlprof.workloads.embodied.contracts import Array, Floats
from rlprof.workloads.embodied.errors import RenderError

#: In this order; LIBERO's agent view and the camera at the wrist.
CAMERAS = ("agentview", "robot0_eye_in_hand")


def choose_gl(backend: str) -> None:
    """Tell MuJoCo, before it is first imported, what to draw with: ``egl``, ``osmesa`` or ``disabled``.

    Raises
    ------
    RenderError
        If MuJoCo was imported with another one.
    """
    before = os.environ.get("MUJOCO_GL", "")
    if "mujoco" in sys.modules and backend not in ("disabled", before):
        raise RenderError(
            f"MuJoCo was imported with MUJOCO_GL={before}, and {backend} is asked for",
            hint="run the simulator in processes of its own: --workers 1 or more",
        )
    os.environ["MUJOCO_GL"] = backend
    if backend == "disabled":
        os.environ.pop("PYOPENGL_PLATFORM", None)
    else:
        os.environ["PYOPENGL_PLATFORM"] = backend


def gl_error(error: Exception) -> RenderError:
    """Say what to do about a failure of GL."""
    return RenderError(
        f"MuJoCo makes no images here with MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}"
        f" ({type(error).__name__}: {error})",
        hint="install a GL library (Debian: libegl1, and libgl1-mesa-dri where there is no GPU; libosmesa6"
        " for --rendering osmesa), name the driver's vendor file in __EGL_VENDOR_LIBRARY_FILENAMES, choose"
        " another --rendering, or --cameras 0",
    )


class Painter:
    """Draws views of tasks.

    Parameters
    ----------
    models : mapping of int to mujoco.MjModel
        By task.
    cameras, image : int
        Cameras (1 or 2), and height and width of their images in pixels.
    shadows : bool
        Shadows and multisampling, as LIBERO has them; without them an image takes about a third of the time.
    contexts : sequence of int
        The task of each environment, if each is to have a GL context of its own; empty: one context for all.

    Raises
    ------
    RenderError
        If this machine makes no images.
    """

    def __init__(
        self,
        models: Mapping[int, Any],
        *,
        cameras: int,
        image: int,
        shadows: bool = True,
        contexts: tuple[int, ...] = (),
    ) -> None:
        self._mujoco = mujoco = importlib.import_module("mujoco")
        self._size, self._cameras = image, cameras
        self._models = dict(models)
        self._data = {task: mujoco.MjData(model) for task, model in models.items()}
        self._look = mujoco.MjvOption()
        self._look.geomgroup[0], self._look.geomgroup[1] = 0, 1  # what is seen, not what collides
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._contexts: list[Any] = []
        self._current: Any = None
        #: By (environment or -1, task): GL context, MuJoCo's context, scene.
        self._scenes: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        for model in models.values():
            model.vis.global_.offwidth = model.vis.global_.offheight = image
            if not shadows:
                model.vis.quality.offsamples = model.vis.quality.shadowsize = 0
        try:
            if contexts:
                for row, task in enumerate(contexts):
                    self._prepare(row, task, self._gl())
            else:
                shared = self._gl()
                for task in models:
                    self._prepare(-1, task, shared)
        except Exception as error:  # what is missing decides which: import errors, GL errors, RuntimeError
            raise gl_error(error) from error

    def paint(self, row: int, task: int, view: Floats, out: Array) -> None:
        """Draw an environment.

        Parameters
        ----------
        row, task : int
            Environment and its task.
        view : ndarray, shape (VIEW,)
            Of `TaskEnv`.
        out : ndarray of uint8, shape (cameras, image, image, 3)
            Where to: LIBERO's image turned by 180 degrees, as published policies take it (upright, and left
            and right exchanged).
        """
        mujoco, model, data = self._mujoco, self._models[task], self._data[task]
        key = (row, task) if (row, task) in self._scenes else (-1, task)
        gl, context, scene = self._scenes[key]
        if gl is not self._current:
            gl.make_current()
            self._current = gl
        data.qpos[:] = view[: model.nq]
        model.site_rgba[:, 3] = view[model.nq : model.nq + model.nsite]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
        place = mujoco.MjrRect(0, 0, self._size, self._size)
        upside_down = np.empty((self._size, self._size, 3), dtype=np.uint8)
        for k, name in enumerate(CAMERAS[: self._cameras]):
            self._camera.fixedcamid = model.camera(name).id
            mujoco.mjv_updateScene(
                model, data, self._look, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, scene
            )
            mujoco.mjr_render(place, scene, context)
            mujoco.mjr_readPixels(upside_down, None, place, context)
            out[k] = upside_down[::-1, ::-1]

    def close(self) -> None:
        """Free what GL holds."""
        for gl, context, _ in self._scenes.values():
            gl.make_current()
            context.free()
        self._scenes.clear()
        while self._contexts:
            self._contexts.pop().free()
        self._current = None

    def _gl(self) -> Any:
        made = self._mujoco.gl_context.GLContext(self._size, self._size)
        self._contexts.append(made)
        return made

    def _prepare(self, row: int, task: int, gl: Any) -> None:
        mujoco, model = self._mujoco, self._models[task]
        gl.make_current()
        self._current = gl
        context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        self._scenes[row, task] = (gl, context, mujoco.MjvScene(model, maxgeom=1000))
