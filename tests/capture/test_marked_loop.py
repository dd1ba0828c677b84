"""Loops of which some steps are marked and all are counted."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import rlprof
from rlprof.capture import recorder
from rlprof.errors import UsageError
from tests.capture.made import listening, loop_counts, names, node_counts, recording


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
