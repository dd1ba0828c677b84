"""The pick-and-place task: episodes, rewards and observations. How the arm moves is left to a simulator.

A cube has to be put onto a plate. An action is a step of the tip (x, y, z) and suction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

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
from rlprof.workloads.embodied.simulators import arm_model as arm
from rlprof.workloads.embodied.simulators.moves import checked_moves
from rlprof.workloads.embodied.simulators.rewards import firsts, gains, is_dense

#: Farthest that the tip moves with one action, in metres along each axis.
REACH_M = 0.03
#: The cube is placed if it is this near to where it belongs, in metres.
PLACED_M = 0.035
#: From the middle of the cube to its top.
CUBE_TOP_M = np.array((0.0, 0.0, arm.CUBE_HALF_M))
STATE_DIM = 20
ACTION_DIM = 4
#: Four joint angles and suction.
CONTROLS = 5
CAMERAS = ("front", "hand")
#: What a checkpoint holds.
_STATE = ("_state", "_target", "_elapsed", "_origin", "_episode", "_task", "_success", "_best", "_sensors")


class ArmTask(ABC):
    """What simulators of the arm share; see `rlprof.workloads.embodied.contracts.Simulator`.

    A simulator gives `_state` (of its physics, one row for each environment), `_place`, `_move`, `_images`
    and `close`.

    Parameters
    ----------
    name : str
        Of the simulator.
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
    first, stride : int
        Environment k of this batch is environment ``first + k * stride`` of the whole one.

    Raises
    ------
    ConfigurationError
        If the sizes do not fit together.
    """

    def __init__(
        self,
        name: str,
        envs: int,
        *,
        seed: int,
        chunk_steps: int,
        episode_steps: int,
        group: int,
        tasks: int,
        cameras: int,
        image: int,
        reward: str,
        auto_reset: bool,
        staggered: bool,
        first: int,
        stride: int,
    ) -> None:
        if envs < 1 or group < 1 or (stride == 1 and envs % group):
            raise ConfigurationError(
                f"{envs} environments do not make groups of {group}", hint="use a multiple of the group"
            )
        if chunk_steps < 1 or episode_steps % chunk_steps:
            raise ConfigurationError(
                f"an episode of {episode_steps} steps does not make chunks of {chunk_steps}",
                hint="use a multiple of the chunk",
            )
        if not (0 <= cameras <= len(CAMERAS) and 1 <= tasks <= len(arm.PLATES_M)):
            raise ConfigurationError(
                f"{cameras} cameras and {tasks} tasks", hint="give 0 to 2 cameras, and 1 or 2 tasks"
            )
        if staggered and not auto_reset:
            raise ConfigurationError(
                "staggered resets need environments that reset by themselves", hint="set auto_reset too"
            )
        self.spec = SimulatorSpec(
            name=name,
            envs=envs,
            chunk_steps=chunk_steps,
            episode_steps=episode_steps,
            action_dim=ACTION_DIM,
            state_dim=STATE_DIM,
            cameras=cameras,
            height=image if cameras else 0,
            width=image if cameras else 0,
            group=group,
        )
        self._seed, self._tasks, self._dense = seed, tasks, is_dense(reward)
        self._index = first + stride * np.arange(envs)
        self._auto_reset, self._staggered = auto_reset, staggered
        self._state: Floats = np.zeros((envs, 0))
        self._target = np.zeros((envs, 3))
        self._elapsed = np.full(envs, -1, dtype=np.int64)  # -1: never started
        self._origin = np.zeros((envs, 2), dtype=np.int64)
        self._episode = np.zeros(envs, dtype=np.int64)
        self._task = np.zeros(envs, dtype=np.int64)
        self._success = np.zeros(envs, dtype=bool)
        self._best = np.zeros(envs)
        self._sensors = np.zeros((envs, chunk_steps, arm.SENSORS + 1))
        self._plates = np.array([(x, y, arm.PLATE_HEIGHT_M + arm.CUBE_HALF_M) for x, y in arm.PLATES_M])

    # of a simulator ----------------------------------------------------------------------------------------

    @abstractmethod
    def _place(self, row: int, cube: Floats, key: tuple[int, ...]) -> Floats:
        """Set a row of `_state` to the arm at home and the cube at a pose (x, y, z, quaternion); its sensors.

        `key` tells the episode (seed, step, epoch, episode, group), for further random choices.
        """

    @abstractmethod
    def _move(self, rows: Array, control: Floats) -> Floats:
        """Carry out controls, shape (rows, chunk_steps, 5), on rows of `_state`; sensors after each."""

    @abstractmethod
    def _images(self, rows: Array) -> Array:
        """Camera images of the rows, uint8, shape (rows, cameras, height, width, 3)."""

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
            group = int(self._index[row]) // self.spec.group
            step, epoch = (int(v) for v in self._origin[row])
            key = (self._seed, step, epoch, int(self._episode[row]), group)
            draw = noise.generator(key[0], "cube", *key[1:])
            place = [draw.uniform(*limits) for limits in arm.START_M]
            turn = draw.uniform(0, np.pi / 2) / 2
            cube = np.array([*place, arm.CUBE_HALF_M, np.cos(turn), 0, 0, np.sin(turn)])
            self._sensors[row, :, : arm.SENSORS] = self._place(int(row), cube, key)
            self._task[row] = draw.integers(self._tasks)
        self._sensors[rows, :, arm.SENSORS] = 0
        self._target[rows] = arm.HOME_M
        self._elapsed[rows] = 0
        self._success[rows] = False
        self._best[rows] = 0

    def auto_reset(self, samples: Samples = None) -> None:
        """Begin new episodes where one has ended, if set to."""
        if not self._auto_reset:
            return
        rows = noise.rows(self.spec.envs, samples)
        ended = rows[self._elapsed[rows] >= self.spec.episode_steps]
        self._episode[ended] += 1
        self._begin(ended)

    # a chunk -----------------------------------------------------------------------------------------------

    def step(self, actions: Floats, samples: Samples = None) -> StepResult:
        """Carry out a chunk of actions, shape (batch, chunk_steps, action_dim)."""
        self.physics(actions, samples)
        rewards, dones, success = self.reward(samples)
        self.auto_reset(samples)
        return StepResult(self.render(samples), rewards, dones, success)

    def physics(self, actions: Floats, samples: Samples = None) -> None:
        """Move the arms: an action is a step of the tip (x, y, z) and suction (on above 0).

        Raises
        ------
        SimulatorError
            If actions have another shape or are not finite, or an environment was not reset.
        """
        rows = noise.rows(self.spec.envs, samples)
        moves = checked_moves(actions, self.spec, self._elapsed[rows])
        low, high = np.array(arm.WORKSPACE_M).T
        target = self._target[rows]
        control = np.empty((len(rows), self.spec.chunk_steps, CONTROLS))
        for k in range(self.spec.chunk_steps):
            target = np.clip(target + REACH_M * moves[:, k, :3], low, high)
            control[:, k, :4] = arm.joint_targets(target)
        control[..., 4] = moves[..., 3] > 0
        self._sensors[rows, :, : arm.SENSORS] = self._move(rows, control)
        self._target[rows] = target
        self._sensors[rows, :, arm.SENSORS] = control[..., 4]
        self._elapsed[rows] += self.spec.chunk_steps

    def reward(self, samples: Samples = None) -> tuple[Floats, Array, Array]:
        """Rewards of the last chunk, dones, and success so far.

        A reward is 1 for the first placement and, if dense, the gain in a potential (reach, lift, carry); so
        the sum over an episode says how far it got and not how long it stayed there.
        """
        rows = noise.rows(self.spec.envs, samples)
        potential, placed = self._potential(rows)
        gained, self._best[rows] = gains(self._best[rows], potential)
        rewards, self._success[rows] = firsts(self._success[rows], placed)
        if self._dense:
            rewards += gained
        dones = self._elapsed[rows] >= self.spec.episode_steps
        return rewards.astype(np.float32), dones, self._success[rows].copy()

    def _potential(self, rows: Array) -> tuple[Floats, Array]:
        tip, cube = self._sensors[rows, :, :3], self._sensors[rows, :, 3:6]
        goal = self._plates[self._task[rows]][:, None]
        reach = 1 - np.tanh(10 * np.linalg.norm(cube + CUBE_TOP_M - tip, axis=-1))
        lift = np.clip((cube[..., 2] - arm.CUBE_HALF_M) / 0.05, 0, 1)
        distance = np.linalg.norm(cube - goal, axis=-1)
        carry = 1 - np.tanh(8 * distance)
        placed = distance < PLACED_M
        return 0.3 * reach + 0.5 * lift + carry * (lift > 0.3), placed

    def render(self, samples: Samples = None) -> Observation:
        """State, and images of the cameras."""
        return self._observe(noise.rows(self.spec.envs, samples))

    def _observe(self, rows: Array) -> Observation:
        last = self._sensors[rows, -1]
        tip, cube, velocity = last[:, :3], last[:, 3:6], last[:, 6:9]
        goal = self._plates[self._task[rows]]
        left = 1 - self._elapsed[rows] / self.spec.episode_steps
        state = np.column_stack(
            [
                (tip - arm.HOME_M) / 0.1,
                (self._target[rows] - tip) / 0.03,
                (cube + CUBE_TOP_M - tip) / 0.1,
                (goal - cube) / 0.1,
                velocity / 0.5,
                last[:, arm.SENSORS],
                last[:, 9] > 0,
                2 * left - 1,
                self._best[rows],
                self._success[rows],
            ]
        )
        images = self._images(rows) if self.spec.cameras else None
        return Observation(np.clip(state, -5, 5).astype(np.float32), images, self._task[rows].copy())

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
            mine, other = getattr(self, name), state[name.lstrip("_")]
            if mine.shape != other.shape:
                raise ConfigurationError(
                    f"a checkpoint of {len(other)} environments, and there are {self.spec.envs}",
                    hint="use the sizes that it was made with",
                )
            mine[...] = other
