"""A small real training program in numpy, as somebody wrote it, and wrapped.

Two components play against each other (`Policy`, `Simulator`), a third learns (`Learner`), and `Trainer`
holds the glue. Group-relative advantages (GRPO) mix the samples; the interaction loop is all by sample.

    iteration            loop (root)
      sync               refreshes W, reads THETA
      rollout
        epoch            loop
          reset          refreshes ENV
          chunk          loop
            infer        reads W
            step         updates ENV
      advantage
      shuffle
      minibatch          loop
        update           updates THETA, OPT
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlprof.overlap import (
    Batch,
    Draws,
    ExecutionNode,
    LoopNode,
    Program,
    State,
    reads,
    refreshes,
    updates,
    wrap,
)

Array = npt.NDArray[Any]
OBS, ACT = 3, 2


def per_row(rows: Array, matrix: Array) -> Array:
    """``rows @ matrix``, each row's bits whatever the number of rows: a BLAS product would not do that."""
    out = np.zeros((len(rows), matrix.shape[1]))
    for k in range(matrix.shape[0]):
        out += rows[:, k, None] * matrix[None, k]
    return out


class Action(NamedTuple):
    """What the policy returns."""

    value: Array
    log_prob: Array


class Policy:
    """A linear Gaussian policy; its noise is keyed by sample."""

    def __init__(self, seed: int, weights: Array) -> None:
        self.weights = weights
        self.version = 0
        self.draws = Draws(seed)

    def load(self, learner: Learner) -> None:
        """Take the learner's weights."""
        self.weights = learner.theta.copy()
        self.version = learner.steps

    def infer(self, obs: Array, samples: Array | None = None) -> Action:
        mean = per_row(obs, self.weights)
        noise = self.draws.normal(len(obs), (ACT,), samples=samples)
        return Action(mean + 0.1 * noise, -0.5 * (noise**2).sum(axis=1))


class Simulator:
    """Point masses, one for each sample, in state that is changed in place."""

    def __init__(self, seed: int, samples: int) -> None:
        self.position = np.zeros((samples, OBS))
        self.steps = np.zeros(samples, dtype=np.int64)
        self.push = np.random.default_rng(seed).normal(size=(ACT, OBS))
        self.draws = Draws(seed)

    def rows(self, samples: Array | None) -> Array:
        return np.arange(len(self.position)) if samples is None else np.asarray(samples)

    def reset(self, samples: Array | None = None) -> Array:
        rows = self.rows(samples)
        self.position[rows] = self.draws.normal(len(rows), (OBS,), samples=rows)
        self.steps[rows] = 0
        return self.position[rows].copy()

    def step(self, action: Array, samples: Array | None = None) -> tuple[Array, Array]:
        rows = self.rows(samples)
        self.position[rows] = 0.9 * self.position[rows] + per_row(action, self.push)
        self.steps[rows] += 1
        reward = -(self.position[rows] ** 2).sum(axis=1) / self.steps[rows]
        return self.position[rows].copy(), reward


class Learner:
    """Policy gradient with momentum."""

    def __init__(self, seed: int, minibatches: int) -> None:
        self.theta = np.random.default_rng(seed).normal(size=(OBS, ACT)) * 0.1
        self.momentum = np.zeros_like(self.theta)
        self.steps = 0
        self.minibatches = minibatches
        self.draws = Draws(seed)

    def advantage(self, trajectories: list[dict[str, list[Array]]]) -> dict[str, Array]:
        """Advantages relative to all samples of an epoch; everything is stacked along the first axis."""
        returns = [np.sum(t["reward"], axis=0) for t in trajectories]
        scale = [(r - r.mean()) / (r.std() + 1e-6) for r in returns]
        return {
            "obs": np.concatenate([o for t in trajectories for o in t["obs"]]),
            "action": np.concatenate([a for t in trajectories for a in t["action"]]),
            "advantage": np.concatenate(
                [s for s, t in zip(scale, trajectories, strict=True) for _ in t["obs"]]
            ),
        }

    def shuffle(self, data: dict[str, Array]) -> Array:
        keys = self.draws.uniform(len(data["obs"]))
        return np.argsort(keys, kind="stable")

    def update(self, data: dict[str, Array], order: Array, index: int) -> float:
        """One minibatch; theta and momentum are changed in place."""
        rows = np.array_split(order, self.minibatches)[index]
        obs, action, advantage = data["obs"][rows], data["action"][rows], data["advantage"][rows]
        error = (action - obs @ self.theta) * advantage[:, None]
        self.momentum *= 0.9
        self.momentum += obs.T @ error / len(rows)
        self.theta += 0.05 * self.momentum
        self.steps += 1
        return float((error**2).mean())


