"""Naming parts of a program: `annotate` and `annotate_loop`.

A range is recorded where its program runs it: push/pop ranges nest on their thread. Tasks of asyncio share a
thread: while one of them has ranges open there, ranges of the others are start/end ranges, which overlap
freely and do not nest. So a program that awaits one thing after the other nests as if it were synchronous,
and of tasks that interleave the first to open a range (usually the one that waits for the others) keeps
nesting.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar, overload

from rlprof.capture import recorder as _recorder
from rlprof.capture.loops import CountNode, LoopCounts
from rlprof.capture.nvtx import listening
from rlprof.capture.recorder import MAX_NAMES, WAKE_AT, Recorder, ThreadLog
from rlprof.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_now_ns = time.monotonic_ns
_running_loop = asyncio._get_running_loop
_current_task = asyncio.current_task


def _task() -> int:
    """What stands for the running task: 0 outside of event loops; callbacks of a loop count as one task."""
    # an id, because holding the task would keep an abandoned one alive; its ranges close when it dies
    loop = _running_loop()
    return 0 if loop is None else id(_current_task(loop))


class Annotation:
    """A named range: a context manager and a decorator, made by `annotate`.

    One object may be entered again while it is open, and by several threads and tasks at once.
    """

    name: str
    #: Made once per name, and entered by anybody; others are made for one use.
    shared = False
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
            if self.shared or self.log is not None or self.node is not None:
                self._open_twin(recorder)
            else:
                self._open(recorder)
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
        self.log = log
        self.start_ns = _now_ns()

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
        self.start_ns = 0
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
        task, thread = _task(), threading.get_native_id()
        mine = [t for t in list(twins) if t.task == task and (t.log is None or t.log.thread == thread)]
        if not mine and (self.log is not None or self.node is not None):
            self._close()
            return
        twin = (mine or list(twins))[-1]
        twins.remove(twin)
        twin._close()

    def __call__(self, function: F) -> F:
        """Decorate a function: each call (each resumption, of a generator) is one range."""
        decorated: F = _decorate(self.name, function)
        return decorated


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
    made = Annotation(str(name).encode(errors="replace").decode())
    made.shared = True
    if len(_KNOWN) < MAX_NAMES:
        _KNOWN[name] = made
    return made


def _decorate(name: str, function: Any) -> Any:
    """The decorator: one kind of wrapper per kind of function."""
    if isinstance(function, classmethod | staticmethod):
        return type(function)(_decorate(name, function.__func__))
    if isinstance(function, type):
        raise UsageError(
            f"annotate({name!r}) cannot decorate the class {function.__name__}", hint="decorate its methods"
        )
    if not callable(function):
        kind = type(function).__name__
        hint = "put it below @property" if isinstance(function, property) else "decorate a function"
        raise UsageError(f"annotate({name!r}) cannot decorate a value of type {kind}", hint=hint)
    for is_kind, wrap in (
        (inspect.isasyncgenfunction, _wrap_async_generator),
        (inspect.isgeneratorfunction, _wrap_generator),
        (inspect.iscoroutinefunction, _wrap_coroutine),
    ):
        if is_kind(function) or is_kind(type(function).__call__):
            return functools.wraps(function)(wrap(name, function))
    return functools.wraps(function)(_wrap_function(name, function))


def _wrap_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def annotated(*args: Any, **kwargs: Any) -> Any:
        if _recorder.current is None:
            return function(*args, **kwargs)
        with Annotation(name):
            return function(*args, **kwargs)

    return annotated


def _wrap_coroutine(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    async def annotated(*args: Any, **kwargs: Any) -> Any:
        if _recorder.current is None:
            return await function(*args, **kwargs)
        with Annotation(name):
            return await function(*args, **kwargs)

    return annotated


def _wrap_generator(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def annotated(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        resume, value = generator.send, None
        while True:
            try:
                with Annotation(name):
                    out = resume(value)
            except StopIteration as stop:
                return stop.value
            try:
                resume, value = generator.send, (yield out)
            except GeneratorExit:
                with Annotation(name):
                    generator.close()
                raise
            except BaseException as error:
                resume, value = generator.throw, error

    return annotated


def _wrap_async_generator(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    async def annotated(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        resume, value = generator.asend, None
        while True:
            try:
                with Annotation(name):
                    out = await resume(value)
            except StopAsyncIteration:
                return
            try:
                resume, value = generator.asend, (yield out)
            except GeneratorExit:
                with Annotation(name):
                    await generator.aclose()
                raise
            except BaseException as error:
                resume, value = generator.athrow, error

    return annotated


@overload
def annotate_loop(steps: int, name: str, first: int = 2, last: int = 2) -> Iterator[int]: ...
@overload
def annotate_loop(steps: Iterable[T], name: str, first: int = 2, last: int = 2) -> Iterator[T]: ...
def annotate_loop(steps: int | Iterable[Any], name: str, first: int = 2, last: int = 2) -> Iterator[Any]:
    """Iterate, with ranges around the first and last few steps only, and all steps counted.

    For inner loops whose steps are too many or too short to mark each: ``for i in annotate_loop(1000,
    "denoise"):``. Ranges opened inside a step that is not marked are counted and not recorded. The counts
    are in the capture (table ``loop_counts``, or NVTX marks ``rlprof.count:PATH=N``), so that totals are
    extrapolated from the marked steps.

    Parameters
    ----------
    steps : int or iterable
        Number of steps, or what to iterate over.
    name : str
        Name of a step's range.
    first, last : int
        How many steps to mark at the start and at the end. If the length is unknown (a generator), the end
        is too, and reading ahead would change what the program does: then the `first` steps are marked and
        after them those whose number is a power of two.

    Yields
    ------
    object
        The items of `steps`; 0, 1, ... for a number.

    Raises
    ------
    UsageError
        If an argument has a wrong type, or a number is negative.
    """
    name = annotate(name).name
    for label, number in (("first", first), ("last", last)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise UsageError(f"{label} is {number!r}", where="annotate_loop", hint="give a number from 0 on")
    if isinstance(steps, int):
        if steps < 0:
            raise UsageError(f"{steps} steps", where="annotate_loop", hint="give a number from 0 on")
        steps = range(steps)
    if not isinstance(steps, Iterable):
        is_async = hasattr(steps, "__aiter__")
        what = "an asynchronous iterable" if is_async else f"a value of type {type(steps).__name__}"
        hint = "use annotate in the body of the loop" if is_async else "give a number or an iterable"
        raise UsageError(f"cannot iterate over {what}", where="annotate_loop", hint=hint)
    try:
        length = len(steps)  # type: ignore[arg-type]
    except TypeError:
        length = None
    return _marked_steps(steps, name, first, last, length)


def _is_marked(step: int, first: int, last: int, length: int | None) -> bool:
    if step < first:
        return True
    return step & (step - 1) == 0 if length is None else step >= length - last


def _marked_steps(
    steps: Iterable[Any], name: str, first: int, last: int, length: int | None
) -> Iterator[Any]:
    seen: Recorder | None = None
    log: ThreadLog | None = None
    task = 0
    own: LoopCounts | None = None
    try:
        for number, item in enumerate(steps):
            recorder = _recorder.current
            if recorder is not seen:
                # a session began or ended between two steps
                _end_counts(seen, log, task, own)
                seen, own = recorder, None
                if recorder is not None:
                    log, task = recorder.log(), _task()
                    own = _begin_counts(log, task)
            if recorder is None:
                yield item
            elif _is_marked(number, first, last, length):
                with Annotation(name):
                    yield item
            else:
                assert log is not None
                counts = log.loops.get(task)
                if counts is None:
                    yield item
                    continue
                node = counts.enter(name)
                counts.muted += 1
                try:
                    yield item
                finally:
                    counts.muted -= 1
                    counts.leave(node)
    finally:
        _end_counts(seen, log, task, own)


def _begin_counts(log: ThreadLog, task: int) -> LoopCounts | None:
    """Begin counting, unless a loop around this one is counting already."""
    if task in log.loops:
        return None
    made = LoopCounts(tuple(a.name for a in log.stack), flat=not log.owns_stack(task))
    log.loops[task] = made
    return made


def _end_counts(recorder: Recorder | None, log: ThreadLog | None, task: int, own: LoopCounts | None) -> None:
    if recorder is not None and log is not None and own is not None:
        log.loops.pop(task, None)
        recorder.add_counts(own)


_recorder.emit_nvtx(listening())
_recorder.join_session()
