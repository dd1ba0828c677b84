"""Ranges of context managers, also where generators leave them open, and of any program."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlprof
from rlprof.capture import recorder
from rlprof.errors import UsageError
from tests.capture.made import leaf, listening, names, nesting_faults, node_counts, ranges, recording


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


def test_contexts_of_contextvars_do_not_matter(tmp_path: Path) -> None:
    def inner() -> None:
        with rlprof.annotate("inner"):
            pass

    with recording(tmp_path / "parts") as folder, rlprof.annotate("outer"):
        contextvars.copy_context().run(inner)
        contextvars.Context().run(inner)
    assert node_counts(folder) == {"outer": 1, "outer/inner": 2}


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
