"""Pick and place with physics and camera images on a GPU (mujoco-warp), as heavy as wanted.

Task and robot are those of `mujoco_arm`; `substeps` and `objects` make a chunk cost more and leave the task
as it is. It is meant to run in a process of its own (`SimulatorProcesses`): its CUDA context is its own then,
and an MPS quota can be given to it. A call returns when its results are on the host.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlprof.workloads.embodied.contracts import Array, Floats
from rlprof.workloads.embodied.errors import ConfigurationError, need
from rlprof.workloads.embodied.simulators import arm_model as arm
from rlprof.workloads.embodied.simulators.arm_task import ArmTask
from rlprof.workloads.embodied.simulators.mujoco_warp_engine import Engine, load
from rlprof.workloads.embodied.simulators.mujoco_warp_model import make_model, object_poses
from rlprof.workloads.embodied.simulators.rewards import DENSE

SUBSTEPS = 20
OBJECTS = 4
_MOST_OBJECTS = 42


class MujocoWarp(ArmTask):
    """The simulator `mujoco_warp`; see `rlprof.workloads.embodied.contracts.Simulator`.

    Parameters
    ----------
    envs : int
        Environments (worlds).
    seed, chunk_steps, episode_steps, group, tasks, cameras, image, reward
        As of `rlprof.workloads.embodied.simulators.mujoco_arm.MujocoArm`.
    auto_reset, staggered, first, stride
        The same.
    substeps : int
        Physics steps of an action; an action always takes 0.04 s.
    objects : int
        Loose objects in a tray, 0 to 42. They touch each other and the tray, and mean nothing to the task.
    device : str
        ``auto`` (a GPU if there is one), ``cpu`` or ``cuda:0``.
    deterministic : bool
        The bits of an environment do not depend on the order in which the GPU works; slower.

    Raises
    ------
    ConfigurationError
        If the sizes do not fit together.
    MissingPackageError
        If packages are missing.
    SimulatorDeviceError
        If the device is not there, or has too little memory.
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
        substeps: int = SUBSTEPS,
        objects: int = OBJECTS,
        device: str = "auto",
        deterministic: bool = False,
        first: int = 0,
        stride: int = 1,
    ) -> None:
        if substeps < arm.SUBSTEPS or not 0 <= objects <= _MOST_OBJECTS:
            raise ConfigurationError(
                f"{substeps} substeps and {objects} objects",
                hint=f"give at least {arm.SUBSTEPS} substeps, and 0 to {_MOST_OBJECTS} objects",
            )
        super().__init__(
            "mujoco_warp",
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
        warp, _ = load()
        mujoco = need("mujoco", why="the simulator mujoco_warp")
        model = make_model(mujoco, substeps=substeps, objects=objects)
        self._objects = objects
        self._engine = Engine(
            model,
            objects,
            substeps=substeps,
            chunk_steps=chunk_steps,
            cameras=cameras,
            image=image,
            device=("cuda" if warp.is_cuda_available() else "cpu") if device == "auto" else device,
            deterministic=deterministic,
        )
        # a CPU works on one world after the other, always in the same order
        self.spec = replace(self.spec, invariant=deterministic or self._engine.device == "cpu")
        self._state = np.zeros((envs, self._engine.state_size), dtype=np.float32)
        data = mujoco.MjData(model)
        data.qpos[:4] = arm.joint_targets(np.array(arm.HOME_M))
        mujoco.mj_forward(model, data)
        self._home, self._home_sensors = np.array(data.qpos[:4]), np.array(data.sensordata)
        self._engine.prepare(envs)

    def _place(self, row: int, cube: Floats, key: tuple[int, ...]) -> Floats:
        poses = object_poses(self._objects, key)
        start = np.concatenate([self._home, cube, poses.ravel()])
        self._state[row] = 0
        self._state[row, : len(start)] = start
        sensors = self._home_sensors.copy()
        sensors[3:6], sensors[6:] = cube[:3], 0  # where the cube is; nothing moves, nothing is touched
        return sensors

    def _move(self, rows: Array, control: Floats) -> Floats:
        self._state[rows], sensors = self._engine.move(self._state[rows], control)
        return sensors

    def _images(self, rows: Array) -> Array:
        return self._engine.images(self._state[rows])

    def close(self) -> None:
        """Nothing to do: memory of the device goes back with the process."""
