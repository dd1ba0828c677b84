"""Turns on the cores: of all processes of a run's simulators no more than so many compute at a time.

Two simulators of as many processes as there are cores share every core while both compute: both take longer
and end at about the same time, and the policy answers both one after the other. In turns the one that began
first has the cores first, and what it saw is answered while the other one computes.

Place k is a record lock on byte k of memory that all processes have, and process w of every simulator takes
place w modulo their number: who waits for a place waits for one process, not for a whole simulator. The
kernel gives the lock of a process that has ended, however it ends, to the next one.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: More places than any machine has cores for.
MOST_PLACES = 1_000_000
#: The number of places lies before the bytes that are locked.
_NUMBER = struct.Struct("=q")
#: The kernel's ``struct flock``: kind, whence, start, length, process.
_LOCK = struct.Struct("hhqqi4x")


class CoreTurns:
    """Places that the processes of several simulators share; of the driver.

    Parameters
    ----------
    places : int
        How many processes compute at a time; 0: all.

    Attributes
    ----------
    descriptor : int
        Of the memory; processes inherit it.
    """

    def __init__(self, places: int = 0) -> None:
        self.descriptor = os.memfd_create("rlprof cores")
        weakref.finalize(self, os.close, self.descriptor)
        self.places = places

    @property
    def places(self) -> int:
        """How many processes compute at a time; 0: all. A new number holds from their next chunk on."""
        return _places(self.descriptor)

    @places.setter
    def places(self, number: int) -> None:
        if not 0 <= number <= MOST_PLACES:
            raise ValueError(f"{number} places")
        os.pwrite(self.descriptor, _NUMBER.pack(number), 0)

    def holder(self, number: int) -> int | None:
        """Id of the process that has a place; None: nobody, or this process.

        Parameters
        ----------
        number : int
            Of a process whose place it is, among those of its simulator.
        """
        if not (places := self.places):
            return None
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _NUMBER.size + number % places, 1, 0)
        kind, *_, process = _LOCK.unpack(fcntl.fcntl(self.descriptor, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else process


def take_turns(simulator: Any, descriptor: int, number: int) -> None:
    """Let a simulator of this process wait for its place before it computes.

    Parameters
    ----------
    simulator : Simulator
        Its `physics` takes turns; drawing and rewards do not: they wait for a GPU, or are short.
    descriptor : int
        Of `CoreTurns`.
    number : int
        Of this process among those of its simulator.
    """
    physics = simulator.physics

    def in_turn(*args: Any, **kwargs: Any) -> None:
        with turn(descriptor, number):
            physics(*args, **kwargs)

    simulator.physics = in_turn


@contextmanager
def turn(descriptor: int, number: int) -> Iterator[None]:
    """In the block this process has its place, if there are places at all."""
    places = _places(descriptor)
    if not places:
        yield
        return
    at = _NUMBER.size + number % places
    fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, at)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, at)


def _places(descriptor: int) -> int:
    found: int = _NUMBER.unpack(os.pread(descriptor, _NUMBER.size, 0))[0]
    return found
