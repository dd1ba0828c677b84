from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import FrameType

import pytest

from rlprof.interrupts import kept_from_children, noted, postponed, remembered
from tests.conftest import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class InterruptedWhileDeleted:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_a_finaliser_swallowed_is_raised_at_the_next_step() -> None:
    before = signal.getsignal(signal.SIGINT)
    with remembered() as check:
        check()
        thing = InterruptedWhileDeleted()
        del thing  # Python prints the KeyboardInterrupt and goes on
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


class EndedWhileDeleted:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_so_is_what_another_signal_raised_and_one_that_raises_nothing_asks_for_nothing() -> None:
    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for theirs, ends in ((end, True), (lambda *_: None, False)):
        before = signal.signal(signal.SIGTERM, theirs)
        try:
            with remembered() as check:
                thing = EndedWhileDeleted()
                del thing  # Python prints the SystemExit and goes on
                if ends:
                    with pytest.raises(SystemExit, match="143"):
                        check()
                else:
                    check()
            assert signal.getsignal(signal.SIGTERM) is theirs
        finally:
            signal.signal(signal.SIGTERM, before)


def test_a_child_that_is_told_to_end_before_or_after_it_leaves_that_to_its_parent_goes_on() -> None:
    code = (
        "import sys\n"
        "print('began', flush=True); sys.stdin.readline()\n"
        "from rlprof.interrupts import leave_to_parent\n"
        "leave_to_parent()\n"
        "print('leaves it', flush=True); sys.stdin.readline()\n"
        "print('goes on')"
    )
    with kept_from_children():
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        for said in ("began\n", "leaves it\n"):
            assert child.stdout.readline() == said
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(child.pid, number)
            child.stdin.write("\n")
            child.stdin.flush()
        assert child.communicate(timeout=30)[0] == "goes on\n"
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_an_interrupt_is_raised_where_the_program_is() -> None:
    with pytest.raises(KeyboardInterrupt), remembered():
        signal.raise_signal(signal.SIGINT)


def test_the_handler_of_somebody_else_stays() -> None:
    def theirs(_number: int, _frame: object) -> None: ...

    before = signal.signal(signal.SIGINT, theirs)
    try:
        with remembered():
            assert signal.getsignal(signal.SIGINT) is theirs
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone() -> None:
    found = []

    def work() -> None:
        before = signal.getsignal(signal.SIGINT)
        with remembered() as check:
            check()
            found.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


@pytest.mark.parametrize("theirs", [False, True])
def test_a_postponed_interrupt_comes_when_it_is_done_and_a_second_one_at_once(theirs: bool) -> None:
    steps: list[str] = []

    def handle(number: int, frame: FrameType | None) -> None:
        steps.append("theirs")
        signal.default_int_handler(number, frame)

    def work(interrupts: int, said: str) -> None:
        with postponed():
            for _ in range(interrupts):
                signal.raise_signal(signal.SIGINT)
            steps.append(said)

    before = signal.getsignal(signal.SIGINT)
    if theirs:
        signal.signal(signal.SIGINT, handle)
    mine = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            work(1, "done")
        assert signal.getsignal(signal.SIGINT) is mine
        with pytest.raises(KeyboardInterrupt):
            work(2, "not reached")
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps == (["done", "theirs", "theirs"] if theirs else ["done"])
    work(0, "nothing came")


def test_a_noted_interrupt_is_told_and_a_second_one_comes_at_once() -> None:
    mine = signal.getsignal(signal.SIGINT)
    with noted() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
    assert asked()
    assert signal.getsignal(signal.SIGINT) is mine
    with noted():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is mine
