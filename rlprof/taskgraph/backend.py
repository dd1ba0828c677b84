"""Where tasks run: the interface of back ends, and the two that need nothing but this process.

A back end starts what it is given and reports every completion once; it knows nothing of graphs. Which task
goes next is the dispatcher's business.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from rlprof.errors import UsageError
from rlprof.taskgraph.graph import Task

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


class Completion(NamedTuple):
    """The end of one task, as a back end reports it."""

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

    def check(self, payloads: Mapping[str, str]) -> None:
        """Raise UsageError if a payload cannot be executed; `payloads` maps each to a task that has it."""

    def open(self, report: Callable[[Completion], None]) -> None:
        """Get ready.

        `report` may be called from any thread, and calls `submit` for what has become possible before it
        returns, in the same thread.
        """

    def submit(self, position: int, task: Task, inputs: Mapping[str, Any]) -> None:
        """Start a task; its completion is reported with `position`. Never raises for what a payload does."""

    def close(self) -> None:
        """Return when nothing that `open` or `submit` started is left."""


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

    def check(self, payloads: Mapping[str, str]) -> None:
        """Raise UsageError if there is no call for one of `payloads`."""
        for payload, task in payloads.items():
            if payload not in self._calls:
                raise UsageError(
                    f"task {task!r} has the payload {payload!r}, for which there is no call",
                    hint=f"known are {', '.join(sorted(self._calls)[:10]) or 'none'}",
                )

    def _call_of(self, task: Task) -> Call | None:
        return None if task.payload is None else self._calls[task.payload]


class SerialBackend(_Calls):
    """One task at a time in the calling thread: for tests, and to see what overlap buys.

    Parameters
    ----------
    calls : mapping of str to callable
        What a payload key executes.
    """

    slots = 1

    def open(self, report: Callable[[Completion], None]) -> None:
        """Keep `report`."""
        self._report = report

    def submit(self, position: int, task: Task, inputs: Mapping[str, Any]) -> None:
        """Run the task to its end."""
        self._report(execute("caller", self._call_of(task), position, task, inputs))

    def close(self) -> None:
        """Do nothing: nothing is left running."""


class ThreadBackend(_Calls):
    """Threads of this process, started when they are first needed.

    Parameters
    ----------
    calls : mapping of str to callable
        What a payload key executes. It is called from different threads.
    workers : int
        Most threads.
    """

    def __init__(self, calls: Mapping[str, Call], *, workers: int = 32) -> None:
        super().__init__(calls)
        if workers < 1:
            raise UsageError(f"{workers} workers cannot run anything", hint="give at least 1")
        self.slots = workers
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[tuple[int, Task, Mapping[str, Any]] | None] = SimpleQueue()
        self._open = 0
        self._lock = threading.Lock()

    def open(self, report: Callable[[Completion], None]) -> None:
        """Keep `report`; threads start with tasks."""
        if self._threads:
            raise UsageError("this back end serves another run", hint="make one for each run")
        self._report = report
        self._open = 0

    def submit(self, position: int, task: Task, inputs: Mapping[str, Any]) -> None:
        """Hand the task to a thread that waits, or to a new one."""
        with self._lock:
            self._open += 1
            grow = self._open > len(self._threads) and len(self._threads) < self.slots
        if grow:
            name = f"thread {len(self._threads)}"
            thread = threading.Thread(target=self._work, args=(name,), name=f"rlprof {name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((position, task, inputs))

    def close(self) -> None:
        """Wait for the tasks that were submitted and end all threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _work(self, name: str) -> None:
        while (job := self._jobs.get()) is not None:
            position, task, inputs = job
            done = execute(name, self._call_of(task), position, task, inputs)
            del job, inputs  # a waiting thread keeps no buffer alive
            with self._lock:
                self._open -= 1
            self._report(done)
            del done
