"""A session by Nsight Systems: nsys runs the program, its report becomes the capture."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlprof.errors import NsysError, OutputError, UsageError
from rlprof.progress import Progress, silent

if TYPE_CHECKING:
    from rlprof.trace.trace import Trace


def run_nsys(
    command: Sequence[str],
    out: Path,
    *,
    rate_hz: float | None = None,
    devices: Sequence[int] | None = None,
    start_on: str | None = None,
    stop_after: int | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> tuple[int, Path]:
    """Run a program under nsys and convert the report.

    Annotations reach nsys through NVTX, so the package ``nvtx`` must be installed. The report stays beside
    the capture; where polars is not installed it is all there is, to be analysed elsewhere. Ctrl-C and
    SIGTERM end the recording: nsys ends the program, and its report is converted.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments.
    out : pathlib.Path
        The `.rlprof` file to make.
    rate_hz : float, optional
        Samples per second, 10 to 200,000.
    devices : sequence of int, optional
        Numbers of the GPUs; all by default.
    start_on : str, optional
        Begin to record at the first range of this name.
    stop_after : int, optional
        Keep what comes until so many of these ranges have ended; the report itself goes on.
    force : bool
        Replace an existing capture and report.
    progress : Progress
        Told the table being written.

    Returns
    -------
    code : int
        Exit code of nsys, which is that of the program.
    path : pathlib.Path
        The capture, or the report.

    Raises
    ------
    NsysError
        If there is no nsys, or it left no report.
    OutputError
        If the output exists and `force` is not set.
    UsageError
        If the rate is out of range or the command is not found.
    """
    from rlprof.capture.samplers.nsys import profile_arguments
    from rlprof.trace.nsys_tool import find_nsys

    report = out.with_suffix(".nsys-rep")
    for path in (out, report):
        if path.exists() and not force:
            raise OutputError("exists already", where=path, hint="--force replaces it")
    if shutil.which(command[0]) is None:
        raise UsageError(f"command not found: {command[0]}", hint="check the spelling and the PATH")
    arguments = profile_arguments(report, rate_hz=rate_hz, devices=devices, start_on=start_on)
    found = find_nsys()
    if not found:
        raise NsysError(
            "nsys is not installed (looked on the PATH, in /opt/nvidia and beside Nsight Compute)",
            hint="install Nsight Systems, or use --backend auto",
        )
    report.unlink(missing_ok=True)
    whole = [str(found[0].path), *arguments, *command]
    with _ending(lambda: subprocess.Popen(whole, env={**os.environ})) as process:
        code = process.wait()
    if not report.is_file() or report.stat().st_size == 0:
        raise NsysError(
            f"nsys ended with code {code} and left no report",
            where=report.name,
            hint="its own message is above; on a lean machine it needs libdw.so.1 to write one",
        )
    span = None if start_on is None or stop_after is None else (start_on, stop_after)
    return code, convert(report, out, span=span, force=force, progress=progress)


@contextlib.contextmanager
def _ending(start: Callable[[], subprocess.Popen[bytes]]) -> Iterator[subprocess.Popen[bytes]]:
    """Start nsys; turn the first SIGTERM or Ctrl-C into the signal at which it stops and writes its report.

    A second one would make nsys give up the report, so it is not passed on.
    """
    calls = itertools.count()
    nsys: subprocess.Popen[bytes] | None = None
    early = False

    def stop(number: int, _frame: object) -> None:
        nonlocal early
        # counted in one step, since a second signal can come while this runs; a Ctrl-C at a terminal reaches
        # nsys too, which is in the same group
        if next(calls) == 0 and not (number == signal.SIGINT and _at_terminal()):
            if nsys is None:
                early = True
            else:
                _tell(nsys)

    old = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        nsys = start()
        if early:
            _tell(nsys)
        yield nsys
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _tell(nsys: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        nsys.send_signal(signal.SIGINT)


def _at_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


def convert(
    report: Path,
    out: Path,
    *,
    span: tuple[str, int] | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Path:
    """Make a `.rlprof` file of a report; where polars is missing, leave the report as it is.

    Parameters
    ----------
    report : pathlib.Path
        The report.
    out : pathlib.Path
        The file to make.
    span : tuple of (str, int), optional
        Name of a range and a count: keep what lies between the start of the first such range and the end of
        the last one counted.
    force : bool
        Replace an existing file.
    progress : Progress
        Told the table being written.

    Returns
    -------
    pathlib.Path
        `out`, or `report`.
    """
    import importlib.util

    if importlib.util.find_spec("polars") is None:
        return report
    from rlprof.trace.native import write_rlprof
    from rlprof.trace.nsys_report import read_report

    trace = read_report(report, progress=progress)
    return write_rlprof(trace if span is None else first_ranges(trace, *span), out, force=force)


def first_ranges(trace: Trace, name: str, count: int) -> Trace:
    """A trace from the first range `name` to the end of the `count`-th; to its end if there are fewer."""
    import polars as pl

    columns = ["name", "start_ns", "end_ns", "cut"]
    mine = trace.table("ranges", columns).filter(pl.col("name").cast(pl.String) == name)
    ends = mine.filter(~pl.col("cut"))["end_ns"].sort()
    if mine.is_empty():
        return trace
    end = int(ends[count - 1]) if len(ends) >= count else trace.meta.end_ns
    return trace.between(int(mine["start_ns"].min()), end)  # type: ignore[arg-type]
