"""Simulators that misbehave, for processes of their own."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time

import numpy as np

from rlprof.workloads.embodied.contracts import GlobalStep, Observation, SimulatorSpec, StepResult
from rlprof.workloads.embodied.errors import SimulatorError


class Faulty:
    """Counts; misbehaves in the call `call` of environment 1's process, as `how` says."""

    def __init__(
        self, envs: int, *, how: str = "", call: str = "step", first: int = 0, stride: int = 1, group: int = 1
    ) -> None:
        self.spec = SimulatorSpec("faulty", envs, 2, 4, 3, 2, group=group)
        self.how = how if first == 1 else ""
        self.call = call
        self.count = np.zeros(envs, dtype=np.int64)
        self._misbehave("make")

    def _misbehave(self, call: str) -> None:
        if not self.how or call != self.call:
            return
        if self.how == "raises":
            raise SimulatorError("the gripper is stuck", hint="pull")
        if self.how == "exits":
            print("somebody tripped over the cable", flush=True)
            os._exit(7)
        if self.how == "crashes":
            ctypes.string_at(0)
        if self.how == "is busy":
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                pass
        if self.how == "no memory":

            def refuse(*_: object) -> None:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

            mmap.mmap = refuse  # type: ignore[assignment,misc]
        if self.how == "hangs":
            time.sleep(600)

    def reset(self, step: GlobalStep, epoch: int, samples: np.ndarray) -> Observation:
        self._misbehave("reset")
        self.count[samples] = 0
        return self.render(samples)

    def step(self, actions: np.ndarray, samples: np.ndarray) -> StepResult:
        self._misbehave("step")
        self.count[samples] += 1
        n = len(samples)
        return StepResult(self.render(samples), actions.sum(axis=2), np.zeros(n, bool), np.zeros(n, bool))

    def render(self, samples: np.ndarray) -> Observation:
        return Observation(
            np.repeat(self.count[samples, None], 2, 1).astype(np.float32), None, self.count[samples]
        )

    def state_dict(self) -> dict[str, np.ndarray]:
        self._misbehave("state_dict")
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self.count[...] = state["count"]

    def close(self) -> None:
        self._misbehave("close")
