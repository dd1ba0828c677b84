"""One run on named workers: who does what next, who takes too long.

A thread of this process stands for each worker, hands it one task after another and waits for it. One more
looks after them: workers that are dead, tasks that take too long, a run that is to stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rlprof.errors import UsageError
from rlprof.taskgraph.backend import Completion
from rlprof.taskgraph.errors import EndedError, WorkerDownError
from rlprof.taskgraph.task import Task

if TYPE_CHECKING:
    from rlprof.taskgraph.workers import Worker

#: How often somebody looks at deadlines and workers, in seconds.
_TICK_S = 0.05
#: Longest time of a task, in seconds, for all or by task.
TaskLimit = float | Callable[[Task], float | None] | None


def checked_seconds(value: Any, name: str) -> float | None:
    """Return a time as it is.

    Raises
    ------
    UsageError
        If it is neither None nor a number of seconds.
    """
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0):
        return value
    raise UsageError(f"{name} is {value!r}", hint="give a number of seconds")


class _Running(NamedTuple):
    """A task that a worker does, its limit, and since when."""

    task: Task
    limit_s: float | None
    since_s: float


class PoolRun:
    """One run on workers.

    Parameters
    ----------
    workers : mapping of str to Worker
        Ready.
    able : mapping of str to set of str
        Payloads that each can execute.
    report : callable
        As of `rlprof.taskgraph.backend.Backend.open`.
    timeout_s, grace_s
        As of `rlprof.taskgraph.workers.WorkerPool`.
    """

    def __init__(
        self,
        workers: Mapping[str, Worker],
        able: Mapping[str, set[str]],
        report: Callable[[Completion], None],
        timeout_s: TaskLimit,
        grace_s: float | None,
    ) -> None:
        self._workers, self._able, self._report = dict(workers), able, report
        self._timeout_s, self._grace_s = timeout_s, grace_s
        lock = threading.Lock()
        self._lock = lock
        self._wake = {name: threading.Condition(lock) for name in workers}
        #: Position, task, inputs, longest time.
        self._jobs: list[tuple[int, Task, Mapping[str, Any], float | None]] = []
        self._busy: dict[str, _Running] = {}
        self._stop_at: float | None = None
        self._stopped = self._closing = False
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, args=(name,), name=f"rlprof {name}", daemon=True)
            for name in workers
        ]
        self._watcher = threading.Thread(target=self._watch, name="rlprof watcher", daemon=True)
        for thread in (*self._threads, self._watcher):
            thread.start()

    def submit(self, position: int, task: Task, inputs: Mapping[str, Any]) -> None:
        """Have a task done by its worker, or by the first that can and is free."""
        if task.payload is None:  # only takes part in the order
            now = time.monotonic_ns()
            self._report(Completion(position, task.worker or "caller", now, now, now, None, None))
            return
        limit_s = self._timeout_s
        if callable(limit_s):  # asked here, where what it raises ends the run
            limit_s = checked_seconds(limit_s(task), f"timeout_s of task {task.id}")
        with self._lock:
            self._jobs.append((position, task, inputs, limit_s))
            for name in self._workers if task.worker is None else (task.worker,):
                if name not in self._busy:
                    self._wake[name].notify()

    def stop(self) -> None:
        """Begin nothing more; end what runs after the grace time."""
        if not self._stopped:
            self._stopped = True
            self._stop_at = None if self._grace_s is None else time.monotonic() + self._grace_s

    def close(self) -> None:
        """Wait for what runs, as after `stop`."""
        self.stop()
        with self._lock:
            self._closing = True
            for wake in self._wake.values():
                wake.notify()
        for thread in self._threads:
            thread.join()
        self._over.set()
        self._watcher.join()

    def _next(self, name: str) -> tuple[int, Task, Mapping[str, Any]] | None:
        """Wait for a job that a worker can do; None when the run is over."""
        with self._lock:
            self._busy.pop(name, None)
            while True:
                for number, (position, task, inputs, limit_s) in enumerate(self._jobs):
                    if task.worker == name or (task.worker is None and task.payload in self._able[name]):
                        self._busy[name] = _Running(task, limit_s, time.monotonic())
                        del self._jobs[number]
                        return position, task, inputs
                if self._closing:
                    return None
                self._wake[name].wait()

    def _serve(self, name: str) -> None:
        worker = self._workers[name]
        while (job := self._next(name)) is not None:
            position, task, inputs = job
            if self._stopped or (lost := worker.down()) is not None:
                error = EndedError(f"task {task.id} was not begun", begun=False) if self._stopped else lost
                now = time.monotonic_ns()
                done = Completion(position, name, now, now, now, None, error)
            else:
                done = worker.execute(position, task, inputs)
            del job, inputs  # a waiting thread keeps no buffer alive
            with self._lock:
                self._busy.pop(name, None)
            self._report(done)
            del done

    def _watch(self) -> None:
        while not self._over.wait(_TICK_S):
            now = time.monotonic()
            with self._lock:
                busy = list(self._busy.items())
            for name, running in busy:
                worker = self._workers[name]
                why = worker.down() or self._overdue(running, now)
                with self._lock:
                    # it may have got another task since
                    if why is not None and self._busy.get(name) is running:
                        worker.end(why)

    def _overdue(self, running: _Running, now_s: float) -> WorkerDownError | EndedError | None:
        """Say why a task is to be ended, if so."""
        if running.limit_s is not None and now_s > running.since_s + running.limit_s:
            return WorkerDownError(f"it did not finish within {running.limit_s} s and was ended")
        if self._stop_at is not None and now_s > self._stop_at:
            return EndedError(f"task {running.task.id} was ended with its run", begun=True)
        return None
