"""A sampler at work, and the parts that it writes into the folder of its session."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rlprof.capture.samplers.base import Backend, Device, Sampler, Samples
from rlprof.errors import RlprofError

#: How often samples go to disk, and how often the description does.
FLUSH_NS, DESCRIBE_NS = 500_000_000, 5_000_000_000
#: Activity is kept to one part in this many: far finer than the counters are, and it compresses.
GRAIN = 1 << 20


class Stop(Protocol):
    """What tells a run when to end."""

    def wait(self, until_ns: int) -> bool:
        """Wait until a time of the host's clock; True if it is time to end."""


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

    def until(self, stop: Stop) -> int:
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
