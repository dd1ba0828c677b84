"""Nsight Systems as a source of SM activity: its command line and its limits.

nsys starts the program itself and writes a report, which `rlprof.read` reads; so this is no sampler process
but the arguments of one command.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlprof.capture.samplers.base import rate_text
from rlprof.errors import UsageError

MIN_RATE_HZ, MAX_RATE_HZ, DEFAULT_RATE_HZ = 10, 200_000, 10_000


def profile_arguments(
    output: Path,
    *,
    rate_hz: float | None = None,
    devices: Sequence[int] | None = None,
    traces: Sequence[str] = ("cuda", "nvtx"),
    start_on: str | None = None,
) -> list[str]:
    """The arguments of ``nsys`` before the program's own command.

    Parameters
    ----------
    output : pathlib.Path
        The report, ``.nsys-rep``.
    rate_hz : float, optional
        Samples per second, 10 to 200,000; 10,000 if not given.
    devices : sequence of int, optional
        Numbers of the GPUs; all by default.
    traces : sequence of str
        What to trace.
    start_on : str, optional
        Begin to record at a range of this name (domain ``rlprof``).

    Returns
    -------
    list of str
        ``["profile", ...]``. CUDA graphs are traced by node: as a whole they hide their kernels. Processor
        samples and context switches are left out: they cost much and nothing here reads them.

    Raises
    ------
    UsageError
        If the rate is out of range.
    """
    rate = DEFAULT_RATE_HZ if rate_hz is None else rate_hz
    if not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
        raise UsageError(
            f"{rate_text(max(1, round(1e9 / rate))) if rate > 0 else f'{rate:g} Hz'} is outside the range of "
            f"nsys ({MIN_RATE_HZ} Hz to {MAX_RATE_HZ // 1000} kHz)",
            hint="--rate 10kHz",
        )
    gpus = "all" if devices is None else ",".join(str(d) for d in devices)
    arguments = [
        "profile",
        f"--trace={','.join(traces)}",
        "--cuda-graph-trace=node",
        f"--gpu-metrics-devices={gpus}",
        f"--gpu-metrics-frequency={round(rate)}",
        "--sample=none",
        "--cpuctxsw=none",
        "--force-overwrite=true",
        f"--output={output}",
    ]
    if start_on is not None:
        # without the last, the end of that range ends the recording, and the program with it
        arguments += ["--capture-range=nvtx", f"--nvtx-capture={start_on}@rlprof", "--capture-range-end=none"]
    return arguments
