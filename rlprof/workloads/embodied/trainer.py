"""The training loop, with the structure and names of RLinf's embodied runner; it only routes.

iteration                      RLinf: step
  sync_weights
  generate_rollouts
    rollout_epoch              E times
      bootstrap_step           reset
      chunk                    K times
        predict                noise, upload, vision; answer: backbone, denoise steps, decode
        env_interact_step      physics, reward, reset of what has ended, render
      predict_values           for the value after the last chunk
  cal_adv_and_returns          once, or for each epoch
  actor_training
    update_epoch               passes
      part                     the whole rollout, or each epoch
        shuffle
        global_batch
          training_step
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlprof.workloads.embodied.actor import Actor
from rlprof.workloads.embodied.contracts import (
    Array,
    Batch,
    GlobalStep,
    Observation,
    PolicyOutput,
    StepResult,
    Trajectory,
)
from rlprof.workloads.embodied.env_worker import EnvWorker
from rlprof.workloads.embodied.rollout_worker import RolloutWorker

if TYPE_CHECKING:
    from rlprof.workloads.embodied.rollout_process import RolloutProcess

Mark = Callable[[Iterable[int]], Iterable[int]]
Scope = Literal["rollout", "epoch"]


@dataclass
class Trainer:
    """See the module.

    Parameters
    ----------
    env, rollout, actor : EnvWorker, RolloutWorker or RolloutProcess, Actor
        The component workers.
    epochs, chunks, update_epochs : int
        Rollout epochs of an iteration, chunks of an epoch, passes over the samples.
    scope : {"rollout", "epoch"}
        Samples are shuffled and advantages normalised over the whole rollout or over each epoch: the former
        forbids training on an epoch before the last one is there.
    chunk, update_epoch, part, global_batch : callable
        Mark loops; they do nothing until the program is wrapped.
    """

    env: EnvWorker
    rollout: RolloutWorker | RolloutProcess
    actor: Actor
    epochs: int
    chunks: int
    update_epochs: int
    scope: Scope = "rollout"
    chunk: Mark = field(default=iter)
    update_epoch: Mark = field(default=iter)
    part: Mark = field(default=iter)
    global_batch: Mark = field(default=iter)

    def iteration(self, step: GlobalStep) -> dict[str, Any]:
        """One iteration of training; its trajectories and what training logs."""
        self.rollout.sync_model_from_actor(self.actor)
        trajectories = self.generate_rollouts(step)
        batches = self.cal_adv_and_returns(trajectories)
        return {"trajectories": trajectories, "training": self.actor_training(batches, step)}

    def generate_rollouts(self, step: GlobalStep) -> list[Trajectory]:
        """All rollout epochs."""
        return [self.rollout_epoch(step, epoch) for epoch in range(self.epochs)]

    def rollout_epoch(self, step: GlobalStep, epoch: int) -> Trajectory:
        """One rollout epoch."""
        observation = self.env.bootstrap_step(step, epoch)
        observations: list[Observation] = []
        outputs: list[PolicyOutput] = []
        results: list[StepResult] = []
        for chunk in self.chunk(range(self.chunks)):
            output = self.rollout.predict(observation, step, epoch, chunk)
            observations.append(observation)
            result = self.env.env_interact_step(output.actions)
            observation = result.observation
            outputs.append(output)
            results.append(result)
        last = None
        if self.actor.algorithm.uses_value:
            last = self.rollout.predict_values(observation, step, epoch, self.chunks)
        return Trajectory(
            observations,
            outputs,
            [r.rewards for r in results],
            [r.dones for r in results],
            [r.success for r in results],
            last,
        )

    def cal_adv_and_returns(self, trajectories: list[Trajectory]) -> list[Batch]:
        """One batch for the whole rollout, or one for each epoch."""
        if self.scope == "rollout":
            return [self.actor.compute_adv(trajectories)]
        return [self.actor.compute_adv([t]) for t in trajectories]

    def actor_training(self, batches: list[Batch], step: GlobalStep) -> list[dict[str, float]]:
        """All passes over all parts."""
        logs = []
        for update_epoch in self.update_epoch(range(self.update_epochs)):
            for part in self.part(range(len(batches))):
                batch = batches[part]
                order: Array = self.actor.shuffle(batch, step, part, update_epoch)
                for index in self.global_batch(range(self.minibatches)):
                    logs.append(self.actor.training_step(batch, order, index))
        return logs

    @property
    def parts(self) -> int:
        """Parts that are shuffled and normalised by themselves."""
        return 1 if self.scope == "rollout" else self.epochs

    @property
    def minibatches(self) -> int:
        """Optimiser steps in one pass over one part."""
        return self.actor.minibatches(self.env.spec.envs * self.chunks * self.epochs // self.parts)
