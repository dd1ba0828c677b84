"""Kernels and copies of this process, without nsys: through torch's profiler or CUPTI's activity records.

Where torch is installed its profiler is taken, because torch loads a CUPTI of its own; otherwise
cupti-python. Records are kept in the process until the session ends, so record kernels for minutes and not
for hours.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlprof.capture.clock import READINGS, Anchor
from rlprof.capture.parts import PartWriter
from rlprof.capture.samplers import cupti_library
from rlprof.capture.samplers.clock_map import DeviceClockMap, Reading, knot
from rlprof.errors import RlprofError

#: Asks the processes of a session to record kernels too.
KERNELS_VARIABLE = "RLPROF_CAPTURE_KERNELS"
#: Variables that show that a tool was injected which takes CUPTI for itself.
INJECTION = ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH")
COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_COPY_NAME = re.compile(r"^Mem(?P<what>cpy|set)\s*(?P<kind>[HDP]to[HDP])?")


class KernelsError(RlprofError):
    """Kernels cannot be recorded in this process."""


class KernelRecorder(Protocol):
    """Records the kernels of this process into a session's folder."""

    def stop(self) -> tuple[str, ...]:
        """End, write what is left; returns what a reader of the capture must know."""


@dataclass
class _Rows:
    """Columns of one table, growing."""

    table: str
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, **values: Any) -> None:
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


def start_kernels(folder: Path) -> KernelRecorder:
    """Record the kernels and copies of this process from now on.

    Parameters
    ----------
    folder : pathlib.Path
        The session's folder of parts.

    Returns
    -------
    KernelRecorder

    Raises
    ------
    KernelsError
        If another tool holds CUPTI in this process, or neither torch nor cupti-python can be used.
    """
    for variable in INJECTION:
        if os.environ.get(variable):
            raise KernelsError(
                f"another tool (nsys, or one injected by {variable}) records kernels in this process already",
                hint="capture without --kernels, or without that tool",
            )
    if importlib.util.find_spec("torch") is not None:
        return TorchKernels(folder)
    cupti_library.use_own_folder()
    if importlib.util.find_spec("cupti") is not None:
        return CuptiKernels(folder)
    raise KernelsError(
        "recording kernels needs torch or cupti-python, and neither is installed",
        hint="pip install 'rlprof[capture]'",
    )


@dataclass(frozen=True)
class NoKernels:
    """Stands for a recorder where kernels cannot be recorded: the capture's notes say why."""

    reason: str

    def stop(self) -> tuple[str, ...]:
        """The reason."""
        return (f"process {os.getpid()}: kernels were not recorded: {self.reason}",)


def kernels_if_asked(folder: Path) -> KernelRecorder | None:
    """Record the kernels of this process if its session asks for them.

    Parameters
    ----------
    folder : pathlib.Path
        The session's folder of parts.

    Returns
    -------
    KernelRecorder or None
        None if the session does not ask. A process that cannot is not disturbed: see `NoKernels`.
    """
    if not os.environ.get(KERNELS_VARIABLE):
        return None
    try:
        return start_kernels(folder)
    except RlprofError as error:
        return NoKernels(error.what)


class TorchKernels:
    """Kernels through torch's profiler, with CUDA activities alone."""

    def __init__(self, folder: Path) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        if not torch.cuda.is_available():
            raise KernelsError("torch sees no GPU here", hint="capture without --kernels")
        if torch._C._autograd._profiler_enabled():
            raise KernelsError(
                "torch's profiler is running in this process already",
                hint="capture without --kernels, or without that profiler",
            )
        self._folder = folder
        self._profile = profile(activities=[ProfilerActivity.CUDA])
        self._profile.start()

    def stop(self) -> tuple[str, ...]:
        """End the profiler and write what it saw."""
        import torch

        torch.cuda.synchronize()
        self._profile.stop()
        anchor = Anchor.now()
        kernels, copies = _Rows("kernels"), _Rows("copies")
        profiler: Any = self._profile.profiler
        autograd: Any = torch.autograd
        for event in profiler.kineto_results.events():
            if event.device_type() != autograd.DeviceType.CUDA:
                continue
            # the profiler's times are Unix time
            start_ns = event.start_ns() - anchor.utc_ns + anchor.monotonic_ns
            row = {
                "start_ns": start_ns,
                "end_ns": start_ns + event.duration_ns(),
                "device": event.device_index(),
                "stream": event.device_resource_id(),
                "correlation_id": event.correlation_id(),
            }
            if found := _COPY_NAME.match(event.name()):
                kind = "memset" if found["what"] == "set" else found["kind"] or "unknown"
                copies.add(**row, kind=kind)
            else:
                kernels.add(**row, name=short_name(event.name()), full_name=event.name(), kind="kernel")
        _write(self._folder, kernels, copies)
        return () if len(kernels) else ("torch's profiler recorded no kernel",)


