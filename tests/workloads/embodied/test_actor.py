"""The actor: minibatches, micro batches, gradients that are not finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied.actor import Actor
from rlprof.workloads.embodied.algorithms import Ppo
from rlprof.workloads.embodied.contracts import Batch, GlobalStep
from rlprof.workloads.embodied.errors import ConfigurationError, WorkloadError
from rlprof.workloads.embodied.policies import make
from rlprof.workloads.embodied.policies.sizes import size_of
from tests.workloads.embodied.made import observation, spec

torch = pytest.importorskip("torch")


def actor(
    global_batch: int = 8, micro_batch: int = 8, *, dtype: str = "float32", rate: float = 1e-3
) -> Actor:
    policy = make(replace(size_of("openvla_oft", "tiny"), dtype=dtype), spec(), seed=1)
    return Actor(policy, Ppo(), learning_rate=rate, global_batch=global_batch, micro_batch=micro_batch)


def batch(policy, n: int = 16) -> Batch:
    seen = observation(n)
    answer = policy.act(seen, policy.noise(seen, GlobalStep(0), 0, 0))
    drawn = np.random.default_rng(0).normal(size=n).astype(np.float32)
    return Batch(seen, answer.chain, answer.log_prob, answer.value, drawn, drawn + 1)


def test_micro_batches_add_up_to_the_global_batch() -> None:
    whole, parts = actor(8, 8), actor(8, 2)
    order = np.arange(16)[::-1].copy()
    samples = batch(whole.policy)
    logs = [a.training_step(samples, order, 1) for a in (whole, parts)]
    assert logs[0].keys() == logs[1].keys()
    assert all(logs[0][k] == pytest.approx(logs[1][k], rel=1e-3, abs=1e-5) for k in logs[0])
    for mine, theirs in zip(whole.policy.parameters(), parts.policy.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-5)


def test_a_global_batch_is_its_part_of_the_order() -> None:
    one, other = actor(4, 4), actor(4, 4)
    samples = batch(one.policy)
    order = np.array([3, 1, 15, 0, 7, 2, 5, 9])
    one.training_step(samples, order, 1)
    rows = order[4:]
    seen = samples.observation
    taken = Batch(
        seen._replace(state=seen.state[rows], task=seen.task[rows]), *(x[rows] for x in samples[1:-1])
    )
    other.training_step(taken, np.arange(4), 0)
    assert equal_bits(dict(one.policy.state_dict()), dict(other.policy.state_dict()))


def test_training_makes_what_was_good_more_likely() -> None:
    learner = actor(16, 16)
    samples = batch(learner.policy)
    first = learner.policy.evaluate(samples.observation, samples.chain).log_prob.detach().numpy()
    for _ in range(10):
        learner.training_step(samples, np.arange(16), 0)
    after = learner.policy.evaluate(samples.observation, samples.chain).log_prob.detach().numpy()
    assert np.corrcoef(after - first, samples.advantages)[0, 1] > 0.5


def test_a_gradient_that_is_not_finite_stops_before_it_does_harm() -> None:
    learner = actor()
    samples = batch(learner.policy)
    before = {k: v.clone() for k, v in learner.policy.state_dict().items()}
    broken = samples._replace(advantages=np.full(16, np.nan, np.float32))
    with pytest.raises(WorkloadError, match="gradient of update 0 is not finite"):
        learner.training_step(broken, np.arange(16), 0)
    assert equal_bits(dict(learner.policy.state_dict()), before)
    assert learner.updates == 0


def test_batches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no multiple of the micro batch"):
        actor(8, 3)
    with pytest.raises(ConfigurationError, match="12 samples"):
        actor(8, 8).minibatches(12)
    assert actor(8, 8).minibatches(24) == 3


def test_orders_are_keyed() -> None:
    learner = actor()
    samples = batch(learner.policy)
    keys = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    orders = [learner.shuffle(samples, GlobalStep(s), p, u) for s, p, u in keys]
    assert len({tuple(o) for o in orders}) == 4
    assert np.array_equal(orders[0], learner.shuffle(samples, GlobalStep(0), 0, 0))


def test_offloading_and_back_changes_nothing() -> None:
    learner = actor()
    samples = batch(learner.policy)
    learner.training_step(samples, np.arange(16), 0)
    before = {k: v.clone() for k, v in learner.policy.state_dict().items()}
    learner.offload("cpu")
    learner.reload("cpu")
    assert equal_bits(dict(learner.policy.state_dict()), before)
    learner.training_step(samples, np.arange(16), 1)


def test_small_steps_are_not_rounded_away() -> None:
    """A step of 1e-5 is less than a bfloat16 of 0.1 can show; many of them are not."""
    learner = actor(16, 16, dtype="bfloat16", rate=1e-5)
    assert learner.copies()
    samples = batch(learner.policy)
    before = {k: v.clone() for k, v in learner.policy.state_dict().items()}
    for _ in range(40):
        learner.training_step(samples, np.arange(16), 0)
    after = learner.policy.state_dict()
    moved = sum(int((after[k] != v).sum()) for k, v in before.items()) / sum(
        v.numel() for v in before.values()
    )
    assert moved > 0.2
    for parameter, master in zip(learner.policy.trainable(), learner.copies(), strict=True):
        assert torch.equal(parameter, master.bfloat16())
    learner.offload("cpu")
    learner.reload("cpu")
    learner.training_step(samples, np.arange(16), 0)
