"""Runs follow the graph, stop at the first failure, and leave no thread behind."""

from __future__ import annotations

import gc
import random
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rlprof.errors import UsageError
from rlprof.taskgraph import (
    Cancellation,
    Edge,
    Pending,
    RunCancelledError,
    RunError,
    SerialBackend,
    Task,
    TaskFailedError,
    TaskGraph,
    ThreadBackend,
    UnknownTaskError,
    Use,
    run,
    schedule,
    verify,
)
from rlprof.taskgraph.violations import Failed, NotRun

from .made import graphs, random_graph


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def nothing(task: Task, inputs: Mapping[str, Any]) -> str:
    return task.id


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_any_graph_runs_as_it_says(graph: TaskGraph) -> None:
    result = run(graph, {"call": nothing})
    assert verify(graph, result.record) == ()
    consumed = {e.source for e in graph.edges if e.kind == "data"}
    assert result.outputs == {t.id: t.id for t in graph.tasks if t.id not in consumed}


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_one_worker_runs_tasks_in_order_of_priority(graph: TaskGraph) -> None:
    alone = TaskGraph(tuple(replace(t, resources=(Use("worker"),)) for t in graph.tasks), graph.edges)
    wanted = [alone.tasks[i].id for i in schedule(alone).order]
    for backend in (SerialBackend({"call": nothing}), ThreadBackend({"call": nothing}, workers=1)):
        assert [r.task for r in run(alone, backend).record.tasks] == wanted


def test_a_larger_graph_in_threads() -> None:
    graph = random_graph(2000, seed=3)
    assert verify(graph, run(graph, {"call": nothing}).record) == ()


def test_independent_tasks_overlap_and_exclusive_ones_do_not() -> None:
    meet = threading.Barrier(2, timeout=60)
    inside = threading.Semaphore(1)

    def both(task: Task, inputs: Mapping[str, Any]) -> None:
        meet.wait()  # breaks unless both run at once

    def alone(task: Task, inputs: Mapping[str, Any]) -> None:
        assert inside.acquire(blocking=False)
        time.sleep(0.005)
        inside.release()

    run(TaskGraph((Task("a", payload="p"), Task("b", payload="p"))), {"p": both})
    tasks = tuple(Task(f"t{i}", payload="p", resources=(Use("simulator"),)) for i in range(5))
    run(TaskGraph(tasks), {"p": alone})


def test_inputs_are_the_outputs_of_data_predecessors_and_live_until_the_last_consumer() -> None:
    class Buffer:
        pass

    seen: list[weakref.ref[Buffer]] = []
    alive_at_end: list[bool] = []

    def make(task: Task, inputs: Mapping[str, Any]) -> Buffer:
        buffer = Buffer()
        seen.append(weakref.ref(buffer))
        return buffer

    def use(task: Task, inputs: Mapping[str, Any]) -> str:
        assert set(inputs) == {"make"}
        assert inputs["make"] is seen[0]()
        return task.id

    def look(task: Task, inputs: Mapping[str, Any]) -> None:
        assert not inputs  # the edge is no data edge
        gc.collect()
        alive_at_end.append(seen[0]() is not None)

    graph = TaskGraph(
        (
            Task("make", payload="make"), Task("x", payload="use"), Task("y", payload="use"),
            Task("z", payload="look"),
        ),
        (
            Edge("make", "x"), Edge("make", "y"), Edge("make", "y", "data", "twice"), Edge("x", "z", "order"),
            Edge("y", "z", "state"),
        ),
    )  # fmt: skip
    calls = {"make": make, "use": use, "look": look}
    assert dict(run(graph, calls).outputs) == {"x": "x", "y": "y", "z": None}
    assert alive_at_end == [False]
    seen.clear()
    kept = run(graph, calls, keep=frozenset({"make"})).outputs
    assert isinstance(kept["make"], Buffer)
    with pytest.raises(UnknownTaskError, match="'gone'"):
        run(graph, calls, keep=frozenset({"gone"}))


