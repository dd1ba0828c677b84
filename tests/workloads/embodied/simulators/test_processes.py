"""Simulators in processes of their own: the same bits; deaths and hangs are clear, and nothing stays."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.errors import (
    ConfigurationError,
    RenderError,
    SimulatorDiedError,
    SimulatorError,
    SimulatorTimeoutError,
)
from rlprof.workloads.embodied.simulators import processes as module
from rlprof.workloads.embodied.simulators.processes import SimulatorProcesses
from rlprof.workloads.embodied.simulators.served import ServedProcess
from tests.conftest import ROOT

FAULTY = "tests.workloads.embodied.simulators.faulty:Faulty"
ARM = "rlprof.workloads.embodied.simulators.mujoco_arm:MujocoArm"
ACTIONS = np.ones((4, 2, 3), dtype=np.float32)


def faulty(**options) -> SimulatorProcesses:
    return SimulatorProcesses(FAULTY, 4, workers=2, environment={"PYTHONPATH": str(ROOT)}, **options)


def alive(process: int) -> bool:
    """Runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(processes: tuple[int, ...], within_s: float = 40.0) -> bool:
    until = time.monotonic() + within_s
    while any(Path(f"/proc/{p}").exists() for p in processes) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(Path(f"/proc/{p}").exists() for p in processes)


def test_processes_give_the_bits_of_one_process(mujoco) -> None:
    from rlprof.workloads.embodied.simulators.mujoco_arm import MujocoArm

    options = {"seed": 3, "group": 2, "auto_reset": True, "episode_steps": 10}
    native = MujocoArm(6, **options)
    draw = np.random.default_rng(0)
    with SimulatorProcesses(ARM, 6, workers=2, **options) as simulator:
        assert simulator.spec == native.spec
        assert equal_bits(simulator.reset(GlobalStep(0), 0), native.reset(GlobalStep(0), 0))
        for samples in (None, np.array([5, 0, 3]), np.array([2])):
            actions = draw.uniform(-1, 1, (6 if samples is None else len(samples), 5, 4)).astype(np.float32)
            assert equal_bits(simulator.step(actions, samples), native.step(actions, samples))
        simulator.physics(actions, samples)
        native.physics(actions, samples)
        assert equal_bits(simulator.reward(samples), native.reward(samples))
        simulator.auto_reset(samples)
        native.auto_reset(samples)
        assert equal_bits(simulator.render(), native.render())
        state = simulator.state_dict()
        assert equal_bits(state, native.state_dict())
        simulator.step(np.zeros((6, 5, 4), np.float32))
        simulator.load_state_dict(state)
        assert equal_bits(simulator.state_dict(), native.state_dict())


def test_images_show_the_scene(mujoco) -> None:
    """In fresh processes, whatever this one has imported; skipped where no images can be made."""
    try:
        simulator = SimulatorProcesses(ARM, 3, workers=2, cameras=2, image=32)
    except RenderError as error:
        pytest.skip(str(error))
    with simulator:
        seen = simulator.reset(GlobalStep(0), 0)
        assert seen.images is not None
        assert seen.images.shape == (3, 2, 32, 32, 3)
        assert seen.images.std() > 5
        draw = np.random.default_rng(0)
        after = simulator.step(draw.uniform(-1, 1, (3, 5, 4)).astype(np.float32)).observation.images
        assert not np.array_equal(after, seen.images)
        # each environment is where it was put, whichever process it is in
        alone = simulator.render(np.array([1])).images
        assert np.array_equal(alone[0], after[1])
        assert not np.array_equal(after[0], after[1])


def test_results_do_not_change_with_the_next_call() -> None:
    with faulty() as simulator:
        first = simulator.reset(GlobalStep(0), 0)
        simulator.step(ACTIONS)
        assert not first.state.any()


