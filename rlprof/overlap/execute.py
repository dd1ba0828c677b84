"""Run a graph of calls: put arguments together, call native entries, keep outputs while they are needed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rlprof.overlap.bindings import sources
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.completion import Completer
from rlprof.overlap.context import CallContext, at_call, current
from rlprof.overlap.device import CudaStreams, DeviceRun
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.flags import Flag, Layout, check_flags, check_layouts, taken_apart
from rlprof.overlap.green import SmShares
from rlprof.overlap.lower import component_worker, lower, priorities
from rlprof.overlap.materialise import Arguments, materialise
from rlprof.taskgraph import (
    Backend,
    Cancellation,
    Pending,
    RunRecord,
    SerialBackend,
    Task,
    TaskFailedError,
    TaskGraph,
    ThreadBackend,
    Threads,
    run,
)

#: Makes the back end of a run from its payloads.
MakeBackend = Callable[[Mapping[str, Callable[[Task, Mapping[str, Any]], Any]]], Backend]


#: Order of dispatch of a run: larger first, shape (tasks,).
Priorities = Callable[[TaskGraph], npt.NDArray[np.float64]]


class Watcher(Protocol):
    """Sees every call of a run, from the thread in which it runs."""

    def started(self, call: Call, arguments: Arguments) -> None:
        """A call is about to run."""

    def ended(self, call: Call) -> None:
        """It has returned; its device work may go on, but nobody has its output yet."""


@runtime_checkable
class Executable(Protocol):
    """What running needs of a node; a plain function will do where there are no copies of state."""

    @property
    def entry(self) -> Callable[..., Any]:
        """The native entry, without any hook."""

    def rebind(self, copies: Mapping[str, int]) -> Callable[..., Any]:
        """Return the entry that works on these storage copies, by state."""


class Executor:
    """A graph made ready to run, any number of times, by one thread at a time or by several.

    Component workers and streams keep their threads from run to run. Context variables and modes of PyTorch
    are in each call what they are where the run began; what else a call leaves in its thread
    (``threading.local``, a default device) is seen by later calls there, as by all later ones natively. Which
    calls share a thread is not promised.

    Parameters
    ----------
    graph : CallGraph
        What a region does.
    entries : mapping of str to Executable or callable
        By node.
    constants : mapping of str to object
        Of the recording.
    flags : mapping of str to tuple of Flag, optional
        Of the recording: what calls return is compared with them.
    layouts : mapping of str to tuple of Layout, optional
        Likewise, for containers that the graph takes apart.
    stream_priorities : mapping of str to int, optional
        Priorities of CUDA streams by component, as of `rlprof.overlap.device.CudaStreams`.
    sm_shares : SmShares, optional
        Shares of the SMs by component, likewise.
    threads : Threads, optional
        Where threads come from, so that graphs that run one after another have the same: what a library keeps
        for each thread may be memory of the device. By default they are this executor's own.

    Raises
    ------
    ReplayError
        If a node has no entry, or a call uses two storage copies of one state.
    """

    def __init__(
        self,
        graph: CallGraph,
        entries: Mapping[str, Executable | Callable[..., Any]],
        constants: Mapping[str, Any],
        flags: Mapping[str, tuple[Flag, ...]] | None = None,
        layouts: Mapping[str, tuple[Layout, ...]] | None = None,
        stream_priorities: Mapping[str, int] | None = None,
        threads: Threads | None = None,
        sm_shares: SmShares | None = None,
    ) -> None:
        self.graph = graph
        self._flags = {} if flags is None else flags
        self._layouts = {} if layouts is None else taken_apart(graph, layouts)
        self.tasks = lower(graph)
        self.constants = constants
        self._priority = priorities(self.tasks)
        self._results = frozenset(sources(graph.output))
        self._needed = self._results.union(*(sources(call.arguments) for call in graph.calls))
        self._lane = {
            call: _lane(graph, call, number) for number, stream in enumerate(graph.streams) for call in stream
        }
        self._calls = {call.id: _prepared(graph, call, entries) for call in graph.calls}
        self._streams = CudaStreams(stream_priorities, sm_shares)
        self._own = Threads() if threads is None else None
        self._threads = self._own if threads is None else threads

    def run(
        self,
        external: Arguments,
        *,
        backend: MakeBackend | None = None,
        priorities: Priorities | None = None,
        watcher: Watcher | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        cancellation: Cancellation | None = None,
    ) -> tuple[Any, RunRecord]:
        """Run once; see `execute`."""
        state = _Run(self, external, loop, watcher)
        calls = dict.fromkeys({call.node for call in self.graph.calls}, state.call)
        failure: BaseException | None = None
        try:
            result = run(
                self.tasks,
                (backend or self._backend)(calls),
                priority=self._priority if priorities is None else priorities(self.tasks),
                cancellation=cancellation,
                keep=self._results,
            )
            output = materialise(self.graph.output, result.outputs, external, self.constants)
            state.device.hand_over(output)
            return output, result.record
        except TaskFailedError as failed:
            failure = failed.__cause__ or failed
            failure.add_note(f"raised by {failed.task}, run by rlprof on {failed.worker}")
        finally:
            state.completer.close()
        state.device.settle()
        raise failure

    def close(self) -> None:
        """End the threads that calls ran in, unless they were given; a further run starts others."""
        if self._own is not None:
            self._own.close()

    def _backend(self, calls: Mapping[str, Callable[[Task, Mapping[str, Any]], Any]]) -> Backend:
        if len(self.graph.streams) <= 1:
            return SerialBackend(calls)  # in the thread of the caller, as natively
        return ThreadBackend(calls, workers=len(self.graph.streams), threads=self._threads)


class _Run:
    """What belongs to one run."""

    def __init__(
        self,
        executor: Executor,
        external: Arguments,
        loop: asyncio.AbstractEventLoop | None,
        watcher: Watcher | None,
    ) -> None:
        self.executor, self.external, self.watcher = executor, external, watcher
        self.completer = Completer(loop)
        self.device = DeviceRun(executor._streams)
        self.context = contextvars.copy_context()
        # in a replacement this is the region's own call; its children are keyed as they are natively
        self.region = region_context(executor.graph.region)

    def call(self, task: Task, inputs: Mapping[str, Any]) -> Any:
        """Execute one call: the payload of every task."""
        return self.context.copy().run(self._call, task, inputs)

    def _call(self, task: Task, inputs: Mapping[str, Any]) -> Any:
        executor = self.executor
        call, entry, extra = executor._calls[task.id]
        args, kwargs = materialise(call.arguments, inputs, self.external, executor.constants, call.batch_size)
        for name, value in extra.items():
            if name in kwargs:
                raise ReplayError(f"{call.id} passes {name!r} itself, which is given to parts of a batch")
            kwargs[name] = value
        lane = executor._lane[call.id]
        if self.watcher is not None:
            self.watcher.started(call, (args, kwargs))
        with at_call(self.region, call):
            output = self.device.call(lane, entry, args, kwargs, self.completer.value, call.modes)
        if self.watcher is not None:
            self.watcher.ended(call)
        returned = output.output if isinstance(output, Pending) else output
        if call.origin in executor._flags:
            check_flags(executor._flags[call.origin], returned, call.samples is not None)
        if call.origin in executor._layouts:
            check_layouts(call.id, executor._layouts[call.origin], returned, call.samples is not None)
        return output if call.id in executor._needed else _forget(output)


def _forget(output: Any) -> Any:
    """Drop an output that nobody needs; completion stays."""
    return Pending(None, output.wait) if isinstance(output, Pending) else None


def region_context(region: str) -> CallContext:
    """Return the call of the region's node that is running here, or one that stands for it."""
    here = current()
    return here if here is not None and here.node == region else CallContext(region, here, 0, False)