def test_a_pending_output_is_ready_when_its_wait_returns() -> None:
    event = threading.Event()

    def wait() -> None:
        time.sleep(0.05)
        event.set()

    def launch(task: Task, inputs: Mapping[str, Any]) -> Pending:
        return Pending("result", wait)

    def consume(task: Task, inputs: Mapping[str, Any]) -> Any:
        assert event.is_set()
        return inputs["launch"]

    graph = TaskGraph(
        (Task("launch", payload="launch"), Task("consume", payload="consume")), (Edge("launch", "consume"),)
    )
    result = run(graph, {"launch": launch, "consume": consume})
    assert result.outputs["consume"] == "result"
    launched = result.record.tasks[0]
    assert launched.end_ns - launched.returned_ns > 30e6
    assert verify(graph, result.record) == ()


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), KeyboardInterrupt()])
def test_the_first_failure_stops_the_run_and_names_the_task(error: BaseException) -> None:
    started: list[str] = []
    cancellation = Cancellation()

    def work(task: Task, inputs: Mapping[str, Any]) -> None:
        started.append(task.id)
        if task.id == "bad":
            raise error
        if task.id == "long":
            while not cancellation.requested:
                time.sleep(0.001)

    graph = TaskGraph(
        tuple(Task(i, payload="p") for i in ("long", "bad", "after bad", "after long")),
        (Edge("bad", "after bad"), Edge("long", "after long")),
    )
    with pytest.raises(TaskFailedError, match=r"task bad failed on thread \d") as caught:
        run(graph, {"p": work}, cancellation=cancellation)
    assert caught.value.task == "bad"
    assert caught.value.__cause__ is error
    assert sorted(started) == ["bad", "long"]
    assert {r.task: r.failed for r in caught.value.record.tasks} == {"bad": True, "long": False}
    assert cancellation.reason == "task bad failed"


def test_a_failing_wait_for_a_device_is_a_failure_of_the_task() -> None:
    def wait() -> None:
        raise RuntimeError("device lost")

    with pytest.raises(TaskFailedError, match="device lost"):
        run(TaskGraph((Task("a", payload="p"),)), {"p": lambda task, inputs: Pending(1, wait)})


def test_cancelling_from_elsewhere_waits_for_what_runs_and_starts_nothing() -> None:
    cancellation = Cancellation()
    begun = threading.Event()

    def work(task: Task, inputs: Mapping[str, Any]) -> None:
        begun.set()
        while not cancellation.requested:
            time.sleep(0.001)

    def canceller() -> None:
        begun.wait(60)
        cancellation.cancel("enough")
        cancellation.cancel("too late to say why")

    helper = threading.Thread(target=canceller)
    helper.start()
    graph = TaskGraph((Task("a", payload="p"), Task("b", payload="p")), (Edge("a", "b"),))
    with pytest.raises(RunCancelledError, match=r"enough.* 1 of 2 tasks") as caught:
        run(graph, {"p": work}, cancellation=cancellation)
    helper.join()
    assert [r.task for r in caught.value.record.tasks] == ["a"]


def test_a_run_that_is_cancelled_before_it_starts_runs_nothing() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(RunCancelledError) as caught:
        run(TaskGraph((Task("a", payload="p"),)), {"p": nothing}, cancellation=cancellation)
    assert caught.value.record.tasks == ()


def test_an_interrupt_of_the_dispatching_thread_leaves_no_thread() -> None:
    class Interrupted(ThreadBackend):
        def submit(self, position: int, task: Task, inputs: Mapping[str, Any]) -> None:
            if task.id == "b":
                raise KeyboardInterrupt
            super().submit(position, task, inputs)

    graph = TaskGraph((Task("a", payload="p"), Task("b", payload="p")), (Edge("a", "b"),))
    cancellation = Cancellation()
    with pytest.raises(KeyboardInterrupt):
        run(graph, Interrupted({"p": nothing}), cancellation=cancellation)
    assert cancellation.requested


