"""Pick and place with an arm of primitive geometry: a batch of environments, fast on a CPU.

All environments share one model and differ in state; a chunk of actions is one call of MuJoCo's threaded
`rollout`. An environment's bits do not depend on which others are in the batch.
"""

from __future__ import annotations

import importlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from rlprof.workloads.embodied.contracts import Array, Floats
from rlprof.workloads.embodied.errors import MissingPackageError, RenderError, need
from rlprof.workloads.embodied.simulators import arm_model as arm
from rlprof.workloads.embodied.simulators.arm_task import CAMERAS, ArmTask
from rlprof.workloads.embodied.simulators.rewards import DENSE


class MujocoArm(ArmTask):
    """The simulator `mujoco_arm`; see `rlprof.workloads.embodied.contracts.Simulator`.

    Parameters
    ----------
    envs : int
        Environments.
    seed : int
        Of where cubes start.
    chunk_steps, episode_steps : int
        Actions in a chunk and in an episode.
    group : int
        Environments that start alike.
    tasks : int
        Plates that the cube may belong on, 1 or 2.
    cameras, image : int
        Cameras (0, 1 or 2), and height and width of their images in pixels.
    reward : {"sparse", "dense"}
        1 for the first placement; dense: besides, gains in a potential (reach, lift, carry).
    auto_reset : bool
        An environment whose episode has ended begins a new one by itself, and `reset` only starts those
        that were never started.
    staggered : bool
        The first episode of an environment begins at a random phase: with less time left.
    threads : int
        Of physics.
    first, stride : int
        Environment k of this batch is environment ``first + k * stride`` of the whole one.

    Raises
    ------
    ConfigurationError
        If the sizes do not fit together.
    MissingPackageError
        If MuJoCo is not installed.
    RenderError
        If there are cameras and this machine makes no images.
    """

    def __init__(
        self,
        envs: int,
        *,
        seed: int = 0,
        chunk_steps: int = 5,
        episode_steps: int = 40,
        group: int = 1,
        tasks: int = 1,
        cameras: int = 0,
        image: int = 64,
        reward: str = DENSE,
        auto_reset: bool = False,
        staggered: bool = False,
        threads: int = 1,
        first: int = 0,
        stride: int = 1,
    ) -> None:
        super().__init__(
            "mujoco_arm",
            envs,
            seed=seed,
            chunk_steps=chunk_steps,
            episode_steps=episode_steps,
            group=group,
            tasks=tasks,
            cameras=cameras,
            image=image,
            reward=reward,
            auto_reset=auto_reset,
            staggered=staggered,
            first=first,
            stride=stride,
        )
        if cameras and "mujoco" not in sys.modules:  # which reads it once
            os.environ.setdefault("MUJOCO_GL", "egl")
        if cameras:
            _load_triton_first()
        self._mujoco = _load()
        rollout = need("mujoco.rollout", why="the simulator mujoco_arm")
        self._model = self._mujoco.MjModel.from_xml_string(arm.mjcf(image))
        self._data = [self._mujoco.MjData(self._model) for _ in range(max(1, threads))]
        self._pool = rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._spec = int(self._mujoco.mjtState.mjSTATE_FULLPHYSICS)
        size = self._mujoco.mj_stateSize(self._model, self._spec)
        self._state = np.zeros((envs, size))
        self._renderer: Any = None
        self._gl: ThreadPoolExecutor | None = None
        if cameras:
            # a GL context belongs to the thread that made it, and calls may come from any
            self._gl = ThreadPoolExecutor(1, thread_name_prefix="rlprof render")
            self._gl.submit(self._make_renderer).result()

    # physics -----------------------------------------------------------------------------------------------

    def _place(self, row: int, cube: Floats, key: tuple[int, ...]) -> Floats:  # noqa: ARG002
        mujoco, model, data = self._mujoco, self._model, self._data[0]
        mujoco.mj_resetData(model, data)
        data.qpos[:4] = arm.joint_targets(np.array(arm.HOME_M))
        data.qpos[4:11] = cube
        mujoco.mj_forward(model, data)
        mujoco.mj_getState(model, data, self._state[row], self._spec)
        return np.array(data.sensordata)

    def _move(self, rows: Array, control: Floats) -> Floats:
        state, sensors = self._pool.rollout(
            self._model, self._data, self._state[rows], np.repeat(control, arm.SUBSTEPS, axis=1)
        )
        self._state[rows] = state[:, -1]
        found: Floats = sensors[:, arm.SUBSTEPS - 1 :: arm.SUBSTEPS]
        return found

    # images ------------------------------------------------------------------------------------------------

    def _make_renderer(self) -> None:
        try:
            self._renderer = self._mujoco.Renderer(self._model, self.spec.height, self.spec.width)
        except Exception as error:  # what is missing decides which: import errors, GL errors, RuntimeError
            raise _gl_error(error) from error

    def _images(self, rows: Array) -> Array:
        assert self._gl is not None
        images: Array = self._gl.submit(self._render, rows).result()
        return images

    def _render(self, rows: Array) -> Array:
        spec, data = self.spec, self._data[0]
        out = np.empty((len(rows), spec.cameras, spec.height, spec.width, 3), dtype=np.uint8)
        for i, row in enumerate(rows):
            self._mujoco.mj_setState(self._model, data, self._state[row], self._spec)
            self._mujoco.mj_forward(self._model, data)
            for k, camera in enumerate(CAMERAS[: spec.cameras]):
                self._renderer.update_scene(data, camera)
                out[i, k] = self._renderer.render()
        return out

    def close(self) -> None:
        """Let go of threads and the GL context."""
        if self._gl is not None:
            if self._renderer is not None:
                self._gl.submit(self._renderer.close).result()
            self._gl.shutdown()
            self._gl = None
        self._pool.close()


def _load_triton_first() -> None:
    """Import Triton before a GL library, where this process has torch, which imports it sooner or later.

    Triton has an LLVM in it, and so have Mesa's drivers, which draw on a processor: a process that imports it
    after these were loaded ends with a segmentation fault.
    """
    if "torch" in sys.modules:
        with suppress(ImportError):  # torch for a processor comes without it
            importlib.import_module("triton")


def _load() -> Any:
    """Import MuJoCo, which loads its GL already then, if ``MUJOCO_GL`` names one."""
    try:
        return need("mujoco", why="the simulator mujoco_arm")
    except MissingPackageError as error:
        if isinstance(error.__cause__, ModuleNotFoundError) or not os.environ.get("MUJOCO_GL"):
            raise
        raise _gl_error(error.__cause__ or error) from error
    except (AttributeError, RuntimeError) as error:  # PyOpenGL without its library; a GL of another name
        raise _gl_error(error) from error


def _gl_error(error: BaseException) -> RenderError:
    return RenderError(
        f"MuJoCo makes no images here with MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}"
        f" ({type(error).__name__}: {error})",
        hint="install pyopengl and a GL library (Debian: libegl1 and libgl1-mesa-dri for egl, or"
        " libosmesa6 with MUJOCO_GL=osmesa), set MUJOCO_GL before mujoco is imported or run the"
        " simulator in processes of its own, or use no cameras",
    )
