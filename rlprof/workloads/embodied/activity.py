"""SM activity of a run while it goes on, read from what a sampler of `rlprof.capture` writes.

The sampler is a process of its own and samples whole devices; without a GPU it samples the host's cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlprof.errors import RlprofError
from rlprof.gpu_numbers import gpu_number
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from rlprof.capture.session import Session

#: Samples a second of a sampler of its own, where it reads counters: phases last tenths of a second or more.
RATE_HZ = 1000.0
#: A span of which less than this share is covered by samples has no activity.
MIN_COVERAGE_FRAC = 0.5
#: The sampler writes twice a second.
WRITES_S = 1.5


class Span(NamedTuple):
    """From when to when, CLOCK_MONOTONIC in nanoseconds."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """How long, in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


def mean_activity(
    start_ns: np.ndarray[Any, Any],
    end_ns: np.ndarray[Any, Any],
    active_frac: np.ndarray[Any, Any],
    device: np.ndarray[Any, Any],
    span: Span,
) -> float | Unavailable:
    """Time-weighted mean activity in a span (specification A, section 4): per device, then over devices.

    Parameters
    ----------
    start_ns, end_ns : ndarray of int64, shape (samples,)
        Of each sample.
    active_frac : ndarray of float64, shape (samples,)
        Activity, 0 to 1.
    device : ndarray of int, shape (samples,)
        Number of the GPU.
    span : Span
        Where.

    Returns
    -------
    float or Unavailable
        0 to 1; unavailable where samples cover less than half of the span of a device.
    """
    inside = np.minimum(end_ns, span.end_ns) - np.maximum(start_ns, span.start_ns)
    inside = np.where(np.isfinite(active_frac), np.maximum(inside, 0), 0)
    means = []
    for number in np.unique(device):
        weight = inside[device == number]
        covered = weight.sum() / max(1, span.end_ns - span.start_ns)
        if covered < MIN_COVERAGE_FRAC:
            return Unavailable(f"samples cover {covered:.0%} of the span")
        active = active_frac[device == number]
        means.append(float((weight * np.nan_to_num(active)).sum() / weight.sum()))
    return float(np.mean(means)) if means else Unavailable("there is no sample")


@contextmanager
def _no_client_of_mps() -> Iterator[None]:
    """Processes started in the block have contexts beside MPS: a sampler computes nothing, it looks on."""
    names = [name for name in os.environ if name.startswith("CUDA_MPS_")]
    kept = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(kept)


class Activity:
    """Activity of the devices during a run; close it.

    Parameters
    ----------
    folder : pathlib.Path or None
        A capture session's, which a sampler writes to; None: there is none.
    source : str
        The back end, or why there is none.
    session : Session, optional
        The session, where it is this run's own.
    """

    def __init__(self, folder: Path | None, source: str, session: Session | None = None) -> None:
        self._folder, self.source, self._session = folder, source, session

    @classmethod
    def start(cls, out: Path, *device: str, backend: str = "auto", rate_hz: float | None = None) -> Activity:
        """Start a sampler, or read the one of the capture that runs; where none works, say why.

        Parameters
        ----------
        out : pathlib.Path
            Folder of the run; samples lie in it until the run ends.
        *device : str
            Where the run computes: ``"cpu"``: the host's cores are sampled; ``"cuda:1"``: that GPU. Of
            several GPUs the mean counts.
        backend : str
            As of `rlprof.capture`.
        rate_hz : float, optional
            Samples per second; by default `RATE_HZ` of counters, and the back end's own of others.
        """
        from rlprof.capture.options import Options
        from rlprof.capture.recorder import ENVIRONMENT
        from rlprof.capture.session import Session

        if running := os.environ.get(ENVIRONMENT):
            return cls(Path(running), "the capture's")
        numbers = {gpu_number(d) for d in device if d.startswith("cuda")}
        for number in numbers:
            if isinstance(number, Unavailable):
                return cls(None, number.reason)
        gpus = tuple(sorted(number for number in numbers if isinstance(number, int)))
        tried = [backend] if backend != "auto" else ["cupti", "dcgm", "nvml"] if gpus else ["host"]
        reasons = []
        for name in tried:
            rate = RATE_HZ if rate_hz is None and name == "cupti" else rate_hz
            options = Options(name, rate, (gpus or None) if name != "host" else None)  # type: ignore[arg-type]
            session = Session.scratch(out, options)
            try:
                with _no_client_of_mps():
                    session.start()
            except RlprofError as error:
                reasons.append(f"{name}: {error.what}")
                continue
            return cls(session.folder, name, session)
        return cls(None, "; ".join(reasons))

    @classmethod
    def off(cls) -> Activity:
        """Measure none."""
        return cls(None, "not asked for")

    def means(
        self, spans: Mapping[str, Span], *, wait_s: float = 0.0
    ) -> dict[str, float] | Unavailable | None:
        """Mean activity of spans.

        Parameters
        ----------
        spans : mapping of str to Span
            By name.
        wait_s : float
            Longest time to wait for samples that reach the last end, in seconds.

        Returns
        -------
        dict of str to float, Unavailable, or None
            Of the spans that are covered; None: samples do not reach the last end yet.
        """
        if self._folder is None:
            return Unavailable(self.source)
        last, until = max(s.end_ns for s in spans.values()), time.monotonic() + wait_s
        while (samples := self._samples()) is None or samples["end_ns"].max(initial=0) < last:
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)
        first = min(s.start_ns for s in spans.values())
        near = (samples["end_ns"] > first) & (samples["start_ns"] < last)
        columns = {name: values[near] for name, values in samples.items()}
        found = {name: mean_activity(**columns, span=span) for name, span in spans.items()}
        known = {name: value for name, value in found.items() if isinstance(value, float)}
        return known or next(v for v in found.values() if isinstance(v, Unavailable))

    def _samples(self) -> dict[str, np.ndarray[Any, Any]] | None:
        from rlprof.capture.part_reader import read_parts

        assert self._folder is not None
        try:
            tables = [t for p in read_parts(self._folder, ("activity",)) for t in p.tables.values()]
        except RlprofError:
            return None
        names = ("start_ns", "end_ns", "active_frac", "device")
        if not tables:
            return None
        return {n: np.concatenate([t[n].to_numpy() for t in tables]) for n in names}

    def close(self) -> None:
        """End the sampler, if it is this run's own, and remove what it wrote."""
        if self._session is not None:
            self._session.drop()
            self._session = None
        self._folder = None
