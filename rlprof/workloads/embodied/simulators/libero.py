"""LIBERO: real LIBERO tasks (libero_spatial), physics on the CPU, images through EGL or on the CPU.

Runs in processes of a Python of its own, see `rlprof.workloads.embodied.simulators.libero_start`; here is
what runs in them. An environment's bits do not depend on which others are in the batch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rlprof.workloads.embodied import noise
from rlprof.workloads.embodied.contracts import (
    Array,
    Floats,
    GlobalStep,
    Observation,
    Samples,
    SimulatorSpec,
    StepResult,
)
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.simulators.libero_env import ACTION_DIM, RECORD, SUITE, TASKS, VIEW, TaskEnv
from rlprof.workloads.embodied.simulators.libero_render import CAMERAS, Painter, Picture, choose_gl
from rlprof.workloads.embodied.simulators.moves import checked_moves
from rlprof.workloads.embodied.simulators.rewards import SPARSE, firsts, gains, is_dense

#: Gripper position 3 and orientation 3, fingers 2, time left, success so far.
STATE_DIM = 10
#: Without cameras also: positions of the bowl and the plate.
STATE_DIM_BLIND = STATE_DIM + 6
#: Of the dense reward: what it is worth to bring the gripper to the bowl, and the bowl to the plate.
REACH, CARRY = 0.3, 0.7
#: How images are made; `APART` is what the processes do while another one draws for all of them.
EGL, EGL_ONE, OSMESA, APART = "egl", "egl-one", "osmesa", "apart"
RENDERINGS = (EGL, EGL_ONE, OSMESA)
#: A way is counted as at least this long, in metres.
_NEAR_M = 0.01
#: What a checkpoint holds.
_STATE = (
    *("_records", "_views", "_frames", "_elapsed", "_origin", "_episode", "_success", "_won"),
    *("_began", "_away", "_best"),
)


class Libero:
    """The simulator `libero`; see `rlprof.workloads.embodied.contracts.Simulator`.

    An environment keeps its task: group k of environments has task k modulo `tasks`. Which of LIBERO's
    initial states an episode begins with is drawn for (seed, step, epoch, episode, group).

    Parameters
    ----------
    envs : int
        Environments.
    seed : int
        Of which initial states are taken.
    chunk_steps, episode_steps : int
        Actions in a chunk and in an episode.
    group : int
        Environments that start alike.
    tasks : int
        Tasks of libero_spatial, the first ones; 1 to 10.
    cameras, image : int
        Cameras (0, 1 or 2: agent view, wrist), and height and width of their images in pixels.
    rendering : {"egl", "osmesa", "apart"}
        EGL with a context for each environment, as LIBERO's own processes have; Mesa on the CPU; or none
        here: `views` says what there is to draw.
    shadows : bool or None
        Shadows and multisampling, as LIBERO has them; None: with EGL.
    every_action : bool
        Draw the images after every action of a chunk, as LIBERO's ``step`` does, although only the last ones
        are seen.
    reward : {"sparse", "dense"}
        LIBERO's own, 1 for the first action after which the task is done; dense: besides, gains in a
        potential. It is `REACH` times the part of the way from gripper to bowl, and `CARRY` times the part of
        the way from bowl to plate, that has been made since the episode began. The state has one number more
        then: the highest potential so far.
    auto_reset : bool
        An environment whose episode has ended, by time or because the task is done, begins a new one by
        itself, and `reset` only starts those that were never started. Without it an episode ends by time.
    staggered : bool
        The first episode of an environment begins at a random phase: with less time left.
    first, stride : int
        Environment k of this batch is environment ``first + k * stride`` of the whole one.

    Raises
    ------
    ConfigurationError
        If the sizes do not fit together, or a task's files are not there.
    MissingPackageError
        If LIBERO is not installed.
    RenderError
        If there are cameras and this machine makes no images.
    """

    def __init__(
        self,
        envs: int,
        *,
        seed: int = 0,
        chunk_steps: int = 5,
        episode_steps: int = 220,
        group: int = 1,
        tasks: int = 3,
        cameras: int = 0,
        image: int = 128,
        rendering: str = EGL,
        shadows: bool | None = None,
        every_action: bool = False,
        reward: str = SPARSE,
        auto_reset: bool = False,
        staggered: bool = False,
        first: int = 0,
        stride: int = 1,
    ) -> None:
        check(envs if stride == 1 else None, chunk_steps, episode_steps, group, tasks, cameras)
        if rendering not in (EGL, OSMESA, APART):
            raise ConfigurationError(f"no rendering is called {rendering!r}", hint="use egl or osmesa")
        if staggered and not auto_reset:
            raise ConfigurationError(
                "staggered resets need environments that reset by themselves", hint="set auto_reset too"
            )
        self._dense, self._blind = is_dense(reward), not cameras
        drawn = cameras if rendering != APART else 0
        self._keep = chunk_steps if every_action and cameras else 1
        self.spec = SimulatorSpec(
            name="libero",
            envs=envs,
            chunk_steps=chunk_steps,
            episode_steps=episode_steps,
            action_dim=ACTION_DIM,
            state_dim=(STATE_DIM_BLIND if self._blind else STATE_DIM) + self._dense,
            cameras=drawn,
            height=image if drawn else 0,
            width=image if drawn else 0,
            group=group,
            view_dim=1 + self._keep * VIEW if rendering == APART else 0,
        )
        self._seed, self._auto_reset, self._staggered = seed, auto_reset, staggered
        self._index = first + stride * np.arange(envs)
        self._task = self._index // group % tasks
        choose_gl(rendering if drawn else "disabled")
        self._tasks = {int(task): TaskEnv(int(task)) for task in np.unique(self._task)}
        self._records = np.zeros((envs, RECORD))
        self._views = np.zeros((envs, self._keep, VIEW))
        self._frames = np.ones(envs, dtype=np.int64)  # of them to draw
        self._elapsed = np.full(envs, -1, dtype=np.int64)  # -1: never started
        self._origin = np.zeros((envs, 2), dtype=np.int64)
        self._episode = np.zeros(envs, dtype=np.int64)
        self._success = np.zeros(envs, dtype=bool)
        self._won = np.zeros((envs, chunk_steps), dtype=bool)
        # from gripper to bowl and from bowl to plate, in metres: when the episode began, after each action
        self._began = np.ones((envs, 2))
        self._away = np.ones((envs, chunk_steps, 2))
        self._best = np.zeros(envs)
        self._painter: Painter | None = None
        self._gl: ThreadPoolExecutor | None = None
        if drawn:
            # a GL context belongs to the thread that made it, and calls may come from any
            self._gl = ThreadPoolExecutor(1, thread_name_prefix="rlprof render")
            self._gl.submit(self._make_painter, image, rendering, shadows).result()

    # episodes ----------------------------------------------------------------------------------------------

    def reset(self, step: GlobalStep, epoch: int, samples: Samples = None) -> Observation:
        """Begin new episodes; with `auto_reset`, only where none has begun yet."""
        rows = noise.rows(self.spec.envs, samples)
        fresh = rows[self._elapsed[rows] < 0] if self._auto_reset else rows
        self._origin[fresh] = (step.index, epoch)
        self._episode[fresh] = 0
        self._begin(fresh)
        if self._staggered:
            chunks = self.spec.episode_steps // self.spec.chunk_steps
            for row in fresh:
                phase = noise.generator(self._seed, "phase", int(self._index[row])).integers(chunks)
                self._elapsed[row] = int(phase) * self.spec.chunk_steps
        return self._observe(rows)

    def _begin(self, rows: Array) -> None:
        for row in rows:
            task = self._tasks[int(self._task[row])]
            group = int(self._index[row]) // self.spec.group
            step, epoch = (int(v) for v in self._origin[row])
            draw = noise.generator(self._seed, "start", step, epoch, int(self._episode[row]), group)
            self._records[row] = task.start(int(draw.integers(task.starts)))
            self._views[row, 0] = task.view(self._records[row])
            self._began[row] = self._away[row] = np.maximum(task.distances(self._records[row]), _NEAR_M)
        self._frames[rows] = 1
        self._elapsed[rows] = 0
        self._success[rows] = False
        self._won[rows] = False
        self._best[rows] = 0

    def auto_reset(self, samples: Samples = None) -> None:
        """Begin new episodes where one has ended, if set to."""
        if not self._auto_reset:
            return
        rows = noise.rows(self.spec.envs, samples)
        ended = rows[self._ended(rows)]
        self._episode[ended] += 1
        self._begin(ended)

    def _ended(self, rows: Array) -> Array:
        late: Array = self._elapsed[rows] >= self.spec.episode_steps
        return late | self._success[rows] if self._auto_reset else late

    # a chunk -----------------------------------------------------------------------------------------------

    def step(self, actions: Floats, samples: Samples = None) -> StepResult:
        """Carry out a chunk of actions, shape (batch, chunk_steps, ACTION_DIM)."""
        self.physics(actions, samples)
        rewards, dones, success = self.reward(samples)
        self.auto_reset(samples)
        return StepResult(self.render(samples), rewards, dones, success)

    def physics(self, actions: Floats, samples: Samples = None) -> None:
        """Move the arms: an action is a step of the gripper (position, orientation), and to open or close it.

        Raises
        ------
        SimulatorError
            If actions have another shape or are not finite, or an environment was not reset.
        """
        rows = noise.rows(self.spec.envs, samples)
        moves = checked_moves(actions, self.spec, self._elapsed[rows])
        for row, move in zip(rows, moves, strict=True):
            task = self._tasks[int(self._task[row])]
            done = task.advance(self._records[row], move)
            self._records[row], self._won[row], views, self._away[row] = done
            self._views[row] = views[-self._keep :]
        self._frames[rows] = self._keep
        self._elapsed[rows] += self.spec.chunk_steps

    def reward(self, samples: Samples = None) -> tuple[Floats, Array, Array]:
        """Rewards of the last chunk, dones, and success so far."""
        rows = noise.rows(self.spec.envs, samples)
        rewards, self._success[rows] = firsts(self._success[rows], self._won[rows])
        if self._dense:
            made = np.clip(1 - self._away[rows] / self._began[rows, None], 0, 1)
            potential = REACH * made[..., 0] + CARRY * made[..., 1]
            gained, self._best[rows] = gains(self._best[rows], potential)
            rewards += gained
        return rewards.astype(np.float32), self._ended(rows), self._success[rows].copy()

    def render(self, samples: Samples = None) -> Observation:
        """State, and images of the cameras."""
        return self._observe(noise.rows(self.spec.envs, samples))

    def views(self, samples: Samples = None) -> Floats:
        """What there is to draw, for `libero_painter.LiberoPainter`; shape (batch, view_dim)."""
        rows = noise.rows(self.spec.envs, samples)
        return np.column_stack([self._frames[rows], self._views[rows].reshape(len(rows), -1)])

    def _observe(self, rows: Array) -> Observation:
        state = np.zeros((len(rows), self.spec.state_dim), dtype=np.float32)
        for i, row in enumerate(rows):
            felt, things = self._tasks[int(self._task[row])].proprioception(self._records[row])
            left = 1 - self._elapsed[row] / self.spec.episode_steps
            state[i, :STATE_DIM] = (*felt, left, self._success[row])
            if self._blind:
                state[i, STATE_DIM:STATE_DIM_BLIND] = things
        if self._dense:
            state[:, -1] = self._best[rows]
        images = None
        if self._gl is not None:
            images = self._gl.submit(self._images, rows).result()
        return Observation(state, images, self._task[rows].astype(np.int64))

    def _images(self, rows: Array) -> Array:
        assert self._painter is not None
        return paint(self._painter, self.spec, rows, self._task[rows], self._frames[rows], self._views[rows])

    def _make_painter(self, image: int, rendering: str, shadows: bool | None) -> None:
        self._painter = Painter(
            {task: env.model for task, env in self._tasks.items()},
            cameras=self.spec.cameras,
            image=image,
            shadows=rendering == EGL if shadows is None else shadows,
            contexts=tuple(int(t) for t in self._task) if rendering == EGL else (),
        )

    # checkpoints, end --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """All that the environments are."""
        return {name.lstrip("_"): getattr(self, name).copy() for name in _STATE}

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Go back to a checkpoint.

        Raises
        ------
        ConfigurationError
            If it is of other sizes.
        """
        for name in _STATE:
            mine, other = getattr(self, name), state.get(name.lstrip("_"))
            if other is None or mine.shape != other.shape:
                sizes = f"{self.spec.envs} environments and chunks of {self.spec.chunk_steps}"
                raise ConfigurationError(
                    f"the checkpoint is not one of {sizes}, or of an older version",
                    hint="use the sizes that it was made with",
                )
            mine[...] = other

    def close(self) -> None:
        """Let go of the GL contexts and of LIBERO's environments."""
        if self._gl is not None:
            if self._painter is not None:
                self._gl.submit(self._painter.close).result()
            self._gl.shutdown()
            self._gl = None
        while self._tasks:
            self._tasks.popitem()[1].close()


