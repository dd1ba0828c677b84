"""Ray actors do what worker processes do; a real Ray runs on this machine for these tests."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from rlprof.errors import UsageError
from rlprof.taskgraph import (
    Edge,
    TaskFailedError,
    TaskGraph,
    TransferError,
    WorkerDownError,
    WorkerLostError,
    WorkerStartError,
    run,
    verify,
)
from rlprof.taskgraph.ray_backend import RayBackend

from .made import graphs
from .test_processes import alive, beside, once_there, one, task
from .worker_states import Counter, missing_checkpoint, no_restore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=10**8)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def pool(cluster: Any) -> Iterator[RayBackend]:
    with RayBackend({"left": Counter, "right": Counter}, grace_s=0.3) as backend:
        yield backend


@pytest.fixture(autouse=True)
def _all_workers_are_there(pool: RayBackend) -> Iterator[None]:
    yield
    pool.renew()


@given(graphs(most=8))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_graph_runs_as_it_says(pool: RayBackend, graph: TaskGraph) -> None:
    result = run(graph, pool)
    assert verify(graph, result.record) == ()
    consumed = {e.source for e in graph.edges if e.kind == "data"}
    assert result.outputs == {t.id: t.id for t in graph.tasks if t.id not in consumed}


def test_actors_keep_state_and_exchange_arrays(pool: RayBackend) -> None:
    graph = TaskGraph(
        (task("make", "large", "left"), task("keep", "keep", "right"), task("sum", "kept_sum", "right")),
        (Edge("make", "keep"), Edge("keep", "sum", "order")),
    )
    result = run(graph, pool, keep=frozenset({"make"}))
    assert result.outputs["sum"] == result.outputs["make"]["array"].sum() > 0
    assert {r.task: r.worker for r in result.record.tasks} == {
        "make": "left",
        "keep": "right",
        "sum": "right",
    }
    look = run(TaskGraph((task("l", "look", "left"), task("r", "look", "right"))), pool).outputs
    assert {look["l"][2], look["r"][2]} == set(pool.process_ids.values())


def test_a_device_that_still_works_counts(pool: RayBackend, tmp_path: Path) -> None:
    tasks = beside(tmp_path)
    record = run(TaskGraph(tasks), pool).record
    assert all(r.end_ns - r.returned_ns > 30e6 for r in record.tasks)
    runs = sorted(record.tasks, key=lambda r: r.start_ns)
    assert runs[0].end_ns > runs[1].start_ns


def test_errors_of_tasks_and_of_their_values(pool: RayBackend) -> None:
    with pytest.raises(TaskFailedError, match="task a failed on left: ValueError: boom") as caught:
        run(one("fail"), pool)
    assert "worker_states.py" in caught.value.__cause__.__notes__[0]  # type: ignore[union-attr]
    with pytest.raises(TaskFailedError, match="RemoteError: Odd: odd 3"):
        run(one("fail_oddly"), pool)
    consumed = TaskGraph((task("a", "only_there", "left"), task("b", "keep", "right")), (Edge("a", "b"),))
    for graph, message, culprit in (
        (one("unpicklable"), "cannot pickle '_thread.lock' object", "a"),
        (one("only_there"), "no such class here", "a"),
        (consumed, "no such class here", "b"),
    ):
        with pytest.raises(TaskFailedError, match=message) as caught:
            run(graph, pool)
        assert caught.value.task == culprit
        assert isinstance(caught.value.__cause__, TransferError)
    assert pool.lost == {}
    with pytest.raises(UsageError, match="'a' has the payload 'jump'"):
        run(one("jump"), pool)


def test_an_actor_killed_in_the_middle(pool: RayBackend, tmp_path: Path) -> None:
    path, killed = tmp_path / "ids", []
    graph = TaskGraph(
        (
            task("bad", "hang_with_programs", "left", provenance=(("path", str(path)),)),
            task("long", "hang", "right"),
        )
    )

    def kill() -> None:
        killed.append(time.monotonic())
        os.kill(pool.process_ids["left"], signal.SIGKILL)

    timer = once_there(path, kill)
    with pytest.raises(WorkerLostError, match="task bad lost its worker left: actor of process") as caught:
        run(graph, pool)
    assert time.monotonic() - killed[0] < 40
    timer.join()
    assert (caught.value.task, caught.value.worker) == ("bad", "left")
    ids = [int(i) for i in path.read_text().split()]
    assert len(ids) == 3
    assert not alive(*ids, pool.process_ids["right"])
    assert set(pool.lost) == {"left", "right"}
    with pytest.raises(WorkerDownError):
        run(one("call"), pool)


def test_an_actor_killed_while_it_has_nothing_to_do_is_lost(pool: RayBackend) -> None:
    graph = one("look")
    run(graph, pool)
    victim = pool._workers["left"].process_id  # type: ignore[attr-defined]
    os.kill(victim, signal.SIGKILL)
    until = time.monotonic() + 60
    while not pool.lost and time.monotonic() < until:
        time.sleep(0.01)
    assert "has ended" in str(pool.lost["left"])
    with pytest.raises(WorkerDownError, match="worker left was lost before this run"):
        run(graph, pool)
    assert pool.renew() == ("left",)
    run(graph, pool)


def test_a_task_that_takes_too_long_loses_its_actor(cluster: Any) -> None:
    with RayBackend({"left": Counter}, timeout_s=0.3) as backend:
        begun = time.monotonic()
        with pytest.raises(WorkerLostError, match=r"did not finish within 0.3 s"):
            run(one("hang"), backend)
        assert time.monotonic() - begun < 40
        assert not alive(*backend.process_ids.values())


@pytest.mark.parametrize("bad", [None, "fail", "die"])
def test_after_a_trial_the_state_of_all_actors_is_what_it_was(pool: RayBackend, bad: str | None) -> None:
    look = TaskGraph((task("l", "look", "left"), task("r", "look", "right")))
    tasks = (task("l", "add", "left"), task("r", "add", "right"), task("bad", bad or "add", "left"))
    graph = TaskGraph(tasks, (Edge("l", "bad", "order"),))
    run(TaskGraph(tasks[:1]), pool)
    before = run(look, pool).outputs
    if bad is None:
        run(graph, pool, trial=[pool])
    else:
        with pytest.raises(WorkerLostError if bad == "die" else TaskFailedError):
            run(graph, pool, trial=[pool])
    later = run(look, pool).outputs
    assert [later[i][:2] for i in "lr"] == [before[i][:2] for i in "lr"]
    assert (later["l"][2] != before["l"][2]) == (bad == "die")


def test_actors_that_cannot_be_made(cluster: Any) -> None:
    before = set(threading.enumerate())
    with pytest.raises(WorkerStartError, match="worker bad could not be made: FileNotFoundError"):
        run(one("call"), RayBackend({"left": Counter, "bad": missing_checkpoint}))
    needs = RayBackend({"left": Counter}, options={"left": {"num_cpus": 99}}, setup_timeout_s=0.5)
    with pytest.raises(WorkerStartError, match=r"did not answer within 0.5 s.*ray status"):
        run(one("call"), needs)
    with pytest.raises(UsageError, match="options of the worker 'right'"):
        RayBackend({"left": Counter}, options={"right": {}})
    with RayBackend({"x": no_restore}) as backend, pytest.raises(UsageError, match="state of worker x"):
        run(one("call", "x"), backend, trial=[backend])
    assert set(threading.enumerate()) <= before


def test_without_ray_running_here_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(UsageError, match=r"call ray.init\(\) first"):
        run(one("call"), RayBackend({"left": Counter}))
