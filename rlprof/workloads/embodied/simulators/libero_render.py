"""Camera images of LIBERO: views of environments are drawn with MuJoCo's renderer, whoever simulated them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlprof.workloads.embodied.contracts import Array, Floats
from rlprof.workloads.embodied.errors import RenderError
from rlprof.workloads.embodied.simulators.libero_sheet import Sheet
from rlprof.workloads.embodied.simulators.libero_visible import Visible

#: In this order; LIBERO's agent view and the camera at the wrist.
CAMERAS = ("agentview", "robot0_eye_in_hand")
#: Environments of one GL context that are read back together, at most.
ENVS_AT_ONCE = 8


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


class Picture(NamedTuple):
    """What is to be drawn.

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

    row: int
    task: int
    view: Floats
    out: Array


class _Place(NamedTuple):
    """Where a task is drawn."""

    gl: Any
    context: Any
    scene: Any
    sheet: Sheet


class Painter:
    """Draws views of tasks.

    The images of an environment are read back together, and where environments share a GL context, those of
    up to `ENVS_AT_ONCE` of them, and what a camera cannot see is not drawn. Neither changes a pixel.

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
    at_once : bool
        False: read back every image by itself, with the same bits; for comparisons.
    sparing : bool
        False: draw what cameras cannot see too, with the same bits; for comparisons.

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
        at_once: bool = True,
        sparing: bool = True,
    ) -> None:
        self._mujoco = mujoco = importlib.import_module("mujoco")
        self._size, self._cameras = image, cameras
        self.at_once, self.sparing = at_once, sparing
        self._models = dict(models)
        self._data = {task: mujoco.MjData(model) for task, model in models.items()}
        self._look = mujoco.MjvOption()
        self._look.geomgroup[0], self._look.geomgroup[1] = 0, 1  # what is seen, not what collides
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._contexts: list[Any] = []
        self._current: Any = None
        #: By (environment or -1, task).
        self._places: dict[tuple[int, int], _Place] = {}
        for model in models.values():
            model.vis.global_.offwidth = model.vis.global_.offheight = image
            if not shadows:
                model.vis.quality.offsamples = model.vis.quality.shadowsize = 0
        self._visible = {task: Visible(mujoco, model, self._look) for task, model in models.items()}
        try:
            if contexts:
                for row, task in enumerate(contexts):
                    self._prepare({task: row}, rows=1)
            else:
                self._prepare(dict.fromkeys(models, -1), rows=ENVS_AT_ONCE)
        except Exception as error:  # what is missing decides which: import errors, GL errors, RuntimeError
            raise gl_error(error) from error

    def paint(self, pictures: Sequence[Picture]) -> None:
        """Draw environments, in this order; of those that go to the same place the last one stays."""
        waiting: list[Array] = []  # for their images, which are in the sheet of the current GL context
        sheet: Sheet | None = None
        self._current = None  # another painter of this thread may have drawn since, or this one failed
        for picture in pictures:
            key = (picture.row, picture.task)
            place = self._places[key if key in self._places else (-1, picture.task)]
            if sheet is not None and (len(waiting) == sheet.rows or place.gl is not self._current):
                _read(sheet, waiting)
            if place.gl is not self._current:
                place.gl.make_current()
                self._current = place.gl
            sheet = place.sheet
            self._draw(picture, place, len(waiting))
            if self.at_once:
                waiting.append(picture.out)
        if sheet is not None:
            _read(sheet, waiting)

    def _draw(self, picture: Picture, place: _Place, sheet_row: int) -> None:
        mujoco, model, data = self._mujoco, self._models[picture.task], self._data[picture.task]
        data.qpos[:] = picture.view[: model.nq]
        model.site_rgba[:, 3] = picture.view[model.nq : model.nq + model.nsite]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        whole = mujoco.MjrRect(0, 0, self._size, self._size)
        for k, name in enumerate(CAMERAS[: self._cameras]):
            self._camera.fixedcamid = camera = model.camera(name).id
            if self.sparing:
                hidden = self._visible[picture.task].hidden(data, camera)
                groups = model.geom_group[hidden]
                model.geom_group[hidden] = 0  # which is not shown
            try:
                # all of it for each camera: a light goes along with it
                mujoco.mjv_updateScene(
                    model, data, self._look, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, place.scene
                )
            finally:
                if self.sparing:
                    model.geom_group[hidden] = groups
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, place.context)
            mujoco.mjr_render(whole, place.scene, place.context)
            if self.at_once:
                place.sheet.take(place.context, sheet_row, k)
            else:
                upside_down = np.empty((self._size, self._size, 3), dtype=np.uint8)
                mujoco.mjr_readPixels(upside_down, None, whole, place.context)
                picture.out[k] = upside_down[::-1, ::-1]

    def close(self) -> None:
        """Free what GL holds."""
        sheets = {id(place.gl): place for place in self._places.values()}
        for place in sheets.values():
            place.gl.make_current()
            place.sheet.close()
        for place in self._places.values():
            place.gl.make_current()
            place.context.free()
        self._places.clear()
        while self._contexts:
            self._contexts.pop().free()
        self._current = None

    def _prepare(self, tasks: Mapping[int, int], rows: int) -> None:
        """Make a GL context for tasks; of each the environment, -1 for all."""
        mujoco, sheet = self._mujoco, None
        gl = mujoco.gl_context.GLContext(self._size, self._size)
        self._contexts.append(gl)
        gl.make_current()
        self._current = gl
        for task, row in tasks.items():
            model = self._models[task]
            context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
            if sheet is None:
                sheet = Sheet(context, rows=rows, cameras=self._cameras, size=self._size)
            scene = mujoco.MjvScene(model, maxgeom=1000 + model.ngeom)  # others: sites, tendons
            self._places[row, task] = _Place(gl, context, scene, sheet)


def _read(sheet: Sheet, waiting: list[Array]) -> None:
    """Hand out the images of a sheet, and begin it anew."""
    if waiting:
        for out, images in zip(waiting, sheet.read(len(waiting)), strict=True):
            out[...] = images
        waiting.clear()
