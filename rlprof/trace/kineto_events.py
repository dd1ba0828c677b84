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
    kinds: dict[object, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    graph_nodes: bool = False

    def take(self, events: list[dict[str, Any]]) -> None:
        """Sort events in, in the order of the file."""
        kinds = self.kinds
        for event in events:
            phase = event.get("ph")
            category = event.get("cat")
            kind = kinds.get(category)
            if kind is None:
                kind = self._kind(category)
            if phase == "X":
                if kind != NO_WORK:
                    self._complete(event, kind)
            elif phase in ("B", "E", "b", "e") and kind in (ANNOTATION, OPERATION, OTHER):
                self._half(event, phase)

    def _kind(self, category: object) -> int:
        text = category.lower() if isinstance(category, str) else ""
        kind = _KINDS.get(text, NO_WORK if text in _NO_WORK else OTHER)
        if isinstance(category, str) or category is None:
            self.kinds[category] = kind
        return kind

    def _complete(self, event: dict[str, Any], kind: int) -> None:
        start_ns = us_to_ns(event.get("ts"))
        duration_ns = us_to_ns(event.get("dur"))
        if start_ns is None:
            self.dropped["without a usable start time"] += 1
            return
        if duration_ns is None or duration_ns < 0 or start_ns + duration_ns >= 2**63:
            self.dropped["without a usable duration"] += 1
            return
        end_ns = start_ns + duration_ns
        args = event.get("args")
        if type(args) is not dict:
            args = {}
        name = event.get("name")
        if kind == OVERHEAD:
            self.overhead.add(start_ns, end_ns)
            return
        self.seen.add(kind)
        if kind in (KERNEL, COPY):
            device = as_int(args.get("device"))
            if device is None:
                device = as_int(event.get("pid"))
            if device is not None and not 0 <= device < 1 << 31:
                device = None
            stream = as_int(args.get("stream"))
            if stream is None:
                stream = as_int(str(event.get("tid")).removeprefix("stream "))
            correlation = as_int(args.get("correlation"))
            if kind == KERNEL:
                if args.get("graph node id"):
                    self.graph_nodes = True
                code = self.kernel_names.code(name)
                self.kernels.add(
                    start_ns, end_ns, device, stream, correlation, code, _blocks(args.get("grid"))
                )
            else:
                code = self.copy_names.code(name)
                self.copies.add(
                    start_ns, end_ns, device, stream, correlation, code, as_int(args.get("bytes"))
                )
            return
        if kind in (ANNOTATION, OTHER) and "stream" in args:
            return  # the GPU's side of an annotation
        process = self._process(event.get("pid"))
        thread = self.threads.number(event.get("tid"))
        if kind == API:
            correlation = as_int(args.get("correlation"))
            self.api.add(start_ns, end_ns, process, thread, correlation, self.api_names.code(name))
            return
        style = PUSH_POP
        if kind == OPERATION and not (event["cat"] == "Operator" and is_label(str(name), args)):
            style = OPERATOR
        rows = self.ranges
        if kind == OTHER:
            self.other_categories[str(event.get("cat"))] += 1
            rows = self.others
        rows.add(start_ns, end_ns, self.range_names.code(name), style, process, thread, False)

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
        process, thread = self._process(event.get("pid")), self.threads.number(event.get("tid"))
        self.pairs.add(ts_ns, phase, process=process, thread=thread, name=code, key=key)

    def _process(self, pid: object) -> int:
        key = pid if type(pid) is int else as_int(pid) if as_int(pid) is not None else str(pid)
        return self.pids.setdefault(key, len(self.pids))


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
