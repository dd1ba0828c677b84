"""The rollout worker: answers observations with weights of its own, which a synchronisation renews."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rlprof.workloads.embodied.contracts import Floats, GlobalStep, Observation, PolicyOutput, Samples
from rlprof.workloads.embodied.env_worker import told
from rlprof.workloads.embodied.offload import HostCopies, tensors_of

if TYPE_CHECKING:
    from rlprof.workloads.embodied.actor import Actor
    from rlprof.workloads.embodied.record import Watch
    from rlprof.workloads.embodied.rollout_share import RolloutShare


class RolloutWorker:
    """See the module.

    Parameters
    ----------
    policy : Policy
        Its own; an actor has another.
    whole : bool
        What follows the vision tower in an answer, or the backbone where that is apart, is one node, not one
        for each phase.
    apart : bool
        The backbone is no part of `answer`: another group's can run beside it.
    share : RolloutShare, optional
        Of the SMs that answers compute with; without it, all.

    Attributes
    ----------
    version : int
        Updates that its weights have seen.
    denoise : callable
        Marks the loop over denoise steps.
    watch : Watch or None
        Told of every answer (`rlprof.workloads.embodied.record`).
    """

    def __init__(
        self, policy: Any, *, whole: bool = False, apart: bool = False, share: RolloutShare | None = None
    ) -> None:
        self.policy, self.whole, self.apart, self.share = policy, whole, apart, share
        self.version = 0
        self._host = HostCopies()
        self.denoise: Callable[[Iterable[int]], Iterable[int]] = iter
        self.watch: Watch | None = None

    def sync_model_from_actor(self, actor: Actor) -> None:
        """Take the weights of the actor."""
        mine, other = self.policy.state_dict(), actor.policy.state_dict()
        for name, tensor in mine.items():
            tensor.copy_(other[name])
        self.version = actor.updates

    def take_all(self, actor: Actor) -> None:
        """Take all weights of the actor, also those that are not trained: a synchronisation does so here."""
        self.sync_model_from_actor(actor)

    def predict(
        self, observation: Observation, step: GlobalStep, epoch: int, chunk: int, samples: Samples = None
    ) -> PolicyOutput:
        """Answer an observation."""
        policy = self.policy
        noise = policy.noise(observation, step, epoch, chunk, **told(samples))
        with self._shared():
            seen, drawn = policy.upload(observation, noise)
            features = policy.vision(seen)
            if self.apart:
                answer = self.answer_from(policy.backbone(features), features, drawn)
            else:
                answer = self.answer(features, drawn)
        if self.watch is not None:
            self.watch.predicted(answer, epoch, chunk, samples, self.version)
        return answer

    def answer(self, features: Any, noise: Any) -> PolicyOutput:
        """Answer what the vision tower has made of what was uploaded."""
        return self.answer_from(self.policy.backbone(features), features, noise)

    def answer_from(self, prefix: Any, features: Any, noise: Any) -> PolicyOutput:
        """Answer what vision tower and backbone have made of what was uploaded."""
        policy = self.policy
        points = [policy.start(noise)]
        for index in self.denoise(range(policy.spec.denoise_steps)):
            points.append(policy.denoise_step(points[-1], prefix, features, noise, index))
        answer: PolicyOutput = policy.decode(tuple(points), prefix, noise)
        return answer

    def predict_values(
        self, observation: Observation, step: GlobalStep, epoch: int, chunk: int, samples: Samples = None
    ) -> Floats:
        """Value of what is seen after the last chunk, shape (batch,): of a whole answer, as in RLinf."""
        policy = self.policy
        noise = type(policy).noise(policy, observation, step, epoch, chunk, samples)
        with self._shared():
            value: Floats = policy.act(observation, noise).value
        if self.watch is not None:
            self.watch.valued(value, epoch, chunk, samples, self.version)
        return value

    def answer_again(
        self, observation: Observation, step: GlobalStep, epoch: int, chunk: int, samples: Samples = None
    ) -> PolicyOutput:
        """Answer an observation by the policy itself, without nodes, CUDA graphs and compiled layers.

        No watch is told.
        """
        with self._natively() as policy:
            # the class's own methods: nodes that stand in place of this object's are phases of another call
            own = type(policy)
            noise = own.noise(policy, observation, step, epoch, chunk, samples)
            answer: PolicyOutput = own.act(policy, observation, noise)
            return answer

    def log_prob_again(self, observation: Observation, chain: Floats) -> Floats:
        """Log-probability of chains that were answered, shape (batch,), as training would find it."""
        import torch

        with self._natively() as policy, torch.no_grad():
            found: Floats = policy.evaluate(observation, chain).log_prob.float().cpu().numpy()
            return found

    def _shared(self) -> AbstractContextManager[None]:
        return nullcontext() if self.share is None else self.share.current()

    @contextmanager
    def _natively(self) -> Iterator[Any]:
        """In the block the policy has neither CUDA graphs nor compiled layers."""
        policy = self.policy
        captured, policy.captured = getattr(policy, "captured", None), None
        compiled, policy.compiled = getattr(policy, "compiled", None), None
        try:
            yield policy
        finally:
            policy.captured, policy.compiled = captured, compiled

    @property
    def refused(self) -> str | None:
        """Why denoise steps run eagerly, where CUDA graphs were asked for."""
        captured = getattr(self.policy, "captured", None)
        found: str | None = None if captured is None else captured.refused
        return found

    @property
    def compile_refused(self) -> str | None:
        """Why layers run eagerly, where they were to be compiled."""
        compiled = getattr(self.policy, "compiled", None)
        found: str | None = None if compiled is None else compiled.refused
        return found

    def close(self) -> None:
        """There is nothing to end: it works in its driver's process."""

    def offload(self, device: str = "cpu") -> None:
        """Move the weights off the accelerator; CUDA graphs of them are of no use then."""
        self.forget_captured()
        if device == "cpu":
            self._host.offload(tensors_of(self.policy))

    def reload(self, device: str) -> None:
        """Move the weights back; CUDA graphs are captured anew, as RLinf does."""
        if any(tensor.device.type == "cpu" for tensor in tensors_of(self.policy)):
            self.forget_captured()
        if device != "cpu":
            self._host.reload(tensors_of(self.policy), device)

    def forget_captured(self) -> None:
        """Have CUDA graphs captured anew: weights have moved, or streams have other priorities."""
        captured = getattr(self.policy, "captured", None)
        if captured is not None:
            captured.forget()
