"""The actor: finds advantages and trains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlprof.workloads.embodied import noise
from rlprof.workloads.embodied.contracts import (
    Algorithm,
    Array,
    Batch,
    GlobalStep,
    Observation,
    Trajectory,
)
from rlprof.workloads.embodied.errors import (
    ConfigurationError,
    DeviceError,
    WorkloadError,
    need,
    no_memory,
)
from rlprof.workloads.embodied.offload import HostCopies, tensors_of
from rlprof.workloads.embodied.replicas import Replicas

if TYPE_CHECKING:
    from rlprof.workloads.embodied.record import Watch


class Actor:
    """See the module.

    Weights of less than 32 bits are trained on copies of 32 bits, or small steps would be rounded away.

    Parameters
    ----------
    policy : Policy
        Its own; the rollout worker has another.
    algorithm : Algorithm
        Advantages and loss.
    learning_rate, grad_clip : float
        Of Adam, and the largest norm of a gradient.
    global_batch, micro_batch : int
        Samples of an optimiser step, and of one forward and backward pass.
    seed : int
        Of the order of samples.
    others : sequence of Policy
        Replicas of the policy on further devices, which take some of the micro batches.

    Raises
    ------
    ConfigurationError
        If the batches do not fit together.
    """

    def __init__(
        self,
        policy: Any,
        algorithm: Algorithm,
        *,
        learning_rate: float,
        global_batch: int,
        micro_batch: int,
        grad_clip: float = 1.0,
        seed: int = 0,
        others: Sequence[Any] = (),
    ) -> None:
        if global_batch % micro_batch:
            raise ConfigurationError(
                f"a global batch of {global_batch} is no multiple of the micro batch {micro_batch}",
                hint="use a multiple",
            )
        self._torch = need("torch", why="training")
        self.policy, self.algorithm = policy, algorithm
        self.global_batch, self.micro_batch = global_batch, micro_batch
        self.grad_clip, self.seed = grad_clip, seed
        self._trained = policy.trainable()
        self.replicas = Replicas([policy, *others])
        #: What the optimiser changes: the trained parameters, or copies of 32 bits.
        self.masters: list[Any] = self._trained
        if any(p.dtype != self._torch.float32 for p in self._trained):
            self.masters = [p.detach().float().clone() for p in self._trained]
        self.optimizer = self._torch.optim.Adam(self.masters, lr=learning_rate, eps=1e-5)
        self.updates = 0
        self._host = HostCopies()
        #: Told of every optimiser step.
        self.watch: Watch | None = None

    def minibatches(self, samples: int) -> int:
        """Optimiser steps in one pass over so many samples.

        Raises
        ------
        ConfigurationError
            If the samples do not make whole global batches.
        """
        if samples % self.global_batch:
            raise ConfigurationError(
                f"{samples} samples do not make global batches of {self.global_batch}",
                hint="use a global batch that divides envs x chunks (x epochs)",
            )
        return samples // self.global_batch

    def compute_adv(self, trajectories: list[Trajectory]) -> Batch:
        """Advantages and returns, with all samples stacked: (epoch, chunk, environment) in this order."""
        found = self.algorithm.advantages(trajectories)

        def stack(items: list[Any]) -> Any:
            return None if items[0] is None else np.concatenate(items)

        seen = [o for t in trajectories for o in t.observations]
        answers = [o for t in trajectories for o in t.outputs]
        prefix = self._stacked([o.prefix for o in answers])
        state, images, task = ([o[k] for o in seen] for k in range(3))
        return Batch(
            # what was made of the images is there
            observation=Observation(stack(state), None if prefix is not None else stack(images), stack(task)),
            chain=stack([o.chain for o in answers]),
            log_prob=stack([o.log_prob for o in answers]),
            value=stack([o.value for o in answers]),
            advantages=np.concatenate([a.ravel() for a, _ in found]).astype(np.float32),
            returns=np.concatenate([r.ravel() for _, r in found]).astype(np.float32),
            prefix=prefix,
        )

    def _stacked(self, kept: list[Any]) -> Any:
        """Prefixes of all answers, one after another; None if one has none."""
        if any(one is None for one in kept):
            return None
        return type(kept[0])(*(self._torch.cat(parts) for parts in zip(*kept, strict=True)))

    def shuffle(self, batch: Batch, step: GlobalStep, part: int, update_epoch: int) -> Array:
        """Order of samples in one pass, shape (samples,)."""
        return self.order(len(batch.log_prob), step, part, update_epoch)

    def order(self, samples: int, step: GlobalStep, part: int, update_epoch: int) -> Array:
        """Order of so many samples in one pass, shape (samples,)."""
        return noise.permutation((self.seed, "shuffle", step.index, part, update_epoch), samples)

    def training_step(self, batch: Batch, order: Array, index: int) -> dict[str, float]:
        """One optimiser step on global batch `index`; what to log.

        Raises
        ------
        WorkloadError
            If the gradient is not finite; weights are as before then.
        DeviceError
            If the memory of a device is too small.
        """
        torch = self._torch
        rows = order[index * self.global_batch : (index + 1) * self.global_batch]
        parts = len(rows) // self.micro_batch

        def forward_and_backward(policy: Any, part: int) -> dict[str, Any]:
            micro = _take(batch, rows[part * self.micro_batch : (part + 1) * self.micro_batch])
            evaluation = policy.evaluate(micro.observation, micro.chain, micro.prefix)
            loss, log = self.algorithm.loss(evaluation, micro)
            torch.autograd.backward(loss / parts)
            return log

        try:
            logs = self.replicas.gradients(parts, forward_and_backward)
        except (RuntimeError, MemoryError) as error:
            if not no_memory(error):
                raise
            raise DeviceError(
                f"no memory for a micro batch of {self.micro_batch} samples", hint="use a smaller micro batch"
            ) from error
        for master, parameter in zip(self.masters, self._trained, strict=True):
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self.grad_clip)
        total = self._numbers(logs, norm)
        if not math.isfinite(total["grad_norm"]):
            raise WorkloadError(
                f"the gradient of update {self.updates} is not finite",
                hint="use a smaller learning rate, or go on from the last checkpoint",
            )
        self.optimizer.step()
        self._publish()
        if self.watch is not None:
            self.watch.trained(batch, rows, self.updates)
        self.updates += 1
        return total

    def _numbers(self, logs: list[dict[str, Any]], norm: Any) -> dict[str, float]:
        """Means of what was logged, and the norm of the gradient: the device is waited for once."""
        values = [value for log in logs for value in log.values()]
        tensors = [value.to(norm.device).float().reshape(()) for value in values]
        numbers = self._torch.stack([*tensors, norm.float().reshape(())]).tolist()
        names = list(logs[0])
        total = {name: sum(numbers[k : -1 : len(names)]) / len(logs) for k, name in enumerate(names)}
        return {**total, "grad_norm": numbers[-1]}

    def _publish(self) -> None:
        """Round the copies into the weights."""
        with self._torch.no_grad():
            for master, parameter in zip(self.masters, self._trained, strict=True):
                if master is not parameter:
                    parameter.copy_(master)

    def copies(self) -> list[Any]:
        """Return the copies of 32 bits, for a checkpoint; none if the weights are trained themselves."""
        return [] if self.masters is self._trained else self.masters

    def offload(self, device: str = "cpu") -> None:
        """Move weights and optimiser off the accelerators."""
        self._move([*tensors_of(self.policy), *self._optimizer_tensors()], device)
        self.replicas.offload()

    def reload(self, device: str) -> None:
        """Move weights and optimiser back; replicas go where they were."""
        self._move([*tensors_of(self.policy), *self._optimizer_tensors()], device)
        self.replicas.reload()

    def offload_weights(self, device: str = "cpu") -> None:
        """Move the weights alone off the accelerators."""
        self._move(tensors_of(self.policy), device)
        self.replicas.offload()

    def reload_weights(self, device: str) -> None:
        """Move the weights alone back, to be synchronised: those of the first replica."""
        self._move(tensors_of(self.policy), device)

    def _optimizer_tensors(self) -> list[Any]:
        for copy in self.copies():
            copy.grad = None
        states = self.optimizer.state.values()
        found = [v for s in states for v in s.values() if self._torch.is_tensor(v) and v.ndim]
        return [*self.copies(), *found]

    def _move(self, tensors: list[Any], device: str) -> None:
        for parameter in self._trained:
            parameter.grad = None
        if device == "cpu":
            self._host.offload(tensors)
        else:
            self._host.reload(tensors, device)


def _take(batch: Batch, rows: Array) -> Batch:
    seen, prefix = batch.observation, batch.prefix
    images = None if seen.images is None else seen.images[rows]
    observation = Observation(seen.state[rows], images, seen.task[rows])
    if prefix is not None:
        prefix = type(prefix)(*(part[rows] for part in prefix))
    return Batch(observation, *(x[rows] for x in batch[1:-1]))._replace(prefix=prefix)
