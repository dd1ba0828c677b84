"""Workers are real processes: they keep state, share arrays, and leave nothing behind however they end."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from rlprof.errors import UsageError
from rlprof.taskgraph import (
    Cancellation,
    Edge,
    RemoteError,
    RunCancelledError,
    Task,
    TaskFailedError,
    TaskGraph,
    WorkerDownError,
    WorkerLostError,
    WorkerStartError,
    run,
    verify,
)
from rlprof.taskgraph.processes import ProcessBackend
from rlprof.taskgraph.record import RunRecord
from tests.conftest import python_path

from .made import graphs
from .test_transfer import open_blocks
from .worker_states import (
    Counter,
    dies_early,
    missing_checkpoint,
    no_restore,
    restorable_mapping,
    too_slow,
)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    threads, blocks = set(threading.enumerate()), open_blocks()
    yield
    assert set(threading.enumerate()) <= threads
    assert open_blocks() <= blocks


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessBackend]:
    with ProcessBackend({"left": Counter, "right": functools.partial(Counter, 10)}) as backend:
        yield backend
    assert not alive(*backend.process_ids.values())


def alive(*processes: int) -> list[int]:
    """Those that still run: a zombie does not."""
    found = []
    for process in processes:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        found += [process] if state != "Z" else []
    return found


def task(id: str, payload: str, worker: str | None = None, **more: Any) -> Task:
    return Task(id, payload=payload, worker=worker, **more)


def one(payload: str, worker: str | None = "left", **more: Any) -> TaskGraph:
    return TaskGraph((task("a", payload, worker, **more),))


def after(seconds: float, what: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, what)
    timer.start()
    return timer


def once_there(path: Path, what: Callable[[], object]) -> threading.Timer:
    """Do something when a task has made its file."""

    def waits() -> None:
        until = time.monotonic() + 50
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        what()

    return after(0, waits)


@given(graphs())
@settings(max_examples=30, deadline=None)
def test_any_graph_runs_as_it_says(pool: ProcessBackend, graph: TaskGraph) -> None:
    result = run(graph, pool)
    assert verify(graph, result.record) == ()
    consumed = {e.source for e in graph.edges if e.kind == "data"}
    assert result.outputs == {t.id: t.id for t in graph.tasks if t.id not in consumed}
    assert {r.worker for r in result.record.tasks} <= {"left", "right"}


def test_a_worker_is_a_process_that_keeps_its_state_from_run_to_run(pool: ProcessBackend) -> None:
    graph = TaskGraph((task("l", "look", "left"), task("r", "look", "right")))
    before = run(graph, pool).outputs
    assert (before["l"][2], before["r"][2]) == (pool.process_ids["left"], pool.process_ids["right"])
    assert os.getpid() not in (before["l"][2], before["r"][2])
    run(TaskGraph((task("l", "add", "left"), task("r", "add", "right"))), pool)
    later = run(graph, pool).outputs
    assert [later[i][0] - before[i][0] for i in "lr"] == [1, 1]


def beside(tmp_path: Path) -> tuple[Task, ...]:
    """Two tasks for each worker: the first ones are complete once both have begun."""
    meet = (("folder", str(tmp_path)),)
    return tuple(task(f"{w}0", "meet", w, provenance=meet) for w in ("left", "right")) + tuple(
        task(f"{w}1", "device", w, program_order=1) for w in ("left", "right")
    )


def test_workers_run_beside_each_other_and_each_one_task_at_a_time(
    pool: ProcessBackend, tmp_path: Path
) -> None:
    tasks = beside(tmp_path)
    record = run(TaskGraph(tasks), pool).record
    runs = sorted(record.tasks, key=lambda r: r.start_ns)
    assert runs[0].end_ns > runs[1].start_ns
    assert verify(TaskGraph(tasks), record) == ()
    assert all(r.end_ns - r.returned_ns > 30e6 for r in runs)  # complete when `wait` returned


def test_tasks_without_a_worker_go_to_any_that_can(pool: ProcessBackend, tmp_path: Path) -> None:
    tasks = tuple(dataclasses.replace(t, worker=None) for t in beside(tmp_path))
    free = run(TaskGraph(tasks), pool).record
    assert {r.worker for r in free.tasks} == {"left", "right"}
    with ProcessBackend({"all": Counter, "few": no_restore}) as backend:
        record = run(TaskGraph(tuple(task(f"t{i}", "add") for i in range(4))), backend).record
    assert {r.worker for r in record.tasks} == {"all"}


def test_large_arrays_go_from_worker_to_worker_and_are_let_go_of(pool: ProcessBackend) -> None:
    graph = TaskGraph(
        (
            task("make", "large", "left"), task("x", "total", "right"), task("y", "total", "left"),
            task("z", "total", "right"),
        ),
        (Edge("make", "x"), Edge("make", "y"), Edge("make", "z"), Edge("x", "z", "order")),
    )  # fmt: skip
    result = run(graph, pool, keep=frozenset({"make"}))
    kept = result.outputs["make"]
    # each consumer wrote into what it got
    assert result.outputs["x"] == result.outputs["y"] == result.outputs["z"] == kept["array"].sum() > 0
    kept["array"][0] = 7  # a value like any other
    assert [open_blocks(p) for p in (os.getpid(), *pool.process_ids.values())] == [0, 0, 0]


def test_a_worker_may_keep_an_input(pool: ProcessBackend) -> None:
    graph = TaskGraph((task("make", "large", "left"), task("keep", "keep", "right")), (Edge("make", "keep"),))
    run(graph, pool)
    assert open_blocks() == 0
    assert run(one("kept_sum", "right"), pool).outputs["a"] > 0


def test_an_exception_comes_back_as_it_is_with_its_traceback(pool: ProcessBackend) -> None:
    with pytest.raises(TaskFailedError, match="task a failed on left: ValueError: boom") as caught:
        run(one("fail"), pool)
    assert isinstance(caught.value.__cause__, ValueError)
    assert not isinstance(caught.value, WorkerLostError)
    (note,) = caught.value.__cause__.__notes__
    assert "in worker left" in note
    assert "worker_states.py" in note
    assert [r.failed for r in caught.value.record.tasks] == [True]
    with pytest.raises(TaskFailedError, match="RemoteError: Odd: odd 3") as caught:
        run(one("fail_oddly"), pool)
    assert isinstance(caught.value.__cause__, RemoteError)
    with pytest.raises(TaskFailedError, match="SystemExit"):
        run(one("quit"), pool)
    assert pool.lost == {}


def test_outputs_that_cannot_travel_are_errors_of_their_task(pool: ProcessBackend) -> None:
    with pytest.raises(
        TaskFailedError, match="task a failed on left: TransferError: a lock cannot be pickled"
    ):
        run(one("unpicklable"), pool)
    for graph in (
        one("only_there"),
        TaskGraph((task("a", "only_there", "left"), task("b", "keep", "right")), (Edge("a", "b"),)),
    ):
        with pytest.raises(TaskFailedError, match="no such class here") as caught:
            run(graph, pool)
        assert caught.value.task == graph.tasks[-1].id
    assert isinstance(caught.value.__cause__, ImportError)


def test_what_cannot_run_is_refused_before_anything_runs(pool: ProcessBackend) -> None:
    for graph, message in (
        (one("add", "middle"), "'a' names the worker 'middle'.*there are left, right"),
        (one("jump"), "'a' has the payload 'jump'.* no call in worker 'left'"),
        (one("jump", None), "'a' has the payload 'jump'.* no call in any worker"),
        (one("_private"), "'_private'"),
    ):
        with pytest.raises(UsageError, match=message):
            run(graph, pool)
    with pytest.raises(UsageError, match="factory of worker 'x' cannot be pickled"):
        ProcessBackend({"x": lambda: Counter(3)})
    with pytest.raises(UsageError, match="no workers"):
        ProcessBackend({})
    assert run(one("call"), pool).outputs == {"a": "a"}


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (missing_checkpoint, "worker bad could not be made: FileNotFoundError.*checkpoint.pt"),
        (dies_early, r"worker bad could not be made: process \d+ exited with status 9"),
        pytest.param(
            too_slow, "worker bad could not be made: it did not answer within 2.0 s", marks=pytest.mark.slow
        ),
    ],
)
def test_a_worker_that_cannot_be_made_ends_the_others(factory: Any, message: str) -> None:
    timeout_s = 2.0 if factory is too_slow else 60.0
    backend = ProcessBackend({"good": Counter, "bad": factory}, setup_timeout_s=timeout_s)
    begun = time.monotonic()
    with pytest.raises(WorkerStartError, match=message):
        run(one("call", "good"), backend)
    assert time.monotonic() - begun < 40
    assert backend.process_ids == {}


def stopped(graph: TaskGraph, backend: ProcessBackend, **more: Any) -> tuple[WorkerLostError, float]:
    """The error of a run that loses a worker, and how long it took."""
    begun = time.monotonic()
    with pytest.raises(WorkerLostError) as caught:
        run(graph, backend, **more)
    return caught.value, time.monotonic() - begun


def test_a_worker_killed_in_the_middle_takes_all_that_it_started_with_it(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    graph = TaskGraph(
        (
            task("big", "large", "right", program_order=0),
            task("bad", "hang_with_children", "left", program_order=1, provenance=(("path", str(path)),)),
            task("long", "hang", "right", program_order=2),
            task("use", "total", "right", program_order=3),
        ),
        (Edge("big", "bad"), Edge("big", "use"), Edge("bad", "use", "order")),
    )
    killed: list[float] = []

    def kill() -> None:
        killed.append(time.monotonic())
        os.kill(backend.process_ids["left"], signal.SIGKILL)

    with ProcessBackend({"left": Counter, "right": Counter}, grace_s=0.5) as backend:
        started = backend.process_ids
        killer = once_there(path, kill)
        error, _ = stopped(graph, backend)
        assert time.monotonic() - killed[0] < 40
        killer.join()
        assert (error.task, error.worker) == ("bad", "left")
        assert f"task bad lost its worker left: process {started['left']} was killed by signal 9" in str(
            error
        )
        ids = [int(i) for i in path.read_text().split()]
        assert len(ids) == 4
        assert not alive(*ids, started["right"])  # the other one hung and was ended with the run
        assert open_blocks() == 0
        assert {r.task: r.failed for r in error.record.tasks} == {"big": False, "bad": True, "long": True}
        # what was lost is not made anew behind anybody's back
        assert set(backend.lost) == {"left", "right"}
        with pytest.raises(WorkerDownError, match=r"left was lost before .* signal 9.*renew\(\)"):
            run(one("call"), backend)
        assert backend.renew() == ("left", "right")
        assert run(one("add"), backend).outputs == {"a": 1}


def test_other_workers_finish_what_they_do_and_can_be_used_again(tmp_path: Path) -> None:
    meet = (("folder", str(tmp_path)),)
    bad, slow = (("bad", "meet_and_die", "left"), ("slow", "meet", "right"))
    graph = TaskGraph((task(*bad, provenance=meet), task(*slow, provenance=meet)))
    with ProcessBackend({"left": Counter, "right": Counter}, grace_s=60.0) as backend:
        error, _ = stopped(graph, backend)
        assert "exited with status 7" in str(error)
        assert {r.task: r.failed for r in error.record.tasks} == {"bad": True, "slow": False}
        assert set(backend.lost) == {"left"}
        backend.renew()
        assert verify(graph, error.record) != ()
        assert run(one("add", "right"), backend).outputs == {"a": 1}


@pytest.mark.parametrize("how", ["sleeps", pytest.param("is stopped", marks=pytest.mark.slow)])
def test_a_task_that_takes_too_long_loses_its_worker(how: str) -> None:
    def limit_s(task: Task) -> float | None:
        return 0.3 if task.id == "a" else None

    with ProcessBackend({"left": Counter}, timeout_s=limit_s) as backend:
        (process,) = backend.process_ids.values()
        timer = after(0.1, lambda: os.kill(process, signal.SIGSTOP) if how == "is stopped" else None)
        error, took_s = stopped(one("hang"), backend)
        timer.join()
        assert took_s < 40
        assert "task a lost its worker left: it did not finish within 0.3 s" in str(error)
        assert not alive(process)


def test_cancelling_ends_what_does_not_finish_in_time(tmp_path: Path) -> None:
    cancellation, path = Cancellation(), tmp_path / "hangs"
    with ProcessBackend({"left": Counter, "right": Counter}, grace_s=0.3) as backend:
        timer = once_there(path, lambda: cancellation.cancel("enough"))
        hang = task("a", "hang", "left", provenance=(("path", str(path)),))
        graph = TaskGraph((hang, task("b", "add", "right")), (Edge("b", "a", "order"),))
        begun = time.monotonic()
        with pytest.raises(RunCancelledError, match=r"enough.* 1 of 2 tasks not done") as caught:
            run(graph, backend, cancellation=cancellation)
        assert time.monotonic() - begun < 40
        timer.join()
        assert {r.task: r.failed for r in caught.value.record.tasks} == {"a": True, "b": False}
        assert set(backend.lost) == {"left"}


def test_ctrl_c_ends_what_does_not_finish_in_time(tmp_path: Path) -> None:
    path = tmp_path / "hangs"
    with ProcessBackend({"left": Counter}, grace_s=0.2) as backend:
        main = threading.main_thread().ident or 0
        timer = once_there(path, lambda: signal.pthread_kill(main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            run(one("hang", provenance=(("path", str(path)),)), backend)
        timer.join()
        assert set(backend.lost) == {"left"}


def test_without_a_context_each_run_has_its_own_workers() -> None:
    backend = ProcessBackend({"left": Counter})
    seen = [run(one("look"), backend).outputs["a"] for _ in range(2)]
    assert [s[0] for s in seen] == [0, 0]
    assert seen[0][2] != seen[1][2]
    assert not alive(*(s[2] for s in seen))
    with pytest.raises(UsageError, match="as a context manager"):
        run(one("look"), backend, trial=[backend])


PROGRAM = """
import sys, time
from rlprof.taskgraph import Task, TaskGraph, run
from rlprof.taskgraph.processes import ProcessBackend
from tests.taskgraph.worker_states import Counter

