"""Methods that run elsewhere: of Ray actors, and of objects in local worker processes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlprof.overlap.errors import WrapError

#: Gets the value of a future, or its exception.
Done = Callable[[Any, "BaseException | None"], None]


def ray_module() -> Any:
    """Return ray if the program has imported it, else None."""
    return sys.modules.get("ray")


def is_reference(value: Any) -> bool:
    """Whether a value is a reference to an object that Ray holds or will hold."""
    ray = sys.modules.get("ray")
    kind = getattr(ray, "ObjectRef", None)
    return kind is not None and isinstance(value, kind)


@contextmanager
def watching_fetches(fetched: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call `fetched` with reference and value whenever ``ray.get`` returns; nothing without Ray.

    The value that a driver gets is another object each time: this is where it is seen whose it is.
    """
    ray = sys.modules.get("ray")
    native = getattr(ray, "get", None)
    if native is None:
        yield
        return

    @functools.wraps(native)
    def get(references: Any, *args: Any, **kwargs: Any) -> Any:
        values = native(references, *args, **kwargs)
        if is_reference(references):
            fetched(references, values)
        elif isinstance(references, (list, tuple)):
            for reference, value in zip(references, values, strict=True):
                if is_reference(reference):
                    fetched(reference, value)
        return values

    ray.get = get  # type: ignore[union-attr]
    try:
        yield
    finally:
        ray.get = native  # type: ignore[union-attr]


def callable_of(native: Any, node: str) -> Callable[..., Any]:
    """Return what is called for an entry: a Ray method's ``remote``, else the entry itself.

    Raises
    ------
    WrapError
        If it is no callable.
    """
    if type(native).__module__.partition(".")[0] == "ray":
        remote = getattr(native, "remote", None)
        if callable(remote):
            return remote  # type: ignore[no-any-return]
    if not callable(native):
        raise WrapError(
            f"the entry of node {node} is a value of type {type(native).__name__}",
            hint="give a function or a bound method",
        )
    return native  # type: ignore[no-any-return]


def rebound(native: Any, other: Any, node: str) -> Callable[..., Any]:
    """Return the same method of another object of the same kind.

    Raises
    ------
    WrapError
        If the entry is no method, or the other object has none of this name.
    """
    function = getattr(native, "__func__", None)
    if function is not None:
        return function.__get__(other)  # type: ignore[no-any-return]
    name = getattr(native, "__name__", None) or getattr(native, "_method_name", None)
    method = getattr(other, str(name), None)
    if name is None or method is None:
        raise WrapError(
            f"the entry of node {node} is no method that a value of type {type(other).__name__} has"
        )
    return callable_of(method, node)


def when_ready(future: Any, done: Done) -> None:
    """Call `done` once, when a future or a reference has its value."""
    if is_reference(future):
        future = future.future()

    def report(ended: concurrent.futures.Future[Any] | asyncio.Future[Any]) -> None:
        if ended.cancelled():
            done(None, concurrent.futures.CancelledError())
            return
        error = ended.exception()
        done(None if error is not None else ended.result(), error)

    future.add_done_callback(report)
