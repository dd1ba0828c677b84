"""Threads that outlive a run."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest

from rlprof.taskgraph import Task, TaskFailedError, TaskGraph, ThreadBackend, Threads, run


def graph(*workers: str | None) -> TaskGraph:
    return TaskGraph(tuple(Task(str(k), payload="call", worker=w) for k, w in enumerate(workers)))


def named() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("rlprof ")}


def gone(names: set[str]) -> bool:
    until = time.monotonic() + 5
    while named() & names and time.monotonic() < until:
        time.sleep(0.01)
    return not named() & names


def test_a_worker_has_the_same_thread_in_every_run() -> None:
    threads, seen = Threads(), []

    def call(task: Task, _inputs: object) -> None:
        seen.append((task.worker, threading.get_ident()))

    for _ in range(5):
        run(graph("kept a", "kept b", "kept a", None), ThreadBackend({"call": call}, threads=threads))
    for worker in ("kept a", "kept b", None):
        assert len({ident for w, ident in seen if w == worker}) == 1
    assert len({ident for _, ident in seen}) == 3
    threads.close()
    assert gone({"rlprof kept a", "rlprof kept b"})


def test_threads_end_with_their_object() -> None:
    threads = Threads()
    run(graph("dropped a"), ThreadBackend({"call": lambda *_: None}, threads=threads))
    assert "rlprof dropped a" in named()
    del threads
    gc.collect()
    assert gone({"rlprof dropped a"})


def test_without_them_threads_end_with_the_run() -> None:
    run(graph("brief a"), ThreadBackend({"call": lambda *_: None}))
    assert "rlprof brief a" not in named()


def test_runs_at_the_same_time_have_different_threads() -> None:
    threads, both = Threads(), threading.Barrier(2, timeout=10)
    seen: list[int] = []

    def call(*_: object) -> None:
        both.wait()  # two runs on one thread would never meet
        seen.append(threading.get_ident())

    def one() -> None:
        run(graph("met a"), ThreadBackend({"call": call}, threads=threads))

    for _ in range(2):
        pair = [threading.Thread(target=one) for _ in range(2)]
        [t.start() for t in pair]
        [t.join() for t in pair]
    assert len(seen) == 4
    assert len(set(seen)) == 2
    threads.close()


def test_a_task_that_fails_leaves_its_thread_for_the_next_run() -> None:
    threads, seen = Threads(), []

    def call(*_: object) -> None:
        seen.append(threading.get_ident())
        if len(seen) == 1:
            raise ValueError("once")

    with pytest.raises(TaskFailedError, match="once"):
        run(graph("failed a"), ThreadBackend({"call": call}, threads=threads))
    run(graph("failed a"), ThreadBackend({"call": call}, threads=threads))
    assert len(set(seen)) == 1
    threads.close()


def test_a_waiting_thread_keeps_nothing_alive() -> None:
    class Big:
        pass

    threads, there = Threads(), []

    def call(*_: object) -> Big:
        made = Big()
        there.append(made)
        return made

    backend = ThreadBackend({"call": call}, threads=threads)
    run(graph("kept"), backend)
    there.clear()
    del backend, call
    gc.collect()
    assert not [o for o in gc.get_objects() if isinstance(o, Big)]
    threads.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    threads = Threads()
    run(graph("forked"), ThreadBackend({"call": lambda *_: None}, threads=threads))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(graph("forked"), ThreadBackend({"call": lambda *_: None}, threads=threads))
            code = 0
        finally:
            os._exit(code)
    until = time.monotonic() + 20
    done = (0, 0)
    while done == (0, 0) and time.monotonic() < until:
        done = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert done[1] == 0
    assert done != (0, 0)
    threads.close()