@pytest.mark.parametrize("call", ["render_views", "reset_views", "step_views", "paint"])
def test_threads_get_the_answers_to_their_own_calls(call: str) -> None:
    """Each asks the same processes for other environments; answers lie in the same memory."""
    make = "tests.workloads.embodied.simulators.viewed:" + ("Drawer" if call == "paint" else "Viewed")
    wrong: list[Any] = []
    with SimulatorProcesses(make, 8, workers=2, environment={"PYTHONPATH": str(ROOT)}) as simulator:

        def ask(rows: np.ndarray) -> None:
            calls: dict[str, Callable[[], Any]] = {
                "render_views": lambda: simulator.render_views(rows)[1][:, 0],
                "reset_views": lambda: simulator.reset_views(GlobalStep(0), 0, rows)[0].task,
                "step_views": lambda: simulator.step_views(np.zeros((3, 2, 3), np.float32), rows)[1][:, 0],
                "paint": lambda: simulator.paint(np.column_stack([rows, rows]), rows)[:, 0, 0, 0, 0],
            }
            for _ in range(400):
                if not np.array_equal(found := calls[call](), rows):
                    wrong.append((found, rows))

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            threads = [threading.Thread(target=ask, args=(np.array(r),)) for r in ([0, 3, 2], [7, 4, 5])]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
    assert not wrong


def test_rows_that_a_process_has_no_room_for_leave_no_answer_for_the_next_call() -> None:
    with faulty() as simulator:
        before = simulator.reset(GlobalStep(0), 0)
        with pytest.raises(SimulatorError, match=r"3 rows for simulator process 1 .*, which takes 2"):
            simulator.step(ACTIONS, np.array([0, 1, 1, 1]))
        assert equal_bits(simulator.render(), before)
        assert simulator.step(ACTIONS[:0], np.array([], dtype=np.int64)).rewards.shape == (0, 2)
        assert simulator.step(ACTIONS).rewards.shape == (4, 2)


def test_an_error_in_a_process_is_raised_here_and_the_simulator_goes_on() -> None:
    with faulty(how="raises", call="step") as simulator:
        with pytest.raises(
            SimulatorError, match=r"process 1 \(environments 1, 3\): the gripper is stuck"
        ) as e:
            simulator.step(ACTIONS)
        assert e.value.hint == "pull"
        assert simulator.step(ACTIONS[:2], np.array([0, 2])).rewards.tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize(
    ("how", "says"), [("exits", "code 7 (somebody tripped over the cable)"), ("crashes", "SIGSEGV")]
)
def test_a_process_that_dies_is_named_and_all_end(how: str, says: str) -> None:
    simulator = faulty(how=how)
    processes = simulator.process_ids
    simulator.reset(GlobalStep(0), 0)
    with pytest.raises(SimulatorDiedError) as caught:
        simulator.step(ACTIONS)
    assert says in str(caught.value)
    assert "environments 1, 3" in str(caught.value)
    assert gone(processes)
    with pytest.raises(SimulatorError, match="is no more"):
        simulator.reset(GlobalStep(0), 0)
    simulator.close()


def test_a_process_that_is_killed_between_calls_is_named() -> None:
    simulator = faulty()
    simulator.reset(GlobalStep(0), 0)
    os.kill(simulator.process_ids[0], signal.SIGKILL)
    with pytest.raises(SimulatorDiedError, match="SIGKILL during reset"):
        simulator.reset(GlobalStep(0), 0)
    assert gone(simulator.process_ids)


def test_a_process_that_hangs_is_ended_in_time() -> None:
    simulator = faulty(how="hangs", timeout_s=0.5)
    processes = simulator.process_ids
    started = time.monotonic()
    with pytest.raises(SimulatorTimeoutError, match=r"process 1 .* did not answer to step within 0.5 s"):
        simulator.step(ACTIONS)
    assert time.monotonic() - started < 60  # it would take ten times as long
    assert gone(processes)


def test_one_that_another_thread_ends_in_a_call_is_no_more() -> None:
    simulator = faulty(how="hangs")
    failures: list[BaseException] = []

    def step() -> None:
        try:
            simulator.step(ACTIONS)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.5)  # it is in the call
    simulator.end()
    thread.join(30)
    assert [type(error) for error in failures] == [SimulatorError]  # not of files that are closed
    assert "it was ended" in str(failures[0])
    assert gone(simulator.process_ids)


