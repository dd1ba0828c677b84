"""A small embodied RL program as one finds it: a policy and a simulator, each in a process of its own.

Nothing here knows of rlprof. The driver calls both through pipes, one after the other: while the policy
computes, the simulator waits, and the other way round. Both work sample by sample, so the size of a batch
does not change the bits of a sample's result.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

SAMPLES, OBSERVATION, ACTION, HIDDEN = 8, 32, 8, 256


class Policy:
    """A Gaussian policy: features of a recurrent network of random weights, and a head that is trained."""

    def __init__(self, seed: int, work: int) -> None:
        draw = np.random.default_rng(seed)
        self.work = work
        self.inside = draw.standard_normal((HIDDEN, OBSERVATION)) / OBSERVATION**0.5
        self.recurrent = draw.standard_normal((HIDDEN, HIDDEN)) / HIDDEN**0.5
        self.head = np.zeros((ACTION, HIDDEN))
        # one generator for each sample: grouping them does not change what a sample draws
        self.noise = [np.random.default_rng((seed, sample)) for sample in range(SAMPLES)]

    def _features(self, seen: np.ndarray) -> np.ndarray:
        hidden: np.ndarray = np.tanh(self.inside @ seen)
        for _ in range(self.work):
            hidden = np.tanh(self.recurrent @ hidden)
        return hidden

    def infer(self, observation: np.ndarray, samples: np.ndarray | None = None) -> np.ndarray:
        """Actions, shape (samples, ACTION), for observations, shape (samples, OBSERVATION)."""
        actions = np.empty((len(observation), ACTION))
        for row, sample in enumerate(range(SAMPLES) if samples is None else samples):
            noise = self.noise[sample].standard_normal(ACTION)
            actions[row] = self.head @ self._features(observation[row]) + noise
        return actions

    def train(self, steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> float:
        """One policy-gradient update of the head from all steps of a rollout; the mean reward."""
        rewards = np.stack([reward for _, _, reward in steps])
        gradient = np.zeros_like(self.head)
        for (observation, actions, _), advantage in zip(steps, rewards - rewards.mean(), strict=True):
            for seen, action, scale in zip(observation, actions, advantage, strict=True):
                hidden = self._features(seen)
                gradient += scale * np.outer(action - self.head @ hidden, hidden)
        self.head += 1e-3 * gradient / rewards.size
        return float(rewards.mean())

    def state(self) -> dict[str, np.ndarray]:
        """What training has changed."""
        return {"head": self.head}


class Simulator:
    """Independent worlds: a damped chain of masses each, pushed by the actions."""

    def __init__(self, seed: int, work: int) -> None:
        self.seed, self.work, self.resets = seed, work, 0
        self.position = np.zeros((SAMPLES, OBSERVATION))
        self.speed = np.zeros((SAMPLES, OBSERVATION))

    def reset(self) -> np.ndarray:
        """New worlds; their observations, shape (SAMPLES, OBSERVATION)."""
        draw = np.random.default_rng((self.seed, self.resets))
        self.resets += 1
        self.position = draw.standard_normal((SAMPLES, OBSERVATION))
        self.speed = np.zeros((SAMPLES, OBSERVATION))
        return self.position.copy()

    def step(self, actions: np.ndarray, samples: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Observations and rewards of the worlds `samples` (all if None) after `actions`."""
        worlds = np.arange(SAMPLES) if samples is None else samples
        rewards = np.empty(len(worlds))
        for row, world in enumerate(worlds):
            position, speed = self.position[world], self.speed[world]
            for _ in range(self.work):
                force = np.roll(position, 1) + np.roll(position, -1) - 2 * position - 0.1 * speed
                force[:ACTION] += actions[row]
                speed += 0.01 * force
                position += 0.01 * speed
            rewards[row] = -float(position @ position)
        return self.position[worlds], rewards

    def state(self) -> dict[str, np.ndarray]:
        """The worlds."""
        return {"position": self.position, "speed": self.speed}


def _serve(connection: Connection, kind: type, arguments: tuple[Any, ...]) -> None:
    served = kind(*arguments)
    while (message := connection.recv()) is not None:
        name, args, kwargs = message
        connection.send(getattr(served, name)(*args, **kwargs))


class Remote:
    """An object in a process of its own; its methods are called through a pipe."""

    def __init__(self, kind: type, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, kind, arguments), daemon=True)
        self._process.start()

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method there and wait for what it returns."""
        self._connection.send((name, args, kwargs))
        return self._connection.recv()

    def close(self) -> None:
        """End the process."""
        self._connection.send(None)
        self._process.join()


class Trainer:
    """The training loop."""

    def __init__(self, *, epochs: int = 2, chunks: int = 6, work: int = 120, seed: int = 0) -> None:
        self.epoch_loop, self.chunk_loop = range(epochs), range(chunks)
        self._policy, self._simulator = Remote(Policy, seed, 2 * work), Remote(Simulator, seed, work)

    def infer(self, observation: np.ndarray, samples: np.ndarray | None = None) -> np.ndarray:
        """Ask the policy."""
        actions: np.ndarray = self._policy.call("infer", observation, samples)
        return actions

    def reset(self) -> np.ndarray:
        """New worlds."""
        observation: np.ndarray = self._simulator.call("reset")
        return observation

    def step(self, actions: np.ndarray, samples: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Move the worlds."""
        result: tuple[np.ndarray, np.ndarray] = self._simulator.call("step", actions, samples)
        return result

    def train(self, steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> float:
        """Update the policy."""
        mean: float = self._policy.call("train", steps)
        return mean

    def iteration(self) -> float:
        """One iteration of training; the mean reward."""
        steps = []
        for _epoch in self.epoch_loop:
            observation = self.reset()
            for _chunk in self.chunk_loop:
                actions = self.infer(observation)
                after, reward = self.step(actions)
                steps.append((observation, actions, reward))
                observation = after
        return self.train(steps)

    def state(self) -> dict[str, np.ndarray]:
        """All that training has changed."""
        return {**self._policy.call("state"), **self._simulator.call("state")}

    def close(self) -> None:
        """End both processes."""
        self._policy.close()
        self._simulator.close()