def _lane(graph: CallGraph, call: str, stream: int) -> str:
    return component_worker(graph, graph.by_id[call]) or f"stream {stream}"


def _prepared(
    graph: CallGraph, call: Call, entries: Mapping[str, Executable | Callable[..., Any]]
) -> tuple[Call, Callable[..., Any], dict[str, Any]]:
    """Entry of a call and arguments beyond those that are bound."""
    node = entries.get(call.node)
    if node is None:
        raise ReplayError(f"the node {call.node} of {call.id} has no entry here")
    copies: dict[str, int] = {}
    for access in call.accesses:
        if copies.setdefault(access.cell.state, access.copy) != access.copy:
            raise ReplayError(f"{call.id} uses two storage copies of {access.cell.state}")
    spare = {state: copy for state, copy in copies.items() if copy}
    if not spare:
        return call, native_entry(node), sample_arguments(graph, call)
    if not isinstance(node, Executable):
        raise ReplayError(f"{call.id} uses a spare copy of {min(spare)}, and its entry cannot be rebound")
    return call, node.rebind(spare), sample_arguments(graph, call)


def native_entry(node: Executable | Callable[..., Any]) -> Callable[..., Any]:
    """Entry of a node, or the function that stands for one."""
    return node.entry if isinstance(node, Executable) else node


def sample_arguments(graph: CallGraph, call: Call) -> dict[str, Any]:
    """Arguments that only a part of a batch is given: the positions of its samples, if its node asks."""
    spec = graph.nodes.get(call.node)
    if call.samples is None or spec is None or spec.batch is None or spec.batch.samples is None:
        return {}
    return {spec.batch.samples: np.array(call.samples, dtype=np.int64)}


def execute(
    graph: CallGraph,
    entries: Mapping[str, Executable | Callable[..., Any]],
    constants: Mapping[str, Any],
    external: Arguments = ((), {}),
    *,
    backend: MakeBackend | None = None,
    priorities: Priorities | None = None,
    watcher: Watcher | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    cancellation: Cancellation | None = None,
) -> tuple[Any, RunRecord]:
    """Do what one call of a region does, by its graph.

    Parameters
    ----------
    graph : CallGraph
        Native or transformed.
    entries : mapping of str to Executable or callable
        Native entries by node. Coroutines, futures and Ray references that they return are waited for.
    constants : mapping of str to object
        Of the recording.
    external : tuple of (tuple, dict)
        Arguments of the region.
    backend : callable, optional
        Makes the back end from its payloads, such as `SerialBackend`; by default as many threads as there are
        streams, and the calling thread alone for one.
    priorities : callable, optional
        Order of dispatch, asked for each run; by default `rlprof.overlap.lower.priorities`.
    watcher : Watcher, optional
        Sees the calls, as `rlprof.overlap.semantics.Watch` does.
    loop : asyncio.AbstractEventLoop, optional
        A loop that runs in another thread, for coroutines; one is started if needed.
    cancellation : Cancellation, optional
        Stops the run from elsewhere.

    Returns
    -------
    output : object
        What the region returns.
    record : RunRecord
        What ran, for `rlprof.taskgraph.verify` with ``lower(graph)``.

    Raises
    ------
    Exception
        What the first call that failed raised, with a note that names it. Nothing is left running.
    ReplayError
        If the program no longer does what was recorded.
    rlprof.taskgraph.RunError
        If the run was cancelled, or a call would have seen another version of state than it needs.
    """
    executor = Executor(graph, entries, constants)
    try:
        return executor.run(
            external,
            backend=backend,
            priorities=priorities,
            watcher=watcher,
            loop=loop,
            cancellation=cancellation,
        )
    finally:
        executor.close()
