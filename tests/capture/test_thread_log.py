"""The open ranges of a thread, and of the tasks that take turns on it."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest

import rlprof
from tests.capture.made import leaf, listening, names, nesting_faults, node_counts, ranges, recording


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
