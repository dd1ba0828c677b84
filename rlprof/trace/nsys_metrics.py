"""SM-activity samples of an Nsight Systems export."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import polars as pl

from rlprof.trace.nsys_export import (
    GENERIC,
    METRIC_NAMES,
    METRICS,
    Condition,
    NsysExport,
    as_int,
    require,
)
from rlprof.trace.samples import hold_intervals
from rlprof.trace.tables import conform
from rlprof.trace.trace import Loaded
from rlprof.unavailable import Unavailable

#: The metric in the JSON text of a generic event: its value is an integer percent, as a string.
IN_JSON = r'(?i)"SMs? Active(?: \[[^\]"]*\])?"\s*:\s*"?(\d+)'


def metric_key(name: str) -> str:
    """A metric's name without what varies between versions: case, plural, unit suffix.

    >>> metric_key("SMs Active [Throughput %]") == metric_key("SM Active")
    True
    """
    bare = re.sub(r"\s*\[.*?\]\s*$", "", name).strip().lower()
    return re.sub(r"\bsms\b", "sm", bare)


def sm_activity_reader(export: NsysExport) -> Callable[[], Loaded] | Unavailable:
    """How to read the samples of SM activity, or why there are none.

    From GPU_METRICS; exports by older versions hold the same samples only as JSON text in GENERIC_EVENTS.
    A metricId is local to a typeId and to a file, so the metric is found by (typeId, name).
    """
    if METRICS in export.tables:
        metric = {
            as_int(r["typeId"]): as_int(r["metricId"])
            for r in export.small(METRIC_NAMES, ["typeId", "metricId", "metricName"])
            if metric_key(str(r["metricName"])) == "sm active"
        }
        if metric:
            return lambda: _from_metrics(export, metric)
        return Unavailable("the GPU metrics hold no metric `SM Active` / `SMs Active`")
    if GENERIC in export.tables:
        held = _from_json(export)
        if not held.frame.is_empty():
            return lambda: held
    return Unavailable(
        "no GPU metrics in the capture, so SM activity was not measured; "
        "capture with `nsys profile --gpu-metrics-devices=all`"
    )


def _from_metrics(export: NsysExport, metric: Mapping[int, int]) -> Loaded:
    require(export, METRICS, ["timestamp", "typeId", "metricId", "value"])
    where: tuple[Condition, ...] = (
        ("typeId", tuple(metric)),
        ("metricId", tuple(sorted(set(metric.values())))),
    )
    rows = export.raw.read(METRICS, ["timestamp", "typeId", "metricId", "value"], where)
    # the ids of one type may mean something else in another: keep only the pairs that were looked up
    pairs = {"typeId": list(metric), "metricId": list(metric.values())}
    right = pl.DataFrame(pairs, schema={"typeId": pl.Int64, "metricId": pl.Int64})
    rows = rows.join(right, on=["typeId", "metricId"], how="semi")
    return _loaded(rows.with_columns(pl.col("timestamp").alias("start_ns")))


def _from_json(export: NsysExport) -> Loaded:
    columns = export.pick(GENERIC, ["timestamp", "rawTimestamp", "typeId", "data"])
    rows = export.raw.read(GENERIC, columns)
    times = [pl.col(c) for c in ("timestamp", "rawTimestamp") if c in columns]
    found = rows.select(
        "typeId",
        pl.coalesce(times).alias("start_ns"),
        pl.col("data").str.extract(IN_JSON).cast(pl.Int64).alias("value"),
    )
    return _loaded(found.drop_nulls("value"))


def _loaded(rows: pl.DataFrame) -> Loaded:
    """Samples of the devices; the number of a GPU is the last byte of its typeId."""
    frame, notes = hold_intervals(
        rows.select(
            (pl.col("typeId") & 0xFF).cast(pl.Int32).alias("device"),
            "start_ns",
            (pl.col("value").cast(pl.Float64) / 100).alias("active_frac"),
        )
    )
    return Loaded(conform(frame.with_columns(pl.lit("sm_counters").alias("source")), "activity"), notes)
