"""Tasks in named workers, each with state of its own: what back ends of processes and of Ray actors share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from rlprof.errors import UsageError
from rlprof.taskgraph.backend import Completion, RemoteOutput
from rlprof.taskgraph.errors import EndedError, WorkerDownError
from rlprof.taskgraph.graph import TaskGraph
from rlprof.taskgraph.pool_run import PoolRun, TaskLimit, checked_seconds
from rlprof.taskgraph.task import Task


class Worker(ABC):
    """One worker, as the pool sees it. One thread at a time calls it, but `end` and `down` from anywhere."""

    name: str

    @abstractmethod
    def ready(self, timeout_s: float) -> None:
        """Wait until its state is made.

        Raises
        ------
        WorkerStartError
            If that fails or takes longer; the worker has ended then.
        """

    @abstractmethod
    def missing(self, payloads: Iterable[str], timeout_s: float) -> list[str]:
        """Those of `payloads` that it cannot execute."""

    @abstractmethod
    def execute(self, position: int, task: Task, inputs: Mapping[str, Any]) -> Completion:
        """Run a task to its end. A worker that ends in the middle leaves nothing behind when this returns."""

    @abstractmethod
    def snapshot(self, timeout_s: float) -> RemoteOutput:
        """Snapshot of its state."""

    @abstractmethod
    def restore(self, snapshot: RemoteOutput, timeout_s: float) -> None:
        """Restore its state."""

    @abstractmethod
    def down(self) -> WorkerDownError | None:
        """Return why it is no more, if so."""

    @abstractmethod
    def end(self, error: WorkerDownError | EndedError) -> None:
        """End it at once; a task that it runs fails with `error`. From any thread."""

    @abstractmethod
    def ask_to_exit(self) -> None:
        """Ask it to end by itself; returns at once."""

    @abstractmethod
    def bury(self, within_s: float) -> None:
        """Wait for it, end it after `within_s` seconds, and end all that it started."""


class WorkerPool(ABC):
    """Workers by name, and runs on them.

    Used as a context manager it keeps its workers, and so their state, from one run to the next. Otherwise
    each run makes workers and ends them.

    Parameters
    ----------
    names : iterable of str
        Of the workers.
    timeout_s : float or callable, optional
        Longest time of a task, in seconds, for all or by task; its worker is ended after that.
    grace_s : float or None
        How long tasks that run may go on once their run is to stop, in seconds, before their workers are
        ended; None: to their end.
    setup_timeout_s : float
        Longest time for making, saving or restoring the state of a worker, in seconds.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        timeout_s: TaskLimit = None,
        grace_s: float | None = 3.0,
        setup_timeout_s: float = 600.0,
    ) -> None:
        self._names = tuple(names)
        if not self._names:
            raise UsageError("no workers cannot run anything", hint="give at least one factory")
        if not callable(timeout_s):
            checked_seconds(timeout_s, "timeout_s")
        checked_seconds(grace_s, "grace_s")
        if checked_seconds(setup_timeout_s, "setup_timeout_s") is None:
            raise UsageError("setup_timeout_s is None", hint="give a number of seconds")
        self._timeout_s, self._grace_s, self._setup_s = timeout_s, grace_s, setup_timeout_s
        self._workers: dict[str, Worker] = {}
        self._kept = False  # beyond one run
        self._run: PoolRun | None = None

    def worker(self, name: str) -> Worker:
        """Return a worker, to give it tasks outside of a run; only while the pool keeps its workers.

        Raises
        ------
        UsageError
            If there is none of this name now.
        """
        found = self._workers.get(name)
        if found is None:
            raise UsageError(
                f"there is no worker {name!r} now", hint="ask inside of the block: with backend: ..."
            )
        return found

    @property
    def slots(self) -> int:
        """One task for each worker."""
        return len(self._names)

    @abstractmethod
    def _begin(self, name: str) -> Worker:
        """Start a worker; returns before it is ready."""

    @abstractmethod
    def _finish(self) -> None:
        """Let go of what all workers needed."""

    def __enter__(self) -> Self:
        self._start()
        self._kept = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept = False
        self._end_all()

    def _start(self) -> None:
        """Make all workers; none is left if one fails."""
        if self._workers:
            raise UsageError("the workers of this back end run already", hint="enter it once")
        try:
            for name in self._names:
                self._workers[name] = self._begin(name)
            for worker in self._workers.values():
                worker.ready(self._setup_s)
        except BaseException:
            for worker in self._workers.values():
                worker.end(WorkerDownError(f"worker {worker.name} was ended because another one failed"))
            self._end_all()
            raise

    def _end_all(self) -> None:
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.ask_to_exit()
        until = time.monotonic() + (self._grace_s or 3.0)
        for worker in workers:
            worker.bury(max(until - time.monotonic(), 0.0))
        self._finish()

    def open(self, graph: TaskGraph, report: Callable[[Completion], None]) -> None:
        """Make the workers unless they run, and check that they can execute all tasks.

        Raises
        ------
        UsageError
            If a task names a worker or a payload that there is not, or another run goes on.
        WorkerStartError
            If a worker cannot be made.
        WorkerDownError
            If a worker was lost before: its state is gone.
        """
        if self._run is not None:
            raise UsageError("this back end serves another run", hint="make one for each run")
        for task in graph.tasks:
            if task.worker is not None and task.worker not in self._names:
                raise UsageError(
                    f"task {task.id!r} names the worker {task.worker!r}, which there is not",
                    hint=f"there are {', '.join(self._names[:10])}",
                )
        if not self._kept:
            self._start()
        try:
            for name, why in self.lost.items():
                raise WorkerDownError(
                    f"worker {name} was lost before this run, and its state with it: {why}",
                    hint="renew() makes lost workers anew, with the state that their factories make",
                ) from why
            able = self._check_payloads(graph)
        except BaseException:
            if not self._kept:
                self._end_all()
            raise
        self._run = PoolRun(self._workers, able, report, self._timeout_s, self._grace_s)

    def _check_payloads(self, graph: TaskGraph) -> dict[str, set[str]]:
        """Payloads by the worker that can execute them."""
        wanted: dict[str, set[str]] = {name: set() for name in self._names}
        anywhere = {task.payload for task in graph.tasks if task.payload is not None and task.worker is None}
        for task in graph.tasks:
            if task.payload is not None and task.worker is not None:
                wanted[task.worker].add(task.payload)
        able = {}
        for name, payloads in wanted.items():
            asked = sorted(payloads | anywhere)
            able[name] = set(asked) - set(self._workers[name].missing(asked, self._setup_s) if asked else ())
        for task in graph.tasks:
            where = self._names if task.worker is None else (task.worker,)
            if task.payload is not None and not any(task.payload in able[name] for name in where):
                raise UsageError(
                    f"task {task.id!r} has the payload {task.payload!r}, for which there is no call in"
                    f" {'any worker' if task.worker is None else f'worker {task.worker!r}'}",
                    hint="name a public method, or an entry of the mapping, of what its factory makes",
                )
        return able

    def submit(self, position: int, task: Task, inputs: Mapping[str, Any]) -> None:
        """Hand the task to its worker, or to one that can execute it."""
        assert self._run is not None
        self._run.submit(position, task, inputs)

    def stop(self) -> None:
        """Let tasks that run go on for the grace time, then end their workers."""
        if self._run is not None:
            self._run.stop()

    def close(self) -> None:
        """Wait for tasks that run, as after `stop`; end the workers unless they are kept."""
        if self._run is not None:
            self._run.close()
            self._run = None
        if not self._kept:
            self._end_all()

    @property
    def lost(self) -> dict[str, WorkerDownError]:
        """Why workers are no more, by name."""
        found = {name: worker.down() for name, worker in self._workers.items()}
        return {name: why for name, why in found.items() if why is not None}

    def renew(self) -> tuple[str, ...]:
        """Make lost workers anew: with the state that their factories make, not the one that was lost.

        Returns
        -------
        tuple of str
            Which.

        Raises
        ------
        WorkerStartError
            If one cannot be made.
        """
        lost = tuple(self.lost)
        for name in lost:
            self._workers[name].bury(0.0)
            self._workers[name] = self._begin(name)
        for name in lost:
            self._workers[name].ready(self._setup_s)
        return lost

    def snapshot(self) -> Mapping[str, RemoteOutput]:
        """Snapshot of every worker's state; see `rlprof.taskgraph.Restorable`.

        Raises
        ------
        UsageError
            If the workers do not outlive a run, or a worker's state has no ``snapshot`` and ``restore``.
        WorkerDownError
            If a worker is lost.
        """
        if not self._kept or self._run is not None:
            raise UsageError(
                "state of workers is saved between runs on workers that are kept",
                hint="use the back end as a context manager: with ProcessBackend(...) as backend",
            )
        return {name: worker.snapshot(self._setup_s) for name, worker in self._workers.items()}

    def restore(self, snapshot: Mapping[str, RemoteOutput]) -> None:
        """Bring every worker's state back; a lost worker is made anew by its factory before that."""
        self.renew()
        for name, saved in snapshot.items():
            worker = self._workers[name]
            try:
                worker.restore(saved, self._setup_s)
            except WorkerDownError:  # it ended since, or does not answer
                self.renew()
                self._workers[name].restore(saved, self._setup_s)
