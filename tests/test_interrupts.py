from __future__ import annotations

import signal
import threading
from types import FrameType

import pytest

from rlprof.interrupts import noted, postponed, remembered

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
