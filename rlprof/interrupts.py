"""Ctrl-C, and other signals that end a program, that are not lost and not taken for something else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: Signals by which people, terminals and managers of jobs end a program, often its whole process group.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Keep `ENDING` from processes that are started in the block, until they call `leave_to_parent`.

    One that ended by itself, while its parent ends for the same reason, would be taken for one that failed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # which they inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent() -> None:
    """Ignore `ENDING` in this process, which its parent ends, or which ends with its parent."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextmanager
def remembered() -> Iterator[Callable[[], None]]:
    """Remember a signal of `ENDING` whose exception was swallowed, for loops of long steps.

    Python raises what its handler raises wherever the main thread is; in a ``__del__`` or a callback of a
    library it is printed and forgotten.

    Yields
    ------
    callable
        To be called between the steps: raises KeyboardInterrupt if there was a Ctrl-C, and what the handler
        raised if there was another one.

    Notes
    -----
    Does nothing outside of the main thread, or where somebody else handles Ctrl-C. A handler of another
    signal that raises nothing has not asked for an end.
    """
    asked: BaseException | None = None
    before: dict[signal.Signals, Callable[[int, FrameType | None], object]] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        try:
            before[signal.Signals(number)](number, frame)
        except BaseException as error:
            asked = error
            raise

    def check() -> None:
        if asked is not None:
            raise asked

    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        for number in ENDING:
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, handle)
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def postponed() -> Iterator[None]:
    """Postpone a Ctrl-C until what is inside is done; the second one is handled at once.

    For an order and its answer, which must not part. Does nothing outside of the main thread, to which alone
    Python brings signals, or where nobody handles the signal.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pressed = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pressed:
        handler(signal.SIGINT, None)


@contextmanager
def noted() -> Iterator[Callable[[], bool]]:
    """Note a Ctrl-C and go on, for the writing of what was found; the second one is handled at once.

    Yields
    ------
    callable
        Whether there was one by then; it can be asked afterwards too.

    Notes
    -----
    Does nothing outside of the main thread, or where nobody handles the signal.
    """
    handler = signal.getsignal(signal.SIGINT)
    pressed = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1 and callable(handler):
            handler(number, frame)

    ours = threading.current_thread() is threading.main_thread() and callable(handler)
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed > 0
    finally:
        if ours:
            signal.signal(signal.SIGINT, handler)


def interrupted(error: BaseException | None) -> bool:
    """Whether an error came of an interrupt."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__context__
    return False
