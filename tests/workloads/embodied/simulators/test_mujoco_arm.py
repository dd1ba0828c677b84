"""The simulator mujoco_arm, in one process."""

from __future__ import annotations

import sys
from ctypes.util import find_library
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied.contracts import GlobalStep, StepResult
from rlprof.workloads.embodied.errors import ConfigurationError, RenderError, SimulatorError
from rlprof.workloads.embodied.simulators import arm_model
from rlprof.workloads.embodied.simulators.arm_task import REACH_M
from rlprof.workloads.embodied.simulators.mujoco_arm import MujocoArm
from rlprof.workloads.embodied.simulators.processes import SimulatorProcesses

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

ENVS = 6


def actions(envs: int, chunk: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (envs, chunk, 4)).astype(np.float32)


def scripted(state: np.ndarray) -> np.ndarray:
    """One chunk of somebody who knows how: to the cube, with suction to above its plate, down."""
    lag, to_cube, to_goal = state[:, 3:6] * 0.03, state[:, 6:9] * 0.1, state[:, 9:12] * 0.1
    near = np.abs(to_goal[:, :2]).max(axis=1) < 0.02
    carry = np.where(near[:, None], to_goal, to_goal + np.array((0, 0, 0.06)))
    move = np.where(state[:, 16:17] > 0, carry, to_cube) - lag
    chunk = np.ones((len(state), 5, 4), dtype=np.float32)
    chunk[:, :, :3] = np.clip(move[:, None] / REACH_M / 5, -1, 1)
    return chunk


def test_the_task_can_be_done_and_is_not_done_by_chance() -> None:
    simulator = MujocoArm(32)
    for act, least, most in ((scripted, 0.5, 1.0), (lambda s: actions(len(s), 5), 0.0, 0.1)):
        seen, rewards = simulator.reset(GlobalStep(0), 0), np.zeros(32)
        for _ in range(8):
            result = simulator.step(act(seen.state))
            seen, rewards = result.observation, rewards + result.rewards.sum(axis=1)
        assert least <= result.success.mean() <= most
        assert result.dones.all()
        assert (rewards[result.success] > 1.5).all()
        assert (rewards[~result.success] < 1.9).all()


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(ENVS)), st.integers(1, ENVS - 1), st.integers(0, 1000))
def test_bits_do_not_depend_on_grouping_or_order(order: list[int], cut: int, seed: int) -> None:
    whole, parts = MujocoArm(ENVS, seed=seed), MujocoArm(ENVS, seed=seed)
    groups = [np.array(order[:cut]), np.array(order[cut:])]
    results = [whole.reset(GlobalStep(seed), 1)]
    pieces = [[parts.reset(GlobalStep(seed), 1, g) for g in groups]]
    for k in range(2):
        chosen = actions(ENVS, 5, k)
        results.append(whole.step(chosen))
        pieces.append([parts.step(chosen[g], samples=g) for g in groups])
    for native, cuts in zip(results, pieces, strict=True):
        for group, piece in zip(groups, cuts, strict=True):
            assert equal_bits(taken(native, group), piece)
    assert equal_bits(whole.state_dict(), parts.state_dict())


def taken(value, rows):
    if isinstance(value, tuple):
        return type(value)(*(taken(item, rows) for item in value))
    return None if value is None else value[rows]


def test_the_phases_of_a_chunk_are_the_chunk() -> None:
    one, other = MujocoArm(ENVS), MujocoArm(ENVS)
    for simulator in (one, other):
        simulator.reset(GlobalStep(0), 0)
    other.physics(actions(ENVS, 5))
    found = other.reward()
    other.auto_reset()
    assert equal_bits(StepResult(other.render(), *found), one.step(actions(ENVS, 5)))


def test_threads_change_no_bits() -> None:
    results = []
    for threads in (1, 3):
        simulator = MujocoArm(ENVS, threads=threads)
        simulator.reset(GlobalStep(0), 0)
        results.append(simulator.step(actions(ENVS, 5)))
        simulator.close()
    assert equal_bits(*results)


