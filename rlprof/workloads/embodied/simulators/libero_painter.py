"""What draws for environments of LIBERO that other processes simulate."""

from __future__ import annotations

import numpy as np

from rlprof.workloads.embodied import noise
from rlprof.workloads.embodied.contracts import Array, Floats, Samples, SimulatorSpec
from rlprof.workloads.embodied.simulators.libero import EGL, STATE_DIM, paint
from rlprof.workloads.embodied.simulators.libero_env import ACTION_DIM, VIEW, TaskEnv
from rlprof.workloads.embodied.simulators.libero_render import Painter, choose_gl


class LiberoPainter:
    """What draws for all environments or some, in a process of its own with one GL context.

    Parameters
    ----------
    envs, chunk_steps, group, tasks, cameras, image, every_action
        As of `Libero`.
    shadows : bool
        Shadows and multisampling.
    first, stride : int
        As of `Libero`; 0 and 1 if there is one painter.

    Raises
    ------
    MissingPackageError, RenderError
        As `Libero`.
    """

    def __init__(
        self,
        envs: int,
        *,
        chunk_steps: int,
        group: int,
        tasks: int,
        cameras: int,
        image: int,
        every_action: bool,
        shadows: bool = True,
        first: int = 0,
        stride: int = 1,
    ) -> None:
        frames = chunk_steps if every_action else 1
        self.spec = SimulatorSpec(
            name="libero",
            envs=envs,
            chunk_steps=chunk_steps,
            episode_steps=chunk_steps,
            action_dim=ACTION_DIM,
            state_dim=STATE_DIM,
            cameras=cameras,
            height=image,
            width=image,
            group=group,
            view_dim=1 + frames * VIEW,
        )
        self._task = (first + stride * np.arange(envs)) // group % tasks
        choose_gl(EGL)
        self._tasks = {int(task): TaskEnv(int(task)) for task in np.unique(self._task)}
        self._painter = Painter(
            {task: env.model for task, env in self._tasks.items()},
            cameras=cameras,
            image=image,
            shadows=shadows,
        )

    def paint(self, views: Floats, samples: Samples = None) -> Array:
        """Draw environments.

        Parameters
        ----------
        views : ndarray, shape (batch, view_dim)
            Of `Libero.views`.
        samples : ndarray of int64, optional
            Which environments.

        Returns
        -------
        ndarray of uint8, shape (batch, cameras, image, image, 3)
            Their images.
        """
        rows = noise.rows(self.spec.envs, samples)
        frames = views[:, 0].astype(np.int64)
        every = views[:, 1:].reshape(len(rows), views.shape[1] // VIEW, VIEW)
        return paint(self._painter, self.spec, rows, self._task[rows], frames, every)

    def close(self) -> None:
        """Let go of the GL context and of LIBERO's environments."""
        self._painter.close()
        while self._tasks:
            self._tasks.popitem()[1].close()
