"""OpenVLA-OFT: a language model that decodes a whole chunk in parallel, and a head trained by L1.

The head's answer is the mean of a Gaussian with a learned deviation, which gives RL a density.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rlprof.workloads.embodied.contracts import SimulatorSpec
from rlprof.workloads.embodied.policies.base import (
    HALF_LOG_2PI,
    Features,
    Prefix,
    TorchPolicy,
    Vlm,
    value_head,
)
from rlprof.workloads.embodied.policies.sizes import PolicySize


class OpenVlaOft(TorchPolicy):
    """See the module; one token of the backbone stands for each number of each action."""

    def __init__(self, size: PolicySize, simulator: SimulatorSpec, seed: int) -> None:
        super().__init__(size, simulator, seed)
        width = size.backbone.width
        self.slots = self.spec.horizon * self.spec.action_dim
        self.vlm = Vlm(size, simulator, "silu", extra_tokens=self.slots)
        self.state_in = nn.Sequential(
            nn.Linear(self.spec.state_dim, width), nn.GELU(), nn.Linear(width, width)
        )
        inner = min(width, 4096)
        last = nn.Linear(inner, self.spec.action_dim)
        nn.init.normal_(last.weight, std=0.01)
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(nn.Linear(self.spec.action_dim * width, inner), nn.ReLU(), last)
        self.log_deviation = nn.Parameter(torch.full((self.spec.action_dim,), math.log(size.noise_level)))
        self.value = value_head(width)

    def _features(self, state: Tensor, task: Tensor, images: Tensor | None) -> Features:
        return Features(self.vlm.look(state, images), state, task)

    def _prefix(self, features: Features) -> Prefix:
        hidden, _ = self.vlm.read(features, self.state_in(features.state)[:, None])
        return Prefix((), hidden[:, -self.slots :], hidden[:, : -self.slots].mean(1))

    def _value(self, prefix: Prefix) -> Tensor:
        return self.value(prefix.summary)[:, 0]  # type: ignore[no-any-return]

    def _mean(self, prefix: Prefix) -> Tensor:
        words = prefix.hidden.reshape(len(prefix.hidden), self.spec.horizon, -1)
        return self.head(words).float()  # type: ignore[no-any-return]

    def _next(
        self,
        point: Tensor,  # noqa: ARG002
        prefix: Prefix,  # noqa: ARG002
        features: Features,  # noqa: ARG002
        noise: Tensor,  # noqa: ARG002
        index: int,
    ) -> Tensor:
        raise AssertionError(f"there are no denoise steps, and {index} is asked for")

    def _finish(
        self,
        points: tuple[Tensor, ...],  # noqa: ARG002
        prefix: Prefix,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        deviation = self.log_deviation.float()
        actions = self._mean(prefix) + deviation.exp() * noise[:, 0]
        density = -0.5 * noise[:, 0].square() - deviation - HALF_LOG_2PI
        return actions[:, None], density.sum((1, 2))

    def _log_prob(
        self,
        chain: Tensor,
        prefix: Prefix,
        features: Features,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        deviation = self.log_deviation.float()
        distance = (chain[:, 0] - self._mean(prefix)) / deviation.exp()
        density = -0.5 * distance.square() - deviation - HALF_LOG_2PI
        entropy = (deviation + HALF_LOG_2PI + 0.5).sum() * self.spec.horizon
        return density.sum((1, 2)), entropy.expand(len(chain))
