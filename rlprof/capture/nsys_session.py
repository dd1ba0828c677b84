"""A session by Nsight Systems: nsys runs the program, its report becomes the capture."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rlprof.errors import NsysError, OutputError, UsageError
from rlprof.progress import Progress, silent


def run_nsys(
    command: Sequence[str],
    out: Path,
    *,
    rate_hz: float | None = None,
    devices: Sequence[int] | None = None,
    start_on: str | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> tuple[int, Path]:
    """Run a program under nsys and convert the report.

    Annotations reach nsys through NVTX, so the package ``nvtx`` must be installed. The report stays beside
    the capture; where polars is not installed it is all there is, to be analysed elsewhere.

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
        Begin to record at a range of this name.
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
    # SIGINT reaches nsys and the program alike; nsys then writes its report, so wait for it
    process = subprocess.Popen([str(found[0].path), *arguments, *command], env={**os.environ})
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            continue
    if not report.is_file() or report.stat().st_size == 0:
        raise NsysError(
            f"nsys ended with code {code} and left no report",
            where=report.name,
            hint="its own message is above; on a lean machine it needs libdw.so.1 to write one",
        )
    return code, convert(report, out, force=force, progress=progress)


def convert(report: Path, out: Path, *, force: bool = False, progress: Progress = silent) -> Path:
    """Make a `.rlprof` file of a report; where polars is missing, leave the report as it is.

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

    return write_rlprof(read_report(report, progress=progress), out, force=force)
