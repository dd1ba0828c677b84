"""What runs in a worker process: makes its state by the factory, then executes one task after another."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import process, spawn
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from rlprof.errors import UsageError
from rlprof.taskgraph.backend import Call, Pending
from rlprof.taskgraph.errors import EndedError, RemoteError, TransferError, WorkerDownError
from rlprof.taskgraph.task import Task
from rlprof.taskgraph.transfer import Packed, pack, receive, send


def find_call(state: Any, payload: str) -> Call | None:
    """What a worker calls for a payload: an entry of a mapping, or a public method; None if there is none."""
    if isinstance(state, Mapping):
        call = state.get(payload)
    else:
        call = None if payload.startswith("_") else getattr(state, payload, None)
    return call if callable(call) else None


def find_restorable(state: Any, worker: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Find ``snapshot`` and ``restore`` of a worker: methods, or entries of a mapping.

    Raises
    ------
    UsageError
        If it has not both.
    """
    found = [getattr(state, name, None) for name in ("snapshot", "restore")]
    if isinstance(state, Mapping):
        found = [
            method or state.get(name) for method, name in zip(found, ("snapshot", "restore"), strict=True)
        ]
    if not all(callable(method) for method in found):
        raise UsageError(
            f"the state of worker {worker} cannot be brought back after a trial",
            hint="give what its factory makes the methods snapshot() and restore(snapshot)",
        )
    return found[0], found[1]  # type: ignore[return-value]


class Raised(NamedTuple):
    """An exception on its way to another process.

    Parameters
    ----------
    data : bytes
        The exception as a pickle; empty if it cannot be pickled.
    text : str
        Type and message.
    note : str
        Where, and the traceback.
    """

    data: bytes
    text: str
    note: str

    @classmethod
    def of(cls, error: BaseException, worker: str) -> Raised:
        """Make an exception ready to be sent."""
        note = f"in worker {worker}:\n{''.join(traceback.format_exception(error)).rstrip()}"
        try:
            data = pickle.dumps(error)
            pickle.loads(data)  # an __init__ with other arguments than the exception has makes this fail
        except Exception:
            data = b""
        return cls(data, f"{type(error).__qualname__}: {error}", note)

    def error(self) -> BaseException:
        """Return the exception, or a RemoteError where it cannot be made."""
        error: Any = None
        try:
            error = pickle.loads(self.data) if self.data else None
        except Exception:
            error = None  # its class is not known here
        if not isinstance(error, BaseException):
            error = RemoteError(self.text)
        found: BaseException = error
        found.add_note(self.note)
        return found

    def error_of_task(self) -> BaseException:
        """Return the exception; one by which a back end speaks of its workers is not mistaken for that."""
        error = self.error()
        if isinstance(error, WorkerDownError | EndedError):
            error = RemoteError(self.text)
            error.add_note(self.note)
        return error


def perform(state: Any, worker: str, task: Task, inputs: Mapping[str, Any]) -> tuple[int, Any]:
    """Run a task's call and wait for a `Pending` output; when it returned, in nanoseconds, and the output."""
    call = find_call(state, task.payload or "")
    if call is None:
        raise UsageError(f"worker {worker} has no call {task.payload!r}")
    output = call(task, inputs)
    returned_ns = time.monotonic_ns()
    if isinstance(output, Pending):
        pending, output = output, output.output
        pending.wait()
    return returned_ns, output


def main(socket: int, worker: str) -> None:
    """Serve the process at the other end of a socket until it says that this is enough, or is gone."""
    connection = Connection(socket)
    try:
        preparation, factory = connection.recv_bytes(), connection.recv_bytes()
        try:
            state = _make_state(preparation, factory)
        except BaseException as error:
            send(connection, Raised.of(error, worker))
            return
        send(connection, None)
    except (EOFError, OSError):
        return
    while True:
        try:
            (order, *arguments), values = receive(connection)
        except (EOFError, OSError):
            return
        except TransferError as error:  # the rest of the message is lost
            send(connection, Raised.of(error, worker))
            return
        if order == "exit":
            return
        outputs: list[Packed] = []
        try:
            answer, outputs = _ORDERS[order](state, worker, values, *arguments)
        except BaseException as error:
            answer = Raised.of(error, worker)
        for value in values:  # who has the answer finds no input held here
            value.release()
        try:
            send(connection, answer, outputs)
        except OSError:
            return
        for value in outputs:  # a waiting worker keeps no block alive
            value.release()
        del values, outputs, answer, arguments


def _make_state(preparation: bytes, factory: bytes) -> Any:
    current = process.current_process()
    # a script that starts workers while it is imported is told so, instead of starting ever more
    current._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(pickle.loads(preparation))
        make = pickle.loads(factory)
    finally:
        del current._inheriting  # type: ignore[attr-defined]
    return make()


def _execute(
    state: Any, worker: str, values: list[Packed], task: Task, names: list[str]
) -> tuple[Any, list[Packed]]:
    """Run a task; its times in nanoseconds (start, return, end), and its error or its output."""
    start_ns = returned_ns = time.monotonic_ns()
    error: Raised | None = None
    outputs: list[Packed] = []
    try:
        inputs = {name: value.map() for name, value in zip(names, values, strict=True)}
        returned_ns, output = perform(state, worker, task, inputs)
        outputs = [pack(output)]
    except BaseException as caught:
        error = Raised.of(caught, worker)
    return (start_ns, returned_ns, time.monotonic_ns(), error), outputs


def _missing(
    state: Any, _worker: str, _values: list[Packed], payloads: list[str]
) -> tuple[Any, list[Packed]]:
    return [payload for payload in payloads if find_call(state, payload) is None], []


def _snapshot(state: Any, worker: str, _values: list[Packed]) -> tuple[Any, list[Packed]]:
    return None, [pack(find_restorable(state, worker)[0]())]


def _restore(state: Any, worker: str, values: list[Packed]) -> tuple[Any, list[Packed]]:
    find_restorable(state, worker)[1](values[0].map())
    return None, []


_ORDERS: Mapping[str, Callable[..., tuple[Any, list[Packed]]]] = {
    "execute": _execute,
    "missing": _missing,
    "snapshot": _snapshot,
    "restore": _restore,
}
