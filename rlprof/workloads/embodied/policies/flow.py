"""Flow-matching policies: pi0, pi0.5 and GR00T, with actions sampled by a stochastic flow.

A chain goes from noise (time 1) to actions (time 0) in equal steps. Sampling adds noise to each step such
that the marginals stay those of the deterministic flow (Flow-SDE of Flow-GRPO and pi_RL):
``x' = x - d (v + s^2 / (2 t) (x + (1 - t) v)) + s sqrt(d) e`` with ``s = noise_level sqrt(t / (1 - t))``,
where ``1 - t`` is at least the step ``d``. So every step has a Gaussian density, and the log-probability of
an answer is the sum over its steps.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
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
from rlprof.workloads.embodied.policies.layers import Block, Norm, Stack, time_features
from rlprof.workloads.embodied.policies.sizes import PolicySize

if TYPE_CHECKING:
    from rlprof.workloads.embodied.policies.captured import CapturedSteps


class FlowPolicy(TorchPolicy):
    """What the flow policies share: the stochastic flow and its density."""

    @abstractmethod
    def velocity(self, point: Tensor, time: Tensor, prefix: Prefix, features: Features) -> Tensor:
        """Output of the action head for points (batch, horizon, action_dim) at times (batch,)."""

    def velocities(self, points: Tensor, times: Tensor, prefix: Prefix, features: Features) -> Tensor:
        """Output of the action head for all steps at once.

        Points have the shape (batch, steps, horizon, action_dim), times (steps,).
        """
        batch, steps = points.shape[:2]
        # sample-major, as `repeat_interleave` lays the prefix out
        wide = Prefix(
            tuple((k.repeat_interleave(steps, 0), v.repeat_interleave(steps, 0)) for k, v in prefix.cache),
            prefix.hidden.repeat_interleave(steps, 0),
            prefix.summary,
        )
        seen = Features(*(x.repeat_interleave(steps, 0) for x in features))
        return self.velocity(points.flatten(0, 1), times.repeat(batch), wide, seen).view(points.shape)

    captured: CapturedSteps | None = None

    def capture(self) -> None:
        """Run denoise steps as CUDA graphs from now on.

        Raises
        ------
        ConfigurationError
            If the policy is on no CUDA device, or computes sample by sample.
        """
        from rlprof.workloads.embodied.policies.captured import CapturedSteps

        self.captured = CapturedSteps(self)

    def denoise_step(
        self, point: Tensor, prefix: Prefix, features: Features, noise: Tensor, index: int
    ) -> Tensor:
        """Next point of the chain."""
        if self.captured is not None:
            drawn = self._tensor(noise[:, index + 1])
            following = self.captured.step(point, prefix, features, drawn, index)
            if following is not None:
                return following
        return super().denoise_step(point, prefix, features, noise, index)

    def plan(self, device: torch.device) -> Tensor:
        """Time before each step and scale of its noise, shape (steps, 2)."""
        steps = [self._step_s(k) for k in range(self.size.denoise_steps)]
        return torch.tensor([[time, scale] for time, _, scale in steps], device=device, dtype=torch.float32)

    def advance(
        self, point: Tensor, prefix: Prefix, features: Features, noise: Tensor, time: Tensor, scale: Tensor
    ) -> Tensor:
        """Next point of a chain, with time and scale (shape ()) on the device: no number of the host."""
        length = 1.0 / self.size.denoise_steps
        head = self.velocity(point.to(self.dtype), time.expand(len(point)), prefix, features).float()
        return self._mean(point, head, time, length, scale) + scale * math.sqrt(length) * noise

    def _step_s(self, index: int) -> tuple[float, float, float]:
        """Time before a step, its length, and the scale of its noise."""
        length = 1.0 / self.size.denoise_steps
        time = 1.0 - index * length
        return time, length, self.size.noise_level * math.sqrt(time / max(1.0 - time, length))

    def _mean(self, point: Tensor, head: Tensor, time: Tensor, length: float, scale: Tensor) -> Tensor:
        velocity = (point - head) / time if self.size.preconditioned else head
        drift = velocity + scale.square() / (2 * time) * (point + (1 - time) * velocity)
        return point - length * drift

    def _next(self, point: Tensor, prefix: Prefix, features: Features, noise: Tensor, index: int) -> Tensor:
        time, length, scale = self._step_s(index)
        times = torch.full((len(point),), time, device=point.device)
        head = self.velocity(point.to(self.dtype), times, prefix, features).float()
        mean = self._mean(point, head, torch.tensor(time), length, torch.tensor(scale))
        return mean + scale * math.sqrt(length) * noise

    def _deviations(self) -> list[float]:
        steps = [self._step_s(k) for k in range(self.size.denoise_steps)]
        return [scale * math.sqrt(length) for _, length, scale in steps]

    def _finish(
        self,
        points: tuple[Tensor, ...],
        prefix: Prefix,  # noqa: ARG002
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        drawn = noise[:, 1:]
        constant = sum(math.log(d) + HALF_LOG_2PI for d in self._deviations()) * drawn[0, 0].numel()
        return torch.stack(points, dim=1), -0.5 * drawn.square().sum((1, 2, 3)) - constant

    def _log_prob(self, chain: Tensor, prefix: Prefix, features: Features) -> tuple[Tensor, Tensor]:
        batch, steps = len(chain), self.size.denoise_steps
        before, after = chain[:, :-1].flatten(0, 1), chain[:, 1:].flatten(0, 1)
        plan = [self._step_s(k) for k in range(steps)]
        time, scale = (torch.tensor([p[i] for p in plan], device=chain.device) for i in (0, 2))
        times, scales = time.repeat(batch), scale.repeat(batch)
        head = self.velocities(chain[:, :-1].to(self.dtype), time, prefix, features).float().flatten(0, 1)
        mean = self._mean(before, head, times[:, None, None], plan[0][1], scales[:, None, None])
        deviation = (scales * math.sqrt(plan[0][1]))[:, None, None]
        density = -0.5 * ((after - mean) / deviation).square() - deviation.log() - HALF_LOG_2PI
        log_prob = density.sum((1, 2)).view(batch, steps).sum(1)
        entropy = sum(math.log(d) + HALF_LOG_2PI + 0.5 for d in self._deviations()) * chain[0, 0].numel()
        return log_prob, torch.full_like(log_prob, entropy)

    def _head_out(self, width: int) -> nn.Linear:
        out = nn.Linear(width, self.spec.action_dim)
        if self.size.preconditioned:  # small actions at first
            nn.init.normal_(out.weight, std=0.01)
            nn.init.zeros_(out.bias)
        return out


class Pi(FlowPolicy):
    """pi0, and pi0.5: an action expert that attends to the backbone's keys and values, layer by layer.

    pi0 gives the expert the state as a token and mixes the time into the actions; pi0.5 gives the backbone
    the state as words and conditions the expert's norms on the time.
    """

    def __init__(self, size: PolicySize, simulator: SimulatorSpec, seed: int) -> None:
        super().__init__(size, simulator, seed)
        assert size.expert is not None
        width = size.expert.width
        self.adaptive = size.family == "pi05"
        self.vlm = Vlm(size, simulator)
        self.expert = Stack(size.expert, condition=width if self.adaptive else None)
        self.action_in = nn.Linear(self.spec.action_dim, width)
        self.time_in = nn.Linear(width if self.adaptive else 2 * width, width)
        self.time_out = nn.Linear(width, width)
        self.state_in = None if self.adaptive else nn.Linear(self.spec.state_dim, width)
        self.action_out = self._head_out(width)
        self.value = value_head(size.backbone.width)

    def _features(self, state: Tensor, task: Tensor, images: Tensor | None) -> Features:
        return Features(self.vlm.look(state, images), state, task)

    def _prefix(self, features: Features) -> Prefix:
        further = None
        if self.adaptive:
            bins = min(256, self.size.vocabulary)
            word = ((features.state.float() + 5) / 10 * bins).long().clamp(0, bins - 1)
            further = self.vlm.embed(self.size.vocabulary - 1 - word)
        hidden, cache = self.vlm.read(features, further)
        return Prefix(cache, hidden[:, :0], hidden.mean(1))

    def _value(self, prefix: Prefix) -> Tensor:
        return self.value(prefix.summary)[:, 0]  # type: ignore[no-any-return]

    def velocity(self, point: Tensor, time: Tensor, prefix: Prefix, features: Features) -> Tensor:
        """Output of the action head."""
        actions = self.action_in(point)
        moment = time_features(time, actions.shape[-1]).to(actions)
        if self.state_in is None:
            condition = F.silu(self.time_out(F.silu(self.time_in(moment))))
            hidden, _ = self.expert(actions, past=prefix.cache, condition=condition)
            return self.action_out(hidden)  # type: ignore[no-any-return]
        both = torch.cat([actions, moment[:, None].expand_as(actions)], dim=-1)
        actions = self.time_out(F.silu(self.time_in(both)))
        tokens = torch.cat([self.state_in(features.state)[:, None], actions], dim=1)
        # the state does not look at the actions
        before, own = prefix.cache[0][0].shape[2], tokens.shape[1]
        mask = torch.ones(own, before + own, dtype=torch.bool, device=tokens.device)
        mask[0, before + 1 :] = False
        hidden, _ = self.expert(tokens, past=prefix.cache, mask=mask)
        return self.action_out(hidden[:, 1:])  # type: ignore[no-any-return]


class Gr00t(FlowPolicy):
    """GR00T: a diffusion transformer whose blocks look in turn at the backbone's output and at themselves."""

    def __init__(self, size: PolicySize, simulator: SimulatorSpec, seed: int) -> None:
        super().__init__(size, simulator, seed)
        assert size.expert is not None
        width = size.expert.width
        self.vlm = Vlm(size, simulator, "silu")
        self.blocks = nn.ModuleList(
            Block(
                size.expert,
                condition=width,
                context=size.backbone.width if k % 2 == 0 else None,
                rotary=k % 2 == 1,
            )
            for k in range(size.expert.depth)
        )
        self.norm = Norm(width, width)
        self.state_in = nn.Sequential(
            nn.Linear(self.spec.state_dim, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.action_in = nn.Linear(self.spec.action_dim, width)
        self.position = nn.Parameter(0.02 * torch.randn(self.spec.horizon, width))
        self.time_in = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.action_out = self._head_out(width)
        self.value = value_head(size.backbone.width)

    def _features(self, state: Tensor, task: Tensor, images: Tensor | None) -> Features:
        return Features(self.vlm.look(state, images), state, task)

    def _prefix(self, features: Features) -> Prefix:
        hidden, _ = self.vlm.read(features)
        return Prefix((), hidden, hidden.mean(1))

    def _value(self, prefix: Prefix) -> Tensor:
        return self.value(prefix.summary)[:, 0]  # type: ignore[no-any-return]

    def velocity(self, point: Tensor, time: Tensor, prefix: Prefix, features: Features) -> Tensor:
        """Output of the action head."""
        actions = self.action_in(point) + self.position
        condition = self.time_in(time_features(time, actions.shape[-1]).to(actions))
        x = torch.cat([self.state_in(features.state)[:, None], actions], dim=1)
        for k, block in enumerate(self.blocks):
            x, _ = block(x, context=prefix.hidden if k % 2 == 0 else None, condition=condition)
        x, _ = self.norm(x, condition)
        return self.action_out(x[:, 1:])  # type: ignore[no-any-return]
