"""Choosing a sampler: the best one that works here, and why the better ones do not.

What can be told from files is told at once; whether the counters can really be had is found out by a short
trial in a process of its own, so that the caller's process loads no CUPTI.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof.capture.samplers.base import BACKENDS, LIMITS, Backend, SamplerError, check_period, period_of
from rlprof.capture.samplers.cupti_library import APART, FOLDER
from rlprof.errors import UsageError

#: Seconds that a trial may take: loading CUPTI, a CUDA context, a few samples.
TRIAL_S = 30.0
INSTALL = "pip install 'rlprof[capture]'"
CAP_SYS_ADMIN, CAP_PERFMON = 21, 38


@dataclass(frozen=True)
class Rejection:
    """A back end that was not taken.

    Parameters
    ----------
    backend : str
        Its name.
    reason : str
        Why, for people, with what would change it.
    """

    backend: Backend
    reason: str


@dataclass(frozen=True)
class Choice:
    """The sampler to use.

    Parameters
    ----------
    backend : str
        Its name.
    period_ns : int
        Its sampling period.
    devices : tuple of dict
        What the trial said of the devices; empty where none was needed.
    rejected : tuple of Rejection
        The better ones, best first.
    """

    backend: Backend
    period_ns: int
    devices: tuple[dict[str, Any], ...]
    rejected: tuple[Rejection, ...]

    def text(self) -> str:
        """For people: the choice and the reasons, one line each."""
        lines = [f"{self.backend}: taken"]
        return "\n".join([f"{r.backend}: not taken, {r.reason}" for r in self.rejected] + lines)


Trial = Callable[[Backend, int, "Sequence[int] | None"], dict[str, Any]]


def choose(
    rate_hz: float | None = None,
    devices: Sequence[int] | None = None,
    *,
    backends: Sequence[Backend] = BACKENDS,
    trial: Trial | None = None,
    root: Path = Path("/"),
) -> Choice:
    """Find the best sampler that works on this machine.

    Parameters
    ----------
    rate_hz : float, optional
        Samples per second; each back end's own if not given.
    devices : sequence of int, optional
        Numbers of the GPUs to sample; all by default.
    backends : sequence of str
        Those to consider, best first.
    trial : function (backend, period_ns, devices) -> dict, optional
        Tries one out; raises `SamplerError` with the reason. By default in a process of its own.
    root : pathlib.Path
        Root of the file system, for the facts that files tell.

    Returns
    -------
    Choice

    Raises
    ------
    UsageError
        If the rate is no rate, a back end is unknown, or a single one is considered and its range is missed.
    SamplerError
        If none works; says why for each.
    """
    unknown = [b for b in backends if b not in BACKENDS]
    if unknown or not backends:
        raise UsageError(
            f"no sampler is called {', '.join(unknown) or 'nothing'}", hint=f"one of {', '.join(BACKENDS)}"
        )
    wanted = None if rate_hz is None else period_of(rate_hz)
    rejected: list[Rejection] = []
    for backend in backends:
        period = LIMITS[backend].default_period_ns if wanted is None else wanted
        try:
            check_period(backend, period)
        except UsageError as error:
            if len(backends) == 1:
                raise
            rejected.append(Rejection(backend, error.what))
            continue
        reason = obstacle(backend, root)
        if reason is not None:
            rejected.append(Rejection(backend, reason))
            continue
        try:
            answer = (trial or try_out)(backend, period, devices)
        except SamplerError as error:
            rejected.append(Rejection(backend, str(error)))
            continue
        return Choice(backend, period, tuple(answer.get("devices", ())), tuple(rejected))
    reasons = "; ".join(f"{r.backend}: {r.reason}" for r in rejected)
    raise SamplerError(f"no sampler works here ({reasons})", hint="rlprof capture --check tells more")


def obstacle(backend: Backend, root: Path = Path("/")) -> str | None:
    """What is known, without trying, to stand in the way of a back end.

    Parameters
    ----------
    backend : str
        Its name.
    root : pathlib.Path
        Root of the file system.

    Returns
    -------
    str or None
        The reason, or None if there is nothing known against it.
    """
    if backend == "host":
        return None if (root / "proc/stat").is_file() else "there is no /proc/stat (Linux only)"
    if backend == "dcgm":
        return None if shutil.which("dcgmi") else "DCGM is not installed (no dcgmi on the PATH)"
    if not driver_present(root):
        return "no NVIDIA driver is installed here"
    module, package = ("cupti", "cupti-python") if backend == "cupti" else ("pynvml", "nvidia-ml-py")
    apart = Path(os.environ.get(FOLDER) or "/nowhere", module).is_dir()
    if not apart and importlib.util.find_spec(module) is None:
        return f"{package} is not installed: {APART if backend == 'cupti' else INSTALL}"
    if backend == "cupti" and counters_reserved(root):
        from rlprof.capture.samplers.pm_counters import PERMISSION

        return PERMISSION
    return None


def driver_present(root: Path = Path("/")) -> bool:
    """Whether an NVIDIA driver is installed, as far as files tell."""
    if (root / "proc/driver/nvidia/version").is_file():
        return True
    return root == Path("/") and ctypes.util.find_library("cuda") is not None


def counters_reserved(root: Path = Path("/")) -> bool:
    """Whether the driver reserves counters for administrators and this process is none."""
    try:
        text = (root / "proc/driver/nvidia/params").read_text()
    except OSError:
        return False
    if "RmProfilingAdminOnly: 1" not in text:
        return False
    if os.geteuid() == 0:
        return False
    try:
        status = (root / "proc/self/status").read_text()
        effective = int(status.split("CapEff:")[1].split()[0], 16)
    except (OSError, IndexError, ValueError):
        return True
    return not effective & (1 << CAP_SYS_ADMIN | 1 << CAP_PERFMON)


def try_out(backend: Backend, period_ns: int, devices: Sequence[int] | None) -> dict[str, Any]:
    """Sample for a moment in a process of its own.

    Parameters
    ----------
    backend : str
        What to try.
    period_ns : int
        Sampling period.
    devices : sequence of int or None
        Numbers of the GPUs; None is all.

    Returns
    -------
    dict
        What the sampler process said when it was ready.

    Raises
    ------
    SamplerError
        With its reason if it cannot.
    """
    command = [sys.executable, "-m", "rlprof.capture.sampler", "--probe", "--backend", backend]
    command += ["--rate-hz", repr(1e9 / period_ns)]
    command += ["--devices", "all" if devices is None else ",".join(str(d) for d in devices)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRIAL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SamplerError(f"the {backend} sampler gave no sign of life for {TRIAL_S:.0f} s") from None
    return read_answer(backend, done.stdout, done.returncode)


def read_answer(backend: str, text: str, code: int) -> dict[str, Any]:
    """Read the first line of a sampler process: ``ready {...}`` or ``failed {...}``.

    Parameters
    ----------
    backend : str
        For the message.
    text : str
        What the process wrote.
    code : int
        Its exit code.

    Returns
    -------
    dict
        What followed ``ready``.

    Raises
    ------
    SamplerError
        With the process's reason, or that it ended without one.
    """
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word not in ("ready", "failed"):
            continue
        try:
            answer = json.loads(rest)
        except ValueError:
            continue
        if word == "ready":
            return dict(answer)
        raise SamplerError(str(answer.get("what", "failed")), hint=answer.get("hint"))
    raise SamplerError(f"the {backend} sampler process ended without an answer (exit code {code})")
