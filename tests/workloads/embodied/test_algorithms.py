"""Advantages and losses against formulas written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rlprof.workloads.embodied.algorithms import Grpo, Ppo, gae, group_relative
from rlprof.workloads.embodied.contracts import Batch, Evaluation, Observation, PolicyOutput, Trajectory
from rlprof.workloads.embodied.errors import ConfigurationError

torch = pytest.importorskip("torch")

numbers = st.floats(-3, 3)


@settings(deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 3), st.floats(0.1, 1), st.floats(0, 1))
def test_gae_is_the_sum_that_defines_it(data: Any, chunks: int, envs: int, gamma: float, lam: float) -> None:
    rewards, values = (data.draw(arrays(float, (chunks, envs), elements=numbers)) for _ in range(2))
    dones = data.draw(arrays(bool, (chunks, envs)))
    last = data.draw(arrays(float, envs, elements=numbers))
    advantages, returns = gae(rewards, values, dones, last, gamma=gamma, lam=lam)
    after = np.vstack([values[1:], last[None]])
    for e in range(envs):
        for k in range(chunks):
            wanted = 0.0
            for j in range(k, chunks):
                ahead = 0.0 if dones[j, e] else after[j, e]
                wanted += (gamma * lam) ** (j - k) * (rewards[j, e] + gamma * ahead - values[j, e])
                if dones[j, e]:
                    break
            assert advantages[k, e] == pytest.approx(wanted)
            assert returns[k, e] == pytest.approx(wanted + values[k, e])


@settings(deadline=None)
@given(arrays(float, 12, elements=numbers), st.sampled_from([2, 3, 4]), st.floats(-2, 2))
def test_scores_of_a_group_are_relative(scores: np.ndarray, group: int, shift: float) -> None:
    found = group_relative(scores, group).reshape(-1, group)
    assert np.allclose(found.mean(axis=1), 0, atol=1e-7)
    moved = scores.reshape(-1, group) + np.array([[shift]] + [[0.0]] * (12 // group - 1))
    assert np.allclose(group_relative(moved.ravel(), group).reshape(-1, group), found, atol=1e-4)
    for row, given_ in zip(found, scores.reshape(-1, group), strict=True):
        assert (np.diff(row[np.argsort(given_)]) >= -1e-9).all()


def trajectory(seed: int, *, chunks: int = 3, envs: int = 4) -> Trajectory:
    draw = np.random.default_rng(seed)

    def floats(*shape: int) -> np.ndarray:
        return draw.normal(size=shape).astype(np.float32)

    seen = [Observation(floats(envs, 2), None, np.zeros(envs, np.int64)) for _ in range(chunks)]
    answers = [PolicyOutput(*(floats(envs) for _ in range(4))) for _ in range(chunks)]
    rewards = [floats(envs, 5) for _ in range(chunks)]
    none = [np.zeros(envs, bool)] * chunks
    return Trajectory(seen, answers, rewards, none, none, floats(envs))


def test_ppo_normalises_over_what_is_given_at_once() -> None:
    both = [trajectory(0), trajectory(1)]
    together = np.concatenate([a.ravel() for a, _ in Ppo().advantages(both)])
    assert together.mean() == pytest.approx(0, abs=1e-6)
    assert together.std() == pytest.approx(1, abs=1e-5)
    alone = Ppo().advantages(both[:1])[0][0]
    assert alone.mean() == pytest.approx(0, abs=1e-6)
    assert not np.allclose(alone.ravel(), together[: alone.size])


def test_grpo_gives_all_chunks_of_an_episode_one_advantage() -> None:
    t = trajectory(0)
    ((advantages, _),) = Grpo(2).advantages([t])
    score = np.sum([r.sum(axis=1) for r in t.rewards], axis=0)
    assert np.allclose(advantages, group_relative(score, 2))
    with pytest.raises(ConfigurationError, match="groups of 2"):
        Grpo(1)


def evaluated(log_prob: list[float], before: list[float], advantages: list[float]) -> tuple[Any, Batch]:
    n = len(log_prob)
    zeros = np.zeros(n, np.float32)
    batch = Batch(
        Observation(zeros, None, zeros),
        zeros,
        np.array(before, np.float32),
        zeros,
        np.array(advantages, np.float32),
        np.full(n, 2.0, np.float32),
    )
    probability = torch.tensor(log_prob, requires_grad=True)
    return Evaluation(probability, torch.ones(n, requires_grad=True), torch.full((n,), 3.0)), batch


def test_the_loss_is_clipped_where_it_should_be() -> None:
    ratios, advantages = [1.5, 0.5, 1.5, 0.5, 1.1], [1.0, 1.0, -1.0, -1.0, 1.0]
    evaluation, batch = evaluated(list(np.log(ratios)), [0.0] * 5, advantages)
    loss, log = Ppo(clip=0.2, value_weight=0.5, entropy_weight=0.1).loss(evaluation, batch)
    policy = -np.mean([1.2, 0.5, -1.5, -0.8, 1.1])
    assert float(log["policy_loss"]) == pytest.approx(policy)
    assert float(loss.detach()) == pytest.approx(policy + 0.5 * 1.0 - 0.1 * 3.0)
    assert float(log["clip_frac"]) == pytest.approx(0.8)
    loss.backward()
    pushed = evaluation.log_prob.grad != 0
    assert pushed.tolist() == [False, True, True, False, True]
    assert float(Grpo(2).loss(evaluation, batch)[0].detach()) == pytest.approx(policy)
