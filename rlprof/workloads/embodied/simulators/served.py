"""A process that serves calls of this one: orders over a socket, arrays in a block of shared memory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import rlprof
from rlprof.interrupts import kept_from_children
from rlprof.workloads.embodied.contracts import Array, SimulatorSpec
from rlprof.workloads.embodied.errors import SimulatorError
from rlprof.workloads.embodied.simulators import block as blocks

#: What to do about a process that was stopped for longer than its time limit.
STOPPED = "look for what stops it (a debugger, a job that is suspended, kill -STOP), or raise timeout_s"
#: Longest time to wait for a process that was killed, in seconds.
_END_S = 20.0
#: Longest time for ending of one that has closed its connection, as one does just before it has ended.
_LAST_S = 10.0
SIMULATOR = "rlprof.workloads.embodied.simulators.serve"


def surroundings(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a process that finds this rlprof, also where another one is installed."""
    source = str(Path(rlprof.__file__).resolve().parent.parent)
    path = os.pathsep.join(p for p in (source, os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, **(more or {}), "PYTHONPATH": path}


def is_stopped(process: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP, a debugger or a job that was suspended."""
    try:
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in (b"T", b"t")


class ServedProcess:
    """One process, and its block of memory.

    Parameters
    ----------
    number : int
        Of its kind.
    python : str
        Interpreter.
    environment : mapping of str to str
        Its whole environment.
    module : str
        What it runs: serves orders that come over the socket whose descriptor is its only argument.
    inherits : sequence of int
        Further descriptors that it has too, by the same numbers.
    """

    def __init__(
        self,
        number: int,
        python: str,
        environment: Mapping[str, str],
        module: str = SIMULATOR,
        *,
        inherits: Sequence[int] = (),
    ) -> None:
        self.number = number
        self.words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        mine, other = socket.socketpair()
        try:
            with kept_from_children():
                self.process = subprocess.Popen(
                    [python, "-m", module, str(other.fileno())],
                    pass_fds=[other.fileno(), *inherits],
                    stdin=subprocess.DEVNULL,
                    stdout=self.words,
                    stderr=self.words,
                    env=dict(environment),
                )
        except OSError as error:
            mine.close()
            self.words.close()
            raise SimulatorError(
                f"a process of the simulator does not start ({error.strerror}: {python})",
                hint="give the Python of an environment that has numpy and the simulator",
            ) from error
        finally:
            other.close()
        self.connection = Connection(mine.detach())
        self.shared: Mapping[str, Array] = {}

    def send(self, order: dict[str, Any]) -> None:
        """Send an order; that the process is gone is noticed while waiting for the answer."""
        with suppress(OSError):
            self.connection.send_bytes(json.dumps(order).encode())

    def share(self, spec: SimulatorSpec | blocks.Layout) -> None:
        """Make the block and hand it to the process.

        Raises
        ------
        SimulatorError
            If there is not enough memory.
        """
        try:
            memory = blocks.make(spec)
            try:
                self.shared = blocks.arrays(memory, spec)
                with suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as way:
                    socket.send_fds(way, [b"."], [memory])  # as of `send`
            finally:
                os.close(memory)
        except OSError as error:
            raise SimulatorError(
                f"there are no {blocks.size_bytes(spec):,} bytes of memory to share with a process"
                f" ({error.strerror or error})",
                hint="make room, raise the limit (ulimit), or use fewer environments",
            ) from error

    def how_it_ended(self) -> str:
        """Exit code or signal, and the last line that it wrote."""
        try:
            code = self.process.wait(_LAST_S)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        self.words.seek(0)
        lines = self.words.read().decode("utf-8", "replace").strip().splitlines()
        return f"{how} ({lines[-1][:200]})" if lines else how

    def end(self) -> None:
        """End it now and wait for it, so that no zombie is left.

        A process that a driver of the kernel holds cannot be waited for: it is left to the kernel then.
        """
        if self.process.poll() is None:
            self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        self.connection.close()
        self.words.close()
