"""Starts the simulator `libero` in processes of a Python that has LIBERO."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from rlprof.workloads.embodied import noise
from rlprof.workloads.embodied.contracts import (
    Array,
    Floats,
    GlobalStep,
    Observation,
    Samples,
    Simulator,
    SimulatorSpec,
    StepResult,
)
from rlprof.workloads.embodied.errors import (
    ConfigurationError,
    SimulatorDiedError,
    SimulatorTimeoutError,
)
from rlprof.workloads.embodied.simulators.core_turns import CoreTurns
from rlprof.workloads.embodied.simulators.libero import APART, EGL, EGL_ONE, RENDERINGS, check
from rlprof.workloads.embodied.simulators.processes import SimulatorProcesses
from rlprof.workloads.embodied.simulators.rewards import SPARSE

#: Names the Python whose environment has LIBERO; without it, rlprof's own is tried.
PYTHON_VARIABLE = "RLPROF_LIBERO_PYTHON"
#: The first environment of a task takes about 10 s, a minute where numba has nothing cached.
START_TIMEOUT_S = 300.0
#: The order of sets does not change from process to process; a process computes and draws with one thread,
#: unless something else is set.
_SURROUNDINGS = {
    "PYTHONHASHSEED": "0",
    **{
        name: os.environ.get(name, "1")
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LP_NUM_THREADS")
    },
}
T = TypeVar("T")
_MODULE = "rlprof.workloads.embodied.simulators.libero"


def start(
    envs: int,
    *,
    workers: int = 2,
    rendering: str = EGL,
    painters: int = 1,
    timeout_s: float = 120.0,
    start_timeout_s: float = START_TIMEOUT_S,
    python: str | None = None,
    nice: int = 0,
    cores: CoreTurns | None = None,
    seed: int = 0,
    chunk_steps: int = 5,
    episode_steps: int = 220,
    group: int = 1,
    tasks: int = 3,
    cameras: int = 2,
    image: int = 128,
    shadows: bool | None = None,
    every_action: bool = False,
    reward: str = SPARSE,
    auto_reset: bool = False,
    staggered: bool = False,
) -> Simulator:
    """Start LIBERO; the caller closes it.

    Parameters
    ----------
    envs, workers : int
        Environments, and processes that simulate them.
    rendering : {"egl", "egl-one", "osmesa"}
        Who draws: every process, with a GL context for each environment; a further process for all
        environments, with one context; every process, on the CPU.
    painters : int
        How many further processes draw with `egl-one`, each with a context; environments are dealt to them
        in turn.
    timeout_s, start_timeout_s : float
        Longest time of a call and of starting, in seconds.
    python : str, optional
        Python of an environment with LIBERO; by default that of ``RLPROF_LIBERO_PYTHON``, or this one.
    nice : int
        How much nicer than this process all of them are.
    cores : CoreTurns, optional
        Places for those that simulate; see `SimulatorProcesses`.
    seed, chunk_steps, episode_steps, group, tasks, cameras, image, shadows, every_action
        Of `rlprof.workloads.embodied.simulators.libero.Libero`; so are `reward`, `auto_reset`, `staggered`.

    Returns
    -------
    Simulator
        `SimulatorProcesses`, or `DrawnApart` where processes of their own draw.

    Raises
    ------
    ConfigurationError
        If the sizes do not fit together.
    MissingPackageError
        If that Python has no LIBERO.
    RenderError
        If it makes no images.
    SimulatorError
        If a process does not start.
    """
    if rendering not in RENDERINGS:
        raise ConfigurationError(f"no rendering is called {rendering!r}", hint=f"use {', '.join(RENDERINGS)}")
    if painters != 1 and not (rendering == EGL_ONE and 1 <= painters <= envs):
        raise ConfigurationError(
            f"{painters} painters for {envs} environments drawn by {rendering}",
            hint=f"use {EGL_ONE}, with 1 painter to as many as there are environments",
        )
    check(envs, chunk_steps, episode_steps, group, tasks, cameras)
    processes: dict[str, Any] = {
        "timeout_s": timeout_s,
        "start_timeout_s": start_timeout_s,
        "python": python or os.environ.get(PYTHON_VARIABLE) or sys.executable,
        "environment": _SURROUNDINGS,
        "nice": nice,
    }
    common: dict[str, Any] = {
        "chunk_steps": chunk_steps,
        "group": group,
        "tasks": tasks,
        "cameras": cameras,
        "image": image,
        "every_action": every_action,
    }
    own: dict[str, Any] = {
        **common,
        "cores": cores,
        "seed": seed,
        "episode_steps": episode_steps,
        "reward": reward,
        "auto_reset": auto_reset,
        "staggered": staggered,
    }
    apart = rendering == EGL_ONE and cameras > 0
    if not apart:
        own |= {"rendering": EGL if rendering == EGL_ONE else rendering, "shadows": shadows}
        return SimulatorProcesses(f"{_MODULE}:Libero", envs, workers=workers, **processes, **own)
    common["shadows"] = shadows is not False
    with ThreadPoolExecutor(1) as pool:  # both take their time to start
        painter = pool.submit(
            SimulatorProcesses,
            f"{_MODULE}_painter:LiberoPainter",
            envs,
            workers=painters,
            **processes,
            **common,
        )
        physics: SimulatorProcesses | None = None
        try:
            own["rendering"] = APART
            physics = SimulatorProcesses(f"{_MODULE}:Libero", envs, workers=workers, **processes, **own)
            return DrawnApart(physics, painter.result())
        except BaseException:  # an interruption too: what starts still is ended as soon as it is there
            painter.add_done_callback(_close_made)
            if physics is not None:
                physics.close()
            raise


def _close_made(started: Future[SimulatorProcesses]) -> None:
    if started.exception() is None:
        started.result().close()


class DrawnApart:
    """A simulator whose images other processes draw: `Simulator` made of two.

    What there is to draw goes from the simulating processes through this one to those that draw, by shared
    memory both times. Physics of some environments may run while others are drawn.

    Parameters
    ----------
    physics : SimulatorProcesses
        Simulates, and says what there is to draw with what it answers.
    painter : SimulatorProcesses
        Draws; one process, or several that have a part of the environments each.
    """

    def __init__(self, physics: SimulatorProcesses, painter: SimulatorProcesses) -> None:
        self._physics, self._painter = physics, painter
        drawn = painter.spec
        self.spec: SimulatorSpec = replace(
            physics.spec, cameras=drawn.cameras, height=drawn.height, width=drawn.width, view_dim=0
        )

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Ids of the processes; those that draw are the last."""
        return (*self._physics.process_ids, *self._painter.process_ids)

    def reset(self, step: GlobalStep, epoch: int, samples: Samples = None) -> Observation:
        """Begin new episodes."""
        return self._drawn(*self._do(self._physics.reset_views, step, epoch, samples), samples)

    def step(self, actions: Floats, samples: Samples = None) -> StepResult:
        """Carry out a chunk of actions."""
        result, views = self._do(self._physics.step_views, actions, samples)
        return result._replace(observation=self._drawn(result.observation, views, samples))

    def physics(self, actions: Floats, samples: Samples = None) -> None:
        """Move the environments."""
        self._do(self._physics.physics, actions, samples)

    def reward(self, samples: Samples = None) -> tuple[Floats, Array, Array]:
        """Rewards of the last chunk, dones, success so far."""
        return self._do(self._physics.reward, samples)

    def auto_reset(self, samples: Samples = None) -> None:
        """Begin new episodes where one has ended, if set to."""
        self._do(self._physics.auto_reset, samples)

    def render(self, samples: Samples = None) -> Observation:
        """What the policy sees now."""
        return self._drawn(*self._do(self._physics.render_views, samples), samples)

    def state_dict(self) -> dict[str, Array]:
        """All that the environments are."""
        return self._do(self._physics.state_dict)

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Go back to a checkpoint."""
        self._do(self._physics.load_state_dict, state)

    def close(self) -> None:
        """End the processes; once is enough."""
        try:
            self._painter.close()
        finally:
            self._physics.close()

    def end(self) -> None:
        """End the processes at once, also in the middle of a call of another thread, which fails then."""
        self._painter.end()
        self._physics.end()

    def __enter__(self) -> DrawnApart:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return call(*arguments)
        except (SimulatorDiedError, SimulatorTimeoutError):
            self.close()  # neither is of use without the other
            raise

    def _drawn(self, observation: Observation, views: Floats, samples: Samples) -> Observation:
        rows = noise.rows(self.spec.envs, samples).astype(np.int64)
        try:
            return observation._replace(images=self._painter.paint(views, rows))
        except BaseException:
            self.close()  # neither is of use without the other
            raise
