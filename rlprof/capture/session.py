"""Capture sessions: the program's processes, a sampler, and the one file that comes of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from rlprof.capture import sampler_process
from rlprof.capture.assemble import SessionFacts, assemble
from rlprof.capture.clock import Anchor
from rlprof.capture.kernels import KERNELS_VARIABLE
from rlprof.capture.options import Backend, Options
from rlprof.capture.part_reader import read_parts
from rlprof.capture.recorder import ENVIRONMENT
from rlprof.capture.scratch import claim, scratch_name, sweep
from rlprof.errors import OutputError, RlprofError, UsageError
from rlprof.progress import Progress, silent
from rlprof.trace.output import check_kind

__all__ = ["Backend", "Options", "Session", "capture", "run_command", "span_of"]

#: How often the parts are looked at for the end of ``--stop-after``.
WATCH_S = 2.0


class Session:
    """A running capture. Use `rlprof.capture` or ``rlprof capture``, which end it in every case.

    Parameters
    ----------
    out : pathlib.Path
        The `.rlprof` file to make. While the session runs its parts are in ``OUT.parts`` beside it.
    options : Options
        What to record.
    force : bool
        Replace an existing file, and a folder of parts that an earlier session left.
    keep : bool
        What was recorded stays in the folder of parts if this process is killed. False: it goes with it.

    Raises
    ------
    UsageError
        If a session is running in this process already.
    OutputError
        If `out` exists and `force` is not set, or its folder cannot be written.
    """

    def __init__(
        self, out: Path, options: Options | None = None, *, force: bool = False, keep: bool = True
    ) -> None:
        self.out = Path(out)
        self.options = options or Options()
        self.force, self.keep = force, keep
        self.folder = self.out.with_name(self.out.name + ".parts").absolute()
        self.facts: SessionFacts | None = None
        self._sampler: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        if running := os.environ.get(ENVIRONMENT):
            raise UsageError(
                f"a capture session is running already ({Path(running).name.removesuffix('.parts')})",
                hint="end it first; sessions do not nest",
            )

    @classmethod
    def scratch(cls, beside: Path, options: Options) -> Session:
        """A session of which no capture is made: its parts are read while it runs, then `drop` it.

        Its folder goes also if this process is killed: the sampler removes it, or else the next session
        beside it does.

        Parameters
        ----------
        beside : pathlib.Path
            The folder in which it may have a folder of its own.
        options : Options
            What to record.

        Raises
        ------
        UsageError
            If a session is running in this process already.
        """
        return cls(beside / scratch_name(), options, keep=False)

    def start(self) -> None:
        """Make the folder and start the sampler; returns once samples really come.

        Raises
        ------
        UsageError, SamplerError
            If the sampler that was asked for cannot work here.
        OutputError
            If the folder cannot be made.
        """
        self._make_folder()
        try:
            anchor = Anchor.now()
            self.facts = SessionFacts(start_ns=anchor.monotonic_ns, anchor=anchor)
            self.facts.write(self.folder)
            if self.options.backend != "none":
                self._start_sampler()
            # the session begins when samples come: before, there is nothing to see
            anchor = Anchor.now()
            traced = ("nvtx", *(("cuda",) if self.options.kernels else ()), *self._counters())
            self.facts = replace(self.facts, start_ns=anchor.monotonic_ns, anchor=anchor, traced=traced)
            self.facts.write(self.folder)
        except BaseException:
            self.drop()
            raise

    def environment(self) -> dict[str, str]:
        """Variables by which processes join the session."""
        kernels = {KERNELS_VARIABLE: "1"} if self.options.kernels else {}
        return {ENVIRONMENT: str(self.folder), **kernels}

    def stop(
        self, *, keep_ns: tuple[int | None, int | None] = (None, None), progress: Progress = silent
    ) -> Path:
        """End the sampler and make the capture; the folder of parts goes when that has worked.

        Parameters
        ----------
        keep_ns : tuple of (int or None, int or None)
            Keep only this span, CLOCK_MONOTONIC.
        progress : Progress
            Told the table being written.

        Returns
        -------
        pathlib.Path
            The capture.

        Raises
        ------
        OutputError
            If it cannot be written; the parts stay, and ``rlprof capture --assemble`` tries again.
        """
        if self.facts is None:
            raise UsageError("the session was not started")
        end = Anchor.now()
        self.end_sampler()
        self.facts = replace(self.facts, end_ns=end.monotonic_ns, end_anchor=end, keep_ns=keep_ns)
        with contextlib.suppress(OSError):  # a full disk: assembling then tells
            self.facts.write(self.folder)
        try:
            made = assemble(self.folder, self.out, force=self.force, progress=progress)
        except OutputError as error:
            raise OutputError(
                error.what,
                where=error.where,
                hint=f"then `rlprof capture --assemble {self.folder.name} -o {self.out.name}`:"
                " what was recorded is kept there",
            ) from error
        self.drop()
        return made

    def drop(self) -> None:
        """End the sampler and remove the folder of parts."""
        self.end_sampler()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _make_folder(self) -> None:
        sweep(self.folder.parent)
        check_kind(self.out)
        if self.out.exists() and not self.force:
            raise OutputError(
                "exists already", where=self.out, hint="--force (in Python force=True) replaces it"
            )
        if self.out.is_dir():
            raise OutputError("is a folder", where=self.out, hint="give the name of a file")
        try:
            if self.folder.exists() and self.force:
                shutil.rmtree(self.folder)
            self.folder.mkdir()
            if not self.keep:
                self._lock = claim(self.folder)
        except FileExistsError as error:
            raise OutputError(
                "parts of an earlier session are there",
                where=self.folder,
                hint=f"`rlprof capture --assemble {self.folder.name} -o FILE` saves them,"
                " --force (in Python force=True) drops them",
            ) from error
        except OSError as error:
            raise OutputError(
                f"cannot be made: {error.strerror}", where=self.folder, hint="write the capture elsewhere"
            ) from error

    def _start_sampler(self) -> None:
        assert self.facts is not None
        started = sampler_process.start_sampler(self.options, self.folder, discard=not self.keep)
        self._sampler = started.process
        self.facts = replace(
            self.facts, backend=started.backend, rate_hz=started.rate_hz, notes=started.notes
        )

    def _counters(self) -> tuple[str, ...]:
        return ("gpu_metrics",) if self.facts and self.facts.backend in ("cupti", "dcgm", "nvml") else ()

    def end_sampler(self) -> None:
        """Close its input and wait: it drains what is left. One that hangs is ended by force."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler_process.end_sampler(sampler)


