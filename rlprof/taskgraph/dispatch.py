"""Run a graph: every completion starts what has become possible, highest priority first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from rlprof.taskgraph.backend import Backend, Call, Completion, ThreadBackend
from rlprof.taskgraph.errors import RunCancelledError, TaskFailedError
from rlprof.taskgraph.graph import TaskGraph
from rlprof.taskgraph.ready import ReadySet
from rlprof.taskgraph.record import RunRecord, TaskRun
from rlprof.taskgraph.schedule import checked_priority


class Cancellation:
    """Asks one run to stop; a payload that takes long may look at `requested` and return early.

    A run cancels its own when a task fails, so that such payloads also see that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        """The run is to stop."""
        return self.reason is not None

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop: nothing more is started. The first reason stays. Callable from any thread."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` on cancellation, at once if that has been."""
        with self._lock:
            if self.reason is None:
                self._listeners.append(listener)
                return
        listener()

    def forget(self, listener: Callable[[], None]) -> None:
        """Undo `listen`."""
        with self._lock, suppress(ValueError):
            self._listeners.remove(listener)


@dataclass(frozen=True)
class RunResult:
    """A run that ended well.

    Parameters
    ----------
    record : RunRecord
        When and where each task ran.
    outputs : mapping of str to object
        Outputs of the tasks that no data edge leaves, and of those asked for, by task id.
    """

    record: RunRecord
    outputs: Mapping[str, Any]


def run(
    graph: TaskGraph,
    calls: Mapping[str, Call] | Backend,
    *,
    priority: npt.NDArray[np.float64] | None = None,
    cancellation: Cancellation | None = None,
    keep: frozenset[str] = frozenset(),
) -> RunResult:
    """Execute every task of a graph once.

    A task is ready when its predecessors are done; it starts when all its resources are free and the back end
    has a slot, in order of priority. An output lives until its last consumer is done.

    Parameters
    ----------
    graph : TaskGraph
        What to run; durations are only needed for the default priority.
    calls : mapping of str to callable, or Backend
        What a payload key executes, in threads of this process; or where to run it instead.
    priority : numpy.ndarray, optional
        Larger first, shape (tasks,); by default `upward_rank`, or the canonical order of tasks if a duration
        is not known.
    cancellation : Cancellation, optional
        A way to stop this run from elsewhere.
    keep : frozenset of str
        Tasks whose output is wanted although others consume it.

    Returns
    -------
    RunResult
        The record, and outputs.

    Raises
    ------
    TaskFailedError
        If a task raises: nothing is started after it, what runs is waited for, the record is attached.
    RunCancelledError
        If the run was cancelled before all tasks were done.
    UsageError
        If the back end does not know a payload, or `priority` does not fit the graph. Nothing has run then.
    UnknownTaskError
        If `keep` names a task that is not in the graph.
    """
    backend: Backend = ThreadBackend(calls) if isinstance(calls, Mapping) else calls
    for task_id in keep:
        graph.position_of(task_id)
    backend.check({task.payload: task.id for task in graph.tasks if task.payload is not None})
    if priority is None and any(task.duration_s is None for task in graph.tasks):
        priority = np.zeros(len(graph))
    ready = ReadySet(graph, checked_priority(graph, priority))
    buffers = _Buffers(graph, keep)
    cancellation = cancellation or Cancellation()
    graph_hash = graph.hash
    done: SimpleQueue[Completion | None] = SimpleQueue()
    runs: list[TaskRun] = []
    failure: Completion | None = None
    running = 0

    def wake() -> None:
        done.put(None)

    def take(completion: Completion) -> None:
        nonlocal failure
        task = graph.tasks[completion.position].id
        _, worker, start_ns, returned_ns, end_ns, output, error = completion
        runs.append(TaskRun(task, worker, start_ns, returned_ns, end_ns, error is not None))
        if error is None:
            buffers.store(completion.position, output)
        elif failure is None:
            failure = completion
            cancellation.cancel(f"task {task} failed")

    start_ns = time.monotonic_ns()
    backend.open(done.put)
    cancellation.listen(wake)
    try:
        while ready.left:
            while running < backend.slots and not cancellation.requested:
                position = ready.start_next()
                if position is None:
                    break
                running += 1
                backend.submit(position, graph.tasks[position], buffers.inputs(position))
            if not running:
                break
            completion = done.get()
            if completion is not None:
                running -= 1
                take(completion)
                ready.complete(completion.position)
    finally:  # also when this thread is interrupted: stop, and leave nothing running
        cancellation.forget(wake)
        if ready.left:
            cancellation.cancel("interrupted")
        backend.close()
    record = RunRecord(graph_hash, tuple(runs), start_ns, time.monotonic_ns())
    if failure is not None and failure.error is not None:
        task_id = graph.tasks[failure.position].id
        raise TaskFailedError(task_id, failure.worker, failure.error, record) from failure.error
    if ready.left:
        raise RunCancelledError(
            f"run stopped ({cancellation.reason}) with {ready.left} of {len(graph)} tasks not run", record
        )
    return RunResult(record, buffers.kept())


class _Buffers:
    """Outputs that somebody still needs."""

    def __init__(self, graph: TaskGraph, keep: frozenset[str]) -> None:
        index = graph.index
        self._tasks = graph.tasks
        self._sources: list[list[int]] = [[] for _ in graph.tasks]
        consumers: list[set[int]] = [set() for _ in graph.tasks]
        for edge in graph.edges:
            source, target = index[edge.source], index[edge.target]
            if edge.kind == "data" and target not in consumers[source]:
                consumers[source].add(target)
                self._sources[target].append(source)
        self._left = [len(c) for c in consumers]
        self._kept = {i for i, c in enumerate(consumers) if not c} | {index[task] for task in keep}
        self._outputs: dict[int, Any] = {}

    def inputs(self, position: int) -> dict[str, Any]:
        """Outputs of the data predecessors by id."""
        return {self._tasks[i].id: self._outputs[i] for i in self._sources[position]}

    def store(self, position: int, output: Any) -> None:
        """Keep the output of a task that is done, and drop inputs that it was the last to need."""
        self._outputs[position] = output
        for i in self._sources[position]:
            self._left[i] -= 1
            if not self._left[i] and i not in self._kept:
                del self._outputs[i]

    def kept(self) -> dict[str, Any]:
        """What a caller gets."""
        return {self._tasks[i].id: self._outputs[i] for i in sorted(self._kept)}
