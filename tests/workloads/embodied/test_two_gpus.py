"""Two GPUs: training on both, hybrid with the simulator on one and the policy on the other.

Memory of a device is that of all processes, so no other one may use the GPUs meanwhile.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from rlprof.workloads.embodied import record, runner
from rlprof.workloads.embodied.build import make_simulator
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.drivers import make_driver
from rlprof.workloads.embodied.errors import MissingPackageError
from tests.workloads.embodied.made import SMALL
from tests.workloads.embodied.test_gpu import built, on

torch = pytest.importorskip("torch")

#: Two devices; ``RLPROF_REHEARSE_ON=cpu`` goes through the tests on a processor.
REHEARSAL = bool(os.environ.get("RLPROF_REHEARSE_ON"))
FIRST, SECOND = ("cpu", "cpu") if REHEARSAL else ("cuda:0", "cuda:1")
#: A CUDA context takes some hundred megabytes.
CONTEXT_BYTES = 150e6
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpus() -> None:
    if not REHEARSAL and torch.cuda.device_count() < 2:
        pytest.skip("there are no two CUDA devices")


def tiny(**values: Any) -> Any:
    both = {"device": FIRST, "timeout_s": 60.0, "train_devices": f"{FIRST},{SECOND}"}
    return configure("tiny", **{**SMALL, **both, **values})


def free_bytes() -> list[int]:
    if REHEARSAL:
        return [0, 0]
    return [torch.cuda.mem_get_info(k)[0] for k in range(2)]


@pytest.mark.usefixtures("mujoco")
@pytest.mark.parametrize("micro_batch", [4, 2])
def test_training_on_both_is_training_on_one(micro_batch: int) -> None:
    """Minibatch contents, order and versions exactly; gradients and weights within a tolerance."""
    found = []
    for devices in (FIRST, f"{FIRST},{SECOND}"):
        config = tiny(train_devices=devices, micro_batch=micro_batch)
        with built(config) as trainer:
            driver, seen = make_driver(trainer, config), record.watch(trainer)
            done = runner.measured_iteration(trainer, driver, config, seen, 0)
            driver.close()
            assert done.row["semantic_differences"] == []
            weights = [p.detach().cpu() for p in trainer.actor.policy.parameters()]
            found.append((done, weights))
            if devices == FIRST or REHEARSAL:
                continue
            (other,) = trainer.actor.replicas.others
            assert {str(p.device) for p in other.parameters()} == {SECOND}
            assert torch.cuda.max_memory_allocated(SECOND) > 1e5
    (one, first), (both, second) = found
    assert [u.samples for u in both.record.updates] == [u.samples for u in one.record.updates]
    assert both.row["grad_norm"] == pytest.approx(one.row["grad_norm"], rel=1e-2)
    # Adam makes a step of up to the learning rate of any gradient, however small
    limit = 2 * config.learning_rate * len(one.record.updates)
    assert max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True)) <= limit


@pytest.mark.usefixtures("mujoco")
@pytest.mark.parametrize("schedule", ["hybrid", "hybrid-pipe"])
def test_hybrid_answers_on_one_gpu_and_trains_on_both(schedule: str, monkeypatch) -> None:
    values = {} if REHEARSAL else {"rollout_device": SECOND, "train_devices": None}
    config = tiny(schedule=schedule, **values)
    assert config.actor_devices == (FIRST, SECOND)
    noted: dict[str, list[Any]] = {"predict": [], "train": []}
    with built(config) as trainer:
        driver, seen = make_driver(trainer, config), record.watch(trainer)
        rollout, actor = trainer.rollout, trainer.actor
        (other,) = actor.replicas.others
        predict, step = rollout.predict, actor.training_step

        def answers(*arguments: Any, **named: Any) -> Any:
            noted["predict"].append((str(rollout.policy.device), on(actor.policy), on(other)))
            return predict(*arguments, **named)

        def trains(*arguments: Any, **named: Any) -> Any:
            noted["train"].append((str(actor.policy.device), str(other.device), on(rollout.policy)))
            return step(*arguments, **named)

        monkeypatch.setattr(rollout, "predict", answers)
        monkeypatch.setattr(actor, "training_step", trains)
        for index in range(2):
            done = runner.measured_iteration(trainer, driver, config, seen, index)
            assert done.row["semantic_differences"] == []
        driver.close()
        # rollouts have the second GPU, and what is left of the actor has gone; training has both
        assert {place[0] for place in noted["predict"]} == {SECOND}
        assert noted["predict"][-1] == (SECOND, {"cpu"}, {"cpu"})
        assert noted["train"]
        assert all(place == (FIRST, SECOND, {"cpu"}) for place in noted["train"])
        if not REHEARSAL:
            assert f"rollout on {SECOND}, training on {FIRST} and {SECOND}" in driver.placement
        rollout.reload(SECOND)
        monkeypatch.undo()
        again = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(1))
        assert max(again.actions, again.chain) <= 1e-4


@pytest.mark.parametrize("number", [0, 1])
def test_the_simulator_is_on_the_gpu_that_it_was_given(number: int, monkeypatch) -> None:
    """mujoco_warp takes memory of that one alone; kernels that are not kept are compiled for a minute."""
    device, other = (FIRST, SECOND) if number == 0 else (SECOND, FIRST)
    monkeypatch.setenv("RLPROF_WARP_PYTHON", os.environ.get("RLPROF_WARP_PYTHON", sys.executable))
    values = {} if REHEARSAL else {"rollout_device": other, "schedule": "hybrid", "device": device}
    config = tiny(simulator="mujoco_warp", cameras=2, image=32, objects=4, train_devices=None, **values)
    before = free_bytes()
    began = time.monotonic()
    try:
        simulator = make_simulator(config)
    except MissingPackageError as error:
        pytest.skip(str(error))
    try:
        print(f"started in {time.monotonic() - began:.1f} s")
        taken = [a - b for a, b in zip(before, free_bytes(), strict=True)]
        if not REHEARSAL:
            assert taken[number] > CONTEXT_BYTES
            assert abs(taken[1 - number]) < CONTEXT_BYTES / 3
        seen = simulator.reset(GlobalStep(0), 0)
        shape = (config.envs, simulator.spec.chunk_steps, simulator.spec.action_dim)
        result = simulator.step(np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32))
        assert np.isfinite(result.observation.state).all()
        assert result.observation.images is not None
        assert seen.images is not None
        assert not np.array_equal(result.observation.images, seen.images)
    finally:
        simulator.close()


def test_hybrid_with_a_simulator_on_the_one_and_the_policy_on_the_other() -> None:
    """Both GPUs at work in one iteration: what `hybrid` means on two."""
    values = {} if REHEARSAL else {"rollout_device": SECOND, "train_devices": None}
    config = tiny(schedule="hybrid-pipe", simulator="mujoco_warp", cameras=2, image=32, objects=4, **values)
    with ExitStack() as stack:
        try:
            trainer = stack.enter_context(built(config))
        except MissingPackageError as error:
            pytest.skip(str(error))
        driver, seen = make_driver(trainer, config), record.watch(trainer)
        for index in range(2):
            done = runner.measured_iteration(trainer, driver, config, seen, index)
            assert done.row["semantic_differences"] == []
            assert done.row["grad_norm"] > 0
        if not REHEARSAL:
            assert driver.placement == (
                "hybrid on two GPUs: simulator on cuda:0, rollout on cuda:1, training on cuda:0 and cuda:1"
            )
        driver.close()