def test_a_process_that_hangs_at_the_end_is_ended() -> None:
    simulator = faulty(how="hangs", call="close", timeout_s=0.3)
    simulator.close()
    assert gone(simulator.process_ids)
    simulator.close()


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_simulator_that_cannot_be_made_leaves_nothing(how: str) -> None:
    before = children()
    with pytest.raises(SimulatorError, match="process 1"):
        faulty(how=how, call="make")
    assert children() <= before


def children() -> set[str]:
    mine = str(os.getpid())
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == mine:
            found.add(status.parent.name)
    return found


def test_memory_that_is_not_there_is_said_and_leaves_nothing() -> None:
    before = children()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))
    try:
        with pytest.raises(SimulatorError, match=r"no \d+ bytes of memory to share .*\(File too"):
            faulty()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert children() <= before
    with pytest.raises(SimulatorDiedError, match=r"code 1 \(OSError: .*Cannot allocate memory"):
        faulty(how="no memory", call="make").reset(GlobalStep(0), 0)
    assert children() <= before


def test_processes_end_with_their_driver() -> None:
    code = f"""
import time
from rlprof.workloads.embodied.simulators.processes import SimulatorProcesses
s = SimulatorProcesses({FAULTY!r}, 4, workers=2)
print(*s.process_ids, flush=True)
time.sleep(60)
"""
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    processes = tuple(map(int, driver.stdout.readline().split()))
    assert len(processes) == 2
    assert all(alive(p) for p in processes)
    driver.kill()
    driver.wait()
    driver.stdout.close()
    until = time.monotonic() + 40
    while any(alive(p) for p in processes) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(alive(p) for p in processes)


@pytest.mark.parametrize("serve", ["simulators.serve", "rollout_serve"])
def test_a_process_whose_driver_is_gone_before_it_has_begun_ends_too(tmp_path: Path, serve: str) -> None:
    """It never saw its driver, and a process that the driver had forked holds the other end of the socket."""
    late = f"""
import os, runpy, sys, time
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.01)
runpy.run_module("rlprof.workloads.embodied.{serve}", run_name="__main__")
"""
    driver = f"""
import socket, subprocess, sys
mine, other = socket.socketpair()
quiet = {{"stdout": subprocess.DEVNULL}}
late = [sys.executable, "-c", {late!r}, str(other.fileno())]
begins = subprocess.Popen(late, pass_fds=[other.fileno()], **quiet)
holds = subprocess.Popen(["sleep", "60"], pass_fds=[mine.fileno()], **quiet)
print(begins.pid, holds.pid)
"""
    done = subprocess.run(
        [sys.executable, "-c", driver], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    begins, holds = map(int, done.stdout.split())
    try:
        (tmp_path / "go").touch()
        until = time.monotonic() + 50
        while alive(begins) and time.monotonic() < until:
            time.sleep(0.05)
        assert not alive(begins)
        assert alive(holds)
    finally:
        for process in (begins, holds):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def nice_values(process: int) -> set[int]:
    """Of all threads of a process."""
    tasks = [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()]
    assert len(tasks) > 1  # the one that looks after the driver was there before
    return {os.getpriority(os.PRIO_PROCESS, task) for task in tasks}


def test_processes_are_nicer_in_all_their_threads() -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    with faulty() as plain, faulty(nice=4) as nicer, faulty(nice=19) as nicest:
        for simulator, value in ((plain, mine), (nicer, min(19, mine + 4)), (nicest, 19)):
            assert [nice_values(p) for p in simulator.process_ids] == [{value}] * 2
            # with autogroups cores are shared out between sessions first, whatever the nice values in them
            assert {os.getsid(p) for p in simulator.process_ids} == {os.getsid(0)}


def share_of_a_core(nice: int) -> float:
    """What this thread gets of a core where it and a simulator are busy, of what both get."""
    core, task = {min(os.sched_getaffinity(0))}, threading.get_native_id()
    allowed = os.sched_getaffinity(task)
    with faulty(how="is busy", nice=nice) as simulator:
        busy = simulator.process_ids[1]
        os.sched_setaffinity(busy, core)
        os.sched_setaffinity(task, core)
        try:
            call = threading.Thread(target=simulator.step, args=(ACTIONS,))
            call.start()
            time.sleep(0.2)  # by now it is
            began, own = core_seconds(busy), time.thread_time()
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                pass
            own, theirs = time.thread_time() - own, core_seconds(busy) - began
            call.join()
        finally:
            os.sched_setaffinity(task, allowed)
    assert own + theirs > 0.2
    return own / (own + theirs)


def core_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_a_nicer_process_leaves_the_core_to_this_one() -> None:
    assert 0.3 < share_of_a_core(0) < 0.7
    assert share_of_a_core(10) > 0.8  # weights 1024 and 110: 0.90


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="5 processes for 4"):
        SimulatorProcesses(FAULTY, 4, workers=5)
    with pytest.raises(ConfigurationError, match="groups of 3"):
        faulty(group=3)
    with pytest.raises(SimulatorError, match="does not start"):
        faulty(python="/nowhere/python")
    with faulty() as simulator, pytest.raises(SimulatorError, match="shape"):
        simulator.step(ACTIONS[:, :1])


