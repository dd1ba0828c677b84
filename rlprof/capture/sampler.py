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
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rlprof.capture.samplers.base import BACKENDS, LIMITS, Backend, Device, Sampler, Samples, period_of
from rlprof.capture.samplers.process_memory import keep_small
from rlprof.errors import RlprofError, UsageError

#: How often samples go to disk, and how often the description does.
FLUSH_NS, DESCRIBE_NS = 500_000_000, 5_000_000_000
#: Activity is kept to one part in this many: far finer than the counters are, and it compresses.
GRAIN = 1 << 20


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


class Run:
    """A sampler at work and the parts it writes.

    Parameters
    ----------
    folder : pathlib.Path
        The session's.
    backend : str
        Name of the back end.
    sampler : Sampler
        Started.
    devices : sequence of Device
        What it samples.
    """

    def __init__(self, folder: Path, backend: Backend, sampler: Sampler, devices: Sequence[Device]) -> None:
        from rlprof.capture.clock import Anchor
        from rlprof.capture.parts import PartWriter

        self._folder, self._backend, self._sampler, self._devices = folder, backend, sampler, devices
        self._activity, self._notes = PartWriter(folder, "activity"), PartWriter(folder, "notes")
        self._counters = PartWriter(folder, "counters")
        self._anchors = [Anchor.now()]
        self._began_ns, self._began_cpu_s = time.monotonic_ns(), _cpu_s()
        self._waiting: list[Samples] = []
        self._samples = 0
        self._described = 0
        table = PartWriter(folder, "devices")
        gpus = [d for d in devices if d.device >= 0]
        table.write(
            {
                "device": [d.device for d in gpus],
                "name": [d.name for d in gpus],
                "sm_count": [d.sm_count for d in gpus],
                "uuid": [d.uuid for d in gpus],
            }
        )
        table.close()
        self._describe(finished=False)

    def until(self, stop: _Stop) -> int:
        """Sample until told to stop; whatever happens, what was sampled is written.

        Returns
        -------
        int
            Exit code.
        """
        failure: RlprofError | None = None
        flushed = due = time.monotonic_ns()
        while failure is None:
            due = max(due + self._sampler.poll_ns, time.monotonic_ns())
            if stop.wait(due):
                break
            try:
                self._waiting += self._sampler.drain()
            except Exception as error:
                failure = _failure(error)
            now = time.monotonic_ns()
            if now - flushed >= FLUSH_NS:
                self._flush()
                flushed = now
            if now - self._described >= DESCRIBE_NS:
                self._describe(finished=False)
        try:
            self._waiting += self._sampler.stop()
        except Exception as error:
            failure = failure or _failure(error)
        self._finish(failure)
        return 0 if failure is None else 2

    def _flush(self) -> None:
        import numpy as np

        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        lengths = [len(s) for s in waiting]
        total = sum(lengths)
        self._samples += total
        self._activity.write(
            {
                "source": _repeated(self._sampler.source, total),
                "device": np.repeat([s.device for s in waiting], lengths).astype(np.int32),
                "start_ns": np.concatenate([s.start_ns for s in waiting]),
                "end_ns": np.concatenate([s.end_ns for s in waiting]),
                "active_frac": np.rint(np.concatenate([s.active_frac for s in waiting]) * GRAIN) / GRAIN,
            }
        )

        for sample in waiting:
            for metric, values in sample.extra.items():
                self._counters.write(
                    {
                        "metric": _repeated(metric, len(sample)),
                        "device": np.full(len(sample), sample.device, np.int32),
                        "start_ns": sample.start_ns,
                        "end_ns": sample.end_ns,
                        "value": values,
                    }
                )

    def _finish(self, failure: RlprofError | None) -> None:
        from rlprof.capture.clock import Anchor

        self._flush()
        self._anchors.append(Anchor.now())
        notes = loss_notes(self._backend, self._sampler, self._samples)
        if failure is not None:
            notes.append(f"the {self._backend} sampler stopped early: {failure.what}")
        if self._activity.lost_rows:
            notes.append(
                f"{self._activity.lost_rows} activity samples could not be written ({self._activity.error})"
            )
        if notes:
            self._notes.write({"text": notes})
        for writer in (self._activity, self._counters, self._notes):
            writer.close()
        self._describe(finished=failure is None)

    def _describe(self, *, finished: bool) -> None:
        from rlprof.capture.parts import write_process

        self._described = now = time.monotonic_ns()
        facts = {
            "label": "sampler",
            "anchors": [a.to_dict() for a in self._anchors],
            "sampler": {
                "backend": self._backend,
                "source": self._sampler.source,
                "period_ns": self._sampler.period_ns,
                "devices": [{"device": d.device, **d.facts} for d in self._devices],
                "clock": self._sampler.clock(),
                "samples": self._samples,
                "losses": vars(self._sampler.losses()),
                "finished": finished,
                "cpu_s": round(_cpu_s() - self._began_cpu_s, 3),
                "wall_s": round((now - self._began_ns) / 1e9, 3),
                "startup_cpu_s": round(self._began_cpu_s, 3),
                "memory_bytes": _memory_bytes(),
            },
        }
        try:
            write_process(self._folder, facts)
        except OSError:  # the disk is full: samples matter more, and their writer counts what it loses
            return


def loss_notes(backend: str, sampler: Sampler, samples: int) -> list[str]:
    """What a reader of the capture must know about its samples.

    Parameters
    ----------
    backend : str
        Name of the back end.
    sampler : Sampler
        Stopped.
    samples : int
        How many were delivered.

    Returns
    -------
    list of str
        Sentences; none if nothing is missing.
    """
    losses, notes = sampler.losses(), []
    if losses.gaps:
        share = losses.lost_samples / max(1, losses.lost_samples + samples)
        notes.append(
            f"{losses.lost_samples} samples ({share:.2%}) are missing in {losses.gaps} gap(s), "
            f"{losses.lost_ns / 1e6:.1f} ms in all; nothing was filled in"
        )
    if losses.overflows:
        notes.append(
            f"the counters' buffer was full {losses.overflows} time(s): the sampler was kept from reading it "
            "in time (are all cores busy?)"
        )
    if losses.invalid:
        notes.append(f"{losses.invalid} answers of the {backend} sampler were no number and were left out")
    if losses.repeated:
        notes.append(f"{losses.repeated} samples came twice and were taken once")
    if backend == "dcgm":
        from rlprof.capture.samplers.dcgm import UNVERIFIED

        notes.append(UNVERIFIED)
    for device, clock in sampler.clock().items():
        if clock["method"] == "arrival of the records":
            notes.append(
                f"the clock of GPU {device} could not be read (no CUDA context): its samples are placed by "
                f"their arrival, within {(clock['uncertainty_ns'] or 0) / 1e6:.1f} ms"
            )
    return notes


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


def _failure(error: Exception) -> RlprofError:
    """What went wrong, for the notes: no error of a library (a GPU was lost, say) may cost samples."""
    return error if isinstance(error, RlprofError) else RlprofError(f"{type(error).__name__}: {error}")


def _repeated(text: str, count: int) -> Any:
    import numpy as np
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([text]))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _memory_bytes() -> dict[str, int]:
    """Resident memory now: private, and mapped from files (libraries, the driver's buffers); and its peak."""
    found = {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    names = {"RssAnon": "private", "RssFile": "files", "RssShmem": "shared"}
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in names:
                found[names[name]] = int(value.split()[0]) * 1024
    except (OSError, ValueError):
        pass
    return found


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
