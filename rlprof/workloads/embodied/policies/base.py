"""What all policies of this package share: phases, answers row by row, what is trained."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlprof.workloads.embodied import noise
from rlprof.workloads.embodied.contracts import (
    Array,
    Evaluation,
    Floats,
    GlobalStep,
    Observation,
    PolicyOutput,
    PolicySpec,
    Samples,
    SimulatorSpec,
)
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.policies.layers import KeyValue, Stack, Vision, adapt
from rlprof.workloads.embodied.policies.sizes import PolicySize

if TYPE_CHECKING:
    from rlprof.overlap.green import SmShares

#: ``log(2 pi) / 2``.
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Seen(NamedTuple):
    """An observation on the policy's device; samples along the first axis.

    Parameters
    ----------
    state : Tensor, shape (batch, state_dim)
        Proprioception, in the type of the weights.
    images : Tensor of uint8, shape (batch, cameras, height, width, 3), or None
        Camera images.
    task : Tensor of int64, shape (batch,)
        Instruction.
    """

    state: Tensor
    images: Tensor | None
    task: Tensor


class Features(NamedTuple):
    """What the backbone and the head see; samples along the first axis.

    Parameters
    ----------
    tokens : Tensor, shape (batch, tokens, width)
        Of images, or of the state where there are none.
    state : Tensor, shape (batch, state_dim)
        Proprioception.
    task : Tensor of int64, shape (batch,)
        Instruction.
    """

    tokens: Tensor
    state: Tensor
    task: Tensor


class Prefix(NamedTuple):
    """What the backbone leaves to the head; samples along the first axis.

    Parameters
    ----------
    cache : tuple of (Tensor, Tensor)
        Keys and values of each layer, shape (batch, kv_heads, tokens, head_dim); empty if not needed.
    hidden : Tensor, shape (batch, tokens, width)
        Last layer; without tokens if the head needs none.
    summary : Tensor, shape (batch, width)
        What the value head reads.
    """

    cache: tuple[KeyValue, ...]
    hidden: Tensor
    summary: Tensor


class Kept(NamedTuple):
    """A prefix that is kept for training: in few tensors, samples along the first axis.

    Parameters
    ----------
    cache : Tensor, shape (batch, layers, 2, kv_heads, tokens, head_dim)
        Keys and values; shape (batch, 0) if there are none.
    hidden, summary : Tensor
        As in `Prefix`.
    """

    cache: Tensor
    hidden: Tensor
    summary: Tensor

    @classmethod
    def of(cls, prefix: Prefix) -> Kept:
        """Copy a prefix."""
        pairs = [torch.stack(pair, 1) for pair in prefix.cache]
        cache = torch.stack(pairs, 1) if pairs else prefix.summary.new_empty(len(prefix.summary), 0)
        return cls(cache, prefix.hidden.clone(), prefix.summary.clone())

    def prefix(self) -> Prefix:
        """Return the prefix; its keys and values share memory."""
        layers = self.cache.unbind(1) if self.cache.ndim > 2 else ()
        return Prefix(tuple((pair[:, 0], pair[:, 1]) for pair in layers), self.hidden, self.summary)


def each_row(function: Callable[..., Any], *values: Any) -> Any:
    """Call a function on one sample after another (first axis of all arrays) and join what it returns."""
    size = next(len(leaf) for value in values for leaf in _leaves(value))
    return _join([function(*(_take(value, row) for value in values)) for row in range(size)])


def _on_host(*values: Tensor) -> list[Floats]:
    """Copy numbers to the host as float32, all at once: each copy waits for the device."""
    flat = torch.cat([value.float().flatten() for value in values]).cpu()
    parts = torch.split(flat, [value.numel() for value in values])
    return [part.view(value.shape).numpy() for part, value in zip(parts, values, strict=True)]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Tensor | np.ndarray):
        return [value]
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, tuple) else []


def _take(value: Any, row: int) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        return value[row : row + 1]
    if isinstance(value, tuple):
        return _like(value, [_take(item, row) for item in value])
    return value


def _join(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, tuple):
        return _like(first, [_join([part[k] for part in parts]) for k in range(len(first))])
    return first


def _like(value: tuple[Any, ...], items: list[Any]) -> Any:
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


class TorchPolicy(nn.Module, ABC):
    """Base of the policies; see `rlprof.workloads.embodied.contracts.Policy`.

    Parameters
    ----------
    size : PolicySize
        How large.
    simulator : SimulatorSpec
        What it acts in.
    seed : int
        Of its noise; weights are made by `rlprof.workloads.embodied.policies.make`.

    Attributes
    ----------
    keeps_prefix : bool
        Answers hold their prefix, with which `evaluate` need not see the observation again. It is right only
        where training leaves all that makes the prefix as it is.
    sm_shares : SmShares or None
        Whose streams may have parts of the SMs: what is captured from them keeps these.
    """

    #: Parts that ``train="expert"`` leaves as they are.
    frozen_parts: tuple[str, ...] = ("vlm",)
    keeps_prefix = False
    sm_shares: SmShares | None = None

    def __init__(self, size: PolicySize, simulator: SimulatorSpec, seed: int) -> None:
        super().__init__()
        self.size, self.seed = size, seed
        draws = size.denoise_steps + 1
        self.spec = PolicySpec(
            family=size.family,
            chunk_steps=simulator.chunk_steps,
            horizon=max(size.horizon, simulator.chunk_steps),
            action_dim=simulator.action_dim,
            state_dim=simulator.state_dim,
            draws=draws,
            denoise_steps=size.denoise_steps,
            invariant=size.by_row,
        )

    # to be given by a family -------------------------------------------------------------------------------

    @abstractmethod
    def _features(self, state: Tensor, task: Tensor, images: Tensor | None) -> Features:
        """See the family."""

    @abstractmethod
    def _prefix(self, features: Features) -> Prefix:
        """See the family."""

    @abstractmethod
    def _value(self, prefix: Prefix) -> Tensor:
        """See the family."""

    @abstractmethod
    def _next(self, point: Tensor, prefix: Prefix, features: Features, noise: Tensor, index: int) -> Tensor:
        """See the family."""

    @abstractmethod
    def _finish(self, points: tuple[Tensor, ...], prefix: Prefix, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Chain and log-probability."""

    @abstractmethod
    def _log_prob(self, chain: Tensor, prefix: Prefix, features: Features) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of a chain."""

    # phases ------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of its weights."""
        return next(self.parameters()).dtype

    def noise(
        self, observation: Observation, step: GlobalStep, epoch: int, chunk: int, samples: Samples = None
    ) -> Floats:
        """Draw what an answer needs, keyed by sample, shape (batch, draws, horizon, action_dim)."""
        key = (self.seed, "policy", step.index, epoch, chunk)
        shape = (self.spec.draws, self.spec.horizon, self.spec.action_dim)
        return noise.normal(key, noise.rows(len(observation.state), samples), shape)

    def _call(self, function: Callable[..., Any], *values: Any) -> Any:
        with torch.no_grad():
            return each_row(function, *values) if self.size.by_row else function(*values)

    def _sent(self, observation: Observation) -> Seen:
        state, images, task = (None if x is None else self._tensor(x) for x in observation)
        assert state is not None
        assert task is not None
        return Seen(state.to(self.dtype), images, task)

    def _seen(self, seen: Seen) -> Features:
        images = None if seen.images is None else seen.images.to(self.dtype) / 255
        return self._features(seen.state, seen.task, images)

    def _tensor(self, array: Array | Tensor) -> Tensor:
        """Numbers on the device, one after the other in memory."""
        if isinstance(array, Tensor):
            return array.to(self.device).contiguous()
        there = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type == "cuda":
            # the allocator gives pinned memory to nobody else before the copy from it is done
            return there.pin_memory().to(self.device, non_blocking=True)
        return there.to(self.device)

    def upload(self, observation: Observation, noise: Floats) -> tuple[Seen, Tensor]:
        """Copy what an answer needs to the device."""
        return self._sent(observation), self._tensor(noise)

    def vision(self, seen: Seen) -> Features:
        """Features of images, and state and task as the policy reads them."""
        return self._call(self._seen, seen)  # type: ignore[no-any-return]

    def backbone(self, features: Features) -> Prefix:
        """Keys and values that the head attends to, and what the value head reads."""
        return self._call(self._prefix, features)  # type: ignore[no-any-return]

    def start(self, noise: Tensor) -> Tensor:
        """First point of the chain, shape (batch, horizon, action_dim)."""
        return self._tensor(noise[:, 0])

    def denoise_step(
        self, point: Tensor, prefix: Prefix, features: Features, noise: Tensor, index: int
    ) -> Tensor:
        """Next point of the chain."""

        def one(point: Tensor, prefix: Prefix, features: Features, noise: Tensor) -> Tensor:
            return self._next(point, prefix, features, self._tensor(noise[:, index + 1]), index)

        return self._call(one, point, prefix, features, noise)  # type: ignore[no-any-return]

    def decode(self, points: tuple[Tensor, ...], prefix: Prefix, noise: Tensor) -> PolicyOutput:
        """Actions, log-probability and value of a finished chain."""

        def one(points: tuple[Tensor, ...], prefix: Prefix, noise: Tensor) -> PolicyOutput:
            chain, log_prob = self._finish(points, prefix, self._tensor(noise))
            actions = chain[:, -1, : self.spec.chunk_steps].clamp(-1, 1)
            value = self._value(prefix)
            answer = PolicyOutput(*_on_host(actions, log_prob, value, chain))
            return answer._replace(prefix=Kept.of(prefix)) if self.keeps_prefix else answer

        return self._call(one, tuple(points), prefix, noise)  # type: ignore[no-any-return]

    def act(self, observation: Observation, noise: Floats) -> PolicyOutput:
        """Answer an observation: all phases, one after another."""
        # the class's own methods: nodes that stand in place of this object's are phases of another call
        own = type(self)
        seen, drawn = own.upload(self, observation, noise)
        features = own.vision(self, seen)
        prefix = own.backbone(self, features)
        points = [own.start(self, drawn)]
        for index in range(self.spec.denoise_steps):
            points.append(own.denoise_step(self, points[-1], prefix, features, drawn, index))
        return own.decode(self, tuple(points), prefix, drawn)

    # training ----------------------------------------------------------------------------------------------

    def evaluate(self, observation: Observation, chain: Floats, prefix: Kept | None = None) -> Evaluation:
        """Evaluate what was answered before, with gradients.

        Parameters
        ----------
        observation : Observation
            What was seen; with a prefix no images are needed.
        chain : ndarray
            What was answered.
        prefix : Kept, optional
            Of the answer (`keeps_prefix`).
        """
        if prefix is None:
            features = self._seen(self._sent(observation))
            return self._evaluate(chain, features, self._prefix(features))
        seen = self._sent(observation._replace(images=None))
        # autograd takes no tensor that was made in inference mode
        normal = (t.clone() if t.is_inference() else t for t in prefix)
        kept = Kept(*(t.to(self.device) for t in normal)).prefix()
        return self._evaluate(chain, Features(kept.hidden[:, :0], seen.state, seen.task), kept)

    def _evaluate(self, chain: Floats, features: Features, prefix: Prefix) -> Evaluation:
        log_prob, entropy = self._log_prob(self._tensor(chain), prefix, features)
        return Evaluation(log_prob, self._value(prefix).float(), entropy)

    def compile_layers(self) -> None:
        """Compile layers of answers, where a family can.

        Raises
        ------
        ConfigurationError
            If this one cannot.
        """
        raise ConfigurationError(
            f"layers of {type(self).__name__} are not compiled",
            hint="leave --compile-policy away, or use pi0 of transformers (--policy pi0 --preset h200)",
        )

    def set_trainable(self) -> None:
        """Freeze what `size.train` says, and put adapters in where it asks for them."""
        if self.size.train == "full":
            return
        for name in self.frozen_parts:
            part = getattr(self, name)
            for parameter in part.parameters():
                parameter.requires_grad_(False)
            if self.size.train == "lora":
                adapt(part, self.size.lora_rank)

    def trainable(self) -> list[nn.Parameter]:
        """Parameters that training changes."""
        return [p for p in self.parameters() if p.requires_grad]


