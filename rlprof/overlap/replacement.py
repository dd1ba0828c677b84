"""What stands for a region's native entry: the same call, done by a graph."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from typing import Any, Literal

from rlprof.errors import UsageError
from rlprof.overlap.bindings import Binding, External, leaves
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.execute import Executable, Executor, MakeBackend, Priorities, Watcher
from rlprof.overlap.flags import Flag, Layout
from rlprof.overlap.forms import Form, mismatch
from rlprof.overlap.green import SmShares
from rlprof.overlap.materialise import Arguments, materialise
from rlprof.taskgraph import Cancellation, RunRecord, Threads
from rlprof.text import with_article

#: Replacements that run around the code that runs here.
_inside: ContextVar[tuple[Replacement, ...]] = ContextVar("rlprof_replacements", default=())
#: What the native entry returns: its result, a coroutine, or a future.
Interface = Literal["value", "coroutine", "future"]


class Replacement:
    """A callable with the signature and the result of a region's native entry.

    It can be called any number of times and from several threads; calls then go one after another, since the
    component workers serve one at a time.

    Parameters
    ----------
    graph : CallGraph
        What to do instead; lowered once.
    entries : mapping of str to Executable or callable
        Native entries by node.
    constants : mapping of str to object
        Of the recording.
    native : callable
        The region's native entry.
    form : Form, optional
        Of ``(args, kwargs)`` in the recorded calls. Without it only the arguments that the graph uses are
        looked for.
    on_mismatch : {"error", "native"}
        What is done with other arguments.
    flags : mapping of str to tuple of Flag, optional
        Of the recording.
    layouts : mapping of str to tuple of Layout, optional
        Of the recording.
    on_flag : {"error", "ignore"}
        What is done when a call returns another flag than in all recorded runs.
    interface : {"value", "coroutine", "future"}, optional
        What a call returns; by default a coroutine if `native` is a coroutine function, else the value.
    backend, priorities : callable, optional
        As for `rlprof.overlap.execute.execute`.
    watch : callable, optional
        Makes the watcher of each call.
    stream_priorities : mapping of str to int, optional
        Priorities of CUDA streams by component; they hold within this process.
    threads, sm_shares : optional
        As for `rlprof.overlap.execute.Executor`.

    Attributes
    ----------
    last_record : RunRecord or None
        Of the latest call that ended well.

    Raises
    ------
    ReplayError
        If the graph cannot be run with these entries.
    """

    def __init__(
        self,
        graph: CallGraph,
        entries: Mapping[str, Executable | Callable[..., Any]],
        constants: Mapping[str, Any],
        *,
        native: Callable[..., Any],
        form: Form | None = None,
        on_mismatch: Literal["error", "native"] = "error",
        flags: Mapping[str, tuple[Flag, ...]] | None = None,
        layouts: Mapping[str, tuple[Layout, ...]] | None = None,
        on_flag: Literal["error", "ignore"] = "error",
        interface: Interface | None = None,
        backend: MakeBackend | None = None,
        priorities: Priorities | None = None,
        watch: Callable[[], Watcher] | None = None,
        stream_priorities: Mapping[str, int] | None = None,
        threads: Threads | None = None,
        sm_shares: SmShares | None = None,
    ) -> None:
        if on_mismatch not in ("error", "native"):
            raise UsageError(f"on_mismatch={on_mismatch!r}", hint='use "error" or "native"')
        if watch is not None and not callable(watch):
            raise UsageError(
                f"watch is {with_article(type(watch).__name__)}, which sees one call",
                hint="give what makes one: watch=lambda: Watch(graph)",
            )
        if on_flag not in ("error", "ignore"):
            raise UsageError(f"on_flag={on_flag!r}", hint='use "error" or "ignore"')
        self.graph = graph
        self.native = native
        self.executor = Executor(
            graph,
            entries,
            constants,
            flags if on_flag == "error" else None,
            layouts,
            stream_priorities,
            threads,
            sm_shares,
        )
        self.last_record: RunRecord | None = None
        self._form, self._on_mismatch = form, on_mismatch
        self._how: dict[str, Any] = {"backend": backend, "priorities": priorities}
        self._watch = watch
        self._interface = interface or ("coroutine" if inspect.iscoroutinefunction(native) else "value")
        self._lock = threading.Lock()
        self._external = _external(graph)
        functools.update_wrapper(self, native)
        if self._interface == "coroutine" and hasattr(inspect, "markcoroutinefunction"):
            inspect.markcoroutinefunction(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the native entry does.

        Raises
        ------
        ReplayError
            If the arguments are not like the recorded ones and `on_mismatch` is ``"error"``.
        Exception
            What a native call raised; other errors as of `rlprof.overlap.execute.execute`.
        """
        external = (args, kwargs)
        difference = self.mismatch(external)
        if difference is not None:
            if self._on_mismatch == "native":
                return self.native(*args, **kwargs)
            raise ReplayError(
                f"{self.graph.region} was called with other arguments than recorded: {difference}",
                hint="uninstall the graph, record the region with such arguments,"
                ' or install with on_mismatch="native"',
            )
        if self._interface == "coroutine":
            return self._coroutine(external)
        if self._interface == "future":
            return self._future(external)
        return self._run(external)

    def mismatch(self, external: Arguments) -> str | None:
        """Say in what arguments differ from the recorded ones; None if in nothing that is known."""
        if self._form is not None:
            return mismatch(self._form, external)
        for binding in self._external:
            try:
                materialise(binding, {}, external, {})
            except ReplayError as error:
                return str(error)
        return None

    def _run(self, external: Arguments, **how: Any) -> Any:
        inside = _inside.get()
        if self in inside:
            raise ReplayError(
                f"{self.graph.region} was called inside of itself, which no recorded run did",
                hint="uninstall the graph, or install one of a region that the inner call is no part of",
            )
        token = _inside.set((*inside, self))
        try:
            return self._run_once(external, how)
        finally:
            _inside.reset(token)

    def _run_once(self, external: Arguments, how: dict[str, Any]) -> Any:
        with self._lock:
            watcher = None if self._watch is None else self._watch()
            output, self.last_record = self.executor.run(external, watcher=watcher, **self._how, **how)
        return output

    async def _coroutine(self, external: Arguments) -> Any:
        """Run in a thread; coroutines of the native entries run in the caller's loop."""
        cancellation = Cancellation()
        how = {"loop": asyncio.get_running_loop(), "cancellation": cancellation}
        running = asyncio.create_task(asyncio.to_thread(self._run, external, **how))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancellation.cancel("the caller was cancelled")
            await asyncio.wait([running])  # nothing is left running
            if not running.cancelled():
                running.exception()  # taken note of
            raise

    def _future(self, external: Arguments) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        context = copy_context()

        def work() -> None:
            try:
                future.set_result(context.run(self._run, external))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name=f"rlprof {self.graph.region}", daemon=True).start()
        return future


def _external(graph: CallGraph) -> tuple[External, ...]:
    """Arguments of the region that a graph uses."""
    used: list[Binding] = [*(call.arguments for call in graph.calls), graph.output]
    found = (leaf for binding in used for leaf in leaves(binding) if isinstance(leaf, External))
    return tuple(dict.fromkeys(found))