if __name__ == "__main__":
    with ProcessBackend({"left": Counter, "idle": Counter}) as backend:
        print(*backend.process_ids.values(), backend._guardian._process.pid, flush=True)
        task = Task("a", payload="hang_with_children", worker="left", provenance=(("path", sys.argv[1]),))
        run(TaskGraph((task,)), backend)
"""


def test_when_the_program_itself_is_killed_nothing_is_left(tmp_path: Path) -> None:
    script, path = tmp_path / "program.py", tmp_path / "ids"
    script.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(script), str(path)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": python_path()},
    ) as program:  # fmt: skip
        assert program.stdout is not None
        ids = [int(i) for i in program.stdout.readline().split()]
        until = time.monotonic() + 50
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        ids += [int(i) for i in path.read_text().split()]
        assert len(alive(*set(ids))) == 6
        program.kill()
    until = time.monotonic() + 40
    while alive(*ids) and time.monotonic() < until:
        time.sleep(0.02)
    assert alive(*ids) == []


@pytest.mark.slow
def test_a_script_that_starts_workers_while_it_is_imported_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace('if __name__ == "__main__":', "if True:"))
    done = subprocess.run(
        [sys.executable, str(script), "unused"], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": python_path()},
    )  # fmt: skip
    assert done.returncode == 1
    assert "WorkerStartError: worker left could not be made: RuntimeError" in done.stderr
    assert "__name__ == '__main__'" in done.stderr


@pytest.mark.slow
def test_workers_end_in_order_when_their_guardian_is_gone() -> None:
    with ProcessBackend({"left": Counter, "right": Counter}) as backend:
        assert backend._guardian is not None
        os.kill(backend._guardian._process.pid, signal.SIGKILL)
        ids = backend.process_ids
        assert run(one("add"), backend).outputs == {"a": 1}
        os.kill(ids["left"], signal.SIGKILL)
        while not backend.lost:
            time.sleep(0.01)
        backend.renew()
        assert run(one("add"), backend).outputs == {"a": 1}
        ids |= {"new": backend.process_ids["left"]}
    assert not alive(*ids.values())


@pytest.fixture(scope="module")
def trial_pool() -> Iterator[ProcessBackend]:
    factories = {"left": functools.partial(Counter, 5), "right": Counter, "map": restorable_mapping}
    with ProcessBackend(factories, grace_s=0.2) as backend:
        run(TaskGraph((task("l", "add", "left"), task("m", "add", "map"))), backend)
        yield backend


LOOK = TaskGraph((task("l", "look", "left"), task("r", "look", "right")))
ADD = (task("l", "add", "left"), task("r", "add", "right"), task("m", "add", "map"))


@pytest.mark.parametrize("bad", [None, "fail", "die", "hang"])
def test_after_a_trial_the_state_of_all_workers_is_what_it_was(
    trial_pool: ProcessBackend, bad: str | None
) -> None:
    """Whether it ends well, a task fails, a worker dies, or one hangs beside one that dies."""
    tasks = ADD
    if bad is not None:
        tasks = (*ADD, task("bad", "die" if bad == "hang" else bad, "left"))
    if bad == "hang":
        tasks = (*tasks, task("worse", "hang", "right"))
    graph = TaskGraph(tasks, tuple(Edge("l", t.id, "order") for t in tasks[3:]))
    lost = run(LOOK, trial_pool).outputs
    record: RunRecord
    if bad is None:
        record = run(graph, trial_pool, trial=[trial_pool]).record
    else:
        with pytest.raises(TaskFailedError) as caught:
            run(graph, trial_pool, trial=[trial_pool])
        record = caught.value.record
        assert isinstance(caught.value, WorkerLostError) == (bad != "fail")
    assert {r.task for r in record.tasks if not r.failed} >= {"l"}
    kept = run(LOOK, trial_pool).outputs
    assert (kept["l"][:2], kept["r"][:2]) == ((6, 50_000.0), (0, 0.0)) == (lost["l"][:2], lost["r"][:2])
    assert (kept["l"][2] != lost["l"][2]) == (bad in ("die", "hang"))
    assert run(TaskGraph((task("m", "add", "map"),)), trial_pool, trial=[trial_pool]).outputs == {"m": 2}
    assert trial_pool.lost == {}


def test_a_worker_whose_state_cannot_be_saved_is_refused_before_the_trial() -> None:
    with ProcessBackend({"left": Counter, "x": no_restore}) as backend:
        with pytest.raises(UsageError, match="state of worker x cannot be brought back"):
            run(one("add"), backend, trial=[backend])
        assert run(one("add"), backend).outputs == {"a": 1}


def test_one_run_at_a_time(pool: ProcessBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []

    def other() -> None:
        try:
            run(one("call", "right"), pool)
        except UsageError as error:
            errors.append(str(error))

    submit = pool.submit

    def submit_beside_another_run(*arguments: Any) -> None:
        submit(*arguments)
        after(0, other).join()

    monkeypatch.setattr(pool, "submit", submit_beside_another_run)
    run(one("device"), pool)
    assert len(errors) == 1
    assert "serves another run" in errors[0]


@pytest.mark.parametrize(
    "wrong", [{"timeout_s": "3"}, {"timeout_s": -1}, {"grace_s": True}, {"setup_timeout_s": None}]
)
def test_a_time_that_is_none_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"{next(iter(wrong))} is {next(iter(wrong.values()))!r}"):
        ProcessBackend({"left": Counter}, **wrong)


@pytest.mark.parametrize(
    ("limit", "kind"), [(lambda _: "3", UsageError), (lambda _: 1 / 0, ZeroDivisionError)]
)
def test_a_limit_that_cannot_be_computed_does_not_hang(limit: Any, kind: type[Exception]) -> None:
    with ProcessBackend({"left": Counter}, timeout_s=limit) as backend:
        with pytest.raises(kind):
            run(one("look"), backend)
        assert not backend.lost


def test_a_worker_is_there_by_its_name_while_the_pool_keeps_it() -> None:
    pool = ProcessBackend({"one": Counter})
    with pytest.raises(UsageError, match=r"there is no worker 'one' now\. Next: ask inside of the block"):
        pool.worker("one")
    with pool:
        assert pool.worker("one").execute(0, Task("task", payload="add"), {}).error is None
        with pytest.raises(UsageError, match="there is no worker 'two' now"):
            pool.worker("two")
