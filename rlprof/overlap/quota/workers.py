"""Workers under quotas: a process has its quota from its start, so another quota means another process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rlprof.errors import UsageError
from rlprof.overlap.quota.levels import Level
from rlprof.taskgraph.processes import Factory, ProcessBackend
from rlprof.taskgraph.task import Task
from rlprof.taskgraph.workers import Worker

#: One at a time: the environment belongs to the whole process.
_LOCK = threading.RLock()


@contextmanager
def started_with(environment: Mapping[str, str]) -> Iterator[None]:
    """Give processes that the body starts these environment variables as well.

    Parameters
    ----------
    environment : mapping of str to str
        Such as ``daemon.environment(level)``. It is that of this process while the body runs, so the body
        should start the process and do nothing else; other threads that use this function wait.

    Examples
    --------
    >>> with started_with(daemon.environment(level)):  # doctest: +SKIP
    ...     simulator = LocalWorker("simulator", Simulator, 16)
    """
    with _LOCK:
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


class QuotaBackend(ProcessBackend):
    """Worker processes, each under a quota.

    Parameters
    ----------
    workers : mapping of str to callable
        Factories, as of `rlprof.taskgraph.processes.ProcessBackend`.
    environment : callable
        Environment variables of a process under a level, None for no quota: that of a
        `rlprof.overlap.quota.daemons.Daemon` or of a mechanism.
    quotas : mapping of str to Level, optional
        By worker; those that are not named have none.
    timeout_s, grace_s, setup_timeout_s
        As of `rlprof.taskgraph.workers.WorkerPool`.

    Raises
    ------
    UsageError
        If a quota is given to a worker that there is not, or a factory cannot be pickled.
    """

    def __init__(
        self,
        workers: Mapping[str, Factory],
        environment: Callable[[Level | None], Mapping[str, str]],
        quotas: Mapping[str, Level] | None = None,
        *,
        timeout_s: float | Callable[[Task], float | None] | None = None,
        grace_s: float | None = 3.0,
        setup_timeout_s: float = 600.0,
    ) -> None:
        super().__init__(workers, timeout_s=timeout_s, grace_s=grace_s, setup_timeout_s=setup_timeout_s)
        self._environment, self._quotas = environment, dict(quotas or {})
        for name in self._quotas:
            self._check(name)

    @property
    def quotas(self) -> dict[str, Level]:
        """Quotas by worker."""
        return dict(self._quotas)

    def replace(self, name: str, level: Level | None, *, keep_state: bool = True) -> None:
        """Replace a worker by a new process under another quota.

        Parameters
        ----------
        name : str
            Of the worker.
        level : Level or None
            Its quota from now on; None: none.
        keep_state : bool
            Bring its state over by ``snapshot`` and ``restore``; False: begin with what the factory makes.

        Raises
        ------
        UsageError
            If there is no such worker, the workers do not outlive a run, or the state has no such methods.
        WorkerDownError, WorkerStartError
            If the worker is lost, or the new one cannot be made.
        """
        self._check(name)
        if not self._kept or self._run is not None:
            raise UsageError(
                "workers are replaced between runs, if they are kept",
                hint="use the back end as a context manager: with QuotaBackend(...) as backend",
            )
        old = self._workers[name]
        saved = old.snapshot(self._setup_s) if keep_state else None
        old.ask_to_exit()
        old.bury(self._grace_s or 3.0)
        if level is None:
            self._quotas.pop(name, None)
        else:
            self._quotas[name] = level
        self._workers[name] = self._begin(name)
        self._workers[name].ready(self._setup_s)
        if saved is not None:
            self._workers[name].restore(saved, self._setup_s)

    def _check(self, name: str) -> None:
        if name not in self._names:
            raise UsageError(
                f"there is no worker {name!r} to set a quota for", hint=f"there are {', '.join(self._names)}"
            )

    def _begin(self, name: str) -> Worker:
        with started_with(self._environment(self._quotas.get(name))):
            return super()._begin(name)
