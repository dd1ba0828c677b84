"""Naming parts of a program.

A range is recorded where its program runs it: push/pop ranges nest on their thread. Tasks of asyncio share a
thread: while one of them has ranges open there, ranges of the others are start/end ranges, which overlap
freely and do not nest. So a program that awaits one thing after the other nests as if it were synchronous,
and of tasks that interleave the first to open a range (usually the one that waits for the others) keeps
nesting.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from rlprof.capture import recorder as _recorder
from rlprof.capture.loop_counts import CountNode, LoopCounts
from rlprof.capture.nvtx import listening
from rlprof.capture.range_writer import MAX_NAMES
from rlprof.capture.recorder import WAKE_AT, Recorder
from rlprof.capture.thread_log import ThreadLog
from rlprof.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_now_ns = time.monotonic_ns
_running_loop = asyncio._get_running_loop
_current_task = asyncio.current_task


def running_task() -> int:
    """What stands for the running task: 0 outside of event loops; callbacks of a loop count as one task."""
    # an id, because holding the task would keep an abandoned one alive; its ranges close when it dies
    loop = _running_loop()
    return 0 if loop is None else id(_current_task(loop))


class Annotation:
    """A named range: a context manager and a decorator, made by `annotate`.

    One object may be entered again while it is open, and by several threads and tasks at once.
    """

    name: str
    # of the open range; class attributes, so that making an Annotation sets nothing but its name
    log: ThreadLog | None = None
    task = 0
    start_ns = 0
    is_loose = False
    handle: Any = None
    seen_open = False
    counts: LoopCounts | None = None
    node: CountNode | None = None
    #: Ranges opened through this object while it could not stand for them itself.
    twins: list[Annotation] | None = None

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"annotate({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return annotate, (self.name,)

    def __enter__(self) -> Annotation:
        recorder = _recorder.current
        if recorder is not None:
            if self.log is None and self.node is None:
                self._open(recorder)
            else:
                self._open_twin(recorder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.twins:
            self._close_twin(self.twins)
        elif self.log is not None or self.node is not None:
            self._close()

    def _open(self, recorder: Recorder) -> None:
        try:
            log: ThreadLog = recorder.local.log
        except AttributeError:
            log = recorder.log()
        loop = _running_loop()
        task = self.task = 0 if loop is None else id(_current_task(loop))
        if log.loops and (counts := log.loops.get(task)) is not None:
            self.counts = counts
            self.node = counts.enter(self.name)
            if counts.muted:
                return
        if log.ghosts:
            _drop_ghosts(log)
        nvtx = log.nvtx
        stack = log.stack
        if (not stack or stack[-1].task == task or not stack[-1].task) and (
            not log.loose or task not in log.loose
        ):
            stack.append(self)
            if nvtx is not None:
                nvtx.push(self.name)
        else:
            self.is_loose = True
            log.loose.setdefault(task, []).append(self)
            if nvtx is not None:
                self.handle = nvtx.start(self.name)
        self.start_ns = _now_ns()
        self.log = log  # last: from here on the draining thread takes the range as open

    def _close(self) -> None:
        end_ns = _now_ns()
        if self.node is not None:
            assert self.counts is not None
            self.counts.leave(self.node)
            self.node = self.counts = None
        log = self.log
        if log is None:
            return
        stack = log.stack
        here: bool = getattr(log.recorder.local, "log", None) is log
        if here and stack and stack[-1] is self:
            stack.pop()
            if log.nvtx is not None:
                log.nvtx.pop()
        else:
            _close_out_of_order(self, log, here=here)
        self.log = None
        log.emit((self.name, self.start_ns, end_ns, self.is_loose))
        self.is_loose = self.seen_open = False
        if len(log.buffer) >= WAKE_AT:
            log.recorder.crowded(log)

    def _open_twin(self, recorder: Recorder) -> None:
        twin = Annotation(self.name)
        twin._open(recorder)
        # one step, so that two threads agree on the list
        twins: list[Annotation] = self.__dict__.setdefault("twins", [])
        twins.append(twin)

    def _close_twin(self, twins: list[Annotation]) -> None:
        """Close the innermost range of this object that the running task opened, else the last of all."""
        task, thread = running_task(), threading.get_native_id()
        mine = [t for t in list(twins) if t.task == task and (t.log is None or t.log.thread == thread)]
        if not mine and (self.log is not None or self.node is not None):
            self._close()
            return
        twin = (mine or list(twins))[-1]
        twins.remove(twin)
        twin._close()

    def __call__(self, function: F) -> F:
        """Decorate a function: each call (each resumption, of a generator) is one range."""
        from rlprof.capture.decorate import decorate

        decorated: F = decorate(self.name, function)
        return decorated


class DeclaredAnnotation(Annotation):
    """The one object of a name, given out while nothing is recorded; never itself an open range."""

    def __enter__(self) -> Annotation:
        recorder = _recorder.current
        if recorder is not None:
            self._open_twin(recorder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.twins:
            self._close_twin(self.twins)


def _drop_ghosts(log: ThreadLog) -> None:
    """Take ranges that another thread has closed from the top of this thread's stack."""
    while log.ghosts and log.stack and log.stack[-1].log is not log:
        log.stack.pop()
        log.ghosts -= 1
        if log.nvtx is not None:
            log.nvtx.pop()


