"""A rollout worker in a process of its own: the same bits, and nothing hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied import record, rollout_serve, runner
from rlprof.workloads.embodied.build import make_trainer
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.drivers import make_driver
from rlprof.workloads.embodied.errors import (
    ConfigurationError,
    RolloutDiedError,
    RolloutError,
    RolloutTimeoutError,
)
from rlprof.workloads.embodied.nodes import wrap_trainer
from rlprof.workloads.embodied.rollout_process import RolloutProcess
from rlprof.workloads.embodied.trainer import Trainer
from tests.workloads.embodied.made import small

torch = pytest.importorskip("torch")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")


CONFIG = small(rollout_process=True, train="expert", policy="gr00t")


def made() -> Iterator[Trainer]:
    trainer = make_trainer(CONFIG)
    yield trainer
    trainer.rollout.close()
    trainer.env.simulator.close()


#: One process for the tests that leave it as it was.
trainer = pytest.fixture(made, scope="module")
own = pytest.fixture(made)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_training_is_the_same_bit_for_bit_and_goes_on_after_a_checkpoint(tmp_path) -> None:
    def losses(out: Path) -> list[Any]:
        return [[r[k] for k in ("policy_loss", "value_loss", "grad_norm")] for r in runner.metrics.read(out)]

    runner.run(small(schedule="hybrid-pipe"), tmp_path / "one", 3)
    config = small(schedule="hybrid-pipe", rollout_process=True)
    runner.run(config, tmp_path / "own", 2)
    rows = runner.run(config, tmp_path / "own", 3, resume=True).rows
    assert [r["iteration"] for r in rows] == [2]
    assert rows[0]["semantic_differences"] == []
    found = [losses(tmp_path / name / runner.metrics.NAME) for name in ("one", "own")]
    assert found[0] == found[1]
    one, own = ((tmp_path / name / record.NAME).read_text() for name in ("one", "own"))
    assert one == own


def test_weights_go_to_it_and_come_back(trainer: Trainer) -> None:
    driver = make_driver(trainer, CONFIG)  # colocated, as a task graph
    done = runner.measured_iteration(trainer, driver, CONFIG, record.watch(trainer), 0)
    assert done.row["semantic_differences"] == []
    again = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(0))
    assert again.bitwise
    trainer.rollout.sync_model_from_actor(trainer.actor)
    mine = trainer.rollout.policy.state_dict()
    other = dict(trainer.actor.policy.named_parameters())
    assert set(mine) == {n for n, p in other.items() if p.requires_grad} < set(other)
    assert equal_bits(mine, {n: other[n].detach() for n in mine})
    changed = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(0))
    assert not changed.bitwise  # it answers with the new ones


def test_bits_of_half_precision_survive_the_way() -> None:
    tensors = [torch.randn(5).bfloat16(), torch.randn(3, 2), torch.randn(()), torch.randn(7).half()]
    memory = np.zeros(rollout_serve.size_bytes(tensors), np.uint8)
    rollout_serve.put(tensors, memory)
    copies = [torch.empty_like(t) for t in tensors]
    rollout_serve.take(copies, memory)
    assert equal_bits(copies, tensors)
    assert rollout_serve.digest(copies) == rollout_serve.digest(tensors)
    copies[0][3] += 1
    assert rollout_serve.digest(copies) != rollout_serve.digest(tensors)


def test_a_process_that_hangs_or_dies_is_an_error_that_says_how(own: Trainer) -> None:
    other = RolloutProcess(CONFIG, own.env.spec, own.actor)
    os.kill(other.process_id, signal.SIGKILL)
    with pytest.raises(RolloutDiedError, match="was ended by SIGKILL during take_weights"):
        other.sync_model_from_actor(own.actor)
    assert gone(other.process_id)
    with pytest.raises(RolloutError, match="is no more"):
        other.sync_model_from_actor(own.actor)
    own.rollout.timeout_s = 0.5
    os.kill(own.rollout.process_id, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(RolloutTimeoutError, match="did not answer to take_weights within"):
        own.rollout.sync_model_from_actor(own.actor)
    assert time.monotonic() - began < 5
    assert gone(own.rollout.process_id)


def test_what_fails_in_it_is_the_error_here_and_it_goes_on(trainer: Trainer) -> None:
    seen = trainer.env.bootstrap_step(GlobalStep(0), 0)
    with pytest.raises(RolloutError, match="the rollout's process: "):
        trainer.rollout._call("somersault")
    assert len(trainer.rollout.predict(seen, GlobalStep(0), 0, 0).actions) == 4


def test_other_weights_than_the_actors_are_refused(trainer: Trainer) -> None:
    with pytest.raises(RolloutError, match="other weights than the actor"):
        RolloutProcess(replace(CONFIG, seed=1), trainer.env.spec, trainer.actor)


def test_its_phases_cannot_be_wrapped(trainer: Trainer) -> None:
    with pytest.raises(ConfigurationError, match="a process of its own"):
        wrap_trainer(trainer)
