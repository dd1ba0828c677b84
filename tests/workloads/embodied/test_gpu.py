"""Training on a real GPU, at tiny size: every schedule and switch, offloading, memory that is too small.

``RLPROF_REHEARSE_ON=cpu`` runs what a processor can, so that faults of tests are not first found on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlprof.overlap.optimize import derive
from rlprof.overlap.optimize.steps import step
from rlprof.workloads.embodied import checkpoint, record, runner
from rlprof.workloads.embodied.build import make_trainer
from rlprof.workloads.embodied.config import Config, configure
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.drivers import make_driver
from rlprof.workloads.embodied.errors import DeviceError
from rlprof.workloads.embodied.graph_driver import PlacedDriver
from rlprof.workloads.embodied.offload import tensors_of
from rlprof.workloads.embodied.optimize import embodied
from rlprof.workloads.embodied.trainer import Trainer
from tests.workloads.embodied.made import SMALL

torch = pytest.importorskip("torch")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

REHEARSAL = os.environ.get("RLPROF_REHEARSE_ON")
DEVICE = REHEARSAL or "cuda:0"
pytestmark = pytest.mark.gpu

#: Largest differences of an answer given again, float32: half a batch goes through other kernels, and the
#: coefficients of captured steps are on the device.
TOLERANCE = {"actions": 1e-4, "chain": 1e-4, "value": 1e-4, "log_prob": 1e-2}


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not REHEARSAL and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")


def tiny(**values: Any) -> Config:
    if REHEARSAL and values.pop("cuda_graph", False):
        pytest.skip("CUDA graphs need a GPU")
    return configure("tiny", **{**SMALL, "device": DEVICE, "timeout_s": 60.0, **values})


@contextmanager
def built(config: Config) -> Iterator[Trainer]:
    trainer = make_trainer(config)
    try:
        yield trainer
    finally:
        trainer.rollout.close()
        trainer.env.simulator.close()


def on(module: Any) -> set[str]:
    """Devices of its tensors."""
    return {t.device.type for t in tensors_of(module)}


def answers_agree(again: record.Replayed) -> None:
    """Given again, and evaluated anew."""
    for name, most in TOLERANCE.items():
        assert getattr(again, name) <= most, (name, again)
    assert again.evaluated <= again.tolerance.log_prob, again


OPTIONS: list[dict[str, Any]] = [
    {"schedule": "colocated"},
    {"schedule": "colocated", "algorithm": "grpo", "group": 2, "policy": "openvla_oft"},
    {"schedule": "colocated", "cuda_graph": True, "policy": "gr00t"},
    {"schedule": "colocated", "rollout_process": True, "train": "expert"},
    {"schedule": "colocated-pipe", "env_prefetch": True},
    {"schedule": "colocated-pipe", "cuda_graph": True},
    {"schedule": "hybrid", "policy": "pi05"},
    {"schedule": "hybrid-pipe", "cuda_graph": True},
    {"schedule": "hybrid-pipe", "train_pipe": True, "minibatch_scope": "epoch"},
    {"schedule": "hybrid-pipe", "rollout_process": True, "cuda_graph": True},
    {"schedule": "hybrid-pipe", "prefix_worker": True, "whole_answers": True, "cuda_graph": True},
]
#: Two rollout epochs side by side.
EPOCH = "iteration/generate_rollouts/rollout_epoch"
TEMPORAL = (step("split_temporal", EPOCH, groups=2), step("interleave", EPOCH))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(map(str, o.values())))
def test_iterations_do_what_the_loop_says_and_answers_are_given_again(options: dict[str, Any]) -> None:
    config = tiny(**options)
    with built(config) as trainer:
        driver, seen = make_driver(trainer, config), record.watch(trainer)
        for index in range(2):
            done = runner.measured_iteration(trainer, driver, config, seen, index)
            assert done.row["semantic_differences"] == []
            assert done.row["grad_norm"] > 0
            if config.cuda_graph:
                assert done.row["cuda_graph_refused"] is None
            if not REHEARSAL:
                assert done.row["gpu_peak_bytes"] > 1e5
        if config.stage_schedule.offload and not REHEARSAL:
            assert on(trainer.actor.policy) == {"cpu"}
            assert all(t.is_pinned() for t in tensors_of(trainer.actor.policy))
            if not config.rollout_process:
                assert on(trainer.rollout.policy) == {"cpu"}
            assert {t.device.type for t in trainer.actor._optimizer_tensors()} == {"cpu"}
        if config.stage_schedule.offload:
            trainer.rollout.reload(DEVICE)
        again = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(1))
        answers_agree(again)
        driver.close()


@pytest.mark.parametrize(
    "options", [{}, {"whole_answers": True, "train": "expert", "keep_prefix": True}], ids=["phases", "whole"]
)
def test_a_backbone_beside_the_denoise_steps_of_another_epoch(tmp_path, options: dict[str, Any]) -> None:
    config = tiny(prefix_worker=True, **options, **({} if REHEARSAL else {"cuda_graph": True}))
    with embodied(config, tmp_path, spares=1, activity="off") as here:
        trainer, seen = here.trainer, record.watch(here.trainer)
        here.workload.set_stream_priorities({"rollout": -1})
        driver = PlacedDriver(here.workload, trainer, derive(here.workload.native, TEMPORAL), here.resets)
        for index in range(2, 5):
            done = runner.measured_iteration(trainer, driver, config, seen, index)
            assert done.row["semantic_differences"] == []
            again = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(index))
            answers_agree(again)
        driver.close()
        if not REHEARSAL:
            captured = getattr(trainer.rollout.policy, "captured")  # noqa: B009
            assert captured.refused is None
            assert {priority for _, priority in captured._chains} == {0, -1}


def test_weights_come_back_with_their_bits() -> None:
    config = tiny(schedule="hybrid", policy="gr00t")
    with built(config) as trainer:
        actor = trainer.actor
        trainer.iteration(GlobalStep(0))
        wanted = [t.detach().cpu().clone() for t in (*tensors_of(actor.policy), *actor._optimizer_tensors())]
        before = 0 if REHEARSAL else torch.cuda.memory_allocated(DEVICE)
        for _ in range(2):
            actor.offload()
            if not REHEARSAL:
                assert torch.cuda.memory_allocated(DEVICE) < before
            actor.reload_weights(DEVICE)  # as for a synchronisation
            actor.offload_weights()
            actor.reload(DEVICE)
            found = (*tensors_of(actor.policy), *actor._optimizer_tensors())
            assert {str(t.device) for t in found} == {DEVICE}
            assert all(torch.equal(a.cpu(), b) for a, b in zip(found, wanted, strict=True))
        trainer.iteration(GlobalStep(1))


def test_rollouts_that_never_stop() -> None:
    config = tiny(schedule="async", **({} if REHEARSAL else {"cuda_graph": True}))
    with built(config) as trainer:
        driver, seen = make_driver(trainer, config), record.watch(trainer)
        try:
            rows = [runner.measured_iteration(trainer, driver, config, seen, k).row for k in range(3)]
        finally:
            driver.close()
        assert [r["updates"] for r in rows] == [4, 8, 12]
        assert all(r["staleness_max"] <= 1 for r in rows)
        assert all(r.get("cuda_graph_refused") is None for r in rows)


def test_a_run_goes_on_from_its_checkpoint(tmp_path) -> None:
    config = tiny(schedule="hybrid-pipe")
    runner.run(config, tmp_path, 1)
    (row,) = runner.run(config, tmp_path, 2, resume=True).rows
    assert row["iteration"] == 1
    assert row["semantic_differences"] == []


@pytest.mark.parametrize("where", ["rollout", "actor"])
def test_memory_that_is_too_small_is_said_and_the_checkpoint_survives(
    tmp_path, monkeypatch, where: str
) -> None:
    config, make, iterate = tiny(), runner.make_trainer, runner.measured_iteration
    made: list[Any] = []

    def keep(c: Config) -> Any:
        made.append(make(c))
        return made[-1]

    def fails(*values: Any) -> Any:
        if values[-1] == 1:
            policy = getattr(made[-1], where).policy
            monkeypatch.setattr(policy, "_features", lambda *_: torch.empty(10**14, device=DEVICE))
        return iterate(*values)

    monkeypatch.setattr(runner, "make_trainer", keep)
    monkeypatch.setattr(runner, "measured_iteration", fails)
    with pytest.raises(DeviceError, match=r"memory of|no memory for a micro batch") as caught:
        runner.run(config, tmp_path, 3, checkpoint_every=1)
    assert "Next: use" in str(caught.value)
    assert torch.load(tmp_path / checkpoint.NAME, weights_only=True)["iteration"] == 1
    monkeypatch.undo()
    assert len(runner.run(config, tmp_path, 2, resume=True).rows) == 1
