"""Ctrl-C that is not lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def remembered() -> Iterator[Callable[[], None]]:
    """Remember a Ctrl-C whose KeyboardInterrupt was swallowed, for loops of long steps.

    Python raises it wherever the main thread is; in a ``__del__`` or a callback of a library it is printed
    and forgotten.

    Yields
    ------
    callable
        To be called between the steps: raises KeyboardInterrupt if there was a Ctrl-C.

    Notes
    -----
    Does nothing outside of the main thread, or where somebody else handles the signal.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.default_int_handler(number, frame)

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, handle)
    try:
        yield check
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


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
