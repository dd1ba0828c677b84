"""Tasks in Ray actors, one for each named worker: like worker processes, on the machines of a cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlprof.errors import UsageError
from rlprof.taskgraph import guardian
from rlprof.taskgraph.backend import Completion, RemoteOutput
from rlprof.taskgraph.errors import EndedError, TransferError, WorkerDownError, WorkerStartError
from rlprof.taskgraph.pool_run import TaskLimit
from rlprof.taskgraph.processes import Factory
from rlprof.taskgraph.task import Task
from rlprof.taskgraph.worker_process import Raised, find_call, find_restorable, perform
from rlprof.taskgraph.workers import Worker, WorkerPool


class RayBackend(WorkerPool):
    """Persistent Ray actors, one for each worker; ``ray.init()`` comes first.

    Outputs lie in Ray's object store and go from actor to actor without passing through this process; arrays
    in inputs are read-only there. An actor that ends is not restarted by Ray. When one on this machine is
    lost, the programs that it started are ended with it.

    Parameters
    ----------
    workers : mapping of str to callable
        As of `rlprof.taskgraph.processes.ProcessBackend`; anything that Ray can pickle.
    options : mapping of str to mapping, optional
        Of the actors, by worker: ``{"policy": {"num_gpus": 1}}``.
    timeout_s, grace_s, setup_timeout_s
        As of `rlprof.taskgraph.workers.WorkerPool`. Setup includes waiting for the resources of an actor.
    """

    def __init__(
        self,
        workers: Mapping[str, Factory],
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        timeout_s: TaskLimit = None,
        grace_s: float | None = 3.0,
        setup_timeout_s: float = 600.0,
    ) -> None:
        super().__init__(workers, timeout_s=timeout_s, grace_s=grace_s, setup_timeout_s=setup_timeout_s)
        self._factories, self._options = dict(workers), dict(options or {})
        if unknown := set(self._options) - set(workers):
            raise UsageError(f"options of the worker {min(unknown)!r}, which there is not")

    def _begin(self, name: str) -> Worker:
        import ray

        if not ray.is_initialized():
            raise UsageError("Ray is not running here", hint="call ray.init() first")
        return _RayWorker(name, self._factories[name], self._options.get(name, {}))

    def _finish(self) -> None:
        """Ray stays as it was found."""

    @property
    def process_ids(self) -> dict[str, int]:
        """Process id of each worker, on its machine, while they run."""
        return {
            name: worker.process_id
            for name, worker in self._workers.items()
            if isinstance(worker, _RayWorker)
        }


class _State:
    """What the actor is: a worker's state, and where it lives."""

    def __init__(self, worker: str, mark: str) -> None:
        self._worker, self._state = worker, object()
        # programs that it starts inherit this
        os.environ[guardian.VARIABLE] = os.environ.get(guardian.VARIABLE, "") + mark

    def make(self, factory: Factory) -> tuple[int, str] | Raised:
        try:
            self._state = factory()
        except BaseException as error:
            return Raised.of(error, self._worker)
        return os.getpid(), boot_id()

    def missing(self, payloads: list[str]) -> list[str]:
        return [payload for payload in payloads if find_call(self._state, payload) is None]

    def execute(
        self, task: Task, names: list[str], *values: Any
    ) -> tuple[tuple[int, int, int, Raised | None], Any]:
        raised, output = None, None
        start_ns = returned_ns = time.monotonic_ns()
        try:
            inputs = dict(zip(names, values, strict=True))
            returned_ns, output = perform(self._state, self._worker, task, inputs)
        except BaseException as error:
            raised = Raised.of(error, self._worker)
        return (start_ns, returned_ns, time.monotonic_ns(), raised), output

    def snapshot(self) -> tuple[Raised | None, Any]:
        try:
            return None, find_restorable(self._state, self._worker)[0]()
        except BaseException as error:
            return Raised.of(error, self._worker), None

    def restore(self, saved: Any) -> Raised | None:
        try:
            find_restorable(self._state, self._worker)[1](saved)
        except BaseException as error:
            return Raised.of(error, self._worker)
        return None


def boot_id() -> str:
    """Tell this machine since its start from all others: processes with one boot id share a clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class _RayOutput(RemoteOutput):
    """An object in Ray's store."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def fetch(self) -> Any:
        import ray

        try:
            return ray.get(self.reference)
        except ray.exceptions.RayError as error:
            raise _transfer_error(error) from error

    def release(self) -> None:
        self.reference = None


def _transfer_error(error: Exception) -> TransferError:
    reason = str(error).strip().splitlines()[-1].strip()
    return TransferError(
        f"a value cannot be brought from one process to another: {reason}",
        hint="pass plain data, arrays or tensors, and keep the rest as state of the worker",
    )


def _new_actor(worker: str, mark: str, options: Mapping[str, Any]) -> Any:
    import ray

    return ray.remote(_State).options(**options).remote(worker, mark)


