"""The decorator of `annotate`: one kind of wrapper per kind of function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from rlprof.capture import recorder as _recorder
from rlprof.capture.annotate import Annotation
from rlprof.errors import UsageError


def decorate(name: str, function: Any) -> Any:
    """Wrap `function` so that its calls (its resumptions, for a generator) are ranges called `name`.

    Raises
    ------
    UsageError
        If it is a class, a property, or nothing that can be called.
    """
    if isinstance(function, classmethod | staticmethod):
        return type(function)(decorate(name, function.__func__))
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