def test_ctrl_c_while_tasks_run_cancels_and_waits_for_them() -> None:
    cancellation = Cancellation()
    ran: list[str] = []

    def work(task: Task, inputs: Mapping[str, Any]) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        until = time.monotonic() + 60
        while not cancellation.requested and time.monotonic() < until:
            time.sleep(0.001)
        ran.append(task.id)

    graph = TaskGraph((Task("a", payload="p"), Task("b", payload="p")), (Edge("a", "b"),))
    with pytest.raises(KeyboardInterrupt):
        run(graph, {"p": work}, cancellation=cancellation)
    assert ran == ["a"]


def test_whenever_a_run_is_stopped_its_record_is_sound() -> None:
    chance = random.Random(0)
    graph = random_graph(100, seed=5)
    ended, before = Counter[str](), set(threading.enumerate())
    for _ in range(150):
        bad = chance.choice([None, f"t{chance.randrange(100)}"])
        cancellation = Cancellation()
        timer = threading.Timer(chance.random() * 0.003, cancellation.cancel)
        if chance.random() < 0.5:
            timer.start()

        def call(task: Task, inputs: Mapping[str, Any], bad: str | None = bad) -> None:
            if task.id == bad:
                raise ValueError(bad)

        backend = ThreadBackend({"call": call}, workers=chance.choice([1, 2, 8]))
        stopped: RunError | None = None
        try:
            record = run(graph, backend, cancellation=cancellation).record
        except RunError as error:
            stopped, record = error, error.record
        allowed = {NotRun, Failed} if stopped else set()
        assert {type(v) for v in verify(graph, record)} <= allowed
        assert not isinstance(stopped, TaskFailedError) or stopped.task == bad
        ended[type(stopped).__name__] += 1
        timer.cancel()
        if timer.ident:
            timer.join()
        assert set(threading.enumerate()) <= before
    assert ended["NoneType"]
    assert ended["TaskFailedError"]


def test_what_cannot_run_is_refused_before_anything_runs() -> None:
    ran: list[str] = []
    graph = TaskGraph((Task("a", payload="known"), Task("b", payload="unknown")))
    calls = {"known": lambda task, inputs: ran.append(task.id)}
    with pytest.raises(UsageError, match="'b' has the payload 'unknown'"):
        run(graph, calls)
    with pytest.raises(UsageError, match="2 priorities"):
        run(TaskGraph((Task("a"), Task("b"))), calls, priority=np.zeros(3))
    with pytest.raises(UsageError, match="0 workers"):
        ThreadBackend(calls, workers=0)
    assert not ran


@pytest.mark.parametrize("calls", [None, "call", [("a", print)], ThreadBackend, object()])
def test_what_is_neither_calls_nor_a_back_end_is_refused(calls: Any) -> None:
    with pytest.raises(UsageError, match="is neither calls nor a back end"):
        run(TaskGraph((Task("a"),)), calls)


def test_a_result_is_no_record_and_says_where_it_has_one() -> None:
    graph = TaskGraph((Task("a"),))
    result: Any = run(graph, {})
    with pytest.raises(UsageError, match=r"a RunResult is no record.*result\.record"):
        verify(graph, result)
    assert verify(graph, result.record) == ()


def test_a_backend_in_use_refuses_a_second_run_and_serves_one_after_the_other() -> None:
    backend = ThreadBackend({"inner": nothing, "outer": lambda task, inputs: run(inner, backend)})
    inner = TaskGraph((Task("a", payload="inner"),))
    outer = TaskGraph((Task("b", payload="outer"),))
    with pytest.raises(TaskFailedError, match="serves another run"):
        run(outer, backend)
    for _ in range(2):
        assert run(inner, backend).outputs == {"a": "a"}


def test_tasks_without_a_payload_only_take_part_in_the_order() -> None:
    graph = TaskGraph(
        (Task("a", payload="p"), Task("barrier"), Task("b", payload="p")),
        (Edge("a", "barrier", "order"), Edge("barrier", "b", "order")),
    )
    record = run(graph, {"p": nothing}).record
    assert [r.task for r in record.tasks] == ["a", "barrier", "b"]
