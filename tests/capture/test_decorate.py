"""Functions, methods, coroutines and generators that are decorated with a name."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import rlprof
from rlprof.errors import UsageError
from tests.capture.made import names, node_counts, recording


class Worker:
    @rlprof.annotate("method")
    def method(self, x: int) -> int:
        return x + 1

    @rlprof.annotate("outside")
    @classmethod
    def outside(cls) -> str:
        return cls.__name__

    @classmethod
    @rlprof.annotate("inside")
    def inside(cls) -> str:
        return cls.__name__

    @rlprof.annotate("static")
    @staticmethod
    def static(x: int) -> int:
        return x

    @property
    @rlprof.annotate("prop")
    def prop(self) -> int:
        return 7


class Callee:
    async def __call__(self) -> int:
        await asyncio.sleep(0)
        return 5


def test_methods_of_all_kinds(tmp_path: Path) -> None:
    with recording(tmp_path / "parts") as folder:
        w = Worker()
        assert (w.method(1), w.outside(), Worker.inside(), w.static(3), w.prop) == (
            2,
            "Worker",
            "Worker",
            3,
            7,
        )
    assert names(folder) == ["method", "outside", "inside", "static", "prop"]


def test_partials_builtins_and_callable_objects(tmp_path: Path) -> None:
    partial = rlprof.annotate("partial")(functools.partial(int, base=2))
    builtin = rlprof.annotate("builtin")(sorted)
    callee = rlprof.annotate("callee")(Callee())
    assert inspect.iscoroutinefunction(callee)
    with recording(tmp_path / "parts") as folder:
        assert (partial("101"), builtin([2, 1])) == (5, [1, 2])
        assert asyncio.run(callee()) == 5
    assert names(folder) == ["partial", "builtin", "callee"]


def test_a_decorated_function_keeps_its_name_signature_and_kind() -> None:
    def f(a: int, *, b: str = "x") -> None:
        """Text."""

    async def co() -> None: ...

    def gen() -> Iterator[int]:
        yield 1

    async def agen() -> AsyncIterator[int]:
        yield 1

    wrapped = rlprof.annotate("f")(f)
    assert (wrapped.__name__, wrapped.__doc__) == ("f", "Text.")
    assert inspect.signature(wrapped) == inspect.signature(f)
    for function in (f, co, gen, agen):
        kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        assert [k(rlprof.annotate("k")(function)) for k in kinds] == [k(function) for k in kinds]


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        (Worker, "cannot decorate the class Worker. Next: decorate its methods"),
        (property(lambda s: 1), "put it below @property"),
        (3, "cannot decorate a value of type int"),
    ],
)
def test_decorating_what_is_no_function_is_refused(given_: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rlprof.annotate("x")(given_)


def test_a_generator_is_one_range_per_resumption(tmp_path: Path) -> None:
    @rlprof.annotate("gen")
    def gen() -> Iterator[int]:
        got = yield 1
        try:
            yield got
        except KeyError:
            yield 30
        return 4

    with recording(tmp_path / "parts") as folder:
        g = gen()
        out = [next(g)]
        with rlprof.annotate("consumer"):
            out.append(g.send(20))
        out.append(g.throw(KeyError()))
        with pytest.raises(StopIteration) as stop:
            next(g)
    assert [*out, stop.value.value] == [1, 20, 30, 4]
    assert node_counts(folder) == {"gen": 3, "consumer": 1, "consumer/gen": 1}


def test_a_generator_that_is_closed_early_runs_its_cleanup_in_a_range(tmp_path: Path) -> None:
    done = []

    @rlprof.annotate("gen")
    def gen() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            with rlprof.annotate("cleanup"):
                done.append(True)

    with recording(tmp_path / "parts") as folder:
        for i in gen():
            if i == 2:
                break
    assert done == [True]
    assert node_counts(folder) == {"gen": 4, "gen/cleanup": 1}


def test_async_generators_are_one_range_per_resumption(tmp_path: Path) -> None:
    @rlprof.annotate("agen")
    async def agen() -> AsyncIterator[int]:
        try:
            for i in range(10):
                await asyncio.sleep(0)
                yield i
        finally:
            with rlprof.annotate("cleanup"):
                await asyncio.sleep(0)

    async def main() -> None:
        g = agen()
        async for i in g:
            with rlprof.annotate("body"):
                await asyncio.sleep(0)
            if i == 1:
                break
        await g.aclose()

        h = agen()
        assert await anext(h) == 0
        with pytest.raises(KeyError):
            await h.athrow(KeyError())

    with recording(tmp_path / "parts") as folder:
        asyncio.run(main())
    assert node_counts(folder) == {"agen": 5, "agen/cleanup": 2, "body": 2}
