"""Attribution by time: the GPU work in flight while a range was open, whichever thread launched it.

The other attribution, by launching thread, is `rlprof.analysis.projection`; ``docs/attribution.md`` says why
the two differ and when to use which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlprof.analysis.activity import blind_nodes
from rlprof.analysis.intervals import I64, StepIntegral, union
from rlprof.analysis.summaries import absent
from rlprof.trace.hierarchy import hierarchy
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from rlprof.trace.trace import Trace

_SCHEMA = {
    "node": pl.UInt32(),
    "device": pl.Int32(),
    "busy_ns": pl.Int64(),
    "operations": pl.Int64(),
    "device_busy_ns": pl.Int64(),
    "device_operations": pl.Int64(),
}


def window_attribution(trace: Trace, *, exact_names: bool = False) -> pl.DataFrame | Unavailable:
    """GPU work in flight during the wall-clock time of each node, on each device of its process.

    Operations are recorded kernels, copies, memsets and whole graph launches; one that is in flight across
    the border of two invocations counts in both. Time counts once however many operations overlap in it.
    Invocations that overlap each other (start/end ranges) are added up, in ``total_ns`` and in ``busy_ns``.

    Parameters
    ----------
    trace : Trace
        Needs table ``ranges`` and one of ``kernels`` and ``copies``.
    exact_names : bool
        Keep ids inside labels, see `rlprof.trace.hierarchy.hierarchy`.

    Returns
    -------
    polars.DataFrame or Unavailable
        ``node`` (path), ``process``, ``device``, ``count``, ``total_ns`` (wall-clock time of the node),
        ``busy_ns``, ``operations`` (of the node's own process), ``busy_frac`` (``busy_ns`` in ``total_ns``),
        ``device_busy_ns``, ``device_operations`` (of every traced process on that device); longest total
        first. Work is null, not 0, where it cannot be told: no device of the process is known (then
        ``device`` is null too), or a CUDA-graph launch inside left no device record.
    """
    if not trace.has("ranges"):
        return absent(trace, "ranges")
    if not trace.has("kernels") and not trace.has("copies"):
        return absent(trace, "kernels")

    found = hierarchy(trace, exact_names=exact_names)
    columns = ["start_ns", "end_ns", "device", "process"]
    work = pl.concat([trace.table("kernels", columns), trace.table("copies", columns)]).filter(
        # nothing is in flight for no time
        pl.col("end_ns") > pl.col("start_ns")
    )
    process_of_node = found.nodes.select("node", "process")
    invocations = found.invocations.select("node", "start_ns", "end_ns").join(
        process_of_node, on="node", how="left", maintain_order="left"
    )
    totals = invocations.group_by("node").agg(
        pl.len().cast(pl.Int64).alias("count"),
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("total_ns"),
    )
    hit, _ = blind_nodes(trace, found)
    blind = found.nodes["node"].filter(pl.Series(hit))
    unknown = pl.col("node").is_in(blind.implode())
    measured = ["busy_ns", "operations", "device_busy_ns", "device_operations"]
    return (
        found.nodes.select("node", "path", "process")
        .join(totals, on="node")
        .join(_work_of_nodes(trace, invocations, work), on="node", how="left")
        .with_columns(pl.when(~unknown).then(pl.col(c)).alias(c) for c in measured)
        .with_columns(
            pl.when(pl.col("total_ns") > 0).then(pl.col("busy_ns") / pl.col("total_ns")).alias("busy_frac")
        )
        .sort(["total_ns", "path", "process", "device"], descending=[True, False, False, False])
        .select(
            pl.col("path").alias("node"),
            "process", "device", "count", "total_ns", "busy_ns", "operations", "busy_frac",
            "device_busy_ns", "device_operations",
        )
    )  # fmt: skip


def _work_of_nodes(trace: Trace, invocations: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Work in flight, summed over the invocations of each (node, device)."""
    used = _devices_of_processes(trace, work)
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for (process,), own in invocations.group_by("process"):
        start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        for device in used.get(int(process), ()):
            on_device = work.filter(pl.col("device") == device)
            columns = [
                pl.Series(column, values)
                for prefix, rows in (
                    ("", on_device.filter(pl.col("process") == process)),
                    ("device_", on_device),
                )
                for column, values in zip(
                    (f"{prefix}busy_ns", f"{prefix}operations"), _in_flight(rows, start, end), strict=True
                )
            ]
            part = own.select("node").with_columns(columns).group_by("node").sum()
            part = part.with_columns(pl.lit(device).alias("device"))
            parts.append(part.select(pl.col(c).cast(t) for c, t in _SCHEMA.items()))
    return pl.concat(parts)


def _devices_of_processes(trace: Trace, work: pl.DataFrame) -> dict[int, list[int]]:
    """Devices on which a process ran something or could have, by process."""
    told = trace.table("processes", ["process", "devices"]).explode("devices").rename({"devices": "device"})
    pairs = (
        pl.concat([work.select("process", "device"), told]).drop_nulls().unique().sort("process", "device")
    )
    devices: dict[int, list[int]] = {}
    for process, device in pairs.iter_rows():
        devices.setdefault(process, []).append(device)
    return devices


def _in_flight(work: pl.DataFrame, start: I64, end: I64) -> tuple[I64, I64]:
    """Busy nanoseconds and number of operations during each interval [start, end)."""
    begin, finish = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    busy = StepIntegral.of(*union(begin, finish)).over(start, end)[0]
    # begun before the interval's end, less those over before its start
    begun = np.searchsorted(np.sort(begin), end, side="left")
    over = np.searchsorted(np.sort(finish), start, side="right")
    return np.rint(busy).astype(np.int64), (begun - over).astype(np.int64)