def _close_out_of_order(a: Annotation, log: ThreadLog, *, here: bool) -> None:
    """Close a start/end range, or one that is not the innermost of its thread.

    Ranges that were opened inside `a` and outlive it (of a generator that was left open, say) become
    start/end ranges; NVTX cannot change a range, so there each is closed and started anew.
    """
    nvtx = log.nvtx
    if a.is_loose:
        if a in log.overtaken:
            log.overtaken.remove(a)
        else:
            group = log.loose[a.task]
            group.remove(a)
            if not group:
                log.loose.pop(a.task, None)
        if nvtx is not None:
            nvtx.end(a.handle)
        a.handle = None
        return
    if not here:
        # the stack is another thread's: only that thread can pop it
        a.is_loose = True
        log.ghosts += 1
        return
    if log.ghosts:
        _drop_ghosts(log)
    at = log.stack.index(a)
    above = log.stack[at + 1 :]
    del log.stack[at:]
    if nvtx is not None:
        for _ in range(len(above) + 1):
            nvtx.pop()
    for other in above:
        if other.log is not log:
            log.ghosts -= 1
            continue
        other.is_loose = True
        log.overtaken.append(other)
        if nvtx is not None:
            other.handle = nvtx.start(other.name)


_KNOWN: dict[str, Annotation] = {}


def annotate(name: str) -> Annotation:
    """Name a part of the program: ``with annotate("policy/vlm"):`` or ``@annotate("policy/vlm")``.

    The range is recorded by the session that this process is in (`rlprof.capture`, or ``rlprof capture``),
    and emitted as NVTX (domain ``rlprof``) to a tool that listens. Without either, nothing happens.

    As a decorator it takes functions, methods, class and static methods, partials, coroutine functions, and
    generator functions of both kinds. Each call is one range. A generator runs in pieces, so each resumption
    is one range: what its consumer does between them is not the generator's.

    Parameters
    ----------
    name : str
        Constant text, best a path such as ``policy/vlm``: ranges that nest make the path of a node.

    Returns
    -------
    Annotation
        Context manager and decorator.

    Raises
    ------
    UsageError
        If `name` is no text or empty, or what is decorated is no function.

    Examples
    --------
    >>> with annotate("update"):
    ...     pass
    """
    try:
        known = _KNOWN[name]
    except (KeyError, TypeError):
        known = _declare(name)
    return known if _recorder.current is None else Annotation(known.name)


def _declare(name: str) -> Annotation:
    if not isinstance(name, str):
        kind = "a function" if callable(name) else f"a value of type {type(name).__name__}"
        raise UsageError(f"annotate needs a name and got {kind}", hint='write annotate("policy/vlm")')
    if not name.strip():
        raise UsageError("annotate needs a name that is not empty", hint='write annotate("policy/vlm")')
    # bytes that are no text would be refused when the name is written
    made = DeclaredAnnotation(str(name).encode(errors="replace").decode())
    if len(_KNOWN) < MAX_NAMES:
        _KNOWN[name] = made
    return made


_recorder.emit_nvtx(listening())
_recorder.join_session()
