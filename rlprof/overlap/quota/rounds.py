"""What a branch of `rlprof quota` does in its process: rounds of the same work, without its set-up in them.

The two sides speak over a socket whose file descriptor is in the environment, one line at a time, so that a
program in any language can take part: it writes ``ready``, is told ``go`` and answers ``done START END``
(nanoseconds of CLOCK_MONOTONIC) when the round is complete, and ends when it is told ``bye`` or the other
side is gone.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator

#: Environment variable that holds the number of the file descriptor.
VARIABLE = "RLPROF_ROUNDS"


def rounds() -> Iterator[int]:
    """Give 0, 1, 2, ... as long as `rlprof quota` wants another round of this branch; 0 alone without it.

    Whatever comes before the first round is not timed. A round is over when the next one is asked for, so
    work on a device must be waited for in the body.

    Examples
    --------
    >>> model = load()  # doctest: +SKIP
    >>> for _ in rounds():  # doctest: +SKIP
    ...     model.infer(batch)
    ...     torch.cuda.synchronize()
    """
    connection = _connection()
    if connection is None:
        yield 0
        return
    count = 0
    with connection, connection.makefile("rb") as orders:
        connection.sendall(b"ready\n")
        for order in orders:
            if order != b"go\n":
                return
            start_ns = time.monotonic_ns()
            yield count
            connection.sendall(b"done %d %d\n" % (start_ns, time.monotonic_ns()))
            count += 1


def _connection() -> socket.socket | None:
    """The socket that the environment names; None if there is none, as in a process that did not get it."""
    number = os.environ.get(VARIABLE, "")
    if not number.isdecimal():
        return None
    try:
        if not stat.S_ISSOCK(os.fstat(int(number)).st_mode):
            return None
    except OSError:
        return None
    return socket.socket(fileno=int(number))
