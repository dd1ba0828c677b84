"""Training on several devices: the same samples in the same order, gradients within a tolerance.

Two replicas on a processor, at work at the same time; `test_two_gpus.py` has those of two GPUs.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied import checkpoint, metrics, record, runner
from rlprof.workloads.embodied.actor import Actor
from rlprof.workloads.embodied.algorithms import Ppo
from rlprof.workloads.embodied.build import make_trainer
from rlprof.workloads.embodied.drivers import make_driver
from rlprof.workloads.embodied.errors import ConfigurationError, WorkloadError
from rlprof.workloads.embodied.policies import make
from rlprof.workloads.embodied.policies.sizes import size_of
from rlprof.workloads.embodied.replicas import Replicas
from tests.workloads.embodied.made import small, spec
from tests.workloads.embodied.test_actor import actor, batch

torch = pytest.importorskip("torch")

#: Largest differences of weights after two iterations, in units of the learning rate: Adam makes a step of up
#: to that size of any gradient, however small.
TOLERANCE_RATES = 2.0


def pair(micro_batch: int, *, dtype: str = "float32") -> tuple[Any, Any]:
    """An actor on one device, and one on two."""
    size = replace(size_of("openvla_oft", "tiny"), dtype=dtype)
    policies = [make(size, spec(), seed=1) for _ in range(2)]
    both = Actor(
        policies[0],
        Ppo(),
        learning_rate=1e-3,
        global_batch=8,
        micro_batch=micro_batch,
        others=[policies[1]],
    )
    return actor(8, micro_batch, dtype=dtype), both


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_micro_batch_for_each_device_gives_the_bits_of_one(dtype: str) -> None:
    one, both = pair(4, dtype=dtype)
    samples = batch(one.policy)
    for index in (1, 0):
        logs = [a.training_step(samples, np.arange(16), index) for a in (one, both)]
        assert logs[0] == logs[1]
    assert equal_bits(dict(one.policy.state_dict()), dict(both.policy.state_dict()))


def test_gradients_of_several_each_add_up_to_those_of_one() -> None:
    one, both = pair(1)
    samples = batch(one.policy)
    logs = [a.training_step(samples, np.arange(16)[::-1].copy(), 0) for a in (one, both)]
    assert all(logs[1][k] == pytest.approx(logs[0][k], rel=1e-4, abs=1e-6) for k in logs[0])
    for mine, other in zip(one.policy.parameters(), both.policy.parameters(), strict=True):
        assert torch.allclose(mine.grad, other.grad, rtol=1e-4, atol=1e-6)
    assert not any(p.grad is not None for p in both.replicas.others[0].parameters())


def test_both_are_at_work_at_the_same_time_and_each_has_some_in_a_row() -> None:
    meet, served = threading.Barrier(2), {}

    def work(policy: Any, part: int) -> int:
        if part in (0, 2):  # the first of each
            meet.wait(20)
        served[part] = (threading.get_ident(), policy)
        return part

    _, both = pair(4)
    assert both.replicas.devices == ("cpu", "cpu")
    for _ in range(2):
        assert both.replicas.gradients(3, work) == [0, 1, 2]
        assert served[0] == served[1] == (threading.get_ident(), both.policy)
        assert served[2][1] is both.replicas.others[0]
    assert Replicas([both.policy]).gradients(1, lambda _, part: part) == [0]


def test_a_replica_that_fails_is_an_error_once_all_have_ended() -> None:
    _, both = pair(4)
    samples, before = batch(both.policy), {k: v.clone() for k, v in both.policy.state_dict().items()}
    other = both.replicas.others[0]
    native, ended = other.evaluate, threading.Event()

    def fails(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    other.evaluate = fails
    with pytest.raises(WorkloadError, match="no memory for a micro batch of 4 samples"):
        both.training_step(samples, np.arange(16), 0)
    other.evaluate = native
    first = both.policy.evaluate

    def slow(*values: Any) -> Any:
        result = native(*values)
        ended.set()
        return result

    def breaks(*_: Any) -> Any:
        raise ValueError("of the first")

    both.policy.evaluate, other.evaluate = breaks, slow
    with pytest.raises(ValueError, match="of the first"):
        both.training_step(samples, np.arange(16), 0)
    assert ended.is_set()
    both.policy.evaluate, other.evaluate = first, native
    assert equal_bits(dict(both.policy.state_dict()), before)
    assert both.updates == 0
    both.training_step(samples, np.arange(16), 0)
    assert both.updates == 1


def test_the_others_follow_weights_that_something_else_has_changed() -> None:
    """A trial that is undone, or a checkpoint, puts other weights into the policy."""
    one, both = pair(4)
    samples, state = batch(one.policy), {k: v.clone() for k, v in one.policy.state_dict().items()}
    both.training_step(samples, np.arange(16), 0)
    both.policy.load_state_dict(state)
    for a in (one, both):
        a.optimizer = torch.optim.Adam(a.masters, lr=1e-3, eps=1e-5)
        a.updates = 0
        a.training_step(samples, np.arange(16), 1)
    assert equal_bits(dict(one.policy.state_dict()), dict(both.policy.state_dict()))
    with torch.no_grad():
        next(both.replicas.others[0].parameters()).fill_(9)
    both.replicas.take_all()
    assert equal_bits(dict(both.replicas.others[0].state_dict()), dict(both.policy.state_dict()))


def test_the_others_have_the_weights_of_the_first_whatever_their_devices_made_of_the_seed() -> None:
    """Those that are not trained, too: no step renews them."""
    size = replace(size_of("gr00t", "tiny"), train="expert")
    first, other = (make(size, spec(), seed=seed) for seed in (0, 1))
    wanted = {name: value.clone() for name, value in first.state_dict().items()}
    assert not equal_bits(dict(other.state_dict()), wanted)
    Replicas([first, other])
    assert equal_bits(dict(other.state_dict()), wanted)
    assert equal_bits(dict(first.state_dict()), wanted)


def test_policies_of_other_sizes_are_refused() -> None:
    policies = [make(size_of(f, "tiny"), spec(), seed=1) for f in ("pi0", "gr00t")]
    with pytest.raises(ConfigurationError, match="other parameters"):
        Replicas(policies)


@pytest.mark.usefixtures("mujoco")
@pytest.mark.parametrize("schedule", ["colocated", "hybrid-pipe"])
def test_the_record_is_that_of_one_device(schedule: str) -> None:
    """Minibatch contents, update order and versions exactly; weights within a tolerance."""
    records, weights = [], []
    for devices in (None, "cpu,cpu"):
        config = small(schedule=schedule, train_devices=devices, micro_batch=2)
        trainer = make_trainer(config)
        assert len(trainer.actor.replicas.devices) == (2 if devices else 1)
        driver = make_driver(trainer, config)
        seen, rows = record.watch(trainer), []
        for index in range(2):
            done = runner.measured_iteration(trainer, driver, config, seen, index)
            assert done.row["semantic_differences"] == []
            rows.append(done.record)
        driver.close()
        records.append(rows)
        weights.append({k: v.clone() for k, v in trainer.actor.policy.state_dict().items()})
    for one, both in zip(*records, strict=True):
        assert record.differences(one, both) == []
    assert record.differences(records[0][0], records[1][0], bits=False) == []
    assert (
        records[0][0].updates[0].bits == records[1][0].updates[0].bits
    )  # the first rollout has the same bits
    worst = max(float((weights[0][k] - v).abs().max()) for k, v in weights[1].items())
    assert worst <= TOLERANCE_RATES * config.learning_rate


@pytest.mark.usefixtures("mujoco")
def test_a_run_on_two_devices_goes_on_bit_for_bit(tmp_path) -> None:
    config = small(train_devices="cpu,cpu")
    runner.run(config, tmp_path / "whole", 2)
    runner.run(config, tmp_path / "parts", 1)
    runner.run(config, tmp_path / "parts", 2, resume=True)
    found = [torch.load(tmp_path / name / checkpoint.NAME, weights_only=True) for name in ("whole", "parts")]
    assert equal_bits(dict(found[0]["actor"]), dict(found[1]["actor"]))
    one = runner.run(small(), tmp_path / "one", 2).rows[-1]
    both = metrics.read(tmp_path / "whole" / metrics.NAME)[-1]
    same = (
        "return_mean",
        "policy_loss",
        "value_loss",
        "approx_kl",
        "grad_norm",
    )  # two micro batches: the bits
    assert [both[k] for k in same] == [one[k] for k in same]
