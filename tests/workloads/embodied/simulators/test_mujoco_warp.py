"""The simulator mujoco_warp in a process of its own, on Warp's CPU device: same code, no GPU.

Packages may be in another environment, which RLPROF_WARP_PYTHON names. The first run compiles kernels for
minutes; they are kept where WARP_CACHE_PATH says. With them physics beside MuJoCo's takes some seconds: it is
the one test of the real simulator that is not slow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied.contracts import GlobalStep, StepResult
from rlprof.workloads.embodied.errors import (
    ConfigurationError,
    MissingPackageError,
    SimulatorDeviceError,
    SimulatorDiedError,
    SimulatorTimeoutError,
)
from rlprof.workloads.embodied.simulators import arm_model
from rlprof.workloads.embodied.simulators.mujoco_warp import MujocoWarp
from rlprof.workloads.embodied.simulators.mujoco_warp_model import make_model, object_poses
from rlprof.workloads.embodied.simulators.processes import SimulatorProcesses
from tests.conftest import ROOT
from tests.workloads.embodied.simulators.test_mujoco_arm import actions, scripted, taken
from tests.workloads.embodied.simulators.test_processes import alive, gone

WARP = "rlprof.workloads.embodied.simulators.mujoco_warp:MujocoWarp"
PYTHON = os.environ.get("RLPROF_WARP_PYTHON", sys.executable)
ENVS, SUBSTEPS, OBJECTS = 6, 10, 2
IMAGES = {"cameras": 2, "image": 32}


def has_packages() -> bool:
    probe = "import importlib.util as u; assert u.find_spec('warp') and u.find_spec('mujoco_warp')"
    return subprocess.run([PYTHON, "-c", probe], capture_output=True, check=False).returncode == 0


needs_warp = pytest.mark.skipif(
    not has_packages(),
    reason="mujoco-warp is not installed: see docs/mujoco_warp.md, or set RLPROF_WARP_PYTHON",
)


def made(envs: int = ENVS, **options) -> SimulatorProcesses:
    return SimulatorProcesses(
        WARP,
        envs,
        workers=1,
        python=PYTHON,
        environment={"MUJOCO_GL": "disable"},
        start_timeout_s=1200,
        **{"device": "cpu", "substeps": SUBSTEPS, "objects": OBJECTS, "tasks": 2, **options},
    )


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcesses]:
    with made(seed=3, group=2, **IMAGES) as simulator:
        yield simulator


@pytest.fixture(scope="module")
def restarting() -> Iterator[SimulatorProcesses]:
    with made(auto_reset=True, staggered=True, episode_steps=10, **IMAGES) as simulator:
        yield simulator


@pytest.mark.slow
@needs_warp
def test_the_task_can_be_done() -> None:
    with made(16, tasks=1) as simulator:
        seen, rewards = simulator.reset(GlobalStep(0), 0), np.zeros(16)
        for _ in range(8):
            result = simulator.step(scripted(seen.state))
            seen, rewards = result.observation, rewards + result.rewards.sum(axis=1)
    assert result.success.mean() >= 0.5
    assert result.dones.all()
    assert (rewards[result.success] > 1.5).all()


@needs_warp
def test_physics_agrees_with_the_engine_of_mujoco(simulator: SimulatorProcesses) -> None:
    """float32 on a device beside float64 in C: after 50 steps positions are within 1e-5 (m, rad)."""
    mujoco = pytest.importorskip("mujoco")
    model = make_model(mujoco, substeps=SUBSTEPS, objects=OBJECTS)
    data, nq, nv = mujoco.MjData(model), model.nq, model.nv
    simulator.reset(GlobalStep(7), 0)
    before = simulator.state_dict()
    chosen = actions(ENVS, 5, 1)
    simulator.step(chosen)
    after = simulator.state_dict()["state"]
    low, high = np.array(arm_model.WORKSPACE_M).T
    for row in range(ENVS):
        mujoco.mj_resetData(model, data)
        data.qpos[:], target = before["state"][row, :nq], np.array(arm_model.HOME_M)
        assert np.allclose(data.qpos[11:].reshape(-1, 7), object_poses(OBJECTS, (3, 7, 0, 0, row // 2)))
        for action in chosen[row]:
            target = np.clip(target + 0.03 * action[:3], low, high)
            data.ctrl[:4], data.ctrl[4] = arm_model.joint_targets(target), action[3] > 0
            mujoco.mj_step(model, data, SUBSTEPS)
        assert np.abs(after[row, :4] - data.qpos[:4]).max() < 1e-5  # radians
        assert np.abs(after[row, 4:7] - data.qpos[4:7]).max() < 1e-5
        assert np.abs(after[row, 11:nq] - data.qpos[11:]).max() < 1e-4  # dropped and bounced
        assert np.abs(after[row, nq : nq + 4] - data.qvel[:4]).max() < 1e-3
        assert np.abs(data.qpos[:4] - before["state"][row, :4]).max() > 0.05, "nothing moved"
    assert after.shape == (ENVS, nq + 2 * nv)


@pytest.mark.slow
@needs_warp
def test_parts_of_a_batch_are_the_whole(simulator: SimulatorProcesses) -> None:
    """On a CPU bit for bit: a GPU takes contacts in another order each time."""
    whole = [simulator.reset(GlobalStep(1), 2), *(simulator.step(actions(ENVS, 5, k)) for k in range(2))]
    left = simulator.state_dict()
    groups = [np.array([4, 1]), np.array([0, 5, 2, 3])]
    pieces = [[simulator.reset(GlobalStep(1), 2, g) for g in groups]]
    pieces += [[simulator.step(actions(ENVS, 5, k)[g], samples=g) for g in groups] for k in range(2)]
    for native, cuts in zip(whole, pieces, strict=True):
        for group, piece in zip(groups, cuts, strict=True):
            assert equal_bits(taken(native, group), piece)
    assert equal_bits(simulator.state_dict(), left)
    assert simulator.spec.invariant


@pytest.mark.slow
@needs_warp
def test_a_process_goes_on_where_another_stopped(simulator: SimulatorProcesses) -> None:
    """As it must when a process is replaced to change its quota."""
    simulator.reset(GlobalStep(2), 0)
    simulator.step(actions(ENVS, 5))
    state = simulator.state_dict()
    with made(seed=3, group=2, **IMAGES) as other:
        other.load_state_dict(state)
        for k in range(2):
            assert equal_bits(other.step(actions(ENVS, 5, k)), simulator.step(actions(ENVS, 5, k)))
        with pytest.raises(ConfigurationError, match="a checkpoint of 2 environments"):
            other.load_state_dict({k: v[:2] for k, v in state.items()})


@pytest.mark.slow
@needs_warp
def test_the_phases_of_a_chunk_are_the_chunk(simulator: SimulatorProcesses) -> None:
    simulator.reset(GlobalStep(0), 0)
    native = simulator.step(actions(ENVS, 5))
    simulator.reset(GlobalStep(0), 0)
    simulator.physics(actions(ENVS, 5))
    found = simulator.reward()
    simulator.auto_reset()
    assert equal_bits(StepResult(simulator.render(), *found), native)


@pytest.mark.slow
@needs_warp
def test_resets_are_keyed_by_step_epoch_and_group(simulator: SimulatorProcesses) -> None:
    first = simulator.reset(GlobalStep(0), 0)
    for k in (1, 3, 5):
        assert np.array_equal(first.state[k], first.state[k - 1])
        assert np.array_equal(first.images[k], first.images[k - 1])
    assert not np.array_equal(first.state[0], first.state[2])
    later = [simulator.reset(GlobalStep(s), e).state for s, e in ((0, 1), (1, 0))]
    assert not np.array_equal(later[0], later[1])
    assert equal_bits(simulator.reset(GlobalStep(0), 0), first)


@pytest.mark.slow
@needs_warp
def test_images_show_the_cube_where_it_is(simulator: SimulatorProcesses) -> None:
    """The front camera looks along -x: y grows to the right, and x downwards."""
    images = simulator.reset(GlobalStep(4), 0).images
    assert images is not None
    assert images.shape == (ENVS, 2, 32, 32, 3)
    assert images.dtype == np.uint8
    state = simulator.state_dict()["state"]
    places = []
    for k in range(ENVS):
        red, green, blue = (images[k, 0, ..., c].astype(int) for c in range(3))
        rows, columns = np.nonzero((red > 100) & (green < 0.7 * red) & (blue < 0.6 * red))
        assert len(rows), f"no cube in image {k}"
        places.append(columns.mean())
    assert np.corrcoef(places, state[:, 5])[0, 1] > 0.8
    assert images[:, 1].std() > 10  # the hand's camera sees more than one colour


@pytest.mark.slow
@needs_warp
def test_environments_that_reset_by_themselves(restarting: SimulatorProcesses) -> None:
    restarting.reset(GlobalStep(0), 0)
    ends = []
    for k in range(4):
        before = restarting.state_dict()["episode"]
        result = restarting.step(actions(ENVS, 5, k))
        assert np.array_equal(restarting.state_dict()["episode"], before + result.dones)
        ends.append(result.dones)
    assert 0 < ends[0].sum() < ENVS, "staggered ones end at different times"
    assert (np.sum(ends, axis=0) == 2).all()


@pytest.mark.slow
@needs_warp
def test_a_dead_and_a_slow_process_are_errors_and_leave_nothing() -> None:
    for kill in (True, False):
        simulator = made(2, objects=0)
        processes = simulator.process_ids
        simulator.reset(GlobalStep(0), 0)
        if kill:
            os.kill(processes[0], 9)
        simulator.timeout_s = 60.0 if kill else 0.0001
        with pytest.raises(SimulatorDiedError if kill else SimulatorTimeoutError):
            simulator.step(actions(2, 5))
        assert gone(processes)
        assert not any(alive(p) for p in processes)


@pytest.mark.slow
@needs_warp
def test_a_device_that_is_not_there_is_an_error_with_advice() -> None:
    with pytest.raises(SimulatorDeviceError, match=r"no device 'cuda:7'.*cpu") as caught:
        made(2, device="cuda:7")
    assert "nvidia-smi" in str(caught.value.hint)


@pytest.mark.slow
@needs_warp
def test_too_many_contacts_and_unstable_physics_are_errors() -> None:
    code = f"""
