"""Runs on named workers, of a kind made for the test: who is ended, and who is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rlprof.taskgraph import Task, TaskGraph, run
from rlprof.taskgraph.backend import Completion, RemoteOutput
from rlprof.taskgraph.errors import EndedError, WorkerDownError
from rlprof.taskgraph.workers import Worker, WorkerPool


class SlowToAnswer(Worker):
    """Says whether it is down only after the next task has begun."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended: list[str] = []
        self.second_began = threading.Event()

    def ready(self, timeout_s: float) -> None: ...

    def missing(self, payloads: Iterable[str], timeout_s: float) -> list[str]:
        return []

    def execute(self, position: int, task: Task, inputs: Mapping[str, Any]) -> Completion:
        if task.id == "second":
            self.second_began.set()
        start_ns = time.monotonic_ns()
        time.sleep(0.15)
        end_ns = time.monotonic_ns()
        return Completion(position, self.name, start_ns, end_ns, end_ns, None, None)

    def down(self) -> WorkerDownError | None:
        if threading.current_thread().name == "rlprof watcher":
            self.second_began.wait(30.0)
        return None

    def end(self, error: WorkerDownError | EndedError) -> None:
        self.ended.append(str(error))

    def ask_to_exit(self) -> None: ...

    def bury(self, within_s: float) -> None: ...

    def snapshot(self, timeout_s: float) -> RemoteOutput:
        raise NotImplementedError

    def restore(self, snapshot: RemoteOutput, timeout_s: float) -> None:
        raise NotImplementedError


class Pool(WorkerPool):
    """Of one worker."""

    def _begin(self, name: str) -> Worker:
        self.made = SlowToAnswer(name)
        return self.made

    def _finish(self) -> None: ...


def test_a_task_is_not_ended_for_the_one_before_it() -> None:
    """The first is over its limit when it is looked at, and done before it is ended."""
    tasks = tuple(
        Task(name, payload="call", worker="one", program_order=n)
        for n, name in enumerate(("first", "second"))
    )
    pool = Pool(["one"], timeout_s=lambda task: 0.01 if task.id == "first" else None)
    run(TaskGraph(tasks), pool)
    assert pool.made.ended == []
