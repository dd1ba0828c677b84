"""The sampler's process as a session sees it: which one, started, greeted and ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlprof.errors import UsageError

if TYPE_CHECKING:
    from rlprof.capture.options import Options
    from rlprof.capture.samplers.base import Backend

#: How long a sampler may take to start (it loads CUPTI and makes a CUDA context), and to end.
READY_S, END_S = 60.0, 20.0


@dataclass(frozen=True)
class StartedSampler:
    """A sampler from which samples come.

    Parameters
    ----------
    process : subprocess.Popen
        Its process; `end_sampler` ends it.
    backend : str
        Its back end.
    rate_hz : float
        Samples per second, as it says.
    notes : tuple of str
        Which other back ends were not taken, and why.
    """

    process: subprocess.Popen[bytes]
    backend: Backend
    rate_hz: float
    notes: tuple[str, ...]


def start_sampler(options: Options, folder: Path, *, discard: bool) -> StartedSampler:
    """Start the sampler that was asked for; returns once samples really come.

    Parameters
    ----------
    options : Options
        What to record; the back end is another than ``none``.
    folder : pathlib.Path
        The session's, into which it writes.
    discard : bool
        It removes the folder when the session is gone.

    Raises
    ------
    UsageError, SamplerError
        If it cannot work here. Nothing is left running.
    """
    from rlprof.capture.samplers.base import BACKENDS
    from rlprof.capture.samplers.choose import choose

    # whatever else was asked for is tried alone: `choose` refuses what it does not know, by its name
    backends = BACKENDS if options.backend == "auto" else (cast("Backend", options.backend),)
    if options.metrics:
        if options.backend not in ("auto", "cupti"):
            raise UsageError(
                f"the {options.backend} sampler reads SM activity alone",
                hint="--backend cupti, with --metrics",
            )
        backends = ("cupti",)
    choice = choose(options.rate_hz, options.devices, backends=backends)
    command = [sys.executable, "-m", "rlprof.capture.sampler", "--backend", choice.backend]
    command += ["--rate-hz", repr(1e9 / choice.period_ns), "--folder", str(folder)]
    if options.devices is not None:
        command += ["--devices", ",".join(map(str, options.devices))]
    if options.metrics:
        command += ["--metrics", *options.metrics]
    if discard:
        command.append("--discard")
    # a session of its own: a Ctrl-C for the program must not end it, closing its input does
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        rate_hz = 1e9 / float(_greeting(process)["period_ns"])
    except BaseException:
        end_sampler(process)
        raise
    rejected = tuple(f"sampler {r.backend} was not taken: {r.reason}" for r in choice.rejected)
    return StartedSampler(process, choice.backend, rate_hz, rejected)


def end_sampler(process: subprocess.Popen[bytes]) -> None:
    """Close its input and wait: it drains what is left. One that hangs is ended by force."""
    for stream in (process.stdin, process.stdout):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _greeting(process: subprocess.Popen[bytes]) -> Mapping[str, Any]:
    """Wait for the sampler's first line.

    Raises
    ------
    SamplerError
        If it says that it cannot work, ends, or says nothing in time.
    """
    from rlprof.capture.samplers.base import SamplerError

    assert process.stdout is not None
    deadline, line = time.monotonic() + READY_S, b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise SamplerError(f"the sampler did not start within {READY_S:g} s", hint="--backend host")
        more = os.read(process.stdout.fileno(), 65536)
        if not more:
            raise SamplerError(
                f"the sampler ended at once (exit code {process.wait()})", hint="--backend host"
            )
        line += more
    word, _, text = line.decode().partition(" ")
    facts: dict[str, Any] = json.loads(text)
    if word != "ready":
        raise SamplerError(str(facts.get("what", "the sampler failed")), hint=facts.get("hint"))
    return facts
