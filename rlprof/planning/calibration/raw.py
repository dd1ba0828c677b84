"""The file of raw measurements: JSON lines, written as they come, continued after an interruption.

The first line says what was measured on (`Machine`); each further one is a `Measurement`. A line that was
cut off by the death of the process is dropped when the file is continued; anything else that is broken is an
error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rlprof.errors import OutputError
from rlprof.files import read_bytes
from rlprof.planning.calibration.errors import CalibrationError
from rlprof.trace.output import check_kind

FORMAT, VERSION = "rlprof.calibration", 1


@dataclass(frozen=True)
class Machine:
    """What was measured on.

    Parameters
    ----------
    device : {"cuda", "cpu"}
        Kind of device.
    name : str
        Full name of the GPU, or of the processor.
    count : int
        Devices that took part in collectives.
    memory_bytes : int
        Of one device, as its driver (or the operating system) reports it.
    dtype : str
        Of weights and activations, as PyTorch calls it.
    scalar_bytes : int
        Of one such number, s_b.
    backend : str
        Of the collectives: nccl or gloo; empty with one device.
    versions : dict of str to str
        Of Python, PyTorch, CUDA, NCCL, the driver.
    """

    device: str
    name: str
    count: int
    memory_bytes: int
    dtype: str
    scalar_bytes: int
    backend: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[Any, ...]:
        """What must agree for measurements on two devices to be put together."""
        return (self.device, self.name, self.dtype, self.versions.get("torch"))

    @property
    def identity(self) -> tuple[Any, ...]:
        """What must agree for two sets of measurements to be one."""
        return (*self.kinds, self.memory_bytes)


@dataclass(frozen=True)
class Point:
    """One thing to measure: a kind, and the sizes that tell it from others of its kind."""

    kind: str
    key: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """Kind and sizes as one canonical string."""
        return f"{self.kind} {json.dumps(self.key, sort_keys=True)}"

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.identity == other.identity


@dataclass(frozen=True)
class Measurement:
    """One visit of a point.

    Parameters
    ----------
    kind, key
        Of the point.
    round : int
        Which visit; all points are visited once before any is visited again.
    seconds : tuple of float
        One for each repetition; of short calls the mean over the calls of one repetition.
    parts : dict of str to tuple of float
        Times of parts of it, in seconds, by repetition.
    peak_bytes : int or None
        Most memory held during it; None where that was not measured.
    date : str
        ISO 8601, UTC.
    failed : str
        Why there is no time; empty if there is one.
    """

    kind: str
    key: Mapping[str, Any]
    round: int
    seconds: tuple[float, ...] = ()
    parts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    peak_bytes: int | None = None
    date: str = ""
    failed: str = ""

    @property
    def point(self) -> Point:
        """What was measured."""
        return Point(self.kind, self.key)


@dataclass(frozen=True)
class Raw:
    """A file of raw measurements, read."""

    machine: Machine
    measurements: tuple[Measurement, ...]

    def of(self, *kinds: str) -> tuple[Measurement, ...]:
        """Return the measurements of these kinds that did not fail."""
        return tuple(m for m in self.measurements if m.kind in kinds and not m.failed)

    @property
    def visited(self) -> set[tuple[str, int]]:
        """Identity and round of all visits that were made."""
        return {(m.point.identity, m.round) for m in self.measurements}


def read_raw(path: str | Path) -> Raw:
    """Read a file of raw measurements.

    Raises
    ------
    UnreadableError
        If it cannot be opened.
    CalibrationError
        If it is no such file, or a line other than a cut-off last one is broken.
    """
    return _read(Path(path))[0]


def merged(raws: Sequence[Raw]) -> Raw:
    """Put measurements of one kind of machine together; visits that are in several count once.

    Raises
    ------
    CalibrationError
        If there are none, or they are of different machines.
    """
    if not raws:
        raise CalibrationError("no measurements are named", hint="give at least one file of them")
    first = raws[0].machine
    for other in (r.machine for r in raws):
        if other.kinds != first.kinds:
            raise CalibrationError(
                f"measurements of {first.name} and of {other.name} are not of one machine",
                hint=f"compare {first.kinds} and {other.kinds}",
            )
    found = {(m.point.identity, m.round, m.date, m.seconds): m for r in raws for m in r.measurements}
    most = max((r.machine for r in raws), key=lambda m: m.count)
    return Raw(most, tuple(found.values()))


def _read(path: Path) -> tuple[Raw, int]:
    """What a file holds, and how many bytes of it are whole lines."""
    data = read_bytes(path)
    whole = data[: data.rfind(b"\n") + 1]
    lines = [line for line in whole.split(b"\n") if line.strip()]
    if not lines:
        raise CalibrationError(
            "no measurements in it", where=path, hint="make it with rlprof calibrate --raw"
        )
    head = _json(lines[0], path, 1)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise CalibrationError(
            "no file of raw measurements", where=path, hint=f'"format" is "{FORMAT}" in one'
        )
    if head.get("version") != VERSION:
        raise CalibrationError(
            f"measurements of version {head.get('version')!r}, known is {VERSION}",
            where=path,
            hint="measure again with this version of rlprof, or upgrade it",
        )
    machine = _record(Machine, head.get("machine"), path, 1)
    found = [_measurement(_json(line, path, n), path, n) for n, line in enumerate(lines[1:], 2)]
    return Raw(machine, tuple(found)), len(whole)


def _json(line: bytes, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise CalibrationError(
            f"line {number} is no JSON: {error}", where=path, hint="remove the line"
        ) from error


def _record(kind: type[Any], table: Any, path: Path, number: int) -> Any:
    known = {f.name for f in fields(kind)}
    if not isinstance(table, dict) or table.keys() - known:
        foreign = sorted(table.keys() - known) if isinstance(table, dict) else table
        raise CalibrationError(
            f"line {number}: no {kind.__name__}: {foreign}",
            where=path,
            hint=f"known are {', '.join(sorted(known))}",
        )
    try:
        return kind(**table)
    except TypeError as error:
        raise CalibrationError(f"line {number}: {error}", where=path, hint="remove the line") from error


def _measurement(table: Any, path: Path, number: int) -> Measurement:
    m: Measurement = _record(Measurement, table, path, number)
    times = [*m.seconds, *(t for part in m.parts.values() for t in part)]
    bad = [t for t in times if isinstance(t, bool) or not isinstance(t, int | float) or not 0 <= t < 1e9]
    if bad or (not m.failed and (not m.seconds or min(m.seconds) <= 0)):
        raise CalibrationError(
            f"line {number}: {m.kind} has the times {list(m.seconds)!r}",
            where=path,
            hint="each is a number of seconds above 0; remove the line",
        )
    parts = {name: tuple(part) for name, part in m.parts.items()}
    return Measurement(m.kind, m.key, m.round, tuple(m.seconds), parts, m.peak_bytes, m.date, m.failed)


class RawWriter:
    """Appends measurements to a file, each one on disk before the next begins.

    Parameters
    ----------
    path : path
        The file; continued if it is there.
    machine : Machine
        What is measured on.

    Raises
    ------
    CalibrationError
        If the file holds measurements of another machine, or is none.
    OutputError
        If it cannot be written.
    """

    def __init__(self, path: str | Path, machine: Machine) -> None:
        self.path = Path(path)
        self._found: list[Measurement] = []
        check_kind(self.path)
        try:
            there = self.path.exists() and self.path.stat().st_size > 0
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror or error}", where=self.path) from error
        keep = 0
        if there:
            raw, keep = _read(self.path)
            if raw.machine.identity != machine.identity:
                raise CalibrationError(
                    f"holds measurements of {raw.machine.name} ({raw.machine.dtype}, PyTorch"
                    f" {raw.machine.versions.get('torch')}), not of {machine.name} ({machine.dtype}, PyTorch"
                    f" {machine.versions.get('torch')})",
                    where=self.path,
                    hint="give another file",
                )
            self._found = list(raw.measurements)
        try:
            self._file = self.path.open("r+b" if there else "wb")
            if there:  # a line that was cut off goes
                self._file.truncate(keep)
                self._file.seek(keep)
            else:
                self._write({"format": FORMAT, "version": VERSION, "machine": asdict(machine)})
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror or error}", where=self.path) from error

    @property
    def raw(self) -> tuple[Measurement, ...]:
        """All measurements of the file so far."""
        return tuple(self._found)

    def add(self, measurement: Measurement) -> None:
        """Append one measurement.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        needed = ("kind", "key", "round")
        table = {k: v for k, v in asdict(measurement).items() if k in needed or v not in ({}, None, "", ())}
        try:
            self._write(table)
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror or error}", where=self.path) from error
        self._found.append(measurement)

    def _write(self, table: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(table, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> RawWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._found)