class CuptiKernels:
    """Kernels through CUPTI's activity records (cupti-python)."""

    def __init__(self, folder: Path) -> None:
        try:
            cupti = cupti_library.load(counters=False)
        except RlprofError as error:
            raise KernelsError(error.what, hint=error.hint) from error
        self._cupti = cupti
        self._folder = folder
        self._kernels, self._copies = _Rows("kernels"), _Rows("copies")
        self._clock = DeviceClockMap()
        self._read_clock()
        kinds = cupti.ActivityKind
        self._kinds = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        try:
            cupti.activity_register_callbacks(_buffer_requested, self._buffer_completed)
            for kind in self._kinds:
                cupti.activity_enable(kind)
        except cupti.cuptiError as error:
            for kind in self._kinds:
                with contextlib.suppress(cupti.cuptiError):
                    cupti.activity_disable(kind)
            raise KernelsError(
                f"CUPTI refuses to record kernels ({error}): another profiler may hold it in this process",
                hint="capture without --kernels, or without that profiler",
            ) from error

    def _buffer_completed(self, records: Any) -> None:
        kinds = self._cupti.ActivityKind
        for r in records:
            row = {"start_ns": r.start, "end_ns": r.end, "device": r.device_id, "stream": r.stream_id}
            row["correlation_id"] = r.correlation_id
            if r.kind == kinds.CONCURRENT_KERNEL:
                blocks = r.grid_x * r.grid_y * r.grid_z
                self._kernels.add(
                    **row, name=short_name(r.name), full_name=r.name, blocks=blocks, kind="kernel"
                )
            elif r.kind == kinds.MEMCPY:
                kind = COPY_KINDS.get(int(r.copy_kind), "unknown")
                self._copies.add(**row, kind=kind, size_bytes=r.bytes)
            elif r.kind == kinds.MEMSET:
                self._copies.add(**row, kind="memset", size_bytes=r.bytes)

    def _read_clock(self) -> None:
        """Place CUPTI's clock on the host's, by a burst of readings."""
        readings = []
        for _ in range(READINGS):
            before = time.monotonic_ns()
            device = self._cupti.get_timestamp()
            readings.append(Reading(before, device, time.monotonic_ns()))
        self._clock.add(knot(readings))

    def stop(self) -> tuple[str, ...]:
        """Flush CUPTI's buffers and write what they held."""
        import numpy as np

        for kind in self._kinds:
            self._cupti.activity_disable(kind)
        self._cupti.activity_flush_all(1)
        self._read_clock()
        for rows in (self._kernels, self._copies):
            for column in ("start_ns", "end_ns"):
                times = np.array(rows.columns.get(column, []), dtype=np.int64)
                rows.columns[column] = self._clock.to_host(times).tolist()
        _write(self._folder, self._kernels, self._copies)
        return () if len(self._kernels) else ("CUPTI recorded no kernel",)


def _buffer_requested() -> tuple[int, int]:
    return 8 * 1024 * 1024, 0


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, template and call arguments.

    >>> short_name("void at::native::elementwise_kernel<128, 2>(int, float*)")
    'elementwise_kernel'
    """
    depth, kept = 0, []
    for c in name.replace("(anonymous namespace)", "anonymous"):
        depth += c in "<("
        if depth == 0:
            kept.append(c)
        depth -= c in ">)"
    words = "".join(kept).split()
    return words[-1].rsplit("::", 1)[-1] if words else name


def _write(folder: Path, *tables: _Rows) -> None:
    for rows in tables:
        writer = PartWriter(folder, rows.table)
        if len(rows):
            columns: Mapping[str, Any] = rows.columns
            writer.write(columns)
        writer.close()
