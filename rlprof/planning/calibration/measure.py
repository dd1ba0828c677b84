"""Measure a machine: every point of the sweeps, round by round, into a file that is continued if it is there.

`python -m rlprof.planning.calibration.measure --raw raw.jsonl` needs PyTorch and nothing else: some machines
only measure.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlprof.errors import RlprofError, UsageError
from rlprof.planning.calibration import sweeps
from rlprof.planning.calibration.device import Clock, Devices, freed, machine, parse_devices, settled
from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.kernels import copy_s, gemm_s, nongemm_s, norms_s, optimizer_s
from rlprof.planning.calibration.links import measure_links
from rlprof.planning.calibration.operators import Bench
from rlprof.planning.calibration.raw import Measurement, Point, RawWriter
from rlprof.planning.calibration.sweeps import Effort, Preset
from rlprof.progress import Progress, silent

PARTS = ("links", "kernels", "forward", "inference", "generation", "training", "parallel")
#: Measured by processes of their own, one for each device.
TOGETHER = ("links", "parallel")
#: What makes a hardware file; the others are whole operators, to compare predictions with.
FITTED_PARTS = PARTS[:3]
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How measuring ended.

    Parameters
    ----------
    measured, left : int
        Visits made now, and those that are still to make.
    notes : tuple of str
        What failed or was left out, and why.
    interrupted : bool
        By Ctrl-C; what was measured is in the file.
    """

    measured: int
    left: int
    notes: tuple[str, ...]
    interrupted: bool = False


def points_of(part: str, devices: Devices, preset: Preset) -> list[Point]:
    """Points of one part of the measurements."""
    if part == "links":
        return sweeps.link_points(devices.kind, len(devices.numbers), preset)
    if part == "parallel":
        return sweeps.shapes_in_turn(sweeps.parallel_points(devices.kind, len(devices.numbers), preset))
    if part in sweeps.VALIDATED:
        return sweeps.validation_points(devices.kind, preset, part)
    made = {"kernels": sweeps.kernel_points, "forward": sweeps.forward_points}
    return made[part](devices.kind, preset)


