from __future__ import annotations

import signal
import threading

import pytest

from rlprof.interrupts import remembered

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