@contextmanager
def interrupted(*after_s: float) -> Iterator[None]:
    """Ctrl-C, so many seconds after the next answer was begun to be waited for, and before it is given."""
    with pytest.MonkeyPatch.context() as patch:

        def waits(connections: list[Any], timeout_s: float) -> list[Any]:
            patch.undo()
            timers = [threading.Timer(s, os.kill, (os.getpid(), signal.SIGINT)) for s in after_s]
            for timer in timers:
                timer.start()
            found = wait(connections, timeout_s)
            for timer in timers:
                timer.join()
            return found

        patch.setattr(module, "wait", waits)
        yield


@pytest.mark.parametrize("call", ["step", "state_dict"])
def test_an_interrupted_call_leaves_no_answer_for_the_next_one(call: str) -> None:
    arguments = (ACTIONS,) if call == "step" else ()
    with faulty(how="is busy", call=call) as simulator:
        with interrupted(0.5), pytest.raises(KeyboardInterrupt):
            getattr(simulator, call)(*arguments)
        if call == "step":
            assert simulator.state_dict()["count"].tolist() == [1] * 4
        else:
            assert simulator.step(ACTIONS).observation.task.tolist() == [1] * 4
        # again, and impatiently: they end
        with interrupted(0.3, 0.6), pytest.raises(KeyboardInterrupt):
            getattr(simulator, call)(*arguments)
        with pytest.raises(SimulatorError, match=f"{call} was interrupted"):
            simulator.render()
    assert gone(simulator.process_ids)


def interrupted_after_sending(patch: pytest.MonkeyPatch, times: int) -> None:
    """Ctrl-C, not while an answer is waited for but when an order was just sent."""
    native = ServedProcess.send

    def send(self: ServedProcess, order: dict[str, Any]) -> None:
        native(self, order)
        if self.number == 0 and order["call"] != "close":
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    patch.setattr(ServedProcess, "send", send)


@pytest.mark.parametrize("times", [1, 2])
def test_an_interruption_between_an_order_and_its_answer_does_not_part_them(times: int) -> None:
    with faulty() as simulator:
        simulator.reset(GlobalStep(0), 0)
        for call, arguments in (("step", (ACTIONS,)), ("state_dict", ()), ("render", ())):
            with pytest.MonkeyPatch.context() as patch:
                interrupted_after_sending(patch, times)
                with pytest.raises(KeyboardInterrupt):
                    getattr(simulator, call)(*arguments)
            if times == 2:
                break
        else:
            assert simulator.state_dict()["count"].tolist() == [1] * 4
            assert simulator.step(ACTIONS).observation.task.tolist() == [2] * 4
        if times == 2:
            with pytest.raises(SimulatorError, match="step was interrupted"):
                simulator.render()
            assert gone(simulator.process_ids)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
