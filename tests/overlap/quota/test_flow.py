"""All of it in a program: a daemon (a stand-in), workers under quotas, pair, search and validation."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlprof.analysis.trials import Rule
from rlprof.overlap.quota import (
    EligiblePair,
    Level,
    QuotaBackend,
    WorkerProcess,
    find_pair,
    mps,
    quota_search,
    validate,
)
from rlprof.overlap.quota.clients import probe_levels
from rlprof.taskgraph import Edge, Task, TaskGraph, run


class Policy:
    """Takes longer the fewer SMs it has."""

    def quota(self, task: Task, inputs: Mapping[str, Any]) -> int:
        return int(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])

    def infer(self, task: Task, inputs: Mapping[str, Any]) -> None:
        time.sleep(0.02 * 100 / self.quota(task, inputs))

    def snapshot(self) -> None:
        return None

    def restore(self, snapshot: None) -> None:
        pass


class Simulator:
    """Takes longer the more SMs the policy has."""

    def step(self, task: Task, inputs: Mapping[str, Any]) -> None:
        time.sleep(0.05 + 0.2 * inputs["quota"] / 100)


GRAPH = TaskGraph(
    (
        Task("quota", worker="policy", payload="quota"),
        Task("infer", worker="policy", payload="infer", program_order=1),
        Task("step", worker="simulator", payload="step", program_order=2),
        Task("join", program_order=3),
    ),
    (
        Edge("quota", "infer"),
        Edge("quota", "step"),
        Edge("infer", "join", "order"),
        Edge("step", "join", "order"),
    ),
)


@pytest.mark.slow
def test_a_program_finds_the_quota_of_one_of_its_workers(fake_mps: Path) -> None:
    workers = {"policy": Policy, "simulator": Simulator}
    with mps() as daemon, QuotaBackend(workers, daemon.environment) as backend:
        levels = probe_levels(daemon.gpu, daemon.environment(), step=25).levels
        clients = {name: WorkerProcess(backend.process_ids[name]) for name in workers}
        pair = find_pair(GRAPH, [run(GRAPH, backend).record for _ in range(3)], clients)
        assert isinstance(pair, EligiblePair)
        assert (pair.earlier, pair.later, pair.join) == ("policy", "simulator", "join")

        def measure(level: Level) -> float:
            if backend.quotas.get(pair.earlier) != level:
                backend.replace(pair.earlier, level)
            return min(run(GRAPH, backend).record.wall_s for _ in range(2))

        search = quota_search(levels, measure)
        answer = validate(search, measure, Rule(0.9, 5))
    assert [level.setting for level in levels] == [25, 50, 75, 100]
    assert not answer.kept
    assert answer.chosen.setting < 80
    assert answer.comparison is not None
    assert answer.comparison.gain_s > 0.03
