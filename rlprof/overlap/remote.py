"""Methods that run elsewhere: of Ray actors, and of objects in local worker processes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlprof.overlap.errors import WrapError

#: Gets the value of a future, or its exception.
Done = Callable[[Any, "BaseException | None"], None]


def is_reference(value: Any) -> bool:
    """Whether a value is a reference to an object that Ray holds or will hold."""
    ray = sys.modules.get("ray")
    kind = getattr(ray, "ObjectRef", None)
    return kind is not None and isinstance(value, kind)


@contextmanager
def watching_fetches(fetched: Callable[[Any, Any, BaseException | None], None]) -> Iterator[None]:
    """Call `fetched` with reference, value and error whenever ``ray.get`` is done; nothing without Ray.

    The value that a driver gets is another object each time: this is where it is seen whose it is.
    """
    ray = sys.modules.get("ray")
    native = getattr(ray, "get", None)
    if native is None:
        yield
        return

    @functools.wraps(native)
    def get(references: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            values = native(references, *args, **kwargs)
        except Exception as error:
            if is_reference(references) and not isinstance(error, TimeoutError):
                fetched(references, None, error)
            raise
        if is_reference(references):
            fetched(references, values, None)
        elif isinstance(references, (list, tuple)):
            for reference, value in zip(references, values, strict=True):
                if is_reference(reference):
                    fetched(reference, value, None)
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
    if _is_rays(native):
        remote = getattr(native, "remote", None)
        if callable(remote):
            return remote  # type: ignore[no-any-return]
    if not callable(native):
        raise WrapError(
            f"the entry of node {node} is a value of type {type(native).__name__}",
            hint="give a function or a bound method",
        )
    return native  # type: ignore[no-any-return]


def owner_of(native: Any) -> Any:
    """Return the object that a method is bound to, of a Ray method its actor's handle; else None."""
    if _is_rays(native):
        return getattr(native, "_actor", None)
    return getattr(native, "__self__", None)


def class_name(owner: Any) -> str:
    """Return what a component is called by default: the class of its object, or that an actor runs."""
    if isinstance(owner, type):
        return owner.__name__
    given = getattr(owner, "rlprof_component", None) if not _is_rays(owner) else None
    if isinstance(given, str):
        return given
    descriptor = getattr(owner, "_ray_actor_creation_function_descriptor", None) if _is_rays(owner) else None
    return str(getattr(descriptor, "class_name", None) or type(owner).__name__)


def parameters_of(native: Any) -> tuple[str, ...]:
    """Return the names of the parameters that positional arguments go to, without ``self``."""
    try:
        found = getattr(native, "_signature", None) if _is_rays(native) else None
        if not isinstance(found, list):
            found = list(inspect.signature(native).parameters.values())
    except (TypeError, ValueError):
        return ()
    names = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return tuple(names[1:] if _is_rays(native) and names[:1] == ["self"] else names)


def _is_rays(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "ray"


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


def outcome(future: Any) -> tuple[Any, BaseException | None] | None:
    """Return value and error of a future or a reference; None if it has none yet."""
    if is_reference(future):
        ready, _ = sys.modules["ray"].wait([future], timeout=0)
        if not ready:
            return None
        future = future.future()
        concurrent.futures.wait([future])
    if not future.done():
        return None
    if future.cancelled():
        return None, concurrent.futures.CancelledError()
    error = future.exception()
    return (None if error is not None else future.result()), error


def when_ready(future: Any, done: Done) -> None:
    """Call `done` once, when a future or a reference has its value."""
    if is_reference(future):
        future = future.future()

    def report(ended: concurrent.futures.Future[Any] | asyncio.Future[Any]) -> None:
        found = outcome(ended)
        assert found is not None
        done(*found)

    future.add_done_callback(report)
