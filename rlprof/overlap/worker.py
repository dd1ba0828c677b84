"""An object in a process of its own, whose methods can be nodes: a component worker on this machine."""

from __future__ import annotations

import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from rlprof.errors import UsageError
from rlprof.overlap.context import CallContext, _current
from rlprof.taskgraph import Task
from rlprof.taskgraph.errors import WorkerDownError
from rlprof.taskgraph.processes import ProcessBackend


class _Factory:
    """Makes the object inside of its process."""

    def __init__(self, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.make, self.args, self.kwargs = make, args, kwargs

    def __call__(self) -> _Host:
        return _Host(self.make(*self.args, **self.kwargs))


class _Host:
    """What the process serves: the object's methods, as part of the call that was made elsewhere."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def call(self, _task: Task, inputs: Mapping[str, Any]) -> Any:
        """Call a method; in it, draws are keyed as in the process of the caller."""
        method, where, args, kwargs = inputs["call"]
        token = _current.set(None if where is None else _context(*where))
        try:
            return getattr(self.obj, method)(*args, **kwargs)
        finally:
            _current.reset(token)

    def get(self, _task: Task, inputs: Mapping[str, Any]) -> Any:
        """Return an attribute of the object."""
        return getattr(self.obj, inputs["name"])


def _context(
    node: str, label: str, indices: tuple[tuple[str, int], ...], samples: tuple[int, ...] | None, draws: int
) -> CallContext:
    outer: CallContext | None = None
    for loop, index in indices:
        outer = CallContext(loop, outer, index, True)
    made = CallContext(node, outer, 0, False)
    made.label = label
    made._samples, made.draws = samples, draws
    return made


class LocalWorker:
    """An object in a process of its own.

    Its methods are attributes of the worker: ``worker.step(action)`` waits for the result, and
    ``worker.step.submit(action)`` returns a future of it. The process serves one call at a time, in the order
    in which they were made. It ends with `close`, and with this process.

    Parameters
    ----------
    name : str
        Of the worker; the component of nodes that wrap its methods.
    make : callable
        Class or function of an importable module that makes the object, in the process.
    *args, **kwargs
        For `make`.

    Raises
    ------
    UsageError
        If `make` cannot be pickled.
    rlprof.taskgraph.WorkerStartError
        If the object cannot be made.

    Examples
    --------
    >>> with LocalWorker("simulator", Simulator, 16) as simulator:  # doctest: +SKIP
    ...     step = ExecutionNode(chunk, simulator.step, updates(env))
    """

    def __init__(self, name: str, make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self._name, self._make = name, make
        self._lock = threading.Lock()
        self._threads = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"rlprof {name}")
        self._process = ProcessBackend({name: _Factory(make, args, kwargs)})
        self._process.__enter__()
        self._closed = False

    def __repr__(self) -> str:
        return f"LocalWorker({self._name!r})"

    def __reduce__(self) -> Any:
        raise UsageError(f"worker {self._name} cannot be copied or pickled")

    @property
    def rlprof_component(self) -> str:
        """Component of nodes that wrap its methods."""
        return self._name

    @property
    def process_id(self) -> int:
        """Of its process."""
        return self._process.process_ids[self._name]

    def __enter__(self) -> LocalWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for calls that were made, and end the process."""
        if self._closed:
            return
        self._closed = True
        self._threads.shutdown()
        self._process.__exit__(None, None, None)

    def __getattr__(self, name: str) -> WorkerMethod:
        if name.startswith("_"):
            raise AttributeError(name)
        return WorkerMethod(self, name)

    def read(self, name: str) -> Any:
        """Return a copy of an attribute of the object."""
        return self._execute("get", {"name": name})

    def _execute(self, payload: str, inputs: dict[str, Any]) -> Any:
        if self._closed and payload == "get":
            raise UsageError(f"worker {self._name} is closed")
        with self._lock:
            done = self._process.worker(self._name).execute(0, Task(self._name, payload=payload), inputs)
        if isinstance(done.error, WorkerDownError):
            raise WorkerDownError(f"worker {self._name}: {done.error}") from done.error
        if done.error is not None:
            raise done.error
        return done.output.fetch() if hasattr(done.output, "fetch") else done.output


class WorkerMethod:
    """A method of the object of a `LocalWorker`.

    Attributes
    ----------
    __self__ : LocalWorker
        Whose.
    """

    def __init__(self, worker: LocalWorker, name: str) -> None:
        self.__self__ = worker
        self.__name__ = self.__qualname__ = name
        made = getattr(worker._make, name, None)
        if inspect.isclass(worker._make) and inspect.isfunction(made):
            signature = inspect.signature(made)
            self.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __repr__(self) -> str:
        return f"{self.__self__!r}.{self.__name__}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerMethod):
            return NotImplemented
        return self.__self__ is other.__self__ and self.__name__ == other.__name__

    def __hash__(self) -> int:
        return hash((id(self.__self__), self.__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method and wait for its result.

        Raises
        ------
        Exception
            What the method raised.
        rlprof.taskgraph.WorkerDownError
            If the process has ended.
        """
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Run the method and return a future of its result; raises as a call does."""
        context = _current.get()
        where = None
        if context is not None:
            where = (context.node, context.label, context.indices, context.samples, context.draws)
        call = {"call": (self.__name__, where, args, kwargs)}
        run = contextvars.copy_context().run
        try:
            return self.__self__._threads.submit(run, self.__self__._execute, "call", call)
        except RuntimeError:
            raise UsageError(f"worker {self.__self__._name} is closed") from None