class capture:  # used as a function: `with rlprof.capture("run.rlprof"):`
    """Record this process and its children into a `.rlprof` file.

    Ranges of `rlprof.annotate` and SM activity (or that of the host's cores where no GPU can be sampled) are
    recorded; see docs/capture.md.

    Parameters
    ----------
    out : str or pathlib.Path
        The file to make.
    backend : str
        ``auto``, ``cupti``, ``dcgm``, ``nvml``, ``host`` or ``none``.
    rate_hz : float, optional
        Samples per second.
    devices : sequence of int, optional
        Numbers of the GPUs; all by default.
    kernels : bool
        Record kernels and copies too.
    metrics : sequence of str
        Further hardware counters to sample (cupti only).
    force : bool
        Replace an existing file.

    Raises
    ------
    UsageError
        If a session is running already, or an argument is out of range.
    OutputError
        If the file exists and `force` is not set, or cannot be written.

    Examples
    --------
    >>> with rlprof.capture("run.rlprof"):     # doctest: +SKIP
    ...     train()
    """

    def __init__(
        self,
        out: str | Path,
        *,
        backend: Backend = "auto",
        rate_hz: float | None = None,
        devices: Sequence[int] | None = None,
        kernels: bool = False,
        metrics: Sequence[str] = (),
        force: bool = False,
    ) -> None:
        options = Options(backend, rate_hz, cast(Any, devices), kernels, cast(Any, metrics))  # makes tuples
        self._session = Session(Path(out), options, force=force)

    def __enter__(self) -> Session:
        from rlprof.capture import recorder

        self._session.start()
        os.environ.update(self._session.environment())
        recorder.join_session()
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from rlprof.capture import recorder

        try:
            recorder.stop()
        finally:
            for name in self._session.environment():
                os.environ.pop(name, None)
        try:
            self._session.stop()
        except RlprofError:
            if error is None:
                raise
            # the program's own exception matters more; the parts are kept


