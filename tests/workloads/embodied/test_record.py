"""Semantic records: equal under every schedule, and different where something else was done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlprof.workloads.embodied import record, runner
from rlprof.workloads.embodied.build import make_trainer
from rlprof.workloads.embodied.config import FAMILIES, Config
from rlprof.workloads.embodied.contracts import NUMBERS, GlobalStep
from rlprof.workloads.embodied.drivers import make_driver
from rlprof.workloads.embodied.policies.sizes import size_of
from tests.workloads.embodied.made import small

torch = pytest.importorskip("torch")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")
SYNCHRONOUS = ("colocated", "colocated-pipe", "hybrid", "hybrid-pipe")


def measured(config: Config, iterations: int = 2, before: Any = None) -> list[runner.Measured]:
    trainer = make_trainer(config)
    driver = make_driver(trainer, config)
    try:
        if before is not None:
            before(trainer)
        seen = record.watch(trainer)
        return [
            runner.measured_iteration(trainer, driver, config, seen, index) for index in range(iterations)
        ]
    finally:
        driver.close()
        trainer.env.simulator.close()


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize("policy", FAMILIES)
def test_every_schedule_of_every_policy_leaves_the_same_record(policy: str, algorithm: str) -> None:
    more = {"group": 2} if algorithm == "grpo" else {}
    runs = {
        name: measured(small(policy=policy, algorithm=algorithm, schedule=name, **more))
        for name in SYNCHRONOUS
    }
    for name, done in runs.items():
        for native, other in zip(runs["colocated"], done, strict=True):
            assert other.row["semantic_differences"] == []  # from what the loop's order says
            # the preset `exact`: the bits of all minibatches too
            assert record.differences(native.record, other.record, bits=True) == [], name
    first = runs["colocated"][0].record
    assert first.versions == {"predict 0": 16} | ({"values 0": 8} if algorithm == "ppo" else {})
    assert [u.number for u in first.updates] == [0, 1, 2, 3]
    assert runs["colocated"][1].record.versions["predict 4"] == 16


@pytest.mark.parametrize(
    "switches",
    [
        {"train_pipe": True, "minibatch_scope": "epoch", "schedule": "hybrid-pipe"},
        {"env_prefetch": True},
        {"env_prefetch": True, "schedule": "colocated-pipe"},
    ],
    ids=["train pipe", "prefetch", "prefetch, two stages"],
)
def test_switches_of_a_schedule_change_no_bit_of_training(switches) -> None:
    scope = switches.get("minibatch_scope", "rollout")
    native = measured(small(minibatch_scope=scope), 3)
    for a, b in zip(native, measured(small(**switches), 3), strict=True):
        assert record.differences(a.record, b.record, bits=True) == []
        assert a.row["policy_loss"] == b.row["policy_loss"]


def _other_weights(trainer: Any) -> None:
    sync = trainer.rollout.sync_model_from_actor

    def late(actor: Any) -> None:
        sync(actor)
        trainer.rollout.version -= 1

    trainer.rollout.sync_model_from_actor = late


def _other_samples(trainer: Any) -> None:
    order = trainer.actor.shuffle

    def swapped(*args: Any) -> Any:
        found = order(*args).copy()
        found[[0, 1]] = found[[1, 0]]
        return found

    trainer.actor.shuffle = swapped


def _changed_values(trainer: Any) -> None:
    compute = trainer.actor.compute_adv

    def other(trajectories: Any) -> Any:
        batch = compute(trajectories)
        return batch._replace(chain=batch.chain + np.float32(1e-6))

    trainer.actor.compute_adv = other


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (_other_weights, "versions of weights"),
        (_other_samples, "update 0 is of other samples"),
        (_changed_values, "update 0 is of other samples"),
    ],
    ids=["an old version", "another order", "samples from elsewhere"],
)
def test_what_is_done_otherwise_is_told(fault, what) -> None:
    (done,) = measured(small(schedule="hybrid-pipe"), 1, before=fault)
    assert any(what in d for d in done.row["semantic_differences"])


def test_a_missing_update_is_told() -> None:
    (done,) = measured(small(), 1)
    less = record.IterationRecord(
        done.record.iteration, done.record.versions, done.record.uses, done.record.updates[:-1]
    )
    assert record.differences(done.record, less) == ["updates [0, 1, 2] instead of [0, 1, 2, 3]"]


def test_a_run_writes_its_records(tmp_path) -> None:
    import json

    runner.run(small(schedule="hybrid"), tmp_path, 2)
    lines = [json.loads(line) for line in (tmp_path / record.NAME).read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1]
    assert lines[1]["versions"] == {"predict 4": 16, "values 4": 8}


@pytest.mark.parametrize("policy", FAMILIES)
def test_answers_given_again_are_the_same_bits_sample_by_sample(policy: str) -> None:
    config = small(policy=policy, schedule="hybrid-pipe")
    trainer = make_trainer(config)
    driver = make_driver(trainer, config)
    done = runner.measured_iteration(trainer, driver, config, record.watch(trainer), 0)
    again = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(0))
    assert again.calls == 4
    assert again.bitwise
    assert again.passed


def _another_chain(given: Any) -> Any:
    """One point of one chain is elsewhere; the recorded log-probability is that of the noise, still."""
    given.chain[1, -1] += 0.01
    return given


def _of_others(given: Any) -> Any:
    """Two environments have each other's answers."""
    other = np.array([1, 0, *range(2, len(given.chain))])
    return given._replace(**{name: getattr(given, name)[other] for name in NUMBERS})


