"""Workers under quotas, in real processes; what sets quotas is an environment variable that they report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest

from rlprof.errors import UsageError
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.workers import QuotaBackend, started_with
from rlprof.overlap.worker import LocalWorker
from rlprof.taskgraph import Task, TaskGraph, run

VARIABLE = "TEST_QUOTA"


class Counter:
    """Counts, and says under which quota."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, task: Task, inputs: Mapping[str, Any]) -> tuple[int, str, int]:
        self.count += 1
        return self.count, self.quota(), os.getpid()

    def quota(self) -> str:
        return os.environ.get(VARIABLE, "none")

    def snapshot(self) -> int:
        return self.count

    def restore(self, snapshot: int) -> None:
        self.count = snapshot


def environment(level: Level | None) -> dict[str, str]:
    return {} if level is None else {VARIABLE: str(level.setting)}


def test_a_worker_is_replaced_under_another_quota_with_its_state() -> None:
    graph = TaskGraph(tuple(Task(w, payload="add", worker=w) for w in ("policy", "simulator")))

    def outputs() -> dict[str, tuple[int, str, int]]:
        result = run(graph, backend)
        return {name: result.outputs[name] for name in ("policy", "simulator")}

    with QuotaBackend(
        {"policy": Counter, "simulator": Counter}, environment, {"policy": Level(8, 10)}
    ) as backend:
        before = outputs()
        assert [before[w][:2] for w in ("policy", "simulator")] == [(1, "10"), (1, "none")]
        backend.replace("policy", Level(66, 50))
        assert backend.quotas == {"policy": Level(66, 50)}
        after = outputs()
        assert [after[w][:2] for w in ("policy", "simulator")] == [(2, "50"), (2, "none")]
        assert after["policy"][2] != before["policy"][2]
        assert after["simulator"][2] == before["simulator"][2]
        with pytest.raises(ProcessLookupError):
            os.kill(before["policy"][2], 0)
        backend.replace("policy", None, keep_state=False)
        assert outputs()["policy"][:2] == (1, "none")
        with pytest.raises(UsageError, match="no worker 'trainer'"):
            backend.replace("trainer", None)
    assert VARIABLE not in os.environ
    with pytest.raises(UsageError, match="between runs"):
        backend.replace("policy", None)


@pytest.mark.slow
def test_a_worker_is_started_with_a_quota_and_nothing_else_has_it() -> None:
    with started_with({VARIABLE: "42"}):
        worker = LocalWorker("simulator", Counter)
    with worker:
        assert VARIABLE not in os.environ
        assert worker.quota() == "42"


def test_what_was_set_before_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "old")
    seen = []
    with pytest.raises(ZeroDivisionError), started_with({VARIABLE: "new", "TEST_OTHER": "x"}):
        seen.append(1 / (os.environ[VARIABLE] == "old"))
    assert seen == []
    assert os.environ[VARIABLE] == "old"
    assert "TEST_OTHER" not in os.environ


def test_a_quota_for_nobody_is_refused() -> None:
    with pytest.raises(UsageError, match="no worker 'policy'"):
        QuotaBackend({"simulator": Counter}, environment, {"policy": Level(8, 10)})
