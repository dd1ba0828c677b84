"""Graphs of calls made by hand, with plain functions: a policy and a simulator play against each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from rlprof.overlap.bindings import Binding, External, Gather, Pack, Ref, Slice, arguments
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph
from rlprof.overlap.specs import AccessSpec, BatchSpec, Cell, NodeSpec, StateSpec

SAMPLES = 6


class Player:
    """The program: state by sample that is changed in place, weights that are read."""

    def __init__(self) -> None:
        self.weights = np.linspace(0.5, 1.5, 3)
        self.position = np.zeros((SAMPLES, 3))
        self.busy = {"policy": threading.Lock(), "simulator": threading.Lock()}

    def infer(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        with self.alone("policy"):
            return {"action": np.tanh(obs * self.weights)}

    def step(self, action: np.ndarray, samples: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        with self.alone("simulator"):
            rows = np.arange(SAMPLES) if samples is None else samples
            self.position[rows] = self.position[rows] * 0.9 + action
            return self.position[rows].copy(), self.position[rows].sum(axis=1)

    def alone(self, component: str) -> threading.Lock:
        lock = self.busy[component]
        assert not lock.locked(), f"two calls of {component} at once"
        return lock

    def entries(self) -> dict[str, Callable[..., Any]]:
        return {"rollout/chunk/infer": self.infer, "rollout/chunk/step": self.step}

    def rollout(self, obs: np.ndarray, chunks: int) -> dict[str, Any]:
        """What runs natively."""
        rewards = []
        for _ in range(chunks):
            obs, reward = self.step(self.infer(obs)["action"])
            rewards.append(reward)
        return {"last": obs, "rewards": rewards}


def nodes() -> dict[str, NodeSpec]:
    batch = BatchSpec(samples="samples", invariant=True)
    made = [
        NodeSpec("rollout", None),
        NodeSpec("rollout/chunk", "rollout", "loop", None, 1),
        NodeSpec(
            "rollout/chunk/infer",
            "rollout/chunk",
            loop_level=1,
            component="policy",
            accesses=(AccessSpec("W", "read"),),
            declared=True,
            batch=BatchSpec(invariant=True),
        ),
        NodeSpec(
            "rollout/chunk/step",
            "rollout/chunk",
            loop_level=1,
            component="simulator",
            accesses=(AccessSpec("ENV", "update"),),
            declared=True,
            batch=batch,
        ),
    ]
    return {spec.path: spec for spec in made}


def states() -> dict[str, StateSpec]:
    env = StateSpec("ENV", "simulator", partitions=SAMPLES, by_sample=True)
    return {"W": StateSpec("W", "policy", rollout_weights=True), "ENV": env}


def rollout_graph(
    chunks: int = 3, groups: tuple[tuple[int, ...], ...] = (), *, durations: bool = True
) -> CallGraph:
    """The graph of `Player.rollout`; with `groups`, spatially split and interleaved."""
    parts: list[tuple[int, tuple[int, ...] | None]] = [(0, None)] if not groups else list(enumerate(groups))
    calls: list[Call] = []
    streams: list[list[str]] = [[] for _ in parts]
    shown = "" if not groups else "@"

    def name(chunk: int, node: str, group: int) -> str:
        return f"rollout/chunk[{chunk}]/{node}" + (f"{shown}{group}" if shown else "")

    for chunk in range(chunks):
        for group, samples in parts:
            cells = range(SAMPLES) if samples is None else samples
            obs: Binding = Ref(name(chunk - 1, "step", group), (0,)) if chunk else External((0, 0))
            if samples is not None and not chunk:
                obs = Slice(obs, samples)
            before = f"rollout/chunk[{chunk - 1}]/step" if chunk else INITIAL
            common: dict[str, Any] = {
                "indices": (("rollout/chunk", chunk),),
                "samples": samples,
                "batch_size": SAMPLES,
                "group": group,
                "duration_s": (0.2 if samples is None else 0.1) if durations else None,
            }
            infer = Call(
                name(chunk, "infer", group),
                "rollout/chunk/infer",
                f"rollout/chunk[{chunk}]/infer",
                2 * chunk,
                arguments((obs,), {}),
                (Access(Cell("W"), "read", INITIAL),),
                **common,
            )
            step = Call(
                name(chunk, "step", group),
                "rollout/chunk/step",
                f"rollout/chunk[{chunk}]/step",
                2 * chunk + 1,
                arguments((Ref(infer.id, ("action",)),), {}),
                tuple(Access(Cell("ENV", k), "update", before) for k in cells),
                **common,
            )
            calls += [infer, step]
            streams[group] += [infer.id, step.id]

    def result(chunk: int, key: int) -> Binding:
        refs = tuple(Ref(name(chunk, "step", group), (key,)) for group, _ in parts)
        return refs[0] if not groups else Gather(refs, groups)

    rewards = Pack("list", tuple(range(chunks)), tuple(result(c, 1) for c in range(chunks)))
    output = Pack("dict", ("last", "rewards"), (result(chunks - 1, 0), rewards))
    return CallGraph("rollout", nodes(), states(), tuple(calls), tuple(tuple(s) for s in streams), output)