def _another_log_prob(given: Any) -> Any:
    given.log_prob[0] += 0.01
    return given


def _no_number(given: Any) -> Any:
    given.log_prob[0] = np.nan
    return given


@pytest.mark.parametrize("tamper", [_another_chain, _of_others, _another_log_prob, _no_number])
@pytest.mark.parametrize("policy", ["pi0", "openvla_oft"])
def test_an_answer_that_was_tampered_with_fails_the_replay(policy: str, tamper: Any) -> None:
    trainer = make_trainer(small(policy=policy))
    result = trainer.iteration(GlobalStep(0))
    assert record.replay_answers(trainer, result["trajectories"], GlobalStep(0)).passed
    outputs = result["trajectories"][1].outputs
    outputs[0] = tamper(outputs[0])
    again = record.replay_answers(trainer, result["trajectories"], GlobalStep(0))
    assert not again.passed
    if tamper is not _of_others or policy == "openvla_oft":
        assert again.evaluated > again.tolerance.log_prob
    if tamper is _another_chain:
        assert again.log_prob == 0.0  # of the same noise, whatever was answered


def test_log_probabilities_of_more_numbers_may_differ_more() -> None:
    few = record.Replayed(1, 0, 0, 0, 0.02, 0.2, 35, "bfloat16")
    assert not few.passed
    assert few.tolerance.chain == record.TOLERANCES["bfloat16"].chain
    assert replace(few, numbers=140).passed
    assert not replace(few, numbers=140, chain=0.04).passed
    assert not replace(few, numbers=140, dtype="float32").passed


def test_answers_of_whole_and_half_batches_are_equal_within_a_tolerance(monkeypatch) -> None:
    """The preset tiny: a stage is half of the batch, and other kernels may run."""
    from rlprof.workloads.embodied import config as module

    monkeypatch.setattr(module, "size_of", lambda family, _preset: size_of(family, "tiny"))
    config = small(schedule="colocated-pipe")
    trainer = make_trainer(config)
    driver = make_driver(trainer, config)
    done = runner.measured_iteration(trainer, driver, config, record.watch(trainer), 0)
    again = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(0), most_calls=3)
    assert again.calls == 3
    assert max(again.actions, again.value, again.chain) < 1e-5
    assert again.log_prob < 1e-3
    assert again.passed
    # weights that have moved on do not give the same answers
    with torch.no_grad():
        for parameter in trainer.rollout.policy.parameters():
            parameter.mul_(1.5)
    again = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(0))
    assert again.chain > 1e-3
    assert again.evaluated > again.tolerance.log_prob
    assert not again.passed


def test_a_small_change_of_an_answer_in_half_precision_fails_the_replay(monkeypatch) -> None:
    from rlprof.workloads.embodied import config as module

    size = replace(size_of("pi0", "tiny"), dtype="bfloat16")
    monkeypatch.setattr(module, "size_of", lambda _family, _preset: size)
    trainer = make_trainer(small(denoise_steps=10))
    result = trainer.iteration(GlobalStep(0))
    again = record.replay_answers(trainer, result["trajectories"], GlobalStep(0))
    assert again.dtype == "bfloat16"
    assert again.passed
    result["trajectories"][0].outputs[0].chain[0, -1] += 0.05
    changed = record.replay_answers(trainer, result["trajectories"], GlobalStep(0))
    assert changed.evaluated > changed.tolerance.log_prob > again.evaluated
    assert not changed.passed
