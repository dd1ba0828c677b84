"""What the parts of an embodied workload are to each other: policy, simulator, and what passes between them.

What passes between components is numpy on the host; torch tensors stay inside a policy. Every method that
works sample by sample takes `samples`: the indices of its rows in the whole batch of environments (int64,
shape (batch,)), None for all of them. Randomness is an argument or keyed by (step, epoch, chunk, sample), so
that neither order nor grouping of calls changes what a sample gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.floating[Any]]
Samples = npt.NDArray[np.int64] | None


class GlobalStep:
    """Number of a training step, passed to whatever draws random numbers.

    An object of its own class, so that a recorded iteration follows it as a value and not as a number.
    """

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"GlobalStep({self.index})"


class Observation(NamedTuple):
    """What a policy sees.

    Parameters
    ----------
    state : ndarray of float32, shape (batch, state_dim)
        Proprioception; without cameras also poses of objects.
    images : ndarray of uint8, shape (batch, cameras, height, width, 3), or None
        Camera images.
    task : ndarray of int64, shape (batch,)
        Which instruction is given.
    """

    state: Floats
    images: Array | None
    task: Array


class StepResult(NamedTuple):
    """What a chunk of actions leads to.

    Parameters
    ----------
    observation : Observation
        After the chunk; of an environment that was reset, the first one of its new episode.
    rewards : ndarray of float32, shape (batch, chunk_steps)
        For each action.
    dones : ndarray of bool, shape (batch,)
        The episode ended with this chunk. The time left is part of the state, so an end by time is an end.
    success : ndarray of bool, shape (batch,)
        The task was done at some time in the episode so far.
    """

    observation: Observation
    rewards: Floats
    dones: Array
    success: Array


class PolicyOutput(NamedTuple):
    """What a policy answers to an observation.

    Parameters
    ----------
    actions : ndarray of float32, shape (batch, chunk_steps, action_dim)
        One chunk, each component in -1 .. 1.
    log_prob : ndarray of float32, shape (batch,)
        Of the whole chunk.
    value : ndarray of float32, shape (batch,)
        Of the observation.
    chain : ndarray of float32, shape (batch, draws, horizon, action_dim)
        What `Policy.evaluate` needs to find the log-probability again: all points of the denoising chain of a
        flow head (denoise_steps + 1), the unclipped actions of another.
    prefix : tuple of torch.Tensor or None
        What `Policy.evaluate` may use in place of seeing the observation again, on the policy's device with
        samples along the first axis; None: it is not kept.
    """

    actions: Floats
    log_prob: Floats
    value: Floats
    chain: Floats
    prefix: Any = None


#: Numbers of an answer, which are on the host.
NUMBERS = ("actions", "log_prob", "value", "chain")


class Evaluation(NamedTuple):
    """A batch evaluated with gradients; torch tensors of shape (batch,)."""

    log_prob: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor


@dataclass(frozen=True)
class PolicySpec:
    """Sizes of a policy that others need.

    Parameters
    ----------
    family : str
        Its name: pi0, pi05, openvla_oft, gr00t.
    chunk_steps : int
        Actions that are carried out of each answer.
    horizon : int
        Actions that the head makes; at least `chunk_steps`.
    action_dim, state_dim : int
        Sizes of an action and of a state.
    draws : int
        Standard normal draws of shape (horizon, action_dim) per answer: denoise steps + 1 of a flow head.
    denoise_steps : int
        Calls of `denoise_step` per answer.
    invariant : bool
        The bits of a sample's answer do not depend on which others are in the batch.
    """

    family: str
    chunk_steps: int
    horizon: int
    action_dim: int
    state_dim: int
    draws: int
    denoise_steps: int
    invariant: bool


class Policy(Protocol):
    """A vision-language-action policy with a value head.

    The phases of an answer are methods of their own; what passes between them (what was uploaded, features,
    prefix, points of the chain) is tensors with samples along the first axis, or nested tuples of such
    tensors. `act` is all of them one after another.
    """

    spec: PolicySpec

    def noise(
        self, observation: Observation, step: GlobalStep, epoch: int, chunk: int, samples: Samples = None
    ) -> Floats:
        """Draw what an answer needs, keyed by sample, shape (batch, draws, horizon, action_dim)."""
        ...

    def upload(self, observation: Observation, noise: Floats) -> tuple[Any, Any]:
        """Copy what an answer needs to the device: state, images (uint8) and task; the noise."""
        ...

    def vision(self, seen: Any) -> Any:
        """Features of images, and state and task as the policy reads them."""
        ...

    def backbone(self, features: Any) -> Any:
        """Prefix: keys and values that the head attends to, and what the value head reads."""
        ...

    def start(self, noise: Any) -> Any:
        """First point of the chain."""
        ...

    def denoise_step(self, point: Any, prefix: Any, features: Any, noise: Any, index: int) -> Any:
        """Next point of the chain."""
        ...

    def decode(self, points: tuple[Any, ...], prefix: Any, noise: Any) -> PolicyOutput:
        """Actions, log-probability and value of a finished chain."""
        ...

    def act(self, observation: Observation, noise: Floats) -> PolicyOutput:
        """Answer an observation."""
        ...

    def evaluate(self, observation: Observation, chain: Floats, prefix: Any = None) -> Evaluation:
        """Evaluate what was answered before, with gradients; `prefix` as the answer has it."""
        ...

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """All parameters."""
        ...

    def trainable(self) -> list[torch.nn.Parameter]:
        """Those that training changes: all, the expert's, or adapters."""
        ...