import numpy as np, sys
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.errors import SimulatorError
from rlprof.workloads.embodied.simulators import mujoco_warp_engine as engine
from rlprof.workloads.embodied.simulators.mujoco_warp import MujocoWarp
options = dict(substeps={SUBSTEPS}, objects={OBJECTS}, device="cpu")
def said(simulator):
    try:
        simulator.step(np.zeros((2, 5, 4), np.float32))
    except SimulatorError as error:
        print(error.what)
simulator = MujocoWarp(2, **options)
simulator.reset(GlobalStep(0), 0)
simulator._state[:, 25:30] = 1e18
said(simulator)
engine.room = lambda objects: (2, 4)
simulator = MujocoWarp(2, **options)
simulator.reset(GlobalStep(0), 0)
said(simulator)
"""
    done = subprocess.run(
        [PYTHON, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MUJOCO_GL": "disable"},
        capture_output=True,
        text=True,
        check=True,
    )
    unstable, full = done.stdout.strip().splitlines()[-2:]
    assert "unstable" in unstable
    assert "more contacts than there is room for" in full


@pytest.mark.slow
@needs_warp
def test_a_training_runs(tmp_path: Path) -> None:
    sizes = "--envs 4 --chunks 2 --episode-steps 10 --global-batch 8 --micro-batch 8 --update-epochs 1"
    options = f"--substeps {SUBSTEPS} --objects {OBJECTS} --cameras 2 --image 32 --timeout 300"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rlprof", "run", "embodied", "--simulator", "mujoco_warp"),
            *("--preset", "tiny", "--iterations", "2", "--out", str(tmp_path / "run")),
            *f"{sizes} {options}".split(),
        ],
        cwd=ROOT,
        env={**os.environ, "RLPROF_WARP_PYTHON": PYTHON},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["simulator_steps"] for row in rows] == [80, 80]
    assert all(np.isfinite(row["policy_loss"]) for row in rows)


def test_importing_the_simulator_imports_nothing_heavy() -> None:
    code = "import sys; import rlprof.workloads.embodied.simulators.mujoco_warp\n"
    code += "assert not {'warp', 'mujoco', 'mujoco_warp', 'torch', 'polars'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_what_is_missing_is_an_error_that_names_all_packages() -> None:
    code = "import sys; sys.modules['warp'] = None\n"
    code += "from rlprof.workloads.embodied.simulators.mujoco_warp import MujocoWarp; MujocoWarp(2)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert MissingPackageError.__name__ in last
    for word in ("the module warp", "mujoco_warp", "pip install", "warp-lang==1.19.0", "mujoco-warp==4.0.0"):
        assert word in last
    assert "tools/setup_warp.sh" in last
    assert "RLPROF_WARP_PYTHON" in last


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"substeps": 4}, "4 substeps"),
        ({"objects": 43}, "43 objects"),
        ({"objects": -1}, "-1 objects"),
        ({"group": 4}, "groups of 4"),
        ({"episode_steps": 7}, "an episode of 7 steps"),
        ({"cameras": 3}, "3 cameras"),
        ({"staggered": True}, "staggered"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_starts(options: dict, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        MujocoWarp(ENVS, **options)
