"""PPO with generalised advantage estimation, and GRPO, on chunks of actions.

A chunk is one decision: its reward is the sum over its actions, its log-probability that of the whole answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlprof.workloads.embodied.contracts import Array, Batch, Evaluation, Floats, Trajectory
from rlprof.workloads.embodied.errors import ConfigurationError, need

if TYPE_CHECKING:
    import torch

ALGORITHMS = ("ppo", "grpo")


def gae(
    rewards: Floats, values: Floats, dones: Array, last_value: Floats, *, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """Generalised advantage estimation (Schulman et al. 2016, formula 16).

    Parameters
    ----------
    rewards, values, dones : ndarray, shape (chunks, envs)
        Reward of each chunk, value before it, and whether the episode ended with it.
    last_value : ndarray, shape (envs,)
        Value after the last chunk; not used where the episode has ended.
    gamma, lam : float
        Discount of a chunk, and weight of longer estimates.

    Returns
    -------
    tuple of ndarray, shape (chunks, envs)
        Advantages and returns.
    """
    advantages = np.zeros_like(values)
    following, ahead = last_value, np.zeros_like(last_value)
    for k in reversed(range(len(rewards))):
        goes_on = 1.0 - dones[k].astype(values.dtype)
        delta = rewards[k] + gamma * goes_on * following - values[k]
        ahead = delta + gamma * lam * goes_on * ahead
        advantages[k], following = ahead, values[k]
    return advantages, advantages + values


def group_relative(scores: Floats, group: int) -> Floats:
    """Scores relative to their group, shape (envs,); groups are rows in a row (GRPO).

    Parameters
    ----------
    scores : ndarray, shape (envs,)
        One for each environment.
    group : int
        Environments in a group.
    """
    grouped = scores.reshape(-1, group)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    relative: Floats = centred / (grouped.std(axis=1, keepdims=True) + 1e-6)
    return relative.reshape(-1).astype(scores.dtype)


@dataclass(frozen=True)
class Ppo:
    """PPO: clipped ratio, value loss, advantages by GAE and normalised over all that is given at once.

    Parameters
    ----------
    gamma, lam : float
        Of `gae`.
    clip : float
        Farthest that a ratio counts from 1.
    value_weight, entropy_weight : float
        Of the losses.
    """

    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    name: str = "ppo"
    uses_value: bool = True

    def advantages(self, trajectories: list[Trajectory]) -> list[tuple[Floats, Floats]]:
        """Advantages and returns of each epoch, shape (chunks, envs)."""
        found = []
        for t in trajectories:
            rewards = np.stack([r.sum(axis=1) for r in t.rewards])
            values = np.stack([o.value for o in t.outputs])
            assert t.last_value is not None
            found.append(
                gae(rewards, values, np.stack(t.dones), t.last_value, gamma=self.gamma, lam=self.lam)
            )
        every = np.concatenate([a.ravel() for a, _ in found])
        mean, deviation = every.mean(), every.std() + 1e-8
        return [((a - mean) / deviation, r) for a, r in found]

    def loss(self, evaluation: Evaluation, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Mean loss over a micro-batch, and what to log."""
        torch = need("torch", why="training")
        policy_loss, log = clipped(evaluation, batch, self.clip)
        returns = torch.as_tensor(batch.returns, device=evaluation.value.device)
        value_loss = (evaluation.value - returns).square().mean()
        entropy = evaluation.entropy.mean()
        loss = policy_loss + self.value_weight * value_loss - self.entropy_weight * entropy
        return loss, {**log, "value_loss": value_loss.detach(), "entropy": entropy.detach()}


@dataclass(frozen=True)
class Grpo:
    """GRPO: one advantage for a whole epoch of an environment, relative to its group; no values.

    Parameters
    ----------
    group : int
        Environments that start alike.
    clip : float
        Farthest that a ratio counts from 1.
    """

    group: int
    clip: float = 0.2
    name: str = "grpo"
    uses_value: bool = False

    def __post_init__(self) -> None:
        if self.group < 2:
            raise ConfigurationError("GRPO compares environments of a group", hint="use groups of 2 or more")

    def advantages(self, trajectories: list[Trajectory]) -> list[tuple[Floats, Floats]]:
        """Advantages of each epoch, shape (chunks, envs), and zeros."""
        found = []
        for t in trajectories:
            score = np.sum([r.sum(axis=1) for r in t.rewards], axis=0)
            advantage = np.tile(group_relative(score, self.group), (len(t.rewards), 1))
            found.append((advantage, np.zeros_like(advantage)))
        return found

    def loss(self, evaluation: Evaluation, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Mean loss over a micro-batch, and what to log."""
        loss, log = clipped(evaluation, batch, self.clip)
        return loss, log


def clipped(
    evaluation: Evaluation, batch: Batch, clip: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Clipped policy loss (Schulman et al. 2017, formula 7), its mean, and what to log."""
    torch: Any = need("torch", why="training")
    device = evaluation.log_prob.device
    advantage, before = (torch.as_tensor(x, device=device) for x in (batch.advantages, batch.log_prob))
    difference = evaluation.log_prob - before
    ratio = difference.exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    log = {
        "policy_loss": loss.detach(),
        "approx_kl": (ratio - 1 - difference).mean().detach(),
        "clip_frac": ((ratio - 1).abs() > clip).float().mean().detach(),
    }
    return loss, log
