"""A simulator that leaves drawing to another process, and what draws; for processes of their own."""

from __future__ import annotations

import os

import numpy as np

from rlprof.workloads.embodied.contracts import GlobalStep, Observation, SimulatorSpec, StepResult


class Viewed:
    """Counts chunks; a view is an environment's number in the whole batch, and its count."""

    def __init__(self, envs: int, *, first: int = 0, stride: int = 1) -> None:
        self.spec = SimulatorSpec("viewed", envs, 2, 4, 3, 2, view_dim=2)
        self.index = first + stride * np.arange(envs)
        self.count = np.zeros(envs)

    def reset(self, step: GlobalStep, epoch: int, samples: np.ndarray) -> Observation:
        self.count[samples] = 0
        return self.render(samples)

    def step(self, actions: np.ndarray, samples: np.ndarray) -> StepResult:
        self.count[samples] += 1
        n = len(samples)
        return StepResult(self.render(samples), np.zeros((n, 2)), np.zeros(n, bool), np.zeros(n, bool))

    def render(self, samples: np.ndarray) -> Observation:
        return Observation(np.zeros((len(samples), 2), np.float32), None, self.index[samples])

    def views(self, samples: np.ndarray) -> np.ndarray:
        return np.column_stack([self.index[samples], self.count[samples]])

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self.count[...] = state["count"]

    def close(self) -> None:
        pass


class Drawer:
    """Images of one pixel: number, count, row; dies of `dies_of` chunks."""

    def __init__(self, envs: int, *, dies_of: int = -1, first: int = 0, stride: int = 1) -> None:
        self.spec = SimulatorSpec("viewed", envs, 2, 4, 3, 2, cameras=1, height=1, width=1, view_dim=2)
        self.dies_of = dies_of

    def paint(self, views: np.ndarray, samples: np.ndarray) -> np.ndarray:
        if (views[:, 1] == self.dies_of).any():
            os._exit(3)
        return np.column_stack([views, samples]).astype(np.uint8).reshape(-1, 1, 1, 1, 3)

    def close(self) -> None:
        pass
