"""Loops of which only some steps are marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, overload

from rlprof.capture import recorder as _recorder
from rlprof.capture.annotate import Annotation, annotate, running_task
from rlprof.capture.loop_counts import LoopCounts
from rlprof.capture.recorder import Recorder
from rlprof.capture.thread_log import ThreadLog
from rlprof.errors import UsageError

T = TypeVar("T")


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
                    log, task = recorder.log(), running_task()
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
