"""Tasks in processes of this machine, one for each named worker, which keeps its state from task to task."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import spawn, util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlprof.errors import UsageError
from rlprof.taskgraph import guardian
from rlprof.taskgraph.backend import Call, Completion, RemoteOutput
from rlprof.taskgraph.errors import EndedError, WorkerDownError, WorkerStartError
from rlprof.taskgraph.pool_run import TaskLimit
from rlprof.taskgraph.task import Task
from rlprof.taskgraph.transfer import Packed, pack, receive, send
from rlprof.taskgraph.worker_process import Raised
from rlprof.taskgraph.workers import Worker, WorkerPool

Factory = Callable[[], object | Mapping[str, Call]]

_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[3])
from rlprof.taskgraph.worker_process import main
main(int(sys.argv[1]), sys.argv[2])
"""
_ROOT = str(Path(__file__).resolve().parents[2])


class ProcessBackend(WorkerPool):
    """Persistent worker processes of this machine.

    Each runs one task at a time. Inputs and outputs are pickled, large arrays go through shared memory. A
    worker is a fresh interpreter in a session of its own; a script that starts some must be importable, as
    for `multiprocessing` (``if __name__ == "__main__"``). When a worker is lost, all processes that it
    started are ended with it; when this process is lost, all workers and what they started.

    Parameters
    ----------
    workers : mapping of str to callable
        Picklable factory of each worker's state, called in the worker: an object whose public methods are
        calls, or a mapping of calls. A task's payload names the call, which gets the task and the outputs of
        its data predecessors by their ids.
    timeout_s, grace_s, setup_timeout_s
        As of `rlprof.taskgraph.workers.WorkerPool`.

    Examples
    --------
    >>> with ProcessBackend({"policy": Policy, "simulator": Simulator}) as backend:  # doctest: +SKIP
    ...     result = run(graph, backend)
    """

    def __init__(
        self,
        workers: Mapping[str, Factory],
        *,
        timeout_s: TaskLimit = None,
        grace_s: float | None = 3.0,
        setup_timeout_s: float = 600.0,
    ) -> None:
        super().__init__(workers, timeout_s=timeout_s, grace_s=grace_s, setup_timeout_s=setup_timeout_s)
        self._factories: dict[str, bytes] = {}
        for name, factory in workers.items():
            try:
                self._factories[name] = pickle.dumps(factory)
            except Exception as error:
                raise UsageError(
                    f"the factory of worker {name!r} cannot be pickled: {error}",
                    hint="use a function or class of a module, or functools.partial of one",
                ) from error
        self._mark = ""
        self._guardian: _Guardian | None = None

    def _begin(self, name: str) -> Worker:
        if self._guardian is None:
            self._mark = secrets.token_hex(8)
            self._guardian = _Guardian(self._mark)
        # the number of a worker made anew is a new one
        mark = f"{self._mark}.{secrets.token_hex(4)};"
        worker = _ProcessWorker(name, mark, self._factories[name])
        self._guardian.watch(worker.process_id)
        return worker

    def _finish(self) -> None:
        if self._guardian is not None:
            self._guardian.dismiss()
            self._guardian = None

    @property
    def process_ids(self) -> dict[str, int]:
        """Process id of each worker, while they run."""
        return {
            name: worker.process_id
            for name, worker in self._workers.items()
            if isinstance(worker, _ProcessWorker)
        }


class _Guardian:
    """A small process that ends the workers if this one is gone."""

    def __init__(self, mark: str) -> None:
        command = [sys.executable, "-I", "-S", guardian.__file__, str(os.getpid()), mark]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None
        self._input = self._process.stdin

    def watch(self, group: int) -> None:
        self._tell(f"{group}\n")

    def dismiss(self) -> None:
        self._tell("bye\n")
        with contextlib.suppress(OSError):
            self._input.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # somebody ended it; an orderly close still ends the workers
            self._input.write(line.encode())
            self._input.flush()


