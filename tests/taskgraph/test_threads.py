"""Threads that outlive a run."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from contextvars import ContextVar

import pytest

from rlprof.taskgraph import Task, TaskFailedError, TaskGraph, ThreadBackend, Threads, run


def graph(*workers: str | None) -> TaskGraph:
    return TaskGraph(tuple(Task(str(k), payload="call", worker=w) for k, w in enumerate(workers)))


def named() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("rlprof ")}


def gone(names: set[str]) -> bool:
    until = time.monotonic() + 40
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
    threads, both = Threads(), threading.Barrier(2, timeout=60)
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


def test_an_interruption_while_a_run_closes_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second Ctrl-C, while all that runs is waited for."""
    threads, go = Threads(), threading.Event()
    both = threading.Barrier(3, timeout=60)

    def work() -> None:
        both.wait()
        go.wait()

    joins = [threads.start(f"interrupted {k}", work) for k in range(2)]
    both.wait()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            joins[0]()  # as of a back end: nobody waits for the second one
    del joins
    go.set()
    threads.start("interrupted 0", lambda: None)()
    del threads
    gc.collect()
    assert gone({"rlprof interrupted 0", "rlprof interrupted 1"})


def test_an_object_that_is_dropped_while_a_thread_is_busy_takes_it_along() -> None:
    threads, go = Threads(), threading.Event()
    threads.start("left alone", lambda: print(go.wait(60)))
    del threads
    gc.collect()
    assert "rlprof left alone" in named()
    go.set()
    assert gone({"rlprof left alone"})


def test_a_thread_that_is_kept_has_an_empty_context_in_every_run() -> None:
    threads, left = Threads(), ContextVar("left", default="nothing")
    seen = []

    def call(*_: object) -> None:
        seen.append(left.get())
        left.set("something")

    for _ in range(2):
        run(graph("of one context", "of one context"), ThreadBackend({"call": call}, threads=threads))
    assert seen == ["nothing", "something"] * 2  # within a run as in any thread
    threads.close()


def test_many_objects_leave_no_thread() -> None:
    for _ in range(50):
        run(graph("many a", "many b", None), ThreadBackend({"call": lambda *_: None}, threads=Threads()))
    gc.collect()
    assert gone({"rlprof many a", "rlprof many b"})


def test_work_of_a_thread_may_close_and_drop_what_keeps_it() -> None:
    there = [Threads()]

    def call(*_: object) -> None:
        there[0].close()
        there.clear()

    run(graph("drops itself"), ThreadBackend({"call": call}, threads=there[0]))
    gc.collect()
    assert gone({"rlprof drops itself"})


def test_a_program_ends_with_threads_that_are_kept() -> None:
    code = (
        "from rlprof.taskgraph import *\n"
        "g = TaskGraph(tuple(Task(str(k), payload='c', worker=str(k % 4)) for k in range(8)))\n"
        "kept = [Threads() for _ in range(3)]\n"
        "for one in kept: run(g, ThreadBackend({'c': lambda *_: None}, threads=one))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
    until = time.monotonic() + 60
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


#: In a process of its own: how many threads PyTorch uses is of all of one.
FIRST_OPERATION = """
import torch
from rlprof.taskgraph import Task, TaskGraph, ThreadBackend, Threads, run
torch.set_num_threads(1)
x, weight, found = torch.randn(1, 5, 448), torch.randn(64, 448), []
for threads in (None, Threads()):
    for worker in ("a", None):
        graph = TaskGraph((Task("0", payload="call", worker=worker),))
        call = lambda *_: found.append(torch.nn.functional.linear(x, weight))
        run(graph, ThreadBackend({"call": call}, threads=threads))
print(*(torch.equal(one, torch.nn.functional.linear(x, weight)) for one in found))
"""


def test_the_first_operation_of_a_thread_has_as_many_threads_as_all_others() -> None:
    """Else a call alone on its worker gives other bits than natively; where there are several cores."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_OPERATION],
        env=free,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split() == ["True"] * 4, done.stderr
