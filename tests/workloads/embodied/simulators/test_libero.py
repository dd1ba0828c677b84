"""Real LIBERO, in processes of the Python that RLPROF_LIBERO_PYTHON names; skipped where it names none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied.build import make_trainer
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.errors import RenderError, SimulatorDiedError, SimulatorError
from rlprof.workloads.embodied.simulators.libero_start import PYTHON_VARIABLE, start
from tests.conftest import ROOT
from tests.workloads.embodied.made import small

#: Rows of `state` without cameras.
DONE, BOWL, PLATE = 9, slice(10, 13), slice(13, 16)


@pytest.fixture(scope="module")
def python() -> str:
    named = os.environ.get(PYTHON_VARIABLE)
    if not named:
        pytest.skip(f"{PYTHON_VARIABLE} names no Python with LIBERO: tools/setup_libero.sh makes one")
    return named


@pytest.fixture(scope="module")
def blind(python: str) -> Iterator[Any]:
    """Four environments in two processes, two groups, no cameras."""
    with start(4, workers=2, group=2, cameras=0, episode_steps=20, seed=1) as simulator:
        yield simulator


def actions(seed: int, batch: int, chunk: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (batch, chunk, 7)).astype(np.float32)


def with_bowl_on_plate(state: dict[str, np.ndarray], seen: np.ndarray, rows: list[int]) -> dict[str, Any]:
    """The same environments, but in some the bowl stands on the plate and nothing holds it."""
    records = state["records"].copy()
    for row in rows:
        bowl = [k for k in range(200) if np.allclose(records[row, k : k + 3], seen[row, BOWL], atol=1e-6)]
        assert len(bowl) == 1
        records[row, bowl[0] : bowl[0] + 3] = seen[row, PLATE] + np.array((0.0, 0.0, 0.02))
    return {**state, "records": records}


def told(python: str, code: str) -> Any:
    """What code says in its last line, in LIBERO's Python."""
    done = subprocess.run(
        [python, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MUJOCO_GL": "disabled", "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_what_it_says(blind) -> None:
    spec = blind.spec
    assert (spec.envs, spec.action_dim, spec.state_dim, spec.cameras, spec.view_dim) == (4, 7, 16, 0, 0)
    seen = blind.reset(GlobalStep(0), 0)
    assert seen.images is None
    assert seen.task.tolist() == [0, 0, 1, 1]
    assert equal_bits(seen.state[0], seen.state[1])
    assert not np.array_equal(seen.state[0], seen.state[2])
    # the gripper is above the table (0.9 m), open, and all the time is left
    assert np.all(seen.state[:, 2] > 1.0)
    assert np.all(seen.state[:, 6] > 0.03)
    assert seen.state[:, 8].tolist() == [1, 1, 1, 1]
    # other starts in another step, the same ones again in the same
    assert not np.array_equal(blind.reset(GlobalStep(1), 0).state, seen.state)
    assert equal_bits(blind.reset(GlobalStep(0), 0), seen)


def test_actions_move_the_gripper_as_they_say(blind) -> None:
    before = blind.reset(GlobalStep(0), 0).state
    move = np.zeros((4, 5, 7), np.float32)
    move[:2, :, 1], move[2:, :, 2] = 1, 1  # two to the side, two up
    move[:, :, 6] = 1  # close
    after = blind.step(move).observation.state
    moved = after[:, :3] - before[:, :3]
    assert np.all(moved[:2, 1] > 0.03)
    assert np.all(moved[2:, 2] > 0.03)
    assert np.all(after[:, 6] < before[:, 6])


def test_a_chunk_is_the_one_that_libero_computes(python: str) -> None:
    """LIBERO's own environment, stepped by itself, gets the same bits; other states take turns in ours."""
    code = """
import json, numpy as np
from rlprof.workloads.embodied.simulators.libero_env import IDLE, SETTLE_STEPS, TaskEnv, make_env
ours, native = TaskEnv(0), make_env(0)
native.set_init_state(ours._initial[3])
robot = native.env.robots[0]
robot.controller.update(force=True)
robot.controller.reset_goal()
for _ in range(SETTLE_STEPS):
    native.step(IDLE)
draw = np.random.default_rng(0)
mine, other = ours.start(3), ours.start(7)
for _ in range(3):
    actions = draw.uniform(-1, 1, (5, 7))
    mine, *_ = ours.advance(mine, actions)
    other, *_ = ours.advance(other, -actions)
    for action in actions:
        native.step(action)
positions = np.array(native.env.sim.data.qpos)
same = np.array_equal(mine[1 : 1 + len(positions)], positions)
print(json.dumps([same, float(np.abs(mine - other).max())]))
"""
    same, apart = told(python, code)
    assert same
    assert apart > 0.01


@pytest.mark.parametrize("task", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_one_pass_for_each_physics_step_changes_no_bit(python: str, task: int) -> None:
    """The same chunks with robosuite's three passes: the bowl is lifted, put onto the plate, let go."""
    code = """
import contextlib, json, sys
import numpy as np
from rlprof.workloads.embodied.simulators import libero_env
one_pass, task = libero_env.one_pass, TASK
env, draw = libero_env.TaskEnv(task), np.random.default_rng(task)
methods = {"forward", "step"} & vars(env._env.sim).keys()

def both(do):
    libero_env.one_pass = one_pass
    lean = do()
    methods.update({"forward", "step"} & vars(env._env.sim).keys())
    libero_env.one_pass = lambda *_: contextlib.nullcontext()
    env._settled.clear()
    return lean, do()

def same(lean, three):
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(lean, three, strict=True))

starts = both(lambda: env.start(7 * task))
equal, done, first, highest = [same(starts[:1], starts[1:])], False, None, 0.0
record = starts[0]
for k in range(46):
    felt, things = env.proprioception(record)
    hand, bowl, plate = felt[:3], things[:3], things[3:]
    first = bowl if first is None else first
    rim, shut = np.array((0, 0.045, 0)), 1 if 13 <= k < 38 else -1
    to = (
        bowl + rim + (0, 0, 0.1) if k < 5 else bowl + rim if k < 13 else hand if k < 17
        else hand + (0, 0, 0.04) if k < 23 else plate + rim + (0, 0, 0.12) if k < 33
        else plate + rim + (0, 0, 0.06) if k < 38 else hand + (0, 0, 0.03)
    )
    actions = draw.normal(0, 0.02, (5, 7))
    actions[:, :3] += 8 * (to - hand)
    actions[:, 6] = shut
    lean, three = both(lambda: env.advance(record, np.clip(actions, -1, 1)))
    equal.append(same(lean, three))
    record, done, highest = lean[0], done or bool(lean[1].any()), max(highest, float((bowl - first)[2]))
libero_env.one_pass = one_pass
try:
    env.advance(record, np.zeros((1, 3)))
except AssertionError as error:
    said = str(error)
methods |= {"forward", "step"} & vars(env._env.sim).keys()
equal.append(same(*both(lambda: env.advance(record, actions))))
print(json.dumps([equal, done, highest, sorted(methods), said]))
"""
    equal, done, highest, methods, said = told(python, code.replace("TASK", str(task)))
    assert all(equal)
    assert len(equal) == 48
    assert done
    assert highest > 0.05
    assert methods == []
    assert "invalid action dimension" in said


def test_neither_processes_nor_order_change_bits(blind) -> None:
    with start(4, workers=1, group=2, cameras=0, episode_steps=20, seed=1) as alone:
        assert equal_bits(alone.reset(GlobalStep(2), 1), blind.reset(GlobalStep(2), 1))
        chunk = actions(0, 4)
        whole = alone.step(chunk)
        back, front = np.array([3, 1]), np.array([0, 2])
        halves = {s.tobytes(): blind.step(chunk[s], s) for s in (back, front)}
        for samples in (back, front):
            part = halves[samples.tobytes()]
            assert equal_bits(part.observation.state, whole.observation.state[samples])
            assert equal_bits(part.rewards, whole.rewards[samples])
        assert equal_bits(alone.state_dict(), blind.state_dict())
        alone.physics(chunk)
        assert equal_bits(alone.reward(), tuple(blind.step(chunk))[1:])
        assert equal_bits(alone.render(), blind.render())


def test_a_checkpoint_goes_on_bit_for_bit(blind) -> None:
    blind.reset(GlobalStep(3), 0)
    blind.step(actions(1, 4))
    state = blind.state_dict()
    first = [blind.step(actions(k, 4)) for k in (2, 3)]
    ended = blind.state_dict()
    blind.reset(GlobalStep(4), 0)
    blind.load_state_dict(state)
    assert equal_bits([blind.step(actions(k, 4)) for k in (2, 3)], first)
    assert equal_bits(blind.state_dict(), ended)
    assert first[1].dones.tolist() == [False] * 4
    assert blind.step(actions(4, 4)).dones.tolist() == [True] * 4


def test_success_is_told_once_and_stays(blind) -> None:
    seen = blind.reset(GlobalStep(0), 0).state
    blind.load_state_dict(with_bowl_on_plate(blind.state_dict(), seen, [1, 2]))
    idle = np.zeros((4, 5, 7), np.float32)
    idle[..., 6] = -1
    first, second = blind.step(idle), blind.step(idle)
    assert first.rewards.sum(axis=1).tolist() == [0, 1, 1, 0]
    assert first.success.tolist() == [False, True, True, False]
    assert first.observation.state[:, DONE].tolist() == [0, 1, 1, 0]
    assert not first.dones.any()
    assert not second.rewards.any()
    assert second.success.tolist() == [False, True, True, False]


def test_dense_rewards_say_how_far_the_bowl_got(python: str, blind) -> None:
    """Gains of the way from gripper to bowl and from bowl to plate; nothing is gained twice."""
    options: dict[str, Any] = {"group": 2, "cameras": 0, "episode_steps": 40, "seed": 1}
    with start(4, workers=2, reward="dense", **options) as dense:
        seen = dense.reset(GlobalStep(0), 0).state
        sparse = blind.reset(GlobalStep(0), 0).state
        assert dense.spec.state_dim == 17
        assert equal_bits(seen[:, :16], sparse)
        assert not seen[:, 16].any()
        # two go to the bowl, one away from it, one stays
        move = np.zeros((4, 5, 7), np.float32)
        away = seen[:, BOWL] - seen[:, :3]
        move[:2, :, :3] = (away / np.abs(away).max(axis=1, keepdims=True))[:2, None]
        move[2, :, 2] = 1
        move[..., 6] = -1
        first = dense.step(move)
        assert np.all(first.rewards >= 0)
        assert np.all(first.rewards[:2].sum(axis=1) > 0.02)
        assert first.rewards[2:].sum() < 1e-6  # things are still coming to rest
        best = first.observation.state[:, 16]
        assert np.allclose(best, first.rewards.sum(axis=1), atol=1e-6)
        # of the whole way, as it is seen (LIBERO's observations are one physics step older)
        after = first.observation.state
        left = [np.linalg.norm(s[:, BOWL] - s[:, :3], axis=1) for s in (seen, after)]
        assert np.allclose(best[:2], 0.3 * (1 - left[1] / left[0])[:2], atol=3e-3)
        # back and there again gains nothing
        back = dense.step(-move * (1, 1, 1, 1, 1, 1, -1))
        again = dense.step(move * np.float32(0.9) + 0.1 * np.array([0, 0, 0, 0, 0, 0, -1], np.float32))
        assert back.rewards[:2].sum() < 0.3 * first.rewards[:2].sum()  # on its way on, before it turns
        assert again.rewards[:2].sum() < 0.3 * first.rewards[:2].sum()
        # physics is that of sparse rewards
        native = blind.step(move).observation.state
        left_out = [8, 16]  # the time left of another episode, and the potential
        assert equal_bits(np.delete(after, left_out, 1), np.delete(native, 8, 1))
        # a bowl on the plate has made its whole way, and 1 comes for success
        dense.reset(GlobalStep(0), 0)
        state = with_bowl_on_plate(dense.state_dict(), seen, [1])
        dense.load_state_dict(state)
        idle = np.zeros((4, 5, 7), np.float32)
        idle[..., 6] = -1
        done = dense.step(idle)
        assert done.success.tolist() == [False, True, False, False]
        assert 1.4 < done.rewards[1].sum() <= 2
        # some of them, in any order, and after a checkpoint: the same bits
        dense.load_state_dict(state)
        some = np.array([3, 1])
        part = dense.step(idle[some], some)
        assert equal_bits(part.rewards, done.rewards[some])
        assert equal_bits(part.observation.state, done.observation.state[some])


def test_random_weights_learn_from_dense_rewards_alone(python: str) -> None:
    """With LIBERO's own reward nothing is won by chance: no advantage, no gradient."""
    values = {"simulator": "libero", "workers": 2, "tasks": 1, "envs": 2, "minibatch_scope": "rollout"}
    norms = {}
    for reward in ("sparse", "dense"):
        trainer = make_trainer(small(**values, reward=reward, rollout_epochs=1, global_batch=4))
        with closing(trainer.env.simulator):
            logs = trainer.iteration(GlobalStep(0))["training"]
        norms[reward] = [log["grad_norm"] for log in logs]
    assert not any(norms["sparse"])
    assert all(norms["dense"])


def test_environments_that_reset_by_themselves(python: str) -> None:
    with start(2, workers=1, tasks=1, cameras=0, episode_steps=10, auto_reset=True) as simulator:
        seen = simulator.reset(GlobalStep(0), 0).state
        simulator.load_state_dict(with_bowl_on_plate(simulator.state_dict(), seen, [1]))
        idle = np.zeros((2, 5, 7), np.float32)
        idle[..., 6] = -1
        first = simulator.step(idle)
        assert first.dones.tolist() == [False, True]  # done because the task is
        assert first.observation.state[:, DONE].tolist() == [0, 0]
        assert first.observation.state[:, 8].tolist() == [0.5, 1]
        second = simulator.step(idle)
        assert second.dones.tolist() == [True, False]  # done because time is up
        assert second.success.tolist() == [False, False]


def test_staggered_episodes_end_at_different_times(python: str) -> None:
    options: dict[str, Any] = {"workers": 1, "tasks": 1, "cameras": 0, "auto_reset": True}
    with start(6, episode_steps=15, staggered=True, **options) as simulator:
        left = simulator.reset(GlobalStep(0), 0).state[:, 8]
        assert set(np.round(3 * left).tolist()) == {1, 2, 3}  # chunks that an episode still has
        idle = np.zeros((6, 5, 7), np.float32)
        idle[..., 6] = -1
        results = [simulator.step(idle) for _ in range(3)]
        dones = np.array([r.dones for r in results])
        assert (dones.sum(axis=0) == 1).all()  # each once in an episode's length
        assert (dones.argmax(axis=0) + 1 == np.round(3 * left)).all()
        after = results[-1].observation.state[:, 8]
        assert np.allclose(after, left)  # and each goes on at its own phase


def test_calls_that_make_no_sense(blind) -> None:
    blind.reset(GlobalStep(0), 0)
    with pytest.raises(SimulatorError, match="not finite"):
        blind.step(np.full((4, 5, 7), np.nan, np.float32))
    state = blind.state_dict()
    blind.load_state_dict({**state, "elapsed": np.full(4, -1)})
    with pytest.raises(SimulatorError, match="before they were reset"):
        blind.step(actions(0, 4))
    blind.reset(GlobalStep(0), 0)


def test_a_real_process_that_dies(python: str) -> None:
    with start(2, workers=2, tasks=1, cameras=0) as simulator:
        processes = simulator.process_ids
        simulator.reset(GlobalStep(0), 0)
        os.kill(processes[1], signal.SIGKILL)
        with pytest.raises(SimulatorDiedError, match=r"SIGKILL.* during step"):
            simulator.step(actions(0, 2))
        assert not any(Path(f"/proc/{p}").exists() for p in processes)


def test_without_gl_the_error_says_what_to_install(python: str, monkeypatch) -> None:
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/nowhere/vendor.json")
    with pytest.raises(RenderError, match=r"makes no images here with MUJOCO_GL=egl .*Next: install a GL"):
        start(1, workers=1, tasks=1, cameras=1, image=32)


@pytest.mark.slow
@pytest.mark.parametrize(("envs", "painters"), [(2, 1), (3, 2)])
def test_processes_that_draw_draw_what_each_would(python: str, envs: int, painters: int) -> None:
    options: dict[str, Any] = {"cameras": 2, "image": 32, "shadows": False, "seed": 2}
    apart: dict[str, Any] = {"rendering": "egl-one", "painters": painters, "every_action": True}
    try:
        each = start(envs, workers=2, rendering="egl", **options)
    except RenderError as error:
        pytest.skip(str(error))
    with each, start(envs, workers=2, **apart, **options) as one:
        assert len(one.process_ids) == 2 + painters
        assert one.spec == each.spec
        first = each.reset(GlobalStep(0), 0)
        assert first.images is not None
        assert first.images.shape == (envs, 2, 32, 32, 3)
        assert first.images.std() > 20
        assert not np.array_equal(first.images[:, 0], first.images[:, 1])
        assert equal_bits(first, one.reset(GlobalStep(0), 0))
        chunk = actions(0, envs)
        after = each.step(chunk)
        assert not np.array_equal(after.observation.images, first.images)
        assert equal_bits(after, one.step(chunk))
        # the scene moves only where it was told to
        back = np.array([1])
        assert equal_bits(one.render(back).images[0], after.observation.images[1])
        turned = np.arange(envs)[::-1]
        assert equal_bits(one.render(turned).images, after.observation.images[turned])
        processes = one.process_ids
        os.kill(processes[-1], signal.SIGKILL)
        with pytest.raises(SimulatorDiedError, match=r"SIGKILL.* during paint"):
            one.render()
        assert not any(Path(f"/proc/{p}").exists() for p in processes)