@dataclass(frozen=True)
class SimulatorSpec:
    """Sizes of a simulator that others need.

    Parameters
    ----------
    name : str
        Of the simulator.
    envs : int
        Environments, all together.
    chunk_steps : int
        Actions in a chunk.
    episode_steps : int
        Actions in an episode; a multiple of `chunk_steps`.
    action_dim, state_dim : int
        Sizes of an action and of a state.
    cameras, height, width : int
        Images of each observation and their sizes; 0 cameras: no images.
    group : int
        Environments that start from the same state (a GRPO group): environments ``k * group ..`` in a row.
    unit : int
        A batch is cut between units of this many environments.
    invariant : bool
        An environment's bits do not depend on which others are in the batch.
    view_dim : int
        Numbers that say what an environment looks like, where another process draws it; else 0.
    """

    name: str
    envs: int
    chunk_steps: int
    episode_steps: int
    action_dim: int
    state_dim: int
    cameras: int = 0
    height: int = 0
    width: int = 0
    group: int = 1
    unit: int = 1
    invariant: bool = True
    view_dim: int = 0


class Simulator(Protocol):
    """A batch of environments. One call at a time."""

    spec: SimulatorSpec

    def reset(self, step: GlobalStep, epoch: int, samples: Samples = None) -> Observation:
        """Begin new episodes; nothing of the old ones is used. Staggered ones begin in the middle."""
        ...

    def step(self, actions: Floats, samples: Samples = None) -> StepResult:
        """Carry out a chunk of actions, shape (batch, chunk_steps, action_dim): physics, reward, render."""
        ...

    def physics(self, actions: Floats, samples: Samples = None) -> None:
        """Move the environments."""
        ...

    def reward(self, samples: Samples = None) -> tuple[Floats, Array, Array]:
        """Rewards, dones and success of the last chunk, as in `StepResult`."""
        ...

    def auto_reset(self, samples: Samples = None) -> None:
        """Begin new episodes where one has ended, if the simulator is set to do so."""
        ...

    def render(self, samples: Samples = None) -> Observation:
        """What the policy sees now."""
        ...

    def state_dict(self) -> dict[str, Array]:
        """All that the environments are, for a checkpoint."""
        ...

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Go back to a checkpoint."""
        ...

    def close(self) -> None:
        """End processes and threads; once is enough."""
        ...


class Batch(NamedTuple):
    """Samples to learn from, stacked along the first axis: (epoch, chunk, environment) in this order.

    Parameters
    ----------
    observation : Observation
        What was seen.
    chain : ndarray, shape (samples, draws, horizon, action_dim)
        What was answered.
    log_prob, value : ndarray of float32, shape (samples,)
        Of the answers, with the weights that gave them.
    advantages, returns : ndarray of float32, shape (samples,)
        What to learn.
    prefix : tuple of torch.Tensor or None
        Of the answers, where they were kept.
    """

    observation: Observation
    chain: Floats
    log_prob: Floats
    value: Floats
    advantages: Floats
    returns: Floats
    prefix: Any = None


class Trajectory(NamedTuple):
    """One rollout epoch of all environments: lists with an item for each chunk.

    Parameters
    ----------
    observations : list of Observation
        What was seen before each chunk.
    outputs : list of PolicyOutput
        What was answered.
    rewards, dones, success : list of ndarray
        As in `StepResult`.
    last_value : ndarray of float32, shape (batch,), or None
        Value of the observation after the last chunk; None if the algorithm uses no values.
    """

    observations: list[Observation]
    outputs: list[PolicyOutput]
    rewards: list[Floats]
    dones: list[Array]
    success: list[Array]
    last_value: Floats | None


class Algorithm(Protocol):
    """How advantages are found and what the loss is."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def uses_value(self) -> bool:
        """Whether it needs values of the policy."""
        ...

    def advantages(self, trajectories: list[Trajectory]) -> list[tuple[Floats, Floats]]:
        """Advantages and returns of each epoch, shape (chunks, envs); normalised over all that is given."""
        ...

    def loss(self, evaluation: Evaluation, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Mean loss over a micro-batch, and what to log."""
        ...
