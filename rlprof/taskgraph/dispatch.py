"""Run a graph: every completion starts what has become possible, highest priority first."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlprof.errors import UsageError
from rlprof.taskgraph.backend import Backend, Call, Completion, RemoteOutput, ThreadBackend
from rlprof.taskgraph.errors import (
    CellInUseError,
    EndedError,
    RunCancelledError,
    TaskFailedError,
    VersionMismatchError,
    WorkerDownError,
    WorkerLostError,
)
from rlprof.taskgraph.graph import TaskGraph, expect_tasks
from rlprof.taskgraph.ready import ReadySet
from rlprof.taskgraph.record import RunRecord, TaskRun
from rlprof.taskgraph.schedule import checked_priority
from rlprof.taskgraph.state import CellStates, InUse, WrongVersion
from rlprof.taskgraph.task import INITIAL
from rlprof.taskgraph.trial import Restorable, restored


class Cancellation:
    """Asks one run to stop; a payload that takes long may look at `requested` and return early.

    A run cancels its own when a task fails, so that such payloads also see that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        """The run is to stop."""
        return self.reason is not None

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop: nothing more is started. The first reason stays. Callable from any thread."""
        with self._lock:
            if self.reason is None:
                self.reason = reason


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
    trial: Iterable[Restorable] = (),
) -> RunResult:
    """Execute every task of a graph once.

    A task is ready when its predecessors are done; it starts when all its resources are free and the back end
    has a slot, in order of priority. The versions of state that it needs are compared with those that are
    there when it starts. An output lives until its last consumer is done.

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
    trial : iterable of Restorable
        State that this run may change and that is then what it was before, however the run ends; not in the
        record's times.

    Returns
    -------
    RunResult
        The record, and outputs.

    Raises
    ------
    TaskFailedError
        If a task raises: nothing is started after it, what runs is waited for (a back end that can end tasks
        may do so), the record is attached.
    WorkerLostError
        If the worker of a task ends in the middle of it; likewise.
    VersionMismatchError
        If a task would see another version of a state cell than the graph says; it is not started, and the
        run stops as when a task fails.
    CellInUseError
        If a task would use a state cell while another writes it, or write one while others use it; likewise.
    RunCancelledError
        If the run was cancelled before all tasks were done.
    UsageError
        If the back end does not know a payload, `priority` does not fit the graph, or something else than a
        back end or a state is given as one. Nothing has run then.
    UnknownTaskError
        If `keep` names a task that is not in the graph.
    RestoreError
        If state of `trial` could not be brought back.
    """
    expect_tasks(graph)
    if isinstance(calls, type) or not (isinstance(calls, Mapping) or hasattr(calls, "submit")):
        raise UsageError(
            f"{calls!r:.80} is neither calls nor a back end",
            hint='give {"payload": call}, or a back end that is made',
        )
    backend: Backend = ThreadBackend(calls) if isinstance(calls, Mapping) else calls
    for task_id in keep:
        graph.position_of(task_id)
    if priority is None and any(task.duration_s is None for task in graph.tasks):
        priority = np.zeros(len(graph))
    ready = ReadySet(graph, checked_priority(graph, priority))
    buffers = _Buffers(graph, keep)
    state = _Run(graph, backend, ready, buffers, cancellation or Cancellation())
    with restored(trial):
        try:
            record = state.execute()
            _raise_if_stopped(state, record)
            return RunResult(record, buffers.fetch_kept(record))
        finally:
            buffers.release()


def _raise_if_stopped(state: _Run, record: RunRecord) -> None:
    """Say why a run did not end well, if it did not."""
    tasks, conflict, failure = state.graph.tasks, state.conflict, state.failure
    if isinstance(conflict, WrongVersion):
        needed = conflict.access.sees or INITIAL
        raise VersionMismatchError(conflict.task, *conflict.access.key, needed, conflict.found, record)
    if isinstance(conflict, InUse):
        raise CellInUseError(conflict.task, *conflict.access.key, conflict.users, record)
    if failure is not None and failure.error is not None:
        kind = WorkerLostError if isinstance(failure.error, WorkerDownError) else TaskFailedError
        raise kind(tasks[failure.position].id, failure.worker, failure.error, record) from failure.error
    if state.ready.left:
        reason, left = state.cancellation.reason, state.ready.left
        raise RunCancelledError(f"run stopped ({reason}) with {left} of {len(tasks)} tasks not done", record)


class _Run:
    """State of one run.

    The thread in which a task completes takes the completion in and starts what has become possible, so a
    worker goes on with the next task without waiting for another thread. One thread does that at a time;
    others leave their completions to it.
    """

    def __init__(
        self,
        graph: TaskGraph,
        backend: Backend,
        ready: ReadySet,
        buffers: _Buffers,
        cancellation: Cancellation,
    ) -> None:
        self.graph, self.backend, self.ready, self.buffers = graph, backend, ready, buffers
        self.cancellation = cancellation
        self.failure: Completion | None = None
        self.conflict: WrongVersion | InUse | None = None
        # a graph without state costs nothing more
        self._states = CellStates(graph.tasks) if any(task.accesses for task in graph.tasks) else None
        self._error: BaseException | None = None  # of the dispatcher or the back end, not of a task
        self._runs: list[TaskRun] = []
        self._running = 0
        self._stopping = False
        self._inbox: deque[Completion] = deque()
        self._lock = threading.Lock()
        self._finished = threading.Event()

    def execute(self) -> RunRecord:
        """Run to the end, whatever it is; nothing that was started is left afterwards."""
        graph_hash = self.graph.hash
        self.backend.open(self.graph, self._report)
        start_ns = time.monotonic_ns()
        try:
            with self._lock:
                self._advance()
            self._take_turns()
            # a signal that comes just before a wait does not end it; Python handles it after that wait
            while not self._finished.wait(0.25):
                if self.cancellation.requested and not self._stopping:  # by another thread
                    with self._lock:
                        self._advance()
                    self._take_turns()
        finally:  # also when this thread is interrupted
            if self.ready.left:
                self.cancellation.cancel("interrupted")
            with self._lock:
                pass  # whoever advances now is done after this, and nobody starts anything later
            end_ns = time.monotonic_ns()
            self.backend.close()
        if self._error is not None:
            raise self._error
        end_ns = max([end_ns, *(run.end_ns for run in self._runs)])
        return RunRecord(graph_hash, tuple(self._runs), start_ns, end_ns)

    def _report(self, completion: Completion) -> None:
        self._inbox.append(completion)
        self._take_turns()

    def _take_turns(self) -> None:
        # looked at again after the lock is given back: a completion that came meanwhile is not forgotten
        while self._inbox and self._lock.acquire(blocking=False):
            try:
                self._advance()
            finally:
                self._lock.release()

    def _advance(self) -> None:
        """Take completions in and start what may start; the lock is held."""
        try:
            while True:
                while self._inbox:
                    self._take(self._inbox.popleft())
                if self.cancellation.requested:
                    if not self._stopping:
                        self._stopping = True
                        self.backend.stop()
                    break
                if self._running >= self.backend.slots:
                    break
                position = self.ready.start_next()
                if position is None:
                    break
                if self._states is not None and (conflict := self._states.begin(position)) is not None:
                    self.conflict = conflict
                    self.cancellation.cancel(f"task {conflict.task} cannot use {conflict.access.cell}")
                    continue
                self._running += 1
                self.backend.submit(position, self.graph.tasks[position], self.buffers.inputs(position))
        except BaseException as error:
            self._error = self._error or error
            self.cancellation.cancel(f"{type(error).__name__} while dispatching")
            self._finished.set()
        if not self._running:
            self._finished.set()

    def _take(self, completion: Completion) -> None:
        position, worker, start_ns, returned_ns, end_ns, output, error = completion
        self._running -= 1
        task = self.graph.tasks[position].id
        failed = error is not None
        versions = () if self._states is None else self._states.end(position, failed=failed)
        if not (isinstance(error, EndedError) and not error.begun):
            self._runs.append(TaskRun(task, worker, start_ns, returned_ns, end_ns, failed, *versions))
        if error is None:
            self.buffers.store(position, output)
            self.ready.complete(position)
        elif self.failure is None and not isinstance(error, EndedError):
            self.failure = completion
            self.cancellation.cancel(f"task {task} failed")


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
                _release(self._outputs.pop(i))

    def fetch_kept(self, record: RunRecord) -> dict[str, Any]:
        """What a caller gets, as objects of this process."""
        fetched = {}
        for i in sorted(self._kept):
            output = self._outputs[i]
            if isinstance(output, RemoteOutput):
                try:
                    output = output.fetch()
                except Exception as error:
                    task = self._tasks[i].id
                    worker = next(run.worker for run in record.tasks if run.task == task)
                    raise TaskFailedError(task, worker, error, record) from error
            fetched[self._tasks[i].id] = output
        return fetched

    def release(self) -> None:
        """Drop all that is left."""
        for output in self._outputs.values():
            _release(output)
        self._outputs.clear()


def _release(output: Any) -> None:
    if isinstance(output, RemoteOutput):
        output.release()
