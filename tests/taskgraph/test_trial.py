"""After a trial, state is what it was before, however the trial ended."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from rlprof.errors import UsageError
from rlprof.taskgraph import (
    Cancellation,
    Edge,
    RestoreError,
    RunCancelledError,
    Task,
    TaskFailedError,
    TaskGraph,
    restored,
    run,
)


class Counter:
    """State of this process."""

    def __init__(self, log: list[str] | None = None, name: str = "") -> None:
        self.values = [0]
        self.log, self.name = log if log is not None else [], name

    def snapshot(self) -> list[int]:
        self.log.append(f"snapshot {self.name}")
        return copy.deepcopy(self.values)

    def restore(self, snapshot: list[int]) -> None:
        self.log.append(f"restore {self.name}")
        self.values[:] = snapshot


class Broken(Counter):
    def restore(self, snapshot: list[int]) -> None:
        raise OSError("disk gone")


GRAPH = TaskGraph((Task("a", payload="count", program_order=0), Task("b", payload="end", program_order=1)))


def test_state_is_restored_when_a_run_ends_well_fails_or_is_cancelled() -> None:
    state = Counter()
    before = state.values
    cancellation = Cancellation()

    def count(task: Task, inputs: Mapping[str, Any]) -> None:
        state.values[0] += 1
        state.values.append(7)

    def fail(task: Task, inputs: Mapping[str, Any]) -> None:
        raise ValueError("boom")

    def cancel(task: Task, inputs: Mapping[str, Any]) -> None:
        cancellation.cancel()

    result = run(GRAPH, {"count": count, "end": count}, trial=[state])
    assert len(result.record.tasks) == 2
    assert state.values == [0]
    with pytest.raises(TaskFailedError, match="boom"):
        run(GRAPH, {"count": count, "end": fail}, trial=[state])
    assert state.values == [0]
    chain = TaskGraph((*GRAPH.tasks, Task("c", payload="count")), (Edge("b", "c"),))
    with pytest.raises(RunCancelledError):
        run(chain, {"count": count, "end": cancel}, trial=[state], cancellation=cancellation)
    assert state.values == [0]
    assert state.values is before
    run(GRAPH, {"count": count, "end": count})
    assert state.values[0] == 2


def test_state_is_restored_after_the_last_task_has_ended() -> None:
    state = Counter()
    begun = threading.Event()

    def slow(task: Task, inputs: Mapping[str, Any]) -> None:
        begun.set()
        time.sleep(0.05)
        state.values[0] += 1

    def fail(task: Task, inputs: Mapping[str, Any]) -> None:
        begun.wait(10)
        raise ValueError

    with pytest.raises(TaskFailedError):
        run(GRAPH, {"count": slow, "end": fail}, trial=[state])
    assert state.values == [0]


def test_states_are_restored_in_reverse_order_and_each_though_another_fails() -> None:
    log: list[str] = []
    x, broken, y = Counter(log, "x"), Broken(log, "broken"), Counter(log, "y")
    message = "state of Broken is not what it was before the trial: disk gone"
    with pytest.raises(RestoreError, match=message), restored([x, broken, y]):
        x.values[0] = y.values[0] = 5
    assert log == ["snapshot x", "snapshot broken", "snapshot y", "restore y", "restore x"]
    assert (x.values, y.values) == ([0], [0])


def test_what_cannot_be_restored_is_refused_before_anything_is_saved_or_run() -> None:
    asked: list[str] = []

    class State:
        def snapshot(self) -> None:
            asked.append("snapshot")

        def restore(self, snapshot: None) -> None:
            asked.append("restore")

    graph = TaskGraph((Task("a", payload="call"),))
    wrong: Any = 3
    with pytest.raises(UsageError, match=r"int is no state of a trial.*snapshot\(\) and restore"):
        run(graph, {"call": lambda task, inputs: asked.append("run")}, trial=[State(), wrong])
    assert asked == []


def test_several_runs_may_be_one_trial() -> None:
    state = Counter()

    def count(task: Task, inputs: Mapping[str, Any]) -> None:
        state.values[0] += 1

    with restored([state]):
        for _ in range(3):
            run(GRAPH, {"count": count, "end": count}, trial=[state])
            assert state.values == [0]
        run(GRAPH, {"count": count, "end": count})
        assert state.values == [2]
    assert state.values == [0]