def run_command(
    command: Sequence[str],
    session: Session,
    *,
    start_on: str | None = None,
    stop_after: int | None = None,
    progress: Progress = silent,
) -> tuple[int, Path]:
    """Run a program inside a session and make the capture, however the program ends.

    Ctrl-C and SIGTERM are passed on to the program, and the capture is made once it has ended.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments.
    session : Session
        Not started.
    start_on : str, optional
        Keep what comes from the first range of this name on.
    stop_after : int, optional
        Keep what comes until so many of these ranges have ended; nothing is sampled after that, while the
        program goes on.
    progress : Progress
        Told the table being written.

    Returns
    -------
    code : int
        Exit code of the program; 128 + N if signal N ended it.
    path : pathlib.Path
        The capture.

    Raises
    ------
    UsageError
        If the program cannot be started.
    """
    if shutil.which(command[0]) is None:
        raise UsageError(f"command not found: {command[0]}", hint="check the spelling and the PATH")
    session.start()

    def start() -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(list(command), env={**os.environ, **session.environment()})
        except OSError as error:
            session.stop()
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error

    with _passing_on(start) as program:
        code = _wait(program, session, start_on, stop_after)
    keep_ns = span_of(session.folder, start_on, stop_after) if start_on else (None, None)
    made = session.stop(keep_ns=keep_ns, progress=progress)
    return (code if code >= 0 else 128 - code), made


def _wait(
    program: subprocess.Popen[bytes], session: Session, start_on: str | None, stop_after: int | None
) -> int:
    """Wait for the program; end the sampler as soon as nothing more is wanted."""
    while start_on is not None and stop_after is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return program.wait(WATCH_S)
        if span_of(session.folder, start_on, stop_after)[1] is not None:
            session.end_sampler()
            break
    return program.wait()


def span_of(folder: Path, name: str, count: int | None) -> tuple[int | None, int | None]:
    """From the first range `name` to the end of the `count`-th, of any process, as far as written.

    Returns
    -------
    tuple of (int or None, int or None)
        CLOCK_MONOTONIC; None where there are not so many ranges (yet).
    """
    import pyarrow.compute as pc

    starts: list[int] = []
    ends: list[int] = []
    # again and again while the program runs: samples and kernels are not looked at
    for part in read_parts(folder, only=("ranges", "open_ranges", "alive")):
        if (ranges := part.tables.get("ranges")) is not None:
            mine = ranges.filter(pc.equal(ranges["name"].cast("string"), name))
            starts += mine["start_ns"].to_pylist()
            ends += mine.filter(pc.invert(mine["cut"].fill_null(False)))["end_ns"].to_pylist()
    ends.sort()
    enough = count is not None and len(ends) >= count
    return min(starts, default=None), ends[count - 1] if enough and count else None


@contextlib.contextmanager
def _passing_on(start: Callable[[], subprocess.Popen[bytes]]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program and give SIGTERM to it; leave Ctrl-C, which it gets from the terminal, to it."""
    program: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def send(number: int) -> None:
        assert program is not None
        with contextlib.suppress(ProcessLookupError):
            program.send_signal(number)

    def forward(number: int, _frame: object) -> None:
        if program is None:  # it is just being started
            early.append(number)
        else:
            send(number)

    old = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        program = start()
        if sys.stdin and sys.stdin.isatty():
            # a Ctrl-C at the terminal reaches the whole group, the program included; ignored any sooner,
            # the program would be started with it ignored
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in early:
            send(number)
        yield program
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