def test_resets_are_keyed_by_step_epoch_and_group() -> None:
    simulator = MujocoArm(8, group=4, tasks=2)
    first = simulator.reset(GlobalStep(0), 0)
    for k in (1, 2, 3, 5, 6, 7):
        assert np.array_equal(first.state[k], first.state[k // 4 * 4])
    assert not np.array_equal(first.state[0], first.state[4])
    later = [simulator.reset(GlobalStep(s), e).state for s, e in ((0, 1), (1, 0))]
    assert not np.array_equal(later[0], later[1])
    assert np.array_equal(simulator.reset(GlobalStep(0), 0).state, first.state)


def test_a_reset_inherits_nothing() -> None:
    used, fresh = MujocoArm(ENVS), MujocoArm(ENVS)
    used.reset(GlobalStep(5), 0)
    used.step(actions(ENVS, 5))
    for simulator in (used, fresh):
        simulator.reset(GlobalStep(1), 0)
    assert equal_bits(used.state_dict(), fresh.state_dict())


def test_environments_that_reset_by_themselves_go_on_where_others_end() -> None:
    simulator = MujocoArm(ENVS, episode_steps=10, auto_reset=True)
    simulator.reset(GlobalStep(0), 0)
    simulator.step(actions(ENVS, 5))
    ended = simulator.step(actions(ENVS, 5))
    assert ended.dones.all()
    assert np.allclose(ended.observation.state[:, 17], 1.0)  # all time left
    again = simulator.reset(GlobalStep(1), 1)  # only begins what never began
    assert equal_bits(again, ended.observation)


def test_staggered_episodes_end_at_different_times() -> None:
    simulator = MujocoArm(16, episode_steps=40, auto_reset=True, staggered=True)
    simulator.reset(GlobalStep(0), 0)
    dones = np.array([simulator.step(actions(16, 5, k)).dones for k in range(8)])
    assert (dones.sum(axis=0) == 1).all()  # each once in an episode's length
    assert (dones.any(axis=1)).sum() > 3


def test_a_part_of_a_larger_batch_is_that_part() -> None:
    whole = MujocoArm(6, group=2).reset(GlobalStep(0), 0)
    part = MujocoArm(3, group=2, first=1, stride=2).reset(GlobalStep(0), 0)
    assert equal_bits(taken(whole, np.array([1, 3, 5])), part)


def test_a_checkpoint_brings_everything_back() -> None:
    simulator, other = (MujocoArm(ENVS, auto_reset=True, episode_steps=10) for _ in range(2))
    simulator.reset(GlobalStep(0), 0)
    simulator.step(actions(ENVS, 5))
    other.load_state_dict(simulator.state_dict())
    for k in range(3):
        assert equal_bits(simulator.step(actions(ENVS, 5, k)), other.step(actions(ENVS, 5, k)))
    with pytest.raises(ConfigurationError, match="6 environments, and there are 2"):
        MujocoArm(2).load_state_dict(simulator.state_dict())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"envs": 0}, "0 environments"),
        ({"envs": 6, "group": 4}, "groups of 4"),
        ({"envs": 2, "chunk_steps": 7}, "chunks of 7"),
        ({"envs": 2, "cameras": 3}, "3 cameras"),
        ({"envs": 2, "staggered": True}, "auto_reset"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        MujocoArm(**options)


def test_actions_that_cannot_be_carried_out_are_refused() -> None:
    simulator = MujocoArm(2)
    with pytest.raises(SimulatorError, match="before they were reset"):
        simulator.step(actions(2, 5))
    simulator.reset(GlobalStep(0), 0)
    with pytest.raises(SimulatorError, match=r"shape \(2, 4, 4\)"):
        simulator.step(actions(2, 4))
    with pytest.raises(SimulatorError, match="not finite"):
        simulator.step(np.full((2, 5, 4), np.nan, dtype=np.float32))


def test_the_tip_goes_where_it_is_sent() -> None:
    import mujoco

    model = mujoco.MjModel.from_xml_string(arm_model.mjcf())
    data = mujoco.MjData(model)
    corners = np.stack(np.meshgrid(*arm_model.WORKSPACE_M), axis=-1).reshape(-1, 3)
    for place in (*corners, arm_model.HOME_M):
        data.qpos[:4] = arm_model.joint_targets(np.array(place))
        mujoco.mj_kinematics(model, data)
        assert np.allclose(data.site("tip").xpos, place, atol=1e-9)
        assert np.allclose(data.site("tip").xmat.reshape(3, 3)[:, 2], (0, 0, 1), atol=1e-9)


def test_without_gl_the_error_says_what_to_install(monkeypatch) -> None:
    import mujoco

    def broken(*_args: object) -> None:
        raise ImportError("libEGL.so.1: cannot open shared object file")

    monkeypatch.setattr(mujoco, "Renderer", broken)
    with pytest.raises(RenderError, match=r"libEGL.so.1.*Next: install pyopengl and a GL library"):
        MujocoArm(2, cameras=1)


def test_triton_is_imported_before_gl_in_a_process_with_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mesa's drivers and Triton have an LLVM each: in the other order the process ends with a signal."""
    import mujoco

    (tmp_path / "triton.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.delitem(sys.modules, "triton")
    loaded = []

    def broken(*_args: object) -> None:
        loaded.append("triton" in sys.modules)
        raise ImportError("libEGL.so.1: cannot open shared object file")

    monkeypatch.setattr(mujoco, "Renderer", broken)
    with pytest.raises(RenderError):
        MujocoArm(2, cameras=1)
    assert loaded == [True]


@pytest.mark.parametrize(
    ("gl", "environment"),
    [
        ("egl", {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nowhere/vendor.json"}),
        ("osmesa", {"PYOPENGL_PLATFORM": "osmesa"}),
        ("nonsense", {}),
    ],
)
def test_a_gl_that_really_is_missing_is_named_with_what_to_install(gl: str, environment: dict) -> None:
    """In a fresh process: MuJoCo loads its GL when it is first imported."""
    if gl == "osmesa" and find_library("OSMesa"):
        pytest.skip("this machine has libOSMesa")
    with pytest.raises(
        RenderError, match=rf"makes no images here with MUJOCO_GL={gl} .*Next: install pyopengl"
    ):
        SimulatorProcesses(
            "rlprof.workloads.embodied.simulators.mujoco_arm:MujocoArm",
            1,
            workers=1,
            cameras=1,
            environment={"MUJOCO_GL": gl, **environment},
        )
