"""Branches that are commands: their processes, and rounds in which some of them run together.

A command that takes part in rounds (`rlprof.overlap.quota.rounds`) is started once for each quota and then
asked for one round after another. Any other command is a round by itself, from its start to its end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Self

from rlprof.overlap.quota.errors import BranchError
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.mechanism import Mechanism
from rlprof.overlap.quota.rounds import VARIABLE
from rlprof.taskgraph import guardian
from rlprof.taskgraph.processes import _Guardian

#: How often somebody asks what goes on during a round, in seconds.
_TICK_S = 0.2


@dataclass(frozen=True)
class Branch:
    """A command.

    Parameters
    ----------
    name : str
        Of the branch.
    command : tuple of str
        Program and arguments.
    """

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """When a branch was at work in a round, in nanoseconds of CLOCK_MONOTONIC.

    Parameters
    ----------
    start_ns, end_ns : int
        Begin and end of its work.
    """

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Round:
    """One round of some branches.

    Parameters
    ----------
    start_ns : int
        The common origin.
    spans : tuple of Span
        One for each branch.
    """

    start_ns: int
    spans: tuple[Span, ...]

    @property
    def ready_s(self) -> tuple[float, ...]:
        """When each branch was ready, in seconds from the common origin."""
        return tuple((span.end_ns - self.start_ns) / 1e9 for span in self.spans)

    @property
    def join_s(self) -> float:
        """When all were ready."""
        return max(self.ready_s)


class Worker:
    """A branch under one quota: a process that waits for rounds, or a command that is run for each."""

    def __init__(
        self, branch: Branch, level: Level | None, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.branch, self.level = branch, level
        self._command, self._environment = command, environment
        self.mark = secrets.token_hex(6) + ";"
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._exit: int | None = None  # a descriptor that is readable once the process has ended
        self._words: IO[bytes] | None = None
        self._text = b""
        self.in_rounds: bool | None = None  # not known before it is started
        self._round_began_ns = 0

    # life --------------------------------------------------------------------------------------------------

    def start(self) -> int:
        """Start a process; its id, which is also that of its group."""
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        mine, theirs = socket.socketpair()
        before = os.environ.get(guardian.VARIABLE, "")
        more = {VARIABLE: str(theirs.fileno()), guardian.VARIABLE: before + self.mark}
        self._round_began_ns = time.monotonic_ns()
        try:
            self._process = subprocess.Popen(
                list(self._command),
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                env={**os.environ, **self._environment, **more},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            mine.close()
            self._words.close()
            raise BranchError(
                f"branch {self.branch.name} cannot be started ({error.strerror}: {self._command[0]})",
                hint="check the command",
            ) from error
        finally:
            theirs.close()
        self._socket, self._text = mine, b""
        self._exit = os.pidfd_open(self._process.pid)
        return self._process.pid

    def end(self) -> None:
        """End the process and all that it started."""
        if self._process is None:
            return
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendall(b"bye\n")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5 if self.in_rounds else 0.0)
        guardian.end_marked(self.mark, group=self._process.pid)
        self._process.wait()
        self._let_go()

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._exit is not None:
            os.close(self._exit)
        if self._words is not None:
            self._words.close()
        self._process = self._socket = self._exit = self._words = None

    @property
    def processes(self) -> list[int]:
        """Ids of its processes."""
        return guardian.marked(self.mark)

    # rounds ------------------------------------------------------------------------------------------------

    def begin(self, watch: Callable[[int], None]) -> None:
        """Begin a round."""
        if self._process is None:
            watch(self.start())
        elif self._socket is not None:
            self._round_began_ns = time.monotonic_ns()
            with contextlib.suppress(OSError):  # it has ended: that is noticed below
                self._socket.sendall(b"go\n")

    @property
    def waits_on(self) -> tuple[int, ...]:
        """Descriptors on which something comes from it."""
        assert self._exit is not None
        return (self._exit,) if self._socket is None else (self._exit, self._socket.fileno())

    def heard(self) -> str | None:
        """Return a line that came from it, "exited", or None if there is neither yet."""
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            new = self._socket.recv(4096)
            if new:
                self._text += new
            else:  # closed, although the process may live on
                self._socket.close()
                self._socket = None
        line, newline, rest = self._text.partition(b"\n")
        if newline:
            self._text = rest
            return line.decode("ascii", "replace")
        assert self._exit is not None
        return "exited" if select.select([self._exit], [], [], 0)[0] else None

    def exited(self) -> Span:
        """Span from the start of the process to its end, which has come.

        Raises
        ------
        BranchError
            If it did not end well.
        """
        assert self._process is not None
        span = Span(self._round_began_ns, time.monotonic_ns())
        code = self._process.wait()
        if code != 0 or self.in_rounds:
            raise self.error(f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}")
        guardian.end_marked(self.mark)
        self._let_go()
        return span

    def error(self, what: str) -> BranchError:
        """An error that shows its last words."""
        said = ""
        if self._words is not None:
            self._words.seek(0)
            lines = self._words.read()[-20_000:].decode("utf-8", "replace").strip().splitlines()
            said = f": {lines[-1].strip()[:300]}" if lines else ""
        under = "" if self.level is None else f" under quota {self.level.setting}"
        return BranchError(f"branch {self.branch.name}{under} {what}{said}", hint="run its command by itself")


class Bench:
    """Starts branches under quotas, runs them together and ends all of them.

    Used as a context manager. If this process is killed, a guardian ends the branches.

    Parameters
    ----------
    mechanism : Mechanism
        Sets the quotas.
    timeout_s : float
        Longest time of a set-up or a round, in seconds.
    """

    def __init__(self, mechanism: Mechanism, *, timeout_s: float = 600.0) -> None:
        self._mechanism, self._timeout_s = mechanism, timeout_s
        self._workers: list[Worker] = []
        self._guardian: _Guardian | None = None

    def __enter__(self) -> Self:
        self._mark = secrets.token_hex(8)
        self._guardian = _Guardian(self._mark)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()
        if self._guardian is not None:
            self._guardian.dismiss()

    def worker(self, branch: Branch, level: Level | None = None, *, managed: bool = True) -> Worker:
        """Start a branch under a quota and wait until its set-up is done, or it has run once.

        Parameters
        ----------
        branch : Branch
            Which.
        level : Level, optional
            Its quota; none by default.
        managed : bool
            False: without the mechanism, such as no client of MPS.

        Raises
        ------
        BranchError
            If it cannot be started, does not end well, or takes too long.
        """
        return self.workers([(branch, level)], managed=managed)[0]

    def workers(self, wanted: Sequence[tuple[Branch, Level | None]], *, managed: bool = True) -> list[Worker]:
        """Start branches at the same time, as `worker` does one; if one fails, none is left."""
        before = len(self._workers)
        try:
            started = [self._start(branch, level, managed) for branch, level in wanted]
            until = time.monotonic() + self._timeout_s
            for worker in started:
                self._await_ready(worker, until)
        except BaseException:
            for worker in self._workers[before:]:
                self.release(worker)
            raise
        return started

    def _start(self, branch: Branch, level: Level | None, managed: bool) -> Worker:
        if shutil.which(branch.command[0]) is None:
            raise BranchError(
                f"command not found: {branch.command[0]}",
                where=f"branch {branch.name}",
                hint="check the spelling and the PATH",
            )
        unmanaged = self._mechanism.unmanaged() if not managed else None
        environment = self._mechanism.environment(level) if managed else unmanaged or {}
        prefix = self._mechanism.prefix(level) if managed else ()
        worker = Worker(branch, level, (*prefix, *branch.command), environment)
        worker.mark = f"{self._mark}.{worker.mark}"
        self._workers.append(worker)
        self._watch(worker.start())
        return worker

    def _await_ready(self, worker: Worker, until_s: float) -> None:
        """Wait until a worker is ready for rounds, or has ended well."""
        while True:
            line = worker.heard()
            if line == "ready":
                worker.in_rounds = True
                return
            if line == "exited":
                worker.in_rounds = False
                worker.exited()
                return
            left = until_s - time.monotonic()
            if left < 0:
                raise worker.error(f"is not ready after {self._timeout_s:g} s")
            select.select(worker.waits_on, [], [], min(left, 1.0))

    def _watch(self, process: int) -> None:
        if self._guardian is not None:
            self._guardian.watch(process)

    def release(self, worker: Worker) -> None:
        """End a worker."""
        worker.end()
        if worker in self._workers:
            self._workers.remove(worker)

    def together(self, workers: Sequence[Worker], tick: Callable[[], None] | None = None) -> Round:
        """Run a round of some workers at the same time.

        Parameters
        ----------
        workers : sequence of Worker
            Of distinct branches.
        tick : callable, optional
            Called every now and then while they are at work.

        Raises
        ------
        BranchError
            If one does not end well or takes too long.
        """
        start_ns = time.monotonic_ns()
        for worker in workers:
            worker.begin(self._watch)
        spans: dict[int, Span] = {}
        until, next_tick = time.monotonic() + self._timeout_s, time.monotonic() + _TICK_S / 4
        while len(spans) < len(workers):
            at_work = [w for n, w in enumerate(workers) if n not in spans]
            select.select([f for w in at_work for f in w.waits_on], [], [], _TICK_S / 4)
            for n, worker in enumerate(workers):
                span = None if n in spans else _span(worker)
                if span is not None:
                    spans[n] = span
            if time.monotonic() > until and len(spans) < len(workers):
                raise at_work[0].error(f"is not done after {self._timeout_s:g} s")
            if tick is not None and time.monotonic() > next_tick:
                tick()
                next_tick = time.monotonic() + _TICK_S
        return Round(start_ns, tuple(spans[n] for n in range(len(workers))))


def _span(worker: Worker) -> Span | None:
    """Span of a round of a worker that is over; None if it is not."""
    line = worker.heard()
    while line == "ready" and not worker.in_rounds:  # of a command that is run for each round
        line = worker.heard()
    if line is None:
        return None
    if line == "exited":
        return worker.exited()
    words = line.split()
    if len(words) != 3 or words[0] != "done" or not all(w.isdecimal() for w in words[1:]):
        raise worker.error(f"said {line[:60]!r}, which is no answer to a round")
    return Span(int(words[1]), int(words[2]))