class _ProcessWorker(Worker):
    """A worker process, seen from this one."""

    def __init__(self, name: str, mark: str, factory: bytes) -> None:
        self.name, self._mark = name, mark
        self._lock = threading.Lock()
        self._error: WorkerDownError | EndedError | None = None
        self._buried = False
        preparation = spawn.get_preparation_data(name)
        preparation.pop("start_method", None)  # the worker's own children start as they like
        preparation["authkey"] = bytes(preparation["authkey"])
        mine, theirs = socket.socketpair()
        before = os.environ.get(guardian.VARIABLE, "")
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *util._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    "-c",
                    _PROGRAM,
                    str(theirs.fileno()),
                    name,
                    _ROOT,
                ],
                stdin=subprocess.DEVNULL,
                env={**os.environ, guardian.VARIABLE: before + mark},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.process_id = self._process.pid
        self._socket, self._connection = mine, Connection(os.dup(mine.fileno()))
        try:
            self._connection.send_bytes(pickle.dumps(preparation))
            self._connection.send_bytes(factory)
        except OSError:
            pass  # it has ended already: `ready` says so

    def ready(self, timeout_s: float) -> None:
        try:
            answer, _ = self._answer(timeout_s)
        except WorkerDownError as error:
            raise WorkerStartError(f"worker {self.name} could not be made: {error}") from error
        if isinstance(answer, Raised):
            self.bury(1.0)
            raise WorkerStartError(
                f"worker {self.name} could not be made: {answer.text}", hint="see the traceback of the cause"
            ) from answer.error()

    def missing(self, payloads: Iterable[str], timeout_s: float) -> list[str]:
        answer, _ = self._ask(("missing", list(payloads)), (), timeout_s)
        return list(answer)

    def snapshot(self, timeout_s: float) -> RemoteOutput:
        _, (saved,) = self._ask(("snapshot",), (), timeout_s)
        return saved

    def restore(self, snapshot: RemoteOutput, timeout_s: float) -> None:
        assert isinstance(snapshot, Packed)
        self._ask(("restore",), (snapshot,), timeout_s)

    def execute(self, position: int, task: Task, inputs: Mapping[str, Any]) -> Completion:
        start_ns = time.monotonic_ns()
        error: BaseException | None
        try:
            values = [value if isinstance(value, Packed) else pack(value) for value in inputs.values()]
        except Exception as unsent:  # the worker has not heard of it
            end_ns = time.monotonic_ns()
            return Completion(position, self.name, start_ns, end_ns, end_ns, None, unsent)
        try:
            send(self._connection, ("execute", task, list(inputs)), values)
            answer, outputs = receive(self._connection)
            if isinstance(answer, Raised):
                raise answer.error()
            start_ns, returned_ns, end_ns, raised = answer
            if raised is not None:
                return Completion(
                    position, self.name, start_ns, returned_ns, end_ns, None, raised.error_of_task()
                )
            return Completion(position, self.name, start_ns, returned_ns, end_ns, outputs[0], None)
        except (EOFError, OSError):
            error = None
        except Exception as broken:  # the next answer would not be that to the next question
            error = WorkerDownError(f"what goes to or comes from it cannot be received: {broken}")
            self.end(error)
        self.bury(1.0)
        end_ns = time.monotonic_ns()
        return Completion(position, self.name, start_ns, end_ns, end_ns, None, error or self._error)

    def _ask(self, message: Any, values: Iterable[Packed], timeout_s: float) -> tuple[Any, list[Packed]]:
        """Send an order outside of a run, and wait for its answer."""
        try:
            send(self._connection, message, list(values))
        except OSError:
            self.bury(1.0)
            raise self._down() from None
        answer, outputs = self._answer(timeout_s)
        if isinstance(answer, Raised):
            raise answer.error()
        return answer, outputs

    def _answer(self, timeout_s: float) -> tuple[Any, list[Packed]]:
        until = time.monotonic() + timeout_s
        try:
            while not self._connection.poll(0.05):
                if self._exited():
                    raise EOFError
                if time.monotonic() > until:
                    self.end(WorkerDownError(f"it did not answer within {timeout_s} s and was ended"))
                    raise EOFError
            return receive(self._connection)
        except (EOFError, OSError):
            self.bury(1.0)
            raise self._down() from None

    def _down(self) -> WorkerDownError:
        error = self._error
        return error if isinstance(error, WorkerDownError) else WorkerDownError(str(error))

    def down(self) -> WorkerDownError | None:
        with self._lock:
            if self._error is None and self._exited():
                self._error = WorkerDownError(self._how_it_ended())
            return self._down() if self._error is not None else None

    def end(self, error: WorkerDownError | EndedError) -> None:
        with self._lock:
            self._error = self._error or error
            if not self._buried:
                guardian.end_group(self.process_id)
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it

    def ask_to_exit(self) -> None:
        if not self._buried and self._error is None:
            with contextlib.suppress(OSError):
                send(self._connection, ("exit",))

    def bury(self, within_s: float) -> None:
        if self._buried:
            return
        self._await_exit(within_s)
        with self._lock:
            if self._error is None:
                self._error = WorkerDownError(
                    self._how_it_ended() if self._exited() else f"process {self.process_id} was ended"
                )
            guardian.end_group(self.process_id)
            self._buried = True
        guardian.end_marked(self._mark, group=self.process_id)
        self._await_exit(2.0)  # a process inside of the kernel may outlive a signal
        self._process.poll()
        self._connection.close()
        self._socket.close()

    def _await_exit(self, within_s: float) -> None:
        until = time.monotonic() + within_s
        while not self._exited() and time.monotonic() < until:
            time.sleep(0.002)

    def _exited(self) -> bool:
        """It is a zombie, which keeps its id from being used again, or gone."""
        try:
            return os.waitid(os.P_PID, self.process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _how_it_ended(self) -> str:
        try:
            found = os.waitid(os.P_PID, self.process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            found = None
        if found is None:
            return f"process {self.process_id} is gone"
        if found.si_code == os.CLD_EXITED:
            return f"process {self.process_id} exited with status {found.si_status}"
        name = signal.Signals(found.si_status).name
        return f"process {self.process_id} was killed by signal {found.si_status} ({name})"