def measure(
    path: str | Path,
    devices: Devices,
    *,
    preset: Preset = "full",
    parts: Sequence[str] = PARTS,
    seconds: float | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Measure what the file does not hold yet.

    All points are visited once, then again, as often as the preset says: a drift in time does not look like a
    difference between sizes. Ctrl-C ends it, and the file can be continued.

    Parameters
    ----------
    path : path
        File of raw measurements.
    devices : Devices
        What to measure on.
    preset : {"smoke", "quick", "full"}
        How many points, and how often.
    parts : sequence of str
        Of `PARTS`.
    seconds : float, optional
        Begin no visit after so long.
    progress : callable
        Told the kind that is measured, and the fraction done.

    Raises
    ------
    CalibrationError
        If the file holds measurements of another machine, or is none; or the device is lost.
    UsageError
        If a part is unknown.
    OutputError
        If the file cannot be written.
    """
    if foreign := sorted(set(parts) - set(PARTS)):
        raise UsageError(f"unknown part {foreign[0]!r}", hint=f"known are {', '.join(PARTS)}")
    effort = sweeps.effort_of(devices.kind, preset)
    # a device of a processor is one core: so each process of a collective computes, and less depends on what
    # else runs beside
    with settled(devices.kind):
        return _measure(path, devices, preset, parts, effort, seconds, progress)


def _measure(
    path: str | Path,
    devices: Devices,
    preset: Preset,
    parts: Sequence[str],
    effort: Effort,
    seconds: float | None,
    progress: Progress,
) -> Outcome:
    ends_at = time.monotonic() + (seconds if seconds is not None else 86400.0)
    with RawWriter(path, machine(devices)) as writer:
        session = _Session(writer, devices, effort, ends_at, progress)
        points = {part: points_of(part, devices, preset) for part in PARTS if part in parts}
        session.total = effort.rounds * sum(map(len, points.values()))
        try:
            for number in range(effort.rounds):
                for part, there in points.items():
                    if part not in TOGETHER:
                        session.visit(part, there, number)
                    elif number == 0:  # all rounds in one go: the processes take seconds to meet
                        session.visit_together(there)
        except KeyboardInterrupt:
            session.interrupted = True
        return session.outcome()


class _Session:
    """One run over the rounds."""

    def __init__(
        self, writer: RawWriter, devices: Devices, effort: Effort, ends_at: float, progress: Progress
    ) -> None:
        self.writer, self.devices, self.effort, self.ends_at = writer, devices, effort, ends_at
        self.progress, self.total, self.measured, self.seen = progress, 1, 0, 0
        self.notes: list[str] = []
        self.interrupted = False
        self.done = {(m.point.identity, m.round) for m in writer.raw if not m.failed}
        # what is too large, or loses the device, stays so; the rest is tried again, once in each run
        stays = [m for m in writer.raw if "memory" in m.failed.lower() or _lost(m.failed)]
        self.hopeless = {m.point.identity: m.failed for m in stays}

    def outcome(self) -> Outcome:
        """How it ended."""
        failed = [f"{identity}: {reason}" for identity, reason in self.hopeless.items()]
        left = self.total - self.seen
        notes = list(dict.fromkeys([*self.notes, *failed]))
        if left and not self.interrupted:
            notes.append(f"{left:,} of {self.total:,} visits were left out: no time")
        return Outcome(self.measured, left, tuple(notes), self.interrupted)

    def visit(self, part: str, points: Sequence[Point], number: int) -> None:
        """Visit all points of a part once, but for those that were visited or failed for good."""
        pending = [
            p for p in points if (p.identity, number) not in self.done and p.identity not in self.hopeless
        ]
        self.seen += len(points) - len(pending)
        if not pending or time.monotonic() > self.ends_at:
            return
        if part == "kernels":
            self._kernels(pending, number)
        else:
            self._operators(pending, number)

    def visit_together(self, points: Sequence[Point]) -> None:
        """Visit all that devices do together, round after round."""
        visits = [(p, number) for number in range(self.effort.rounds) for p in points]
        pending = [
            (p, n) for p, n in visits if (p.identity, n) not in self.done and p.identity not in self.hopeless
        ]
        self.seen += len(visits) - len(pending)
        left = self.ends_at - time.monotonic()
        if pending and left > 0:
            note = measure_links(pending, self.devices, self.effort, self._keep, limit_s=left)
            self.notes += [note] if note else []

    def _keep(self, found: Measurement) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.writer.add(replace(found, date=found.date or now))
        if found.failed:
            self.hopeless[found.point.identity] = found.failed
        else:
            self.measured += 1
        self.seen += 1
        if _lost(found.failed):
            raise CalibrationError(
                f"the device was lost while {found.kind} was measured ({found.failed})",
                hint="run again: the file is continued without this point",
            )
        self.progress(f"{found.kind}, round {found.round + 1}", self.seen / max(self.total, 1))

    def _kernels(self, points: Sequence[Point], number: int) -> None:
        clock, dtype, effort = Clock(self.devices.first), self.devices.dtype, self.effort
        measures = {
            "copy": lambda key: copy_s(key, clock, effort),
            "gemm": lambda key: gemm_s(key, clock, dtype, effort),
            "nongemm": lambda key: nongemm_s(key, clock, dtype, effort),
            "norms": lambda key: norms_s(key, clock, dtype, effort),
            "optimizer": lambda key: optimizer_s(key, clock, dtype, effort),
        }
        for point in points:
            if time.monotonic() > self.ends_at:
                return
            with freed(self.devices.first) if point.kind == "optimizer" else contextlib.nullcontext():
                try:
                    found = Measurement(
                        point.kind, point.key, number, tuple(measures[point.kind](dict(point.key)))
                    )
                except Exception as error:
                    found = _failed(point, number, error)
            self._keep(found)

    def _operators(self, points: Sequence[Point], number: int) -> None:
        bench = Bench(Clock(self.devices.first), self.devices.dtype, self.effort)
        try:
            for point in sweeps.shapes_in_turn(points):
                if time.monotonic() > self.ends_at:
                    return
                name = point.key["shape"]["name"]
                longest = max(
                    p.key["prompt_tokens"] + p.key["response_tokens"] + 1
                    for p in points
                    if p.key["shape"]["name"] == name
                )
                try:
                    found = replace(bench.measure(point, longest), round=number)
                except Exception as error:
                    found = _failed(point, number, error)
                if found.failed:
                    bench.drop()
                self._keep(found)
        finally:
            bench.drop()


def _failed(point: Point, number: int, error: Exception) -> Measurement:
    """A measurement that cannot be made here; the first line of the reason is kept."""
    LOG.debug("%s", point.identity, exc_info=error)
    said = str(error).strip().splitlines()
    return Measurement(
        point.kind, point.key, number, failed=f"{type(error).__name__}: {said[0] if said else ''}"[:300]
    )


def _lost(failed: str) -> bool:
    """Whether the device itself is lost, so that nothing that follows would be measured in this process."""
    return "CUDA error" in failed and "out of memory" not in failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(prog="rlprof.planning.calibration.measure", description=__doc__)
    parser.add_argument(
        "--raw", type=Path, required=True, help="file of raw measurements; continued if it is there"
    )
    parser.add_argument("--devices", help="0,1 (GPUs) or cpu:2 (processes); all GPUs by default")
    parser.add_argument("--preset", choices=("smoke", "quick", "full"), default="full")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, help="begin no visit after so long")
    parser.add_argument("--traces", action="store_true", help="show where a measurement failed")
    given = parser.parse_args(arguments)
    if given.traces:
        logging.basicConfig()
        LOG.setLevel(logging.DEBUG)
    told = [0.0]
    # PyTorch collects garbage before each CUDA graph; what is here now is none, and need not be looked at
    # each time
    gc.collect()
    gc.freeze()

    def tell(what: str, frac: float) -> None:
        if time.monotonic() - told[0] > 5:
            told[0] = time.monotonic()
            print(f"{frac:6.1%}  {what}", flush=True)

    try:
        outcome = measure(
            given.raw,
            parse_devices(given.devices),
            preset=given.preset,
            parts=given.parts.split(","),
            seconds=given.seconds,
            progress=tell,
        )
    except RlprofError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for note in outcome.notes:
        print(f"note: {note}")
    print(f"{outcome.measured:,} visits measured, {outcome.left:,} left")
    return 130 if outcome.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
