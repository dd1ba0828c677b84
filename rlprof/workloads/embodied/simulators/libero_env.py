"""One task of LIBERO: LIBERO's own environment, which the states of many environments take turns in.

An environment's state is a record: all that MuJoCo steps from (time, positions, velocities, warm start of
the solver, controls), the goal of the arm's controller, the gripper's command and which sites are shown. What
a chunk of actions does depends on the record alone, so neither the process nor the company that an
environment is in changes its bits.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from rlprof.workloads.embodied.contracts import Array, Floats
from rlprof.workloads.embodied.errors import ConfigurationError, MissingPackageError
from rlprof.workloads.embodied.simulators.libero_passes import one_pass
from rlprof.workloads.embodied.simulators.libero_render import gl_error

SUITE = "libero_spatial"
#: Tasks of the suite.
TASKS = 10
ACTION_DIM = 7
#: Numbers of a record and of a view; what a task does not need is 0.
RECORD, VIEW = 256, 128
#: Actions of doing nothing at the start of an episode, gripper open: objects come to rest.
SETTLE_STEPS = 10
IDLE = np.array((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0))
_HINT = (
    "make an environment with tools/setup_libero.sh (or unpack a bundle with tools/unpack_libero.sh) and name"
    " its Python: RLPROF_LIBERO_PYTHON=VENV/bin/python"
)


def load() -> Any:
    """Import LIBERO and what it stands on; the module mujoco.

    MuJoCo takes the GL of ``MUJOCO_GL``, which it reads when it is first imported. robosuite gets none: it
    would insist on EGL, and draws nothing here.

    Raises
    ------
    MissingPackageError
        If one is missing, or MuJoCo is too new for LIBERO.
    RenderError
        If MuJoCo finds no GL.
    """
    try:
        mujoco = _mujoco()
        if tuple(map(int, mujoco.__version__.split(".")[:2])) > (3, 3):
            raise MissingPackageError(
                f"LIBERO does not work with MuJoCo {mujoco.__version__} of {sys.executable}", hint=_HINT
            )
        _robosuite_without_gl()
        for name in ("libero.libero.envs.env_wrapper", "robosuite.utils.transform_utils"):
            importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"LIBERO does not load in {sys.executable} ({type(error).__name__}: {error})", hint=_HINT
        ) from error
    return mujoco


def _mujoco() -> Any:
    try:
        return importlib.import_module("mujoco")
    except ModuleNotFoundError:
        raise
    except Exception as error:  # PyOpenGL: ImportError, AttributeError
        if os.environ.get("MUJOCO_GL") in ("egl", "osmesa"):
            raise gl_error(error) from error
        raise


def _robosuite_without_gl() -> None:
    if "robosuite" in sys.modules:
        return
    found = importlib.util.find_spec("robosuite")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'robosuite'")
    place = Path(next(iter(found.submodule_search_locations))) / "macros.py"
    spec = importlib.util.spec_from_file_location("robosuite.macros", place)
    assert spec is not None
    assert spec.loader is not None
    macros = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    macros.MUJOCO_GPU_RENDERING = False  # type: ignore[attr-defined]
    sys.modules["robosuite.macros"] = macros
    chosen = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "disabled"
    try:
        importlib.import_module("robosuite")
    finally:
        if chosen is None:
            del os.environ["MUJOCO_GL"]
        else:
            os.environ["MUJOCO_GL"] = chosen


def make_env(task: int) -> Any:
    """Make LIBERO's environment (``ControlEnv``) of a task of the suite, without cameras.

    Where its fixtures stand is drawn by LIBERO from numpy's global generator; it is seeded by the task here,
    so that all copies of a task are alike, and put back.

    Raises
    ------
    ConfigurationError
        If there is no such task, or its files are not there.
    MissingPackageError
        As `load`.
    """
    load()
    root = Path(importlib.import_module("libero.libero").get_libero_path("bddl_files"))
    make = importlib.import_module("libero.libero.envs.env_wrapper").ControlEnv
    this = _suite().get_task(task)
    before = np.random.get_state()
    np.random.seed(task)
    try:
        env = make(
            bddl_file_name=str(root / this.problem_folder / this.bddl_file),
            has_offscreen_renderer=False,
            use_camera_obs=False,
            hard_reset=False,
            ignore_done=True,
            horizon=10**9,
        )
        env.reset()
    except (OSError, ValueError, AssertionError) as error:  # MuJoCo: ValueError
        raise ConfigurationError(
            f"task {task} of {SUITE} cannot be made ({type(error).__name__}: {error})",
            hint="its files are not there, perhaps: use fewer tasks, or pack a bundle with more",
        ) from error
    finally:
        np.random.set_state(before)
    return env


def _suite() -> Any:
    with redirect_stdout(io.StringIO()):  # it tells of its order of tasks
        return importlib.import_module("libero.libero.benchmark").get_benchmark_dict()[SUITE]()


class TaskEnv:
    """A task; see the module.

    Parameters
    ----------
    task : int
        Of `SUITE`, from 0.

    Raises
    ------
    ConfigurationError
        If its files are not there.
    MissingPackageError
        If LIBERO is not installed, or does not load.
    """

    def __init__(self, task: int) -> None:
        self.task = task
        self._mujoco = load()
        self._control = make_env(task)
        self._env = env = self._control.env
        env._observables.clear()  # what they would compute is read from the state instead
        self.model: Any = env.sim.model._model
        self._data = env.sim.data._data
        self._seen = self._mujoco.MjData(self.model)
        states = self._mujoco.mjtState
        parts = ("TIME", "QPOS", "QVEL", "ACT", "WARMSTART", "CTRL")
        self._parts = int(sum(getattr(states, f"mjSTATE_{p}").value for p in parts))
        self._size = self._mujoco.mj_stateSize(self.model, self._parts)
        self._robot = env.robots[0]
        self._grip = len(self._robot._ref_joint_gripper_actuator_indexes)
        for part, name in (
            (self._robot.controller, "qpos_index"),
            (self._robot.controller, "qvel_index"),
            (self._robot, "_ref_joint_actuator_indexes"),
        ):  # lists, of which numpy would make arrays in every physics step
            setattr(part, name, np.array(getattr(part, name), dtype=np.intp))
        self._shown = self.model.site_rgba[:, 3].copy()
        #: The bowl and the plate: what each task of the suite is about.
        self._bodies = [env.obj_body_id[name] for name in env.obj_of_interest[:2]]
        self._initial = _suite().get_task_init_states(task)
        self._settled: dict[int, Floats] = {}
        nq, shown = self.model.nq, self.model.nsite
        if self._size + 12 + self._grip + shown > RECORD or nq + shown > VIEW:
            raise ConfigurationError(f"task {task} of {SUITE} is larger than a record of {RECORD} numbers")

    @property
    def starts(self) -> int:
        """Initial states that LIBERO has of the task."""
        return len(self._initial)

    @property
    def instruction(self) -> str:
        """What is to be done, in words."""
        return str(self._control.language_instruction)

    def start(self, index: int) -> Floats:
        """Record of an initial state after objects came to rest, shape (RECORD,).

        The first call for a state simulates, later ones remember.
        """
        if index not in self._settled:
            self._control.set_state(self._initial[index])
            data = self._data
            self.model.site_rgba[:, 3] = self._shown
            data.ctrl[:] = 0
            data.qacc_warmstart[:] = 0
            self._robot.gripper.current_action = np.zeros(self._grip)
            self._mujoco.mj_forward(self.model, data)
            controller = self._robot.controller
            controller.update(force=True)
            controller.reset_goal()
            self._env._post_process()
            with one_pass(self._mujoco, self._env.sim):
                for _ in range(SETTLE_STEPS):
                    self._env.step(IDLE)
            self._settled[index] = self._record()
        return self._settled[index].copy()

    def advance(self, record: Floats, actions: Floats) -> tuple[Floats, Array, Floats, Floats]:
        """Carry out actions.

        Parameters
        ----------
        record : ndarray, shape (RECORD,)
            Where to begin.
        actions : ndarray, shape (steps, ACTION_DIM)
            Each component in -1 .. 1.

        Returns
        -------
        tuple of ndarray
            Record afterwards; after each action: whether the task was done, bool, shape (steps,); view, shape
            (steps, VIEW); distances as `distances` has them, shape (steps, 2). These are of the moment before
            the last physics step of the action, as LIBERO's observations.
        """
        self._restore(record)
        done = np.zeros(len(actions), dtype=bool)
        views, away = np.zeros((len(actions), VIEW)), np.zeros((len(actions), 2))
        with one_pass(self._mujoco, self._env.sim):
            for k, action in enumerate(actions):
                _, reward, _, _ = self._env.step(action)
                done[k] = reward > 0
                views[k] = self._view(self._data.qpos)
                away[k] = self._distances(self._data)
        return self._record(), done, views, away

    def distances(self, record: Floats) -> Floats:
        """How far it is from the gripper to the bowl, and from the bowl to the plate: metres, shape (2,)."""
        self._place(record)
        return self._distances(self._seen)

    def view(self, record: Floats) -> Floats:
        """What the environment looks like, for a renderer: positions and which sites are shown."""
        out = np.zeros(VIEW)
        nq, at = self.model.nq, self._size + 12 + self._grip
        out[:nq] = record[1 : 1 + nq]
        out[nq : nq + self.model.nsite] = record[at : at + self.model.nsite]
        return out

    def proprioception(self, record: Floats) -> tuple[Floats, Floats]:
        """What the robot feels, and where things are.

        Returns
        -------
        tuple of ndarray
            Position of the gripper (3, metres), its orientation as an axis times an angle (3, radians) and
            positions of the fingers (2, metres); positions of the objects that the task is about (6, metres).
        """
        transform_utils = importlib.import_module("robosuite.utils.transform_utils")
        seen = self._place(record)
        hand = self._env.sim.model.body_name2id(self._robot.robot_model.eef_name)
        turn = transform_utils.quat2axisangle(
            np.array(transform_utils.convert_quat(np.array(seen.xquat[hand]), to="xyzw"))
        )
        fingers = seen.qpos[list(self._robot._ref_gripper_joint_pos_indexes)]
        things = [seen.xpos[body] for body in self._bodies]
        hand_m = seen.site_xpos[self._robot.eef_site_id]
        return np.concatenate([hand_m, turn, fingers]), np.concatenate(things)

    def close(self) -> None:
        """Let go of it."""
        self._control.close()

    def _place(self, record: Floats) -> Any:
        """Where everything is in a record."""
        self._seen.qpos[:] = record[1 : 1 + self.model.nq]
        self._mujoco.mj_kinematics(self.model, self._seen)
        return self._seen

    def _distances(self, data: Any) -> Floats:
        hand, (bowl, plate) = data.site_xpos[self._robot.eef_site_id], (data.xpos[b] for b in self._bodies)
        return np.array((np.linalg.norm(hand - bowl), np.linalg.norm(bowl - plate)))

    def _view(self, positions: Floats) -> Floats:
        out = np.zeros(VIEW)
        nq = self.model.nq
        out[:nq] = positions
        out[nq : nq + self.model.nsite] = self.model.site_rgba[:, 3]
        return out

    def _record(self) -> Floats:
        out = np.zeros(RECORD)
        controller, at = self._robot.controller, self._size
        self._mujoco.mj_getState(self.model, self._data, out[:at], self._parts)
        out[at : at + 3] = controller.goal_pos
        out[at + 3 : at + 12] = np.asarray(controller.goal_ori).ravel()
        out[at + 12 : at + 12 + self._grip] = self._robot.gripper.current_action
        at += 12 + self._grip
        out[at : at + self.model.nsite] = self.model.site_rgba[:, 3]
        return out

    def _restore(self, record: Floats) -> None:
        controller, at = self._robot.controller, self._size
        self._mujoco.mj_setState(self.model, self._data, np.ascontiguousarray(record[:at]), self._parts)
        controller.goal_pos = record[at : at + 3].copy()
        controller.goal_ori = record[at + 3 : at + 12].reshape(3, 3).copy()
        controller.new_update = True
        self._robot.gripper.current_action = record[at + 12 : at + 12 + self._grip].copy()
        at += 12 + self._grip
        self.model.site_rgba[:, 3] = record[at : at + self.model.nsite]
