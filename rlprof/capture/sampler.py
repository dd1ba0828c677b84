"""The sampler process: ``python -m rlprof.capture.sampler --backend cupti --rate-hz 10000 --folder X.parts``.

It says ``ready {...}`` on its standard output once samples really come, or ``failed {...}`` (exit code 2),
and then writes into the session's folder until its standard input closes or it gets SIGTERM; so it ends with
its parent, however that ends, and outlives the profiled program. With ``--discard`` it then removes the
folder. Written are the tables ``activity``, ``devices``, ``notes`` and, for ``--metrics``, ``counters`` of
`rlprof.capture.parts`, every half second, and a description of this process:

``{"label": "sampler", "anchors": [...], "sampler": {"backend", "source", "period_ns", "devices", "clock",
"samples", "losses", "finished", "cpu_s", "wall_s", "startup_cpu_s", "memory_bytes"}}``

No torch and no polars are loaded here, and GPUs are numbered in the order of their PCI bus whatever
``CUDA_VISIBLE_DEVICES`` says: that is the order of ``nvidia-smi`` and of nsys.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rlprof.capture.sampler_run import Run
from rlprof.capture.samplers.base import BACKENDS, LIMITS, Backend, Device, Sampler, period_of
from rlprof.capture.samplers.process_memory import keep_small
from rlprof.errors import RlprofError, UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sampler process.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the command line.

    Returns
    -------
    int
        Exit code: 0, or 2 if sampling is impossible here.
    """
    options = _options(arguments)
    try:
        return _sample(options)
    finally:
        if options.discard and _is_input_closed():
            shutil.rmtree(options.folder, ignore_errors=True)


def _sample(options: argparse.Namespace) -> int:
    stop = _Stop()
    try:
        period = (
            LIMITS[options.backend].default_period_ns
            if options.rate_hz is None
            else period_of(options.rate_hz)
        )
        if not options.probe:
            import pyarrow  # noqa: F401  # takes a while: before sampling starts, not after
        sampler = make_sampler(options.backend, _devices(options.devices), period, options.metrics)
        devices = sampler.start()
    except RlprofError as error:
        _say("failed", {"backend": options.backend, "what": error.what, "hint": error.hint})
        return 2
    if options.probe:
        sampler.stop()
        _say("ready", _greeting(options.backend, sampler, devices))
        return 0
    run = Run(options.folder, options.backend, sampler, devices)
    _say("ready", _greeting(options.backend, sampler, devices))
    return run.until(stop)


def make_sampler(
    backend: Backend, devices: Sequence[int] | None, period_ns: int, metrics: Sequence[str] = ()
) -> Sampler:
    """The sampler of a back end, not started.

    Parameters
    ----------
    backend : str
        One of `rlprof.capture.samplers.BACKENDS`.
    devices : sequence of int or None
        Numbers of the GPUs; None is all. The host has none.
    period_ns : int
        Sampling period.
    metrics : sequence of str
        Further metrics (cupti only).

    Raises
    ------
    UsageError
        If the period is out of range, or metrics are asked of a back end that has none.
    SamplerError
        If there is no driver or no such GPU.
    """
    if metrics and backend != "cupti":
        raise UsageError(f"the {backend} sampler reads SM activity alone", hint="--backend cupti")
    if backend == "cupti":
        from rlprof.capture.samplers import cupti

        # every device by its own number, whatever the profiled program may see
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return cupti.sampler(devices, period_ns, metrics)
    if backend == "nvml":
        from rlprof.capture.samplers.nvml import NvmlSampler

        return NvmlSampler(devices, period_ns)
    if backend == "dcgm":
        from rlprof.capture.samplers.dcgm import DcgmSampler

        return DcgmSampler(devices, period_ns)
    from rlprof.capture.samplers.host import HostSampler

    return HostSampler(period_ns)


class _Stop:
    """Tells when to stop: SIGTERM, or the end of standard input."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.signal(signal.SIGTERM, self._told)
        # Ctrl-C reaches the whole group; the session ends the sampler once the program has ended
        signal.signal(signal.SIGINT, self._told if sys.stdin.isatty() else signal.SIG_IGN)
        self._stopped = False

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        self._stopped = True
        os.write(self._write, b"x")

    def wait(self, until_ns: int) -> bool:
        """Wait until a time of the host's clock; True if it is time to stop."""
        while not self._stopped:
            left = (until_ns - time.monotonic_ns()) / 1e9
            ready = select.select([0, self._read], [], [], max(0.0, left))[0]
            if 0 in ready and not os.read(0, 4096):
                self._stopped = True
            if not ready and left <= 0:
                break
        return self._stopped


def _is_input_closed() -> bool:
    """Whether the parent is done with this process, or gone; it is not if this one was told to end alone."""
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)


def _greeting(backend: Backend, sampler: Sampler, devices: Sequence[Device]) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "backend": backend,
        "source": sampler.source,
        "period_ns": sampler.period_ns,
        "devices": [{"device": d.device, "name": d.name, "sm_count": d.sm_count, **d.facts} for d in devices],
        "clock": sampler.clock(),
    }


def _say(word: str, facts: dict[str, Any]) -> None:
    try:
        print(word, json.dumps(facts), flush=True)
    except BrokenPipeError:  # nobody is there: who started this was interrupted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _devices(text: str) -> list[int] | None:
    if text == "all":
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise UsageError(
            f"--devices {text!r} names no GPUs", hint="for example --devices 0,1 or --devices all"
        )
    return sorted(set(numbers))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rlprof.capture.sampler", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--backend", choices=BACKENDS, required=True)
    parser.add_argument("--rate-hz", type=float, help="samples per second; the back end's own by default")
    parser.add_argument("--devices", default="all", help="numbers of the GPUs, or all")
    parser.add_argument("--folder", type=Path, help="the session's folder")
    parser.add_argument("--metrics", nargs="*", default=[], help="further metrics of the chip (cupti)")
    parser.add_argument("--discard", action="store_true", help="remove the folder when the input closes")
    parser.add_argument("--probe", action="store_true", help="try whether it works, write nothing")
    options = parser.parse_args(arguments)
    if options.folder is None and not options.probe:
        parser.error("--folder is needed")
    return options


class _NoPandas:
    """Hides pandas from this process: pyarrow loads it where it finds it, 40 MB for nothing."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not used by a sampler", name=name)


if __name__ == "__main__":
    sys.meta_path.insert(0, _NoPandas())
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a buffer for every core, and no product to compute
    keep_small()
    sys.exit(main())
