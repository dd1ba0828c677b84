"""The activity of each GPU over time, from the best source that the capture holds.

In this order: SM-activity counters (share of SMs with a warp resident, measured); the union of kernel
intervals (busy: an upper bound of SM activity, tightened by grid sizes where they are known); the activity
of the host's cores. What cannot be told is `Unavailable`, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from rlprof.analysis.intervals import F64, I64, load
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

Source = Literal["sm_counters", "kernel_union", "host_cores"]
#: What each source measures, for people.
SOURCE_TEXT: dict[str, str] = {
    "sm_counters": "SM activity measured by hardware counters, of the whole device",
    "kernel_union": "time with a kernel in flight (busy): an upper bound of SM activity",
    "host_cores": "activity of the host's cores: no GPU was measured",
}
HOST = -1
#: Runtime and driver calls that launch a CUDA graph.
GRAPH_LAUNCH = r"^cu(da)?GraphLaunch"


@dataclass(frozen=True)
class Signal:
    """Activity of one device as a step function.

    Parameters
    ----------
    device : int
        Device number; -1 is the host.
    source : str
        ``sm_counters``, ``kernel_union`` or ``host_cores``.
    start_ns, end_ns : ndarray of int64, shape (n,)
        Disjoint, sorted intervals. For counters, time outside them is not covered by a sample; for the
        union of kernels they reach from the capture's first event to its last.
    active_frac : ndarray of float64, shape (n,)
        Activity on each interval, 0..1.
    period_ns : int or None
        Median sampling period; None where nothing is sampled.
    grid_bounded : bool
        For ``kernel_union``: grid sizes and the SM count were known and tighten the bound.
    """

    device: int
    source: Source
    start_ns: I64
    end_ns: I64
    active_frac: F64
    period_ns: int | None
    grid_bounded: bool = False


def signals(trace: Trace) -> tuple[Signal, ...] | Unavailable:
    """The activity of every device, all from one source.

    Parameters
    ----------
    trace : Trace
        Any capture.

    Returns
    -------
    tuple of Signal, or Unavailable
        One per device, by device number.
    """
    counters = _sampled(trace, "sm_counters")
    if counters:
        return counters
    busy = _kernel_union(trace)
    if isinstance(busy, tuple):
        return busy
    cores = _sampled(trace, "host_cores")
    return cores or busy


def _sampled(trace: Trace, source: Literal["sm_counters", "host_cores"]) -> tuple[Signal, ...]:
    rows = trace.table("activity", ["source", "device", "start_ns", "end_ns", "active_frac"])
    rows = rows.filter((pl.col("source") == source) & (pl.col("end_ns") > pl.col("start_ns")))
    out = []
    parts = rows.partition_by("device", as_dict=True)
    for (device,) in sorted(parts):
        ordered = parts[device,].sort("start_ns")
        start = ordered["start_ns"].to_numpy()
        step = np.diff(start)
        period = int(np.median(step)) if len(step) else None
        end, value = ordered["end_ns"].to_numpy(), ordered["active_frac"].to_numpy()
        out.append(Signal(int(device), source, start, end, value, period))
    return tuple(out)


def _kernel_union(trace: Trace) -> tuple[Signal, ...] | Unavailable:
    if not trace.has("kernels"):
        return Unavailable(
            trace.missing.get("kernels", "the capture holds no GPU work and no activity samples")
        )
    rows = trace.table("kernels", ["start_ns", "end_ns", "device", "blocks", "kind"])
    if rows.is_empty():
        return Unavailable("the capture holds no valid kernel, so whether its GPUs were idle cannot be told")
    known = trace.table("devices", ["device", "sm_count"])
    sms = dict(known.drop_nulls().iter_rows())
    span = _event_span(trace, rows)
    # work of an unknown device is that of the only one there is, or counts for none
    if len(known) == 1:
        rows = rows.with_columns(pl.col("device").fill_null(known["device"][0]))
    rows = rows.drop_nulls("device")
    if rows.is_empty():
        return Unavailable("no kernel of the capture names its GPU, so whether one was idle cannot be told")
    parts = rows.partition_by("device", as_dict=True)
    return tuple(_busy(d, parts[d,], sms.get(d), span) for (d,) in sorted(parts))


def _event_span(trace: Trace, kernels: pl.DataFrame) -> tuple[int, int]:
    """From the first to the last kernel or range: a trimmed file holds nothing outside, idle or not."""
    ranges = trace.table("ranges", ["start_ns", "end_ns"])
    both = pl.concat([kernels.select("start_ns", "end_ns"), ranges])
    lo, hi = both.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return int(lo), int(hi)


def _busy(device: int, kernels: pl.DataFrame, sm_count: int | None, span: tuple[int, int]) -> Signal:
    """Share of SMs that the kernels in flight can reach at most, over `span`."""
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    bounded = bool(sm_count) and kernels["blocks"].null_count() < len(kernels)
    full = sm_count if bounded and sm_count else 1
    # a kernel of g blocks reaches at most g SMs; one whose grid is unknown may reach all
    reach = kernels["blocks"].fill_null(full).clip(1, full) if bounded else None
    weight = reach.to_numpy().astype(np.int64) if reach is not None else np.ones(len(start), dtype=np.int64)
    s, e, total = load(start, end, weight)
    active = np.minimum(total, full) / full
    s, e, active = _with_idle(s, e, active, *span)
    return Signal(device, "kernel_union", s, e, active, None, bounded)


def _with_idle(start: I64, end: I64, value: F64, lo: int, hi: int) -> tuple[I64, I64, F64]:
    """Fill the gaps between steps with zeros: without a kernel in flight the device is idle."""
    gap_start = np.concatenate([[lo], end])
    gap_end = np.concatenate([start, [hi]])
    keep = gap_end > gap_start
    s = np.concatenate([start, gap_start[keep]])
    e = np.concatenate([end, gap_end[keep]])
    v = np.concatenate([value, np.zeros(int(keep.sum()))])
    order = np.argsort(s, kind="stable")
    return s[order], e[order], v[order]


def blind_times(trace: Trace) -> tuple[I64, str | None]:
    """Host times of CUDA-graph launches whose device work was not recorded.

    What such a launch ran is unknown, so a node that holds one has no activity from kernel intervals.

    Returns
    -------
    times_ns : ndarray of int64
        Start of each such launch, sorted.
    reason : str or None
        Why, with counts; None when there is none.
    """
    none = np.zeros(0, dtype=np.int64)
    if not trace.has("api"):
        return none, None
    api = trace.table("api", ["start_ns", "process", "correlation_id", "name"])
    distinct = api["name"].unique().cast(pl.String)
    names = distinct.filter(distinct.str.contains(GRAPH_LAUNCH)).cast(pl.Categorical())
    launches = api.filter(pl.col("name").is_in(names.implode()))
    if launches.is_empty():
        return none, None
    seen = [trace.table(t, ["process", "correlation_id"]) for t in ("kernels", "copies")]
    lost = launches.join(pl.concat(seen), on=["process", "correlation_id"], how="anti")
    if lost.is_empty():
        return none, None
    return lost["start_ns"].sort().to_numpy(), (
        f"{len(lost)} of {len(launches)} CUDA-graph launches have no device record, so what they ran is"
        " unknown; capture with --cuda-graph-trace=node"
    )


def foreign_frac(trace: Trace, signal: Signal) -> float | None:
    """Share of a device's measured SM activity that fell into samples without any traced GPU work.

    Counters are device-wide: the rest of the device's users (other processes, graphics) show in them.

    Returns
    -------
    float or None
        0..1; None when there is no counter or no traced work to compare with.
    """
    if signal.source != "sm_counters" or not trace.has("kernels"):
        return None
    from rlprof.analysis.intervals import StepIntegral, union

    parts = [trace.table(t, ["start_ns", "end_ns", "device"]) for t in ("kernels", "copies")]
    work = pl.concat(parts).filter(pl.col("device") == signal.device)
    busy = StepIntegral.of(*union(work["start_ns"].to_numpy(), work["end_ns"].to_numpy()))
    weight = signal.active_frac * (signal.end_ns - signal.start_ns)
    total = float(weight.sum())
    if total <= 0 or work.is_empty():
        return None
    alone = busy.over(signal.start_ns, signal.end_ns)[0] == 0
    return float(weight[alone].sum()) / total