class _RayWorker(Worker):
    """An actor, seen from this process."""

    def __init__(self, name: str, factory: Factory, options: Mapping[str, Any]) -> None:
        self.name, self.process_id = name, -1
        self._mark = f"{secrets.token_hex(8)};"
        self._here = False  # on this machine
        self._lock = threading.Lock()
        self._error: WorkerDownError | EndedError | None = None
        self._buried = False
        self._actor = _new_actor(name, self._mark, {"max_restarts": 0, **options})
        self._made = self._actor.make.remote(factory)

    def ready(self, timeout_s: float) -> None:
        try:
            answer = self._get(self._made, timeout_s)
        except WorkerDownError as error:
            raise WorkerStartError(
                f"worker {self.name} could not be made: {error}",
                hint="`ray status` says whether the resources that it asks for are there",
            ) from error
        if isinstance(answer, Raised):
            self.bury(0.0)
            raise WorkerStartError(
                f"worker {self.name} could not be made: {answer.text}", hint="see the traceback of the cause"
            ) from answer.error()
        self.process_id, machine = answer
        # one machine may have containers that do not see each other's processes
        self._here = machine == boot_id() and self._runs()

    def missing(self, payloads: Iterable[str], timeout_s: float) -> list[str]:
        return list(self._get(self._actor.missing.remote(list(payloads)), timeout_s))

    def snapshot(self, timeout_s: float) -> RemoteOutput:
        raised, saved = self._actor.snapshot.options(num_returns=2).remote()
        self._raise(self._get(raised, timeout_s))
        return _RayOutput(saved)

    def restore(self, snapshot: RemoteOutput, timeout_s: float) -> None:
        assert isinstance(snapshot, _RayOutput)
        self._raise(self._get(self._actor.restore.remote(snapshot.reference), timeout_s))

    def _raise(self, raised: Raised | None) -> None:
        if raised is not None:
            raise raised.error()

    def execute(self, position: int, task: Task, inputs: Mapping[str, Any]) -> Completion:
        values = [v.reference if isinstance(v, _RayOutput) else v for v in inputs.values()]
        sent_ns = time.monotonic_ns()
        try:
            done, output = self._actor.execute.options(num_returns=2).remote(task, list(inputs), *values)
            start_ns, returned_ns, end_ns, raised = self._get(done, None)
        except Exception as broken:
            now = time.monotonic_ns()
            return Completion(position, self.name, sent_ns, now, now, None, self._error or broken)
        if not self._here:  # clocks of machines differ
            start_ns, returned_ns, end_ns = sent_ns, time.monotonic_ns(), time.monotonic_ns()
        if raised is not None:
            error = raised.error_of_task()
            return Completion(position, self.name, start_ns, returned_ns, end_ns, None, error)
        return Completion(position, self.name, start_ns, returned_ns, end_ns, _RayOutput(output), None)

    def _get(self, reference: Any, timeout_s: float | None) -> Any:
        """Wait for an answer.

        Raises
        ------
        WorkerDownError
            If the actor ended, or does not answer in time; it has ended then.
        TransferError
            If Ray could not bring a value there or back.
        """
        import ray

        try:
            return ray.get(reference, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            self.end(WorkerDownError(f"it did not answer within {timeout_s} s and was ended"))
        except ray.exceptions.RayActorError as error:
            first = str(error).strip().split("\n", 1)[0].rstrip(".")
            with self._lock:
                self._error = self._error or WorkerDownError(f"actor of process {self.process_id}: {first}")
        except ray.exceptions.RayError as error:  # what a call itself raises is a `Raised`
            raise _transfer_error(error) from error
        self.bury(0.0)
        down = self.down()
        assert down is not None
        raise down

    def down(self) -> WorkerDownError | None:
        if self._error is None and self._here and not self._runs():  # killed while it had nothing to do
            with self._lock:
                self._error = self._error or WorkerDownError(f"actor of process {self.process_id} has ended")
        if self._error is None or isinstance(self._error, WorkerDownError):
            return self._error
        return WorkerDownError(str(self._error))

    def end(self, error: WorkerDownError | EndedError) -> None:
        import ray

        with self._lock:
            self._error = self._error or error
        with contextlib.suppress(Exception):  # it may be gone already
            if ray.is_initialized():  # else that would start a new Ray
                ray.kill(self._actor)

    def ask_to_exit(self) -> None:
        import ray

        with contextlib.suppress(Exception):  # it may be gone already
            if self._error is None and ray.is_initialized():
                self._actor.__ray_terminate__.remote()

    def bury(self, within_s: float) -> None:
        if self._buried:
            return
        self._buried = True
        until = time.monotonic() + within_s
        while self._here and self._runs() and time.monotonic() < until:
            time.sleep(0.01)
        self.end(WorkerDownError(f"actor of process {self.process_id} was ended"))
        if self._here:
            guardian.end_marked(self._mark)
            until = time.monotonic() + 2.0
            while self._runs() and time.monotonic() < until:
                time.sleep(0.01)

    def _runs(self) -> bool:
        try:
            state = Path(f"/proc/{self.process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return False
        return state != "Z"
