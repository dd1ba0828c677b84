"""What a capture would do here: which samplers work and why not, disk, size per minute."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlprof.capture.sampler_run import FLUSH_NS
from rlprof.capture.samplers.base import BACKENDS, LIMITS, Backend, SamplerError, check_period, period_of
from rlprof.capture.samplers.choose import obstacle, try_out
from rlprof.errors import UsageError

#: Bytes of a sample in the parts of a session, and of every write of samples (measured, docs/capture.md).
SAMPLE_BYTES, WRITE_BYTES = 10.0, 600.0
#: Bytes of an annotated range in the parts: tens of thousands a second, hundreds a second (as above).
RANGE_BYTES = (5, 25)


@dataclass(frozen=True)
class BackendCheck:
    """Whether one sampler works here.

    Parameters
    ----------
    backend : str
        Its name.
    works : bool
        It really gave samples, in a trial.
    rate_hz : float
        The rate it would sample at.
    device_count : int
        Number of GPUs it would sample.
    reason : str
        Why it does not work; empty if it does.
    """

    backend: Backend
    works: bool
    rate_hz: float
    device_count: int
    reason: str = ""


@dataclass(frozen=True)
class Preflight:
    """What a capture would do here.

    Parameters
    ----------
    backends : tuple of BackendCheck
        Best first.
    nsys : str
        Whether ``--backend nsys`` works, or why not.
    nvtx : str
        Whether annotations are shown to other tools, or why not.
    output : str
        Whether the output can be written, or why not.
    free_bytes : int or None
        Free space where it would be written.
    """

    backends: tuple[BackendCheck, ...]
    nsys: str
    nvtx: str
    output: str
    free_bytes: int | None

    @property
    def chosen(self) -> BackendCheck | None:
        """The sampler that ``auto`` takes."""
        return next((b for b in self.backends if b.works), None)

    def size_bytes_per_minute(self) -> float | None:
        """Expected growth of the parts, without ranges, per minute of the run; None without a sampler."""
        taken = self.chosen
        if taken is None:
            return None
        samples = 60 * taken.rate_hz * max(1, taken.device_count)
        return samples * SAMPLE_BYTES + min(samples, 60e9 / FLUSH_NS) * WRITE_BYTES

    def text(self) -> str:
        """For a terminal."""
        lines = []
        for b in self.backends:
            state = f"works, {b.rate_hz:g} Hz" if b.works else f"no: {b.reason}"
            if b.works and b.device_count:
                state += f", {b.device_count} GPU{'s' if b.device_count > 1 else ''}"
            lines.append(f"{b.backend:6} {state}")
        lines += [f"nsys   {self.nsys}", f"NVTX   {self.nvtx}", f"output {self.output}"]
        taken, size = self.chosen, self.size_bytes_per_minute()
        if taken and size:
            lines.append(
                f"--backend auto takes {taken.backend}: about {size / 1e6:.2g} MB a minute while it runs,"
                f" and {RANGE_BYTES[0]} to {RANGE_BYTES[1]} bytes for each annotated range;"
                " the capture is smaller"
            )
        return "\n".join(lines)


def preflight(out: Path, rate_hz: float | None = None, devices: Sequence[int] | None = None) -> Preflight:
    """Find out what a capture would do here; each sampler is tried for a moment.

    Parameters
    ----------
    out : pathlib.Path
        The output it would have.
    rate_hz : float, optional
        Samples per second.
    devices : sequence of int, optional
        Numbers of the GPUs.

    Returns
    -------
    Preflight
    """
    checks = tuple(_check(b, rate_hz, devices) for b in BACKENDS)
    folder = Path(out).absolute().parent
    free = shutil.disk_usage(folder).free if folder.is_dir() else None
    return Preflight(checks, _nsys(), _nvtx(), _output(out, free), free)


def _check(backend: Backend, rate_hz: float | None, devices: Sequence[int] | None) -> BackendCheck:
    period = LIMITS[backend].default_period_ns if rate_hz is None else period_of(rate_hz)
    try:
        check_period(backend, period)
    except UsageError as error:
        return BackendCheck(backend, False, 1e9 / period, 0, error.what)
    if (reason := obstacle(backend)) is not None:
        return BackendCheck(backend, False, 1e9 / period, 0, reason)
    try:
        answer = try_out(backend, period, devices)
    except SamplerError as error:
        return BackendCheck(backend, False, 1e9 / period, 0, str(error))
    gpus = [d for d in answer.get("devices", ()) if d.get("device", -1) >= 0]
    return BackendCheck(backend, True, 1e9 / float(answer.get("period_ns", period)), len(gpus))


def _nsys() -> str:
    from rlprof.trace.nsys_tool import find_nsys

    found = find_nsys()
    if not found:
        return "no: nsys is not installed (nor found beside Nsight Compute)"
    return f"found, version {found[0].version} (whether it may read counters shows when it runs)"


def _nvtx() -> str:
    import importlib.util

    if importlib.util.find_spec("nvtx") is None:
        return "no: nvtx is not installed: pip install 'rlprof[capture]'; rlprof's own record works without"
    return "works: annotations are shown to nsys too"


def _output(out: Path, free: int | None) -> str:
    if free is None:
        return f"no: there is no folder {Path(out).parent}"
    if Path(out).exists():
        return f"{out} exists already: --force replaces it"
    import os

    if not os.access(Path(out).absolute().parent, os.W_OK):
        return "no: its folder cannot be written"
    return f"can be written, {free / 1e9:.1f} GB free"
