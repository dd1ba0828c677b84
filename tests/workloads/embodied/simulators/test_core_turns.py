"""Turns on the cores: who waits for whom, what stays the same, and that nobody waits for the dead."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.errors import SimulatorTimeoutError
from rlprof.workloads.embodied.simulators.core_turns import CoreTurns, turn
from rlprof.workloads.embodied.simulators.processes import SimulatorProcesses

ARM = "rlprof.workloads.embodied.simulators.mujoco_arm:MujocoArm"
#: Says that it has its place, and keeps it until told to go on.
KEEPS = """
import sys
from rlprof.workloads.embodied.simulators.core_turns import turn
with turn(int(sys.argv[1]), int(sys.argv[2])):
    print("in", flush=True)
    sys.stdin.readline()
print("out", flush=True)
sys.stdin.readline()
"""


@contextmanager
def process(turns: CoreTurns, number: int) -> Iterator[subprocess.Popen[str]]:
    """A process of a simulator that computes until it is told to stop."""
    made = subprocess.Popen(
        [sys.executable, "-c", KEEPS, str(turns.descriptor), str(number)],
        pass_fds=[turns.descriptor], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with made:
        try:
            yield made
        finally:
            made.kill()


def told(from_: IO[str] | None) -> str:
    assert from_ is not None
    return from_.readline().strip()


def go_on(one: subprocess.Popen[str]) -> None:
    assert one.stdin is not None
    one.stdin.write("\n")
    one.stdin.flush()


def waits(one: subprocess.Popen[str], within_s: float = 0.3) -> bool:
    """Whether a process says nothing for a while; what it says later is still there to be read."""
    from select import select

    assert one.stdout is not None
    return not select([one.stdout], [], [], within_s)[0]


def test_one_place_is_for_one_process_of_all_simulators() -> None:
    turns = CoreTurns(1)
    with process(turns, 0) as first:
        assert told(first.stdout) == "in"
        with process(turns, 7) as second:
            assert waits(second, 1.0)
            go_on(first)
            assert told(second.stdout) == "in"
            assert told(first.stdout) == "out"


def test_places_are_for_numbers_modulo_their_number() -> None:
    turns = CoreTurns(2)
    with process(turns, 0) as first, process(turns, 1) as second:
        assert told(first.stdout) == told(second.stdout) == "in"
        with process(turns, 3) as third:
            assert waits(third, 1.0)
            go_on(first)  # of another place
            assert told(first.stdout) == "out"
            assert waits(third)
            go_on(second)
            assert told(third.stdout) == "in"


def test_without_places_nobody_waits() -> None:
    turns = CoreTurns()
    assert turns.places == 0
    with process(turns, 0) as first, process(turns, 0) as second:
        assert told(first.stdout) == told(second.stdout) == "in"


def test_a_process_that_is_killed_gives_its_place_free() -> None:
    turns = CoreTurns(1)
    with process(turns, 0) as first:
        assert told(first.stdout) == "in"
        with process(turns, 0) as second:
            first.kill()
            assert told(second.stdout) == "in"


def test_an_error_gives_the_place_free() -> None:
    turns = CoreTurns(1)
    with pytest.raises(ZeroDivisionError), turn(turns.descriptor, 0):
        raise ZeroDivisionError
    with process(turns, 0) as other:
        assert told(other.stdout) == "in"


def test_a_number_of_places_that_none_can_be_is_refused() -> None:
    turns = CoreTurns(3)
    for number in (-1, 10**20):
        with pytest.raises(ValueError, match=f"{number} places"):
            turns.places = number
    assert turns.places == 3


def test_physics_of_a_simulator_waits_for_its_place_and_gives_the_same_bits(mujoco) -> None:
    turns = CoreTurns(1)
    actions = np.zeros((2, 5, 4), np.float32)
    with SimulatorProcesses(ARM, 2, workers=1, cores=turns) as one, SimulatorProcesses(ARM, 2) as plain:
        plain.reset(GlobalStep(0), 0)
        done = threading.Event()
        result = []

        def step() -> None:
            result.append(one.step(actions))
            done.set()

        with turn(turns.descriptor, 0):  # of another simulator, which is this process
            one.reset(GlobalStep(0), 0)  # takes no turn
            thread = threading.Thread(target=step)
            thread.start()
            assert not done.wait(0.3)
        assert done.wait(30)
        thread.join()
        turns.places = 0
        again, other = one.step(actions), plain.step(actions)
        assert equal_bits(result[0], other)
        assert equal_bits(again, plain.step(actions))


def test_who_waits_too_long_for_its_place_says_that_places_are_few(mujoco) -> None:
    turns = CoreTurns(1)
    one = SimulatorProcesses(ARM, 2, workers=1, cores=turns, timeout_s=0.5)
    with one, turn(turns.descriptor, 0):
        one.reset(GlobalStep(0), 0)
        with pytest.raises(SimulatorTimeoutError, match="or more than 1 place on the cores"):
            one.step(np.zeros((2, 5, 4), np.float32))


def test_who_waits_for_one_that_is_stopped_says_which_one_it_is(mujoco) -> None:
    turns = CoreTurns(1)
    with process(turns, 7) as other, SimulatorProcesses(ARM, 2, cores=turns, timeout_s=0.5) as one:
        assert told(other.stdout) == "in"
        assert turns.holder(0) == turns.holder(7) == other.pid
        os.kill(other.pid, signal.SIGSTOP)
        one.reset(GlobalStep(0), 0)
        said = rf"was ended: process {other.pid}, which has its place on the cores, is stopped\. Next"
        with pytest.raises(SimulatorTimeoutError, match=said):
            one.step(np.zeros((2, 5, 4), np.float32))
    assert turns.holder(0) is None
    turns.places = 0
    assert turns.holder(0) is None


def test_one_that_is_stopped_says_so_whoever_waits_for_it(mujoco) -> None:
    turns = CoreTurns(1)
    with SimulatorProcesses(ARM, 2, cores=turns, timeout_s=0.5) as one:
        one.reset(GlobalStep(0), 0)
        stopped = one.process_ids[1]
        os.kill(stopped, signal.SIGSTOP)
        said = rf"process 1 \(environments 1\) did not answer .* it was stopped \(process {stopped}\)\. Next"
        with pytest.raises(SimulatorTimeoutError, match=said):
            one.step(np.zeros((2, 5, 4), np.float32))


def memories() -> set[str]:
    """Descriptors of this process that are memory of turns."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself
            found |= {one.name} if "rlprof cores" in str(one.readlink()) else set()
    return found


def test_the_memory_is_closed_when_nobody_uses_it(mujoco) -> None:
    gc.collect()
    before = memories()
    turns = CoreTurns(1)
    with SimulatorProcesses(ARM, 2, workers=2, cores=turns):
        assert len(memories() - before) == 1
    del turns
    gc.collect()
    assert memories() == before