@dataclass
class Trainer:
    """The glue: it routes, and computes nothing."""

    policy: Policy
    simulator: Simulator
    learner: Learner
    epochs: int
    chunks: int
    minibatches: int
    # marks of loops: nothing, until the program is wrapped
    chunk: Callable[[Iterable[int]], Iterable[int]] = field(default=iter)
    minibatch: Callable[[Iterable[int]], Iterable[int]] = field(default=iter)

    def train(self, iterations: int) -> list[dict[str, Any]]:
        return [self.iteration() for _ in range(iterations)]

    def iteration(self) -> dict[str, Any]:
        self.policy.load(self.learner)
        trajectories = self.rollout()
        data = self.learner.advantage(trajectories)
        order = self.learner.shuffle(data)
        losses = []
        for index in self.minibatch(range(self.minibatches)):
            losses.append(self.learner.update(data, order, index))
        return {"losses": losses, "data": data}

    def rollout(self) -> list[dict[str, list[Array]]]:
        return [self.epoch() for _ in range(self.epochs)]

    def epoch(self) -> dict[str, list[Array]]:
        seen: dict[str, list[Array]] = {"obs": [], "action": [], "reward": []}
        obs = self.simulator.reset()
        for _ in self.chunk(range(self.chunks)):
            action = self.policy.infer(obs)
            seen["obs"].append(obs)
            obs, reward = self.simulator.step(action.value)
            seen["action"].append(action.value)
            seen["reward"].append(reward)
        return seen


def build(
    seed: int = 0, *, samples: int = 8, epochs: int = 2, chunks: int = 3, minibatches: int = 2
) -> Trainer:
    """The plain program."""
    learner = Learner(seed, minibatches)
    policy = Policy(seed + 1, learner.theta.copy())
    return Trainer(policy, Simulator(seed + 2, samples), learner, epochs, chunks, minibatches)


@dataclass
class Wrapped:
    """A wrapped program and all that was declared."""

    trainer: Trainer
    program: Program
    iteration: ExecutionNode
    rollout: ExecutionNode
    nodes: dict[str, ExecutionNode]
    states: dict[str, State]
    spare: Simulator | None


def wrapped(
    trainer: Trainer | None = None, *, spare: bool = True, separate: bool = False, **sizes: int
) -> Wrapped:
    """Wrap the program in place: its code keeps calling ``policy.infer``; `sizes` as for `build`.

    Parameters
    ----------
    trainer : Trainer, optional
        A plain program; a new one by default.
    spare : bool
        Declare a second simulator as a copy of ENV.
    separate : bool
        Each simulator is a component worker of its own.
    """
    t = trainer or build(**sizes)
    samples = len(t.simulator.position)
    other = Simulator(0, samples) if spare else None
    if other is not None:
        other.push, other.draws = t.simulator.push, t.simulator.draws
    w = State("W", t.policy, rollout_weights=True)
    env = State(
        "ENV",
        t.simulator,
        partitions=samples,
        by_sample=True,
        copies=[] if other is None else [other],
        separate=separate,
    )
    theta = State("THETA", t.learner.theta, component="Learner")
    opt = State("OPT", t.learner.momentum, component="Learner")

    by_sample = Batch(samples="samples", invariant=True)
    program = Program()
    iteration = wrap(t, "iteration", program, loop=True)
    nodes: dict[str, ExecutionNode] = {"iteration": iteration}
    nodes["sync"] = wrap(t.policy, "load", iteration, reads(theta), refreshes(w), name="sync", role="sync")
    nodes["rollout"] = rollout = wrap(t, "rollout", iteration)
    nodes["epoch"] = epoch = wrap(t, "epoch", rollout, count=t.epochs)
    nodes["reset"] = wrap(t.simulator, "reset", epoch, refreshes(env), batch=by_sample)
    nodes["chunk"] = chunk = LoopNode(t.chunks, epoch, name="chunk")
    t.chunk = chunk
    nodes["infer"] = wrap(t.policy, "infer", chunk, reads(w), batch=by_sample)
    nodes["step"] = wrap(t.simulator, "step", chunk, updates(env), batch=by_sample)
    nodes["advantage"] = wrap(t.learner, "advantage", iteration, stateless=True)
    nodes["shuffle"] = wrap(t.learner, "shuffle", iteration, stateless=True)
    nodes["minibatch"] = minibatch = LoopNode(t.minibatches, iteration, name="minibatch")
    t.minibatch = minibatch
    nodes["update"] = wrap(t.learner, "update", minibatch, updates(theta, opt), role="update")
    states = {s.name: s for s in (w, env, theta, opt)}
    return Wrapped(t, program, iteration, rollout, nodes, states, other)


def final_state(trainer: Trainer) -> dict[str, Array]:
    """Everything that lives after training, for comparison."""
    return {
        "weights": trainer.policy.weights,
        "theta": trainer.learner.theta,
        "momentum": trainer.learner.momentum,
        "position": trainer.simulator.position,
        "steps": trainer.simulator.steps,
    }
