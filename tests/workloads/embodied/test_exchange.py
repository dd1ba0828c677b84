"""Simulators that are exchanged: state goes along, and spare ones start at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from rlprof.workloads.embodied.errors import SimulatorError
from rlprof.workloads.embodied.exchange import Exchangeable


class World:
    """A simulator of which only state and end matter."""

    spec = None

    def __init__(self, key: Any) -> None:
        self.key, self.state, self.closed = key, 0, False

    def state_dict(self) -> int:
        return self.state

    def load_state_dict(self, state: int) -> None:
        self.state = state

    def close(self) -> None:
        self.closed = True


def test_spare_simulators_change_when_a_lever_is_kept() -> None:
    made: list[World] = []

    def make(key: Any) -> Any:
        made.append(World(key))
        return made[-1]

    spare = Exchangeable(make("spare"), make)
    here = Exchangeable(make("first"), make, [spare])
    here.inner.state = 7  # type: ignore[attr-defined]
    here.use(2, beside=False)
    assert (here.key, spare.key, here.inner.state) == (2, None, 7)  # type: ignore[attr-defined]
    here.settle()
    assert (here.key, spare.key) == (None, None)
    assert (here.inner.key, spare.inner.key) == (2, 2)  # type: ignore[attr-defined]
    assert [(w.key, w.closed) for w in made] == [("spare", True), ("first", True), (2, False), (2, False)]
    here.use(60)  # a share of the SMs: of all, and put back
    here.use(None, only=True)
    assert (here.inner.key, spare.inner.key) == (2, 2)  # type: ignore[attr-defined]


def kept(one: Exchangeable) -> list[Any]:
    """Keys of the simulators that it has."""
    return list(one._all)


def test_what_was_tried_ends_unless_it_works() -> None:
    made: list[World] = []

    def make(key: Any) -> Any:
        made.append(World(key))
        return made[-1]

    spare = Exchangeable(World("spare"), make)  # type: ignore[arg-type]
    here = Exchangeable(World("first"), make, [spare])  # type: ignore[arg-type]
    for key in (2, 3, 4):
        here.use(key, beside=key != 4)
    here.drop_all_but(None, 2)
    assert (kept(here), kept(spare)) == ([None, 2, 4], [None, 2, 3])  # 4 and 3 are at work
    here.use(None)
    here.drop_all_but(None)
    assert (kept(here), kept(spare)) == ([None], [None])
    assert all(world.closed for world in made)


@pytest.mark.parametrize("spares", [1, 3])
def test_simulators_beside_each_other_start_at_the_same_time(spares: int) -> None:
    together = threading.Barrier(spares + 1, timeout=60.0)

    def make(key: Any) -> Any:
        together.wait()  # broken, unless all are being made
        return World(key)

    beside = [Exchangeable(World("spare"), make) for _ in range(spares)]  # type: ignore[arg-type]
    here = Exchangeable(World("first"), make, beside)  # type: ignore[arg-type]
    for state, one in enumerate((here, *beside)):
        one.inner.state = state  # type: ignore[attr-defined]
    here.use(2)
    for state, one in enumerate((here, *beside)):
        assert (one.key, one.inner.key, one.inner.state) == (2, 2, state)  # type: ignore[attr-defined]
    here.use(None)
    here.use(2)  # they are there already
    assert all(kept(one) == [None, 2] for one in (here, *beside))


def test_only_those_that_are_missing_are_made() -> None:
    made: list[str] = []

    def maker(name: str) -> Any:
        return lambda key: (made.append(name), World(key))[1]

    spare = Exchangeable(World("spare"), maker("spare"))  # type: ignore[arg-type]
    here = Exchangeable(World("first"), maker("here"), [spare])  # type: ignore[arg-type]
    here.use(2, beside=False)
    assert (made, spare.key) == (["here"], None)
    here.use(2)
    assert (made, spare.key) == (["here", "spare"], 2)


@pytest.mark.parametrize("error", [SimulatorError("no GL"), KeyboardInterrupt()])
@pytest.mark.parametrize("fails", [(0,), (1,), (2,), (0, 2)])
def test_when_one_does_not_start_those_that_did_end_and_all_stay_as_they_were(
    fails: tuple[int, ...], error: BaseException
) -> None:
    together = threading.Barrier(3, timeout=60.0)
    started: list[World] = []

    def maker(number: int) -> Any:
        def make(key: Any) -> World:
            together.wait()
            if number in fails:
                raise type(error)(f"number {number}")
            started.append(World(key))
            return started[-1]

        return make

    beside = [Exchangeable(World("spare"), maker(number)) for number in (0, 1)]  # type: ignore[arg-type]
    here = Exchangeable(World("first"), maker(2), beside)  # type: ignore[arg-type]
    with pytest.raises(type(error), match=f"number {fails[0]}"):
        here.use(2)
    assert len(started) == 3 - len(fails)
    assert all(world.closed for world in started)
    assert [(one.key, kept(one)) for one in (here, *beside)] == [(None, [None])] * 3
    assert not any(one.inner.closed for one in (here, *beside))  # type: ignore[attr-defined]


def test_those_beside_what_is_beside_it_are_settled_too() -> None:
    leaf = Exchangeable(World("leaf"), World)  # type: ignore[arg-type]
    here = Exchangeable(World("here"), World, [Exchangeable(World("spare"), World, [leaf])])  # type: ignore[arg-type]
    here.use(2)
    here.settle()
    assert (leaf.key, kept(leaf), leaf.inner.key) == (None, [None], 2)  # type: ignore[attr-defined]


def test_when_one_does_not_take_the_state_all_stay_as_they_were() -> None:
    made: list[World] = []

    class Refuses(World):
        def load_state_dict(self, state: int) -> None:
            raise SimulatorError("other shapes")

    def make(kind: Any) -> Any:
        def one(key: Any) -> World:
            made.append(kind(key))
            return made[-1]

        return one

    spare = Exchangeable(World("spare"), make(World))  # type: ignore[arg-type]
    here = Exchangeable(World("here"), make(Refuses), [spare])  # type: ignore[arg-type]
    with pytest.raises(SimulatorError, match="other shapes"):
        here.use(2, only=True)
    assert [(one.key, kept(one)) for one in (here, spare)] == [(None, [None])] * 2
    assert [w.closed for w in made] == [True, True]


def test_one_that_does_not_end_as_it_should_keeps_no_other_from_ending() -> None:
    class Stuck(World):
        def close(self) -> None:
            super().close()
            raise SimulatorError("does not end")

    made: list[World] = []

    def make(key: Any) -> Any:
        made.append(Stuck(key))
        return made[-1]

    for end in (Exchangeable.close, lambda one: one.use(None, only=True)):
        made.clear()
        here = Exchangeable(World("here"), make)  # type: ignore[arg-type]
        for key in range(3):
            here.use(key)
        with pytest.raises(SimulatorError, match="does not end"):
            end(here)
        assert [w.closed for w in made] == [True] * 3


def test_two_interruptions_while_simulators_start_leave_none() -> None:
    """Ctrl-C twice: in a program of its own, since signals are for the main thread."""
    code = """
import os, signal, threading, time
from rlprof.workloads.embodied.exchange import Exchangeable
from tests.workloads.embodied.test_exchange import World
made, go = [], threading.Event()
begun = threading.Barrier(3)
def make(key):
    begun.wait()
    go.wait()
    made.append(World(key))
    return made[-1]
here = Exchangeable(World("here"), make, [Exchangeable(World("spare"), make)])
def interrupt(number, frame):
    pressed.release()
    signal.default_int_handler(number, frame)
pressed = threading.Semaphore(0)
signal.signal(signal.SIGINT, interrupt)
def press():
    begun.wait()
    for _ in range(2):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        pressed.acquire()
    go.set()
threading.Thread(target=press).start()
try:
    here.use(2)
except KeyboardInterrupt:
    until = time.monotonic() + 40
    while not (len(made) == 2 and all(w.closed for w in made)) and time.monotonic() < until:
        time.sleep(0.01)
    print([w.closed for w in made], here.key)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.stderr) == ("[True, True] None\n", "")