class Vlm(nn.Module):
    """Vision tower, instruction tokens and language model."""

    def __init__(
        self, size: PolicySize, simulator: SimulatorSpec, activation: str = "gelu", *, extra_tokens: int = 0
    ) -> None:
        super().__init__()
        self.size = size
        width = size.backbone.width
        self.images = simulator.cameras > 0
        if self.images:
            self.tower = Vision(size.vision, size.patch, simulator.height)
            self.project = nn.Linear(size.vision.width, width)
        else:
            self.scene = nn.Linear(simulator.state_dim, size.scene_tokens * width)
        self.embed = nn.Embedding(size.vocabulary, width)
        self.extra = nn.Parameter(0.02 * torch.randn(extra_tokens, width)) if extra_tokens else None
        self.stack = Stack(size.backbone, activation=activation)

    def look(self, state: Tensor, images: Tensor | None) -> Tensor:
        """Tokens of what is seen, shape (batch, tokens, width)."""
        if self.images:
            return self.project(self.tower(images))  # type: ignore[no-any-return]
        return self.scene(state).view(len(state), self.size.scene_tokens, -1)  # type: ignore[no-any-return]

    def read(self, features: Features, further: Tensor | None = None) -> tuple[Tensor, tuple[KeyValue, ...]]:
        """Run the language model over what is seen, the instruction, `further` and the extra tokens."""
        count = self.size.instruction_tokens
        words = features.task[:, None] * count + torch.arange(count, device=features.task.device)
        parts = [features.tokens, self.embed(words % self.size.vocabulary)]
        if further is not None:
            parts.append(further)
        if self.extra is not None:
            parts.append(self.extra.expand(len(words), -1, -1))
        return self.stack(torch.cat(parts, dim=1))  # type: ignore[no-any-return]


def value_head(width: int) -> nn.Sequential:
    """A perceptron of one hidden layer whose first answer is 0."""
    inner = min(width, 512)
    last = nn.Linear(inner, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(width, inner), nn.SiLU(), last)
