"""Graphs whose calls run in other processes: Ray actors, and local workers."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlprof.errors import RlprofError
from rlprof.overlap import Batch, LoopNode, Program, State, reads, updates
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.transforms import interleave, split_spatial
from rlprof.overlap.worker import LocalWorker
from rlprof.taskgraph import verify

SAMPLES = 6


class Meets:
    """Its calls wait for those of another process at the same time, if told so."""

    folder: Path | None = None

    def meet_from_now(self, folder: str, first: int, last: int) -> None:
        """Let calls with numbers from `first` to `last` meet those of the other one, in order."""
        self.folder, self.calls, self.meeting = Path(folder), 0, range(first, last + 1)

    def meet(self) -> None:
        if self.folder is None:
            return
        if self.calls in self.meeting:
            name = f"meeting {self.calls - self.meeting[0]}"
            (self.folder / f"{name} {type(self).__name__}").touch()
            until = time.monotonic() + 60
            while len(list(self.folder.glob(f"{name} *"))) < 2:
                assert time.monotonic() < until, "the other process has no call now"
                time.sleep(0.001)
        self.calls += 1


class Policy(Meets):
    def __init__(self, slow_s: float = 0.0) -> None:
        self.weights = np.linspace(-1, 1, 3)
        self.slow_s = slow_s

    def infer(self, obs: Any, samples: Any = None) -> dict[str, Any]:
        self.meet()
        time.sleep(self.slow_s * len(obs) / SAMPLES)
        return {"action": np.tanh(obs * self.weights)}


class Simulator(Meets):
    def __init__(self, slow_s: float = 0.0) -> None:
        self.position = np.zeros((SAMPLES, 3))
        self.slow_s = slow_s

    def step(self, action: Any, samples: Any = None) -> tuple[Any, Any]:
        rows = np.arange(SAMPLES) if samples is None else samples
        self.meet()
        time.sleep(self.slow_s * len(rows) / SAMPLES)
        self.position[rows] = 0.9 * self.position[rows] + action
        return self.position[rows].copy(), self.position[rows].sum(axis=1)


class Trainer:
    """Its calls go to objects elsewhere; `get` fetches what they return."""

    def __init__(self, policy: Any, simulator: Any, get: Any) -> None:
        self.policy, self.simulator, self.get = policy, simulator, get
        self.chunks = range

    def rollout(self, obs: Any) -> dict[str, Any]:
        rewards = []
        for _ in self.chunks(4):
            action = self.get(self.infer(obs))["action"]
            obs, reward = self.get(self.step(action))
            rewards.append(reward)
        return {"obs": obs, "rewards": rewards}

    def infer(self, obs: Any) -> Any:
        raise NotImplementedError

    def step(self, action: Any) -> Any:
        raise NotImplementedError


def wrapped(trainer: Trainer, infer: Any, step: Any) -> tuple[Program, LoopNode]:
    program = Program()
    region = LoopNode(None, program, trainer.rollout)
    chunk = LoopNode(4, region, name="chunk")
    trainer.chunks = lambda n: chunk(range(n))  # type: ignore[assignment]
    w = State("W", component="policy", rollout_weights=True)
    env = State("ENV", component="simulator", partitions=SAMPLES, by_sample=True)
    batch = Batch(samples="samples", parameters=None, invariant=True)
    from rlprof.overlap import ExecutionNode

    trainer.infer = ExecutionNode(chunk, infer, reads(w), name="infer", component="policy", batch=batch)
    trainer.step = ExecutionNode(chunk, step, updates(env), name="step", component="simulator", batch=batch)
    return program, region


def compare(program: Program, region: LoopNode, policy: Any) -> None:
    native = Trainer(None, None, lambda x: x)
    local, simulator = Policy(), Simulator()
    native.infer, native.step = local.infer, simulator.step  # type: ignore[method-assign]
    obs = [np.full((SAMPLES, 3), float(i)) for i in range(5)]
    wanted = [native.rollout(o) for o in obs]
    got = []
    recording = program.record(region, run=lambda: got.extend(region(o) for o in obs[:2]))
    graph = program.graph(recording)
    split = interleave(split_spatial(graph, "rollout/chunk", 2), "rollout/chunk")
    program.install(split)
    got += [region(o) for o in obs[2:4]]
    replacement = program.table["rollout"]
    assert not verify(replacement.executor.tasks, replacement.last_record)
    program.uninstall(region)
    got.append(region(obs[4]))
    assert equal_bits(got, wanted)


def test_worker_processes_give_the_native_bits_and_overlap(tmp_path: Path) -> None:
    slow_s = 0.03
    with LocalWorker("policy", Policy, slow_s) as policy, LocalWorker("sim", Simulator, slow_s) as simulator:
        trainer = Trainer(policy, simulator, lambda x: x)
        program, region = wrapped(trainer, policy.infer, simulator.step)
        compare(program, region, policy)
        graph = program.graph(program._recordings["rollout"])
        program.install(interleave(split_spatial(graph, "rollout/chunk", 2), "rollout/chunk"))
        # of eight calls each: the policy answers the second half while the simulator steps the first
        policy.meet_from_now(str(tmp_path), 1, 7)
        simulator.meet_from_now(str(tmp_path), 0, 6)
        region(np.zeros((SAMPLES, 3)))
        runs = program.table["rollout"].last_record.tasks
        busy = {"policy": [], "simulator": []}
        for run in runs:
            busy[run.worker].append((run.start_ns, run.end_ns))
        overlaps = [min(a[1], b[1]) - max(a[0], b[0]) for a in busy["policy"] for b in busy["simulator"]]
        assert sum(max(0, o) for o in overlaps) / 1e9 > 2 * slow_s  # of 7 x slow_s / 2 that are possible


def _killed_in_the_middle() -> None:
    with LocalWorker("policy", Policy) as policy, LocalWorker("victim", Simulator, 0.2) as simulator:
        trainer = Trainer(policy, simulator, lambda x: x)
        program, region = wrapped(trainer, policy.infer, simulator.step)
        obs = np.zeros((SAMPLES, 3))
        recording = program.record(region, run=lambda: [region(obs), region(obs)])
        split = split_spatial(program.graph(recording), "rollout/chunk", 2)
        program.install(interleave(split, "rollout/chunk"))
        threading.Timer(0.15, os.kill, (simulator.process_id, signal.SIGKILL)).start()
        began = time.monotonic()
        with pytest.raises(RlprofError, match="worker victim") as caught:
            region(obs)
        assert time.monotonic() - began < 40
        assert "/step@" in caught.value.__notes__[0]


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_is_named_soon_and_nothing_is_left() -> None:
    before = threading.active_count()
    _killed_in_the_middle()
    gc.collect()  # a program keeps its threads for its next run: they end with it
    deadline = time.monotonic() + 40
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.mark.slow
def test_ray_actors_give_the_native_bits() -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        policy, simulator = ray.remote(Policy).remote(), ray.remote(Simulator).remote()
        trainer = Trainer(policy, simulator, lambda reference: ray.get(reference))  # noqa: PLW0108
        program, region = wrapped(trainer, policy.infer, simulator.step)
        compare(program, region, policy)
    finally:
        ray.shutdown()
