"""Where tasks run: the interface of back ends, and the two that need nothing but this process.

A back end starts what it is given and reports every completion once; it knows nothing of graphs. Which task
goes next is the dispatcher's business.
"""

from __future__ import annotations

import functools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from rlprof.errors import UsageError
from rlprof.taskgraph.graph import TaskGraph
from rlprof.taskgraph.task import Task
from rlprof.taskgraph.threads import Threads, take_torch_threads
from rlprof.text import counted

#: A payload: gets the task and the outputs of its data predecessors by their ids.
Call = Callable[[Task, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Pending:
    """Output of a call that returned before its work was complete, as kernels' launches do.

    Parameters
    ----------
    output : object
        What consumers get once `wait` has returned.
    wait : callable
        Returns when the work is complete: ``torch.cuda.Event.synchronize`` of an event recorded after it.
    """

    output: Any
    wait: Callable[[], object]


class RemoteOutput(ABC):
    """An output that lies elsewhere than in this process, as a back end reports it.

    It is handed on to consumers as it is, fetched if the caller of a run gets it, and released once: when its
    last consumer is done, or the run ends.
    """

    @abstractmethod
    def fetch(self) -> Any:
        """Return the output itself, as an object of this process."""

    @abstractmethod
    def release(self) -> None:
        """Free what holds it."""


class Completion(NamedTuple):
    """The end of one task, as a back end reports it.

    Parameters
    ----------
    position : int
        Of the task in its graph.
    worker : str
        Where it ran.
    start_ns, returned_ns, end_ns : int
        As in `rlprof.taskgraph.TaskRun`.
    output : object
        What it returned, or a `RemoteOutput`.
    error : BaseException or None
        What it raised; a `WorkerDownError` if its worker is gone, an `EndedError` if the back end ended it
        because the run was to stop.
    """

    position: int
    worker: str
    start_ns: int
    returned_ns: int
    end_ns: int
    output: Any
    error: BaseException | None


class Backend(Protocol):
    """What a back end has to do.

    Attributes
    ----------
    slots : int
        Tasks that may run at once; the dispatcher submits no more.
    """

    @property
    def slots(self) -> int:
        """Tasks that may run at once."""

    def open(self, graph: TaskGraph, report: Callable[[Completion], None]) -> None:
        """Get ready for a run; raise UsageError, with nothing left behind, if a task cannot be executed.

        `report` may be called from any thread, and calls `submit` for what has become possible before it
        returns, in the same thread.
        """

    def submit(self, position: int, task: Task, inputs: Mapping[str, Any]) -> None:
        """Start a task; its completion is reported with `position`. Never raises for what a payload does."""

    def stop(self) -> None:
        """The run is to end, nothing more is submitted: hurry what can be hurried. Returns at once."""

    def close(self) -> None:
        """Return when no task runs any more, and nothing is left of what `open` started for this run."""


def execute(
    worker: str, call: Call | None, position: int, task: Task, inputs: Mapping[str, Any]
) -> Completion:
    """Run one payload here and now, and wait for a `Pending` output."""
    output: Any = None
    error: BaseException | None = None
    start_ns = returned_ns = time.monotonic_ns()
    try:
        if call is not None:
            output = call(task, inputs)
            returned_ns = time.monotonic_ns()
            if isinstance(output, Pending):
                pending, output = output, output.output
                pending.wait()
    except BaseException as caught:  # also SystemExit of a payload: the run stops, not the worker
        error, output = caught, None
    return Completion(position, worker, start_ns, returned_ns, time.monotonic_ns(), output, error)


class _Calls:
    """Payloads by key."""

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = dict(calls)

    def _check(self, graph: TaskGraph) -> None:
        for task in graph.tasks:
            if task.payload is not None and task.payload not in self._calls:
                raise UsageError(
                    f"task {task.id!r} has the payload {task.payload!r}, for which there is no call",
                    hint=f"known are {', '.join(sorted(self._calls)[:10]) or 'none'}",
                )

    def stop(self) -> None:
        """Do nothing: a call in this process cannot be ended from outside."""

    def _call_of(self, task: Task) -> Call | None:
        return None if task.payload is None else self._calls[task.payload]


_Jobs = SimpleQueue[tuple[int, Task, Mapping[str, Any]] | None]


class SerialBackend(_Calls):
    """One task at a time in the calling thread, which stands for all workers: for tests, and to see what
    overlap buys.

    Parameters
    ----------
    calls : mapping of str to callable
        What a payload key executes.
    """

    slots = 1

    def open(self, graph: TaskGraph, report: Callable[[Completion], None]) -> None:
        """Keep `report`."""
        self._check(graph)
        self._report = report

    def submit(self, position: int, task: Task, inputs: Mapping[str, Any]) -> None:
        """Run the task to its end."""
        self._report(execute(task.worker or "caller", self._call_of(task), position, task, inputs))

    def close(self) -> None:
        """Do nothing: nothing is left running."""


class ThreadBackend(_Calls):
    """Threads of this process, started when they are first needed: one for each worker that tasks name, the
    others for all tasks that name none.

    Parameters
    ----------
    calls : mapping of str to callable
        What a payload key executes, in any worker. It is called from different threads.
    workers : int
        Most tasks at once.
    threads : Threads, optional
        Where threads come from and go back to, so that the next run has the same; by default they end with
        the run.
    """

    def __init__(
        self, calls: Mapping[str, Call], *, workers: int = 32, threads: Threads | None = None
    ) -> None:
        super().__init__(calls)
        if workers < 1:
            raise UsageError(f"{counted(workers, 'worker')} cannot run anything", hint="give at least 1")
        self.slots = workers
        self._kept = threads
        self._threads: list[Callable[[], None]] = []  # each waits for one of them
        self._jobs: _Jobs = SimpleQueue()
        self._named: dict[str, _Jobs] = {}
        self._open = 0  # tasks of the unnamed threads
        self._lock = threading.Lock()

    def open(self, graph: TaskGraph, report: Callable[[Completion], None]) -> None:
        """Keep `report`; threads start with tasks."""
        self._check(graph)
        if self._threads:
            raise UsageError("this back end serves another run", hint="make one for each run")
        self._report = report
        self._open = 0

    def submit(self, position: int, task: Task, inputs: Mapping[str, Any]) -> None:
        """Hand the task to its worker's thread, to one that waits, or to a new one."""
        if task.worker is not None:
            if task.worker not in self._named:
                self._named[task.worker] = SimpleQueue()
                self._start(task.worker, self._named[task.worker])
            self._named[task.worker].put((position, task, inputs))
            return
        with self._lock:
            self._open += 1
            unnamed = len(self._threads) - len(self._named)
            grow = unnamed < min(self._open, self.slots)
        if grow:
            self._start(f"thread {unnamed}", self._jobs)
        self._jobs.put((position, task, inputs))

    def close(self) -> None:
        """Wait for the tasks that were submitted; threads end, or go back to where they came from."""
        for _ in range(len(self._threads) - len(self._named)):
            self._jobs.put(None)
        for jobs in self._named.values():
            jobs.put(None)
        for join in self._threads:
            join()
        self._threads, self._named = [], {}

    def _start(self, name: str, jobs: _Jobs) -> None:
        if self._kept is not None:
            self._threads.append(self._kept.start(name, functools.partial(self._work, name, jobs)))
            return
        thread = threading.Thread(target=self._work, args=(name, jobs), name=f"rlprof {name}", daemon=True)
        self._threads.append(thread.join)
        thread.start()

    def _work(self, name: str, jobs: _Jobs) -> None:
        take_torch_threads()
        while (job := jobs.get()) is not None:
            position, task, inputs = job
            done = execute(name, self._call_of(task), position, task, inputs)
            del job, inputs  # a waiting thread keeps no buffer alive
            if jobs is self._jobs:
                with self._lock:
                    self._open -= 1
            self._report(done)
            del done
