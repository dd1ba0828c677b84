"""Where the optimiser gets activity from while a program trains: counters of a GPU, or cores."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from rlprof.cores import granted_cores
from rlprof.errors import RlprofError
from rlprof.overlap.optimize.windows import Activity

if TYPE_CHECKING:
    from rlprof.capture.session import Session

#: How long to wait for samples that reach the end of what is asked for: the sampler writes twice a second.
WAIT_S = 3.0


class ActivitySource(Protocol):
    """Activity of a device while a program trains."""

    def between(self, start_ns: int, end_ns: int) -> Activity | None:
        """Return the samples of a span of CLOCK_MONOTONIC; None: there are none."""
        ...

    def close(self) -> None:
        """End sampling."""
        ...


class NoActivity:
    """There is no source; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def between(self, start_ns: int, end_ns: int) -> Activity | None:  # noqa: ARG002
        """Return none."""
        return None

    def close(self) -> None:
        """Do nothing."""


class ProgramCores:
    """Share of the host's cores that a program's processes keep busy, for machines without a GPU.

    Other programs on the machine do not count: their work would hide every window. With one thread for each
    component, a component that runs alone on two cores has an activity of 0.5.

    Parameters
    ----------
    processes : callable
        Ids of the processes beside this one.
    period_s : float
        Between two looks.
    """

    def __init__(self, processes: Callable[[], Sequence[int]] = tuple, period_s: float = 0.02) -> None:
        self._processes, self._period_s = processes, period_s
        self._cores = granted_cores()
        self._looks: list[tuple[int, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlprof activity", daemon=True)
        self._look()
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            self._look()

    def _look(self) -> None:
        used = time.process_time_ns()
        for pid in self._processes():
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError, ValueError):
                    used += int(path.read_text().split()[0])
        self._looks.append((time.monotonic_ns(), used))

    def between(self, start_ns: int, end_ns: int) -> Activity | None:
        """Return the samples of a span; after it has ended for a period."""
        while self._looks[-1][0] < end_ns and self._thread.is_alive():
            time.sleep(self._period_s / 2)
        looks = np.array(self._looks, dtype=np.int64)
        times, used = looks[:, 0], looks[:, 1]
        wall = np.diff(times)
        share = np.clip(np.diff(used) / np.maximum(wall * self._cores, 1), 0.0, 1.0)
        near = (times[1:] > start_ns) & (times[:-1] < end_ns) & (wall > 0)
        if not near.any():
            return None
        return Activity(
            times[:-1][near], times[1:][near], share[near], f"the program's share of {self._cores:g} cores"
        )

    def close(self) -> None:
        """End sampling."""
        self._ended.set()
        self._thread.join()


class SampledDevice:
    """A sampler process of `rlprof.capture` on one GPU, or on all cores of the host.

    Parameters
    ----------
    folder : pathlib.Path
        Where it may put its files while it runs.
    device : int or None
        Number of the GPU; None: the host's cores, whoever uses them.
    rate_hz : float, optional
        Samples a second; by default 1000 of counters.

    Raises
    ------
    RlprofError
        If no sampler works here; it says why.
    """

    def __init__(self, folder: Path, device: int | None, rate_hz: float | None = None) -> None:
        from rlprof.capture.options import Options
        from rlprof.capture.session import Session

        self._device = -1 if device is None else device
        reasons = []
        for name in ("host",) if device is None else ("cupti", "dcgm", "nvml"):
            rate = 1000.0 if rate_hz is None and name == "cupti" else rate_hz
            options = Options(name, rate, None if device is None else (device,))  # type: ignore[arg-type]
            session = Session.scratch(folder, options)
            try:
                session.start()
            except RlprofError as error:
                reasons.append(f"{name}: {error.what}")
                continue
            self._session: Session = session
            self._source = "cores of the host" if device is None else f"SM counters of GPU {device} ({name})"
            return
        raise RlprofError(f"no sampler works: {'; '.join(reasons)}")

    def between(self, start_ns: int, end_ns: int) -> Activity | None:
        """Return the samples of a span; waits until they are written."""
        until = time.monotonic() + WAIT_S
        while True:
            found = self._samples(start_ns, end_ns)
            if (found is not None and found.end_ns[-1] >= end_ns) or time.monotonic() >= until:
                return found
            time.sleep(0.1)

    def _samples(self, start_ns: int, end_ns: int) -> Activity | None:
        from rlprof.capture.part_reader import read_parts

        tables = [t for p in read_parts(self._session.folder, ("activity",)) for t in p.tables.values()]
        if not tables:
            return None
        column = {
            name: np.concatenate([t[name].to_numpy() for t in tables])
            for name in ("start_ns", "end_ns", "active_frac", "device")
        }
        near = (column["end_ns"] > start_ns) & (column["start_ns"] < end_ns)
        near &= (column["device"] == self._device) & np.isfinite(column["active_frac"])
        if not near.any():
            return None
        order = np.argsort(column["start_ns"][near], kind="stable")
        start, end = (column[n][near][order].astype(np.int64) for n in ("start_ns", "end_ns"))
        active = column["active_frac"][near][order].astype(np.float64)
        return Activity(start, end, active, self._source)

    def close(self) -> None:
        """End the sampler and remove its files."""
        self._session.drop()
