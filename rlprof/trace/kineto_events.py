"""Sort the events of a PyTorch profiler trace into the raw columns of tables; see `rlprof.trace.kineto`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from rlprof.trace.chrome_events import (
    OPERATOR,
    PUSH_POP,
    RANGE_ROW,
    Names,
    Pairs,
    Rows,
    ThreadIds,
    as_int,
    us_to_ns,
)

KERNEL, COPY, API, ANNOTATION, OPERATION, OVERHEAD, NO_WORK, OTHER = range(8)
_KINDS = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": COPY,
    "memset": COPY,
    "cuda_runtime": API,
    "runtime": API,
    "cuda_driver": API,
    "driver": API,
    "user_annotation": ANNOTATION,
    "cpu_op": OPERATION,
    "operator": OPERATION,
    "overhead": OVERHEAD,
}
#: Kineto's categories that are neither work of a GPU nor a range of the host.
_NO_WORK = frozenset(
    """
    ac2g async async_cpu_to_gpu async_gpu collective_comm cpu_instant_event cuda_event cuda_profiler_range
    cuda_sync external_correlation flow fwdbwd glow_runtime gpu_user_annotation hpu_op mtia_ccp_events
    mtia_insight mtia_runtime privateuse1_driver privateuse1_runtime python python_function sync
    trace xpu_driver xpu_runtime
    """.split()  # noqa: SIM905
)
_LABEL = re.compile(
    r"ProfilerStep#|Optimizer\.(?:step|zero_grad)#|enumerate\(DataLoader\)#|## "
    r"|(?:Distributed)?DataParallel\.|(?:nccl|gloo|mpi|ucc):"
)
_BARE_OPERATOR = re.compile(
    r"\w*Backward\d*$|detach_?$|_?grad_sum_to_size$|record_param_comms$|<(?:for|back)ward op>$"
)


def is_label(name: str, args: dict[str, Any]) -> bool:
    """Whether an ``Operator`` event of the 2021 format is a label of the program and not an operator.

    A label is one that the profiler, the optimizers, the data loaders or the collectives write
    (``ProfilerStep#5``, ``Optimizer.step#SGD.step``, ``## forward ##``), or any other name that has no
    ``::``, is no autograd node and lists neither input shapes nor a sequence number, as operators do.
    """
    if _LABEL.match(name):
        return True
    return (
        "::" not in name
        and "Input Dims" not in args
        and "Sequence number" not in args
        and not _BARE_OPERATOR.match(name)
    )


@dataclass
class Collector:
    """Sorts events into the raw columns of tables."""

    kernels: Rows = field(
        default_factory=lambda: Rows(
            {
                "start_ns": pl.Int64(),
                "end_ns": pl.Int64(),
                "device": pl.Int32(),
                "stream": pl.Int64(),
                "correlation_id": pl.Int64(),
                "full_name": pl.UInt32(),
                "blocks": pl.Int64(),
            }
        )
    )
    copies: Rows = field(
        default_factory=lambda: Rows(
            {
                "start_ns": pl.Int64(),
                "end_ns": pl.Int64(),
                "device": pl.Int32(),
                "stream": pl.Int64(),
                "correlation_id": pl.Int64(),
                "kind": pl.UInt32(),
                "size_bytes": pl.Int64(),
            }
        )
    )
    api: Rows = field(
        default_factory=lambda: Rows(
            {
                "start_ns": pl.Int64(),
                "end_ns": pl.Int64(),
                "process": pl.UInt32(),
                "thread": pl.Int64(),
                "correlation_id": pl.Int64(),
                "name": pl.UInt32(),
            }
        )
    )
    ranges: Rows = field(default_factory=lambda: Rows(RANGE_ROW))
    #: times in which the profiler held up the program
    overhead: Rows = field(default_factory=lambda: Rows({"start_ns": pl.Int64(), "end_ns": pl.Int64()}))
    #: complete events of categories that are not Kineto's
    others: Rows = field(default_factory=lambda: Rows(RANGE_ROW))
    other_categories: Counter[str] = field(default_factory=Counter)
    pairs: Pairs = field(default_factory=Pairs)
    kernel_names: Names = field(default_factory=Names)
    copy_names: Names = field(default_factory=Names)
    api_names: Names = field(default_factory=Names)
    range_names: Names = field(default_factory=Names)
    #: number of a process by its pid as found
    pids: dict[object, int] = field(default_factory=dict)
    threads: ThreadIds = field(default_factory=ThreadIds)
    seen: set[int] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    graph_nodes: bool = False
    # what a category means, and the process and thread of a (pid, tid)
    _kinds: dict[str, int] = field(default_factory=dict)
    _lanes: dict[tuple[object, object], tuple[int, int]] = field(default_factory=dict)

    def take(self, events: list[dict[str, Any]]) -> None:
        """Sort events in, in the order of the file."""
        kinds = self._kinds
        for event in events:
            phase = event.get("ph")
            category = event.get("cat")
            if type(category) is not str:
                category = ""
            kind = kinds.get(category)
            if kind is None:
                kind = kinds[category] = _kind(category)
            if phase == "X":
                if kind != NO_WORK:
                    self._complete(event, kind)
            elif kind in (ANNOTATION, OPERATION, OTHER) and phase in ("B", "E", "b", "e"):
                self._half(event, phase)
        for rows in (self.kernels, self.copies, self.api, self.ranges, self.others, self.overhead):
            rows.settle()

    def _complete(self, event: dict[str, Any], kind: int) -> None:
        start_ns = us_to_ns(event.get("ts"))
        duration = event.get("dur")
        duration_ns = duration * 1000 if type(duration) is int else us_to_ns(duration)
        if start_ns is None:
            self.dropped["without a usable start time"] += 1
            return
        if duration_ns is None or duration_ns < 0 or start_ns + duration_ns >= 2**63:
            self.dropped["without a usable duration"] += 1
            return
        end_ns = start_ns + duration_ns
        if kind == OVERHEAD:
            self.overhead.fresh.append((start_ns, end_ns))
            return
        args = event.get("args")
        if type(args) is not dict:
            args = {}
        if kind in (KERNEL, COPY):
            self._device(event, args, kind, start_ns, end_ns)
            return
        if kind in (ANNOTATION, OTHER) and "stream" in args:
            return  # the GPU's side of an annotation
        self.seen.add(kind)
        pid, tid, name = event.get("pid"), event.get("tid"), event.get("name")
        try:
            process, thread = self._lanes[pid, tid]
        except (KeyError, TypeError):
            process, thread = self._lane(pid, tid)
        if kind == API:
            correlation = args.get("correlation")
            if type(correlation) is not int:
                correlation = as_int(correlation)
            row = (start_ns, end_ns, process, thread, correlation, self.api_names.code(name))
            self.api.fresh.append(row)
            return
        style = PUSH_POP
        if kind == OPERATION and not (event["cat"] == "Operator" and is_label(str(name), args)):
            style = OPERATOR
        rows = self.ranges
        if kind == OTHER:
            self.other_categories[str(event.get("cat"))] += 1
            rows = self.others
        rows.fresh.append((start_ns, end_ns, self.range_names.code(name), style, process, thread, False))

    def _device(
        self, event: dict[str, Any], args: dict[str, Any], kind: int, start_ns: int, end_ns: int
    ) -> None:
        self.seen.add(kind)
        device = as_int(args.get("device", event.get("pid")))
        if device is not None and not 0 <= device < 1 << 31:
            device = None
        stream = as_int(args.get("stream"))
        if stream is None:
            stream = as_int(str(event.get("tid")).removeprefix("stream "))
        correlation, name = as_int(args.get("correlation")), event.get("name")
        if kind == COPY:
            row = (start_ns, end_ns, device, stream, correlation, self.copy_names.code(name))
            self.copies.fresh.append((*row, as_int(args.get("bytes"))))
            return
        if args.get("graph node id"):
            self.graph_nodes = True
        row = (start_ns, end_ns, device, stream, correlation, self.kernel_names.code(name))
        self.kernels.fresh.append((*row, _blocks(args.get("grid"))))

    def _lane(self, pid: object, tid: object) -> tuple[int, int]:
        number = as_int(pid)
        process = self.pids.setdefault(str(pid) if number is None else number, len(self.pids))
        lane = process, self.threads.number(tid)
        if isinstance(pid, int | str) and isinstance(tid, int | str):
            self._lanes[pid, tid] = lane
        return lane

    def _half(self, event: dict[str, Any], phase: str) -> None:
        ts_ns = us_to_ns(event.get("ts"))
        if ts_ns is None:
            self.dropped["without a usable start time"] += 1
            return
        name = event.get("name")
        key = None
        if phase in ("b", "e"):
            key = (str(event.get("cat")), str(event.get("id", event.get("id2"))))
        code = None if name is None and phase == "E" else self.range_names.code(name)
        process, thread = self._lane(event.get("pid"), event.get("tid"))
        self.pairs.add(ts_ns, phase, process=process, thread=thread, name=code, key=key)


def _kind(category: str) -> int:
    text = category.lower()
    return _KINDS.get(text, NO_WORK if text in _NO_WORK else OTHER)


def _blocks(grid: object) -> int | None:
    """Blocks of a grid given as a list of three sizes; None if unknown."""
    if type(grid) is not list or not grid:
        return None
    total = 1
    for size in grid:
        if type(size) is not int or size <= 0:
            return None
        total *= size
    return total if total < 2**63 else None
