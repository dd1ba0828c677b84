"""`rlprof capture`: run a program and record its ranges and the SM activity of the GPUs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from rlprof.errors import UsageError

if TYPE_CHECKING:
    from rlprof.capture.options import Backend as SamplerName


class Backend(StrEnum):
    """Where SM activity comes from."""

    AUTO = "auto"
    CUPTI = "cupti"
    DCGM = "dcgm"
    NSYS = "nsys"
    NVML = "nvml"
    HOST = "host"
    NONE = "none"


def capture(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The program and its arguments.")
    ] = None,
    *,
    backend: Annotated[
        Backend, typer.Option(help="auto: the best that works here. none: ranges only.")
    ] = Backend.AUTO,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate", metavar="HERTZ", help="Samples per second, like 10kHz; the back end's own by default."
        ),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="0,1", help="Numbers of the GPUs, as in nvidia-smi; all by default.")
    ] = None,
    kernels: Annotated[bool, typer.Option("--kernels", help="Record kernels and copies too.")] = False,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Further hardware counters, as far as one pass reads them (cupti)."),
    ] = None,
    start_on: Annotated[
        str | None, typer.Option(metavar="NAME", help="Keep what comes from the first range NAME on.")
    ] = None,
    stop_after: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Keep what comes until the N-th of these ranges has ended."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="The .rlprof file to make.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say what works here and what a capture costs; record nothing.")
    ] = False,
    assemble: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Make a capture of the parts that a broken-off session left."),
    ] = None,
) -> int:
    """Run a program and record it; its exit code is this command's.

    The program marks its phases with rlprof.annotate (or NVTX, with --backend nsys).
    """
    from rlprof.cli.console import progress_bar, say, write
    from rlprof.cli.values import devices_list, rate_hz

    hertz = None if rate is None else rate_hz(rate)
    chosen = None if devices is None else devices_list(devices)
    if check:
        from rlprof.capture.preflight import preflight

        write(preflight(output or Path("run.rlprof"), hertz, chosen).text())
        return 0
    if output is None:
        raise UsageError("no output is named", hint="rlprof capture -o run.rlprof -- python train.py")
    if assemble is not None:
        from rlprof.capture.assemble import assemble as put_together

        with progress_bar() as progress:
            put_together(assemble, output, force=force, progress=progress)
        say(f"written: {output}")
        return 0
    if not command:
        raise UsageError("no program is named", hint="rlprof capture -o run.rlprof -- python train.py")
    if stop_after is not None and start_on is None:
        raise UsageError(
            "--stop-after counts ranges of --start-on, which is not given", hint="--start-on NAME"
        )
    with progress_bar() as progress:
        if backend is Backend.NSYS:
            if metrics:
                raise UsageError("nsys has a set of counters of its own", hint="--backend cupti --metrics A")
            from rlprof.capture.nsys_session import run_nsys

            code, made = run_nsys(
                command,
                output,
                rate_hz=hertz,
                devices=chosen,
                start_on=start_on,
                stop_after=stop_after,
                force=force,
                progress=progress,
            )
        else:
            from rlprof.capture.options import Options
            from rlprof.capture.session import Session, run_command

            names = tuple(n for n in (metrics or "").split(",") if n)
            options = Options(cast("SamplerName", backend.value), hertz, chosen, kernels, names)
            session = Session(output, options, force=force)
            code, made = run_command(
                command, session, start_on=start_on, stop_after=stop_after, progress=progress
            )
    say(f"written: {made}" + (f" (the program ended with code {code})" if code else ""))
    return code