def paint(
    painter: Painter, spec: SimulatorSpec, rows: Array, tasks: Array, frames: Array, views: Floats
) -> Array:
    """Draw the last `frames` views of each environment; what the last one looks like stays.

    Parameters
    ----------
    painter : Painter
        What draws.
    spec : SimulatorSpec
        Sizes.
    rows, tasks, frames : ndarray of int64, shape (batch,)
        Environments, their tasks, how many views there are.
    views : ndarray, shape (batch, keep, VIEW)
        What they look like, in order of time.

    Returns
    -------
    ndarray of uint8, shape (batch, cameras, height, width, 3)
        Images.
    """
    out = np.empty((len(rows), spec.cameras, spec.height, spec.width, 3), dtype=np.uint8)
    painter.paint(
        [
            Picture(int(row), int(task), views[i, frame], out[i])
            for i, (row, task) in enumerate(zip(rows, tasks, strict=True))
            for frame in range(frames[i])
        ]
    )
    return out


def check(
    envs: int | None, chunk_steps: int, episode_steps: int, group: int, tasks: int, cameras: int
) -> None:
    """Refuse sizes that do not fit together; `envs` is None for a part of them.

    Raises
    ------
    ConfigurationError
        If they do not.
    """
    if group < 1 or (envs is not None and (envs < 1 or envs % group)):
        raise ConfigurationError(
            f"{envs} environments do not make groups of {group}", hint="use a multiple of the group"
        )
    if chunk_steps < 1 or episode_steps % chunk_steps:
        raise ConfigurationError(
            f"an episode of {episode_steps} steps does not make chunks of {chunk_steps}",
            hint="use a multiple of the chunk",
        )
    if not (0 <= cameras <= len(CAMERAS) and 1 <= tasks <= TASKS):
        raise ConfigurationError(
            f"{cameras} cameras and {tasks} tasks of {SUITE}", hint=f"give 0 to 2 cameras, 1 to {TASKS} tasks"
        )
