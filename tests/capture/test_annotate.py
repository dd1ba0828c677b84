"""Ranges of decorators and context managers, of threads, tasks and generators."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import pickle
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlprof
from rlprof.capture import recorder
from rlprof.errors import UsageError
from tests.capture.made import (
    listening,
    loop_counts,
    names,
    nesting_faults,
    node_counts,
    ranges,
    recording,
)


def test_ranges_nest_as_the_program_does(tmp_path: Path) -> None:
    @rlprof.annotate("policy/vlm")
    def forward() -> str:
        return "actions"

    with recording(tmp_path / "parts") as folder, rlprof.annotate("iteration"):
        for _ in range(3):
            with rlprof.annotate("rollout"):
                assert forward() == "actions"
        forward()
    assert node_counts(folder) == {
        "iteration": 1,
        "iteration/rollout": 3,
        "iteration/rollout/policy/vlm": 3,
        "iteration/policy/vlm": 1,
    }
    found = ranges(folder)
    assert set(found["style"]) == {"push_pop"}
    assert set(found["domain"]) == {"rlprof"}
    assert not found["cut"].any()
    assert set(found["thread"]) == {threading.get_native_id()}


def test_without_a_session_nothing_is_recorded_and_one_object_serves_each_name() -> None:
    assert recorder.current is None
    with rlprof.annotate("nothing") as range_:
        assert range_ is rlprof.annotate("nothing")
    assert rlprof.annotate("nothing")(len)("abc") == 3


def test_an_exception_closes_the_range_and_passes(tmp_path: Path) -> None:
    @rlprof.annotate("fails")
    def fails() -> None:
        raise ValueError("as asked")

    with recording(tmp_path / "parts") as folder:
        with pytest.raises(ValueError, match="as asked"), rlprof.annotate("outer"):
            fails()
        with rlprof.annotate("after"):
            pass
    assert sorted(node_counts(folder)) == ["after", "outer", "outer/fails"]
    assert not ranges(folder)["cut"].any()


def test_an_object_may_be_entered_again_while_it_is_open(tmp_path: Path) -> None:
    before = rlprof.annotate("a")
    with recording(tmp_path / "parts") as folder:
        during = rlprof.annotate("a")
        for r in (before, during):
            with r, r, r:
                pass
    assert node_counts(folder) == {"a": 2, "a/a": 2, "a/a/a": 2}


def test_deep_recursion(tmp_path: Path) -> None:
    @rlprof.annotate("f")
    def f(n: int) -> int:
        return 0 if n == 0 else 1 + f(n - 1)

    with recording(tmp_path / "parts") as folder:
        assert f(300) == 300
    assert len(ranges(folder)) == 301
    assert not nesting_faults(ranges(folder))
    assert node_counts(folder)["/".join("f" * 301)] == 1


def test_threads_have_a_stack_each(tmp_path: Path) -> None:
    shared = rlprof.annotate("shared")
    ready = threading.Barrier(4)

    def work() -> None:
        with shared:
            ready.wait()
            with rlprof.annotate("inner"):
                ready.wait()

    with recording(tmp_path / "parts") as folder, rlprof.annotate("main"):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert node_counts(folder) == {"main": 1, "shared": 4, "shared/inner": 4}
    assert set(ranges(folder)["style"]) == {"push_pop"}


def test_contexts_of_contextvars_do_not_matter(tmp_path: Path) -> None:
    def inner() -> None:
        with rlprof.annotate("inner"):
            pass

    with recording(tmp_path / "parts") as folder, rlprof.annotate("outer"):
        contextvars.copy_context().run(inner)
        contextvars.Context().run(inner)
    assert node_counts(folder) == {"outer": 1, "outer/inner": 2}


# --- what is decorated


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


@pytest.mark.parametrize("name", [None, 3, b"x", ["a"], "", "  "])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="annotate needs a name"):
        rlprof.annotate(name)


def test_decorating_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match=r"got a function. Next: write annotate"):

        @rlprof.annotate  # type: ignore[arg-type]
        def f() -> None: ...


def test_names_that_are_not_valid_text_do_not_spoil_the_record(tmp_path: Path) -> None:
    with recording(tmp_path / "parts") as folder:
        for name in ("\udcff bytes", "a\nb", "名", "x" * 10_000):
            with rlprof.annotate(name):
                pass
    assert names(folder) == ["? bytes", "a\nb", "名", "x" * 10_000]


def test_annotations_pickle_by_name() -> None:
    assert pickle.loads(pickle.dumps(rlprof.annotate("a"))).name == "a"


# --- generators


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


def test_a_range_left_open_by_a_generator_does_not_spoil_the_nesting(tmp_path: Path) -> None:
    def gen() -> Iterator[int]:
        with rlprof.annotate("in generator"):
            yield 1
            with rlprof.annotate("late"):
                yield 2

    with listening() as domain, recording(tmp_path / "parts") as folder:
        with rlprof.annotate("a"):
            g = gen()
            next(g)
            with rlprof.annotate("b"):
                pass
        with rlprof.annotate("c"):
            next(g)
            with rlprof.annotate("d"):
                pass
        g.close()
    found = ranges(folder)
    assert dict(zip(found["name"], found["style"], strict=True)) == {
        "a": "push_pop",
        "in generator": "start_end",
        "b": "push_pop",
        "c": "push_pop",
        "late": "start_end",
        "d": "push_pop",
    }
    assert not nesting_faults(found)
    # NVTX closed the right ranges; those that outlived their parent were split there
    assert domain.all_closed
    assert [n for kind, n in domain.closed if kind == "start_end"] == ["late", "in generator"]
    assert [n for kind, n in domain.closed if kind == "push_pop"] == [
        "b",
        "in generator",
        "a",
        "d",
        "late",
        "c",
    ]


def test_two_generators_in_step_keep_their_own_times(tmp_path: Path) -> None:
    def load(n: int) -> Iterator[int]:
        with rlprof.annotate("load"):
            yield from range(n)

    with recording(tmp_path / "parts") as folder:
        a, b = load(3), load(3)
        next(a), next(b)
        a.close()
        b.close()
    found = ranges(folder)
    first, second = found.iter_rows(named=True)
    assert first["start_ns"] < second["start_ns"] < first["end_ns"] < second["end_ns"]
    assert [first["style"], second["style"]] == ["push_pop", "start_end"]


def test_a_contextmanager_with_a_range_nests(tmp_path: Path) -> None:
    @contextmanager
    def phase() -> Iterator[None]:
        with rlprof.annotate("phase"):
            yield

    with recording(tmp_path / "parts") as folder, phase(), rlprof.annotate("in"):
        pass
    assert node_counts(folder) == {"phase": 1, "phase/in": 1}


def test_a_generator_collected_by_another_thread_closes_its_range_there(tmp_path: Path) -> None:
    def gen() -> Iterator[int]:
        with rlprof.annotate("wandering"):
            yield 1

    with listening() as domain, recording(tmp_path / "parts") as folder:
        held = [gen()]
        with rlprof.annotate("outer"):
            next(held[0])
            t = threading.Thread(target=held.clear)
            t.start()
            t.join()
            with rlprof.annotate("after"):
                pass
    assert not nesting_faults(ranges(folder))
    styles = dict(ranges(folder).select("name", "style").iter_rows())
    assert styles == {"outer": "push_pop", "wandering": "start_end", "after": "push_pop"}
    assert domain.all_closed


# --- asyncio


async def leaf(name: str = "leaf", naps: int = 1) -> str:
    with rlprof.annotate(name):
        for _ in range(naps):
            await asyncio.sleep(0)
    return name


def test_awaiting_one_thing_after_the_other_nests_like_synchronous_code(tmp_path: Path) -> None:
    @rlprof.annotate("rollout")
    async def rollout() -> str:
        await leaf("env")
        return await leaf("policy")

    async def main() -> None:
        with rlprof.annotate("iteration"):
            assert await rollout() == "policy"

    with recording(tmp_path / "parts") as folder, rlprof.annotate("train"):
        asyncio.run(main())
    assert node_counts(folder) == {
        "train": 1,
        "train/iteration": 1,
        "train/iteration/rollout": 1,
        "train/iteration/rollout/env": 1,
        "train/iteration/rollout/policy": 1,
    }
    assert set(ranges(folder)["style"]) == {"push_pop"}


def test_tasks_that_interleave_are_start_end_ranges(tmp_path: Path) -> None:
    async def worker(i: int) -> None:
        with rlprof.annotate("worker"):
            await leaf("env", naps=i + 1)

    async def main() -> None:
        with rlprof.annotate("iteration"):
            await leaf("before")
            await asyncio.gather(*(worker(i) for i in range(5)))
            await leaf("after")

    with listening() as domain, recording(tmp_path / "parts") as folder:
        asyncio.run(main())
    found = ranges(folder)
    styles = {n: set(g["style"]) for (n,), g in found.group_by("name")}
    assert styles == {
        "iteration": {"push_pop"},
        "before": {"push_pop"},
        "after": {"push_pop"},
        "worker": {"start_end"},
        "env": {"start_end"},
    }
    assert node_counts(folder) == {
        "iteration": 1,
        "iteration/before": 1,
        "iteration/after": 1,
        "worker": 5,
        "env": 5,
    }
    assert domain.all_closed
    assert sorted(domain.closed) == sorted(zip(found["style"], found["name"], strict=True))


def test_of_tasks_without_a_waiting_range_the_first_keeps_nesting(tmp_path: Path) -> None:
    async def worker() -> None:
        with rlprof.annotate("worker"):
            await leaf(naps=3)

    async def main() -> None:
        await asyncio.gather(worker(), worker(), worker())

    with recording(tmp_path / "parts") as folder:
        asyncio.run(main())
    found = ranges(folder)
    by_style = {s: sorted(g["name"]) for (s,), g in found.group_by("style")}
    assert by_style == {"push_pop": ["leaf", "worker"], "start_end": ["leaf", "leaf", "worker", "worker"]}
    assert not nesting_faults(found)


def test_a_task_keeps_to_start_end_ranges_until_its_own_are_closed(tmp_path: Path) -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def other() -> None:
            with rlprof.annotate("other"):
                await released.wait()
                with rlprof.annotate("child"):
                    pass
            with rlprof.annotate("then"):
                pass

        with rlprof.annotate("main"):
            task = asyncio.ensure_future(other())
            await asyncio.sleep(0)
        released.set()
        await task

    with recording(tmp_path / "parts") as folder:
        asyncio.run(main())
    assert dict(ranges(folder).select("name", "style").iter_rows()) == {
        "main": "push_pop",
        "other": "start_end",
        "child": "start_end",
        "then": "push_pop",
    }


def test_callbacks_of_a_loop_do_not_nest_into_a_suspended_task(tmp_path: Path) -> None:
    async def main() -> None:
        with rlprof.annotate("task"):
            asyncio.get_running_loop().call_soon(rlprof.annotate("callback")(lambda: None))
            await asyncio.sleep(0.01)

    with recording(tmp_path / "parts") as folder:
        asyncio.run(main())
    assert dict(ranges(folder).select("name", "style").iter_rows()) == {
        "task": "push_pop",
        "callback": "start_end",
    }


def test_cancelling_closes_the_ranges(tmp_path: Path) -> None:
    async def main() -> None:
        with rlprof.annotate("main"):
            tasks = [asyncio.ensure_future(leaf(f"t{i}", naps=10**6)) for i in range(3)]
            await asyncio.sleep(0)
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(leaf("slow", naps=10**6), 0.01)

    with listening() as domain, recording(tmp_path / "parts") as folder:
        asyncio.run(main())
    assert sorted(names(folder)) == ["main", "slow", "t0", "t1", "t2"]
    assert not ranges(folder)["cut"].any()
    assert domain.all_closed


def test_a_coroutine_that_is_dropped_closes_its_ranges(tmp_path: Path) -> None:
    async def stuck() -> None:
        with rlprof.annotate("stuck"):
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        task = asyncio.ensure_future(stuck())
        await asyncio.sleep(0)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        del task
        gc.collect()
        with rlprof.annotate("after"):
            await asyncio.sleep(0)

    with recording(tmp_path / "parts") as folder:
        asyncio.run(main())
    assert dict(ranges(folder).select("name", "style").iter_rows()) == {
        "stuck": "push_pop",
        "after": "push_pop",
    }
    assert not ranges(folder)["cut"].any()


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


def test_work_in_other_threads_has_its_own_roots(tmp_path: Path) -> None:
    def work() -> None:
        with rlprof.annotate("in thread"):
            pass

    async def main() -> None:
        with rlprof.annotate("main"):
            await asyncio.to_thread(work)
            await asyncio.get_running_loop().run_in_executor(None, work)

    with recording(tmp_path / "parts") as folder:
        asyncio.run(main())
    assert node_counts(folder) == {"main": 1, "in thread": 2}


# --- sessions that begin and end in the middle


def test_ranges_that_outlive_their_session_do_not_touch_the_next(tmp_path: Path) -> None:
    before, outer = rlprof.annotate("before"), rlprof.annotate("outer")
    with before:
        recorder.start(_made(tmp_path / "1"))
        outer.__enter__()
        inner = rlprof.annotate("inner")
        inner.__enter__()
        recorder.stop()
        with recording(tmp_path / "2"):
            with rlprof.annotate("second"):
                inner.__exit__(None, None, None)
            outer.__exit__(None, None, None)
    first, second = ranges(tmp_path / "1"), ranges(tmp_path / "2")
    assert dict(first.select("name", "cut").iter_rows()) == {"outer": True, "inner": True}
    assert dict(second.select("name", "cut").iter_rows()) == {"second": False}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


# --- any program


class Program:
    """Runs a random tree of ranges, calls, generators, tasks and failures."""

    def __init__(self) -> None:
        self.opened = 0

    def sync(self, steps: list[Any]) -> None:
        for kind, inner in steps:
            self.opened += kind in ("with", "decorated", "raise")
            if kind == "with":
                with rlprof.annotate(kind):
                    self.sync(inner)
            elif kind == "decorated":
                rlprof.annotate(kind)(self.sync)(inner)
            elif kind == "raise":
                with suppress(ZeroDivisionError), rlprof.annotate(kind):
                    self.sync(inner)
                    raise ZeroDivisionError
            elif kind == "generator":
                self.leave_open(inner)
            else:
                self.sync(inner)

    def leave_open(self, inner: list[Any]) -> None:
        def gen() -> Iterator[None]:
            self.opened += 1
            with rlprof.annotate("generator"):
                yield
                self.sync(inner)
                yield

        g = gen()
        next(g)
        self.sync(inner)
        self.kept.append(g)
        if len(inner) % 2:
            next(g)

    kept: list[Any]

    async def concurrent(self, steps: list[Any]) -> None:
        for kind, inner in steps:
            if kind == "tasks":
                await asyncio.gather(*(self.concurrent([s]) for s in inner))
            elif kind == "with":
                self.opened += 1
                with rlprof.annotate("async with"):
                    await asyncio.sleep(0)
                    await self.concurrent(inner)
            elif kind == "cancel":
                self.opened += 1
                task = asyncio.ensure_future(leaf("cancelled", naps=10**6))
                await asyncio.sleep(0)
                await self.concurrent(inner)
                task.cancel()
            else:
                self.sync([(kind, inner)])
                await asyncio.sleep(0)


KINDS = st.sampled_from(["with", "decorated", "raise", "generator", "tasks", "cancel"])
PROGRAMS = st.recursive(
    st.just([]), lambda inner: st.lists(st.tuples(KINDS, inner), max_size=4), max_leaves=25
)


@settings(max_examples=60, deadline=None)
@given(steps=PROGRAMS, run_async=st.booleans())
def test_every_program_gives_well_formed_nested_ranges(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], run_async: bool
) -> None:
    program = Program()
    program.kept = []
    folder = tmp_path_factory.mktemp("any") / "parts"
    with listening() as domain, recording(folder):
        if run_async:
            asyncio.run(program.concurrent(steps))
        else:
            program.sync(steps)
        for g in program.kept:
            g.close()
    if not program.opened:
        assert not list(folder.glob("*-ranges.arrows"))
        return
    found = ranges(folder)
    assert len(found) == program.opened
    assert not nesting_faults(found)
    assert not found["cut"].any()
    assert domain.all_closed
    # NVTX saw each range, split where it outlived its parent
    assert len(domain.closed) >= program.opened
    assert sum(node_counts(folder).values()) == program.opened


# --- loops


def test_a_loop_marks_its_first_and_last_steps_and_counts_all(tmp_path: Path) -> None:
    with listening() as domain, recording(tmp_path / "parts") as folder, rlprof.annotate("chunk 3"):
        seen = []
        for i in rlprof.annotate_loop(100, "denoise"):
            seen.append(i)
            with rlprof.annotate("policy/vlm"):
                pass
            if i % 2:
                with rlprof.annotate("odd"):
                    pass
    assert seen == list(range(100))
    counts = {"chunk/denoise": 100, "chunk/denoise/policy/vlm": 100, "chunk/denoise/odd": 50}
    assert loop_counts(folder) == counts
    assert node_counts(folder) == {"chunk": 1, **counts}
    assert names(folder).count("denoise") == 4
    assert names(folder).count("odd") == 2
    assert sorted(domain.marks) == sorted(f"rlprof.count:{p}={n}" for p, n in counts.items())


@pytest.mark.parametrize(
    ("steps", "first", "last", "marked"),
    [
        (10, 2, 2, [0, 1, 8, 9]),
        (10, 0, 1, [9]),
        (10, 3, 0, [0, 1, 2]),
        (3, 2, 2, [0, 1, 2]),
        ("abcdef", 1, 1, [0, 5]),
        (0, 2, 2, []),
        (iter(range(20)), 3, 2, [0, 1, 2, 4, 8, 16]),
    ],
)
def test_which_steps_are_marked(tmp_path: Path, steps: Any, first: int, last: int, marked: list[int]) -> None:
    with recording(tmp_path / "parts") as folder:
        found = []
        for i, _ in enumerate(rlprof.annotate_loop(steps, "step", first=first, last=last)):
            before = len(recorder.current.log().stack) if recorder.current else 0
            if before:
                found.append(i)
            with rlprof.annotate("inner"):
                pass
    assert found == marked
    held = list(folder.glob("*-ranges.arrows"))
    assert (names(folder) if held else []) == ["step", "inner"] * len(marked)


def test_a_loop_reads_no_item_ahead(tmp_path: Path) -> None:
    taken = []

    def items() -> Iterator[int]:
        for i in range(50):
            taken.append(i)
            yield i

    with recording(tmp_path / "parts"):
        for i in rlprof.annotate_loop(items(), "step"):
            assert taken[-1] == i
            if i == 30:
                break
    assert taken[-1] == 30


def test_loops_within_loops_count_the_inner_steps_of_steps_that_are_not_marked(tmp_path: Path) -> None:
    with recording(tmp_path / "parts") as folder:
        for _ in range(2):
            for _ in rlprof.annotate_loop(10, "outer", first=1, last=1):
                for _ in rlprof.annotate_loop(7, "inner", first=1, last=0):
                    with rlprof.annotate("x"):
                        pass
    assert loop_counts(folder) == {"outer": 20, "outer/inner": 140, "outer/inner/x": 140}
    found = names(folder)
    assert [found.count(n) for n in ("outer", "inner", "x")] == [4, 4, 4]
    assert node_counts(folder) == loop_counts(folder)


def test_leaving_a_loop_early_counts_what_ran(tmp_path: Path) -> None:
    def runs(stop: Callable[[int], None]) -> None:
        for i in rlprof.annotate_loop(1000, "step", first=1):
            with rlprof.annotate("body"):
                stop(i)

    def fail(i: int) -> None:
        if i == 20:
            raise ZeroDivisionError

    with recording(tmp_path / "parts") as folder:
        with pytest.raises(ZeroDivisionError):
            runs(fail)
        with rlprof.annotate("after"):
            pass
    assert loop_counts(folder) == {"step": 21, "step/body": 21}
    assert names(folder) == ["step", "body", "after"]


def test_a_step_that_is_not_marked_mutes_its_own_task_only(tmp_path: Path) -> None:
    async def loop() -> None:
        for _ in rlprof.annotate_loop(50, "step", first=1, last=1):
            with rlprof.annotate("in step"):
                await asyncio.sleep(0)

    async def other() -> None:
        for _ in range(50):
            with rlprof.annotate("other"):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(loop(), other())

    with recording(tmp_path / "parts") as folder:
        asyncio.run(main())
    found = names(folder)
    assert [found.count(n) for n in ("step", "in step", "other")] == [2, 2, 50]
    assert loop_counts(folder) == {"step": 50, "step/in step": 50}


def test_a_loop_over_which_a_session_begins_and_ends(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for i in rlprof.annotate_loop(100, "step"):
        if i == 10:
            recorder.start(tmp_path / "parts")
        if i == 30:
            recorder.stop()
        with rlprof.annotate("body"):
            pass
    # step 10 had begun when the session did, step 30 when it ended
    assert loop_counts(tmp_path / "parts") == {"step": 20, "step/body": 19}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((-1, "x"), "-1 steps"),
        ((10, "x", -1), "first is -1"),
        ((10, "x", 1, 1.5), "last is 1.5"),
        ((10, ""), "needs a name"),
        ((10, 3), "needs a name"),
        ((3.5, "x"), "cannot iterate over a value of type float"),
    ],
)
def test_wrong_arguments_of_a_loop(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rlprof.annotate_loop(*arguments)


def test_a_loop_over_an_asynchronous_iterable_is_refused() -> None:
    async def items() -> AsyncIterator[int]:
        yield 1

    with warnings.catch_warnings(), pytest.raises(UsageError, match="an asynchronous iterable"):
        rlprof.annotate_loop(items(), "x")  # type: ignore[call-overload]


def test_the_extrapolation_note_tells_of_the_loop(tmp_path: Path) -> None:
    from tests.capture.made import trace_of

    with recording(tmp_path / "parts") as folder:
        for _ in rlprof.annotate_loop(10, "step"):
            pass
    report = trace_of(folder).windows()
    row = report.frame.filter(pl.col("node") == "step").row(0, named=True)
    assert (row["measured_count"], row["count"]) == (4, 10)
    assert any("4 of 10 invocations are marked" in n for n in report.notes)
