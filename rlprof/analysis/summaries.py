"""Summary tables of ranges and kernels: counts and durations per label.

They equal, to the nanosecond, what ``nsys stats`` prints for the reports ``nvtx_pushpop_sum`` and
``cuda_gpu_kern_sum`` on the same capture. The counterpart of ``nvtx_gpu_proj_sum`` is in
`rlprof.analysis.projection`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from rlprof.trace.tables import TableName
    from rlprof.trace.trace import Trace


def range_labels(ranges: pl.DataFrame) -> pl.Series:
    """Label of each range: ``domain:name``, or the name alone in the default domain.

    Parameters
    ----------
    ranges : polars.DataFrame
        Columns ``name`` and ``domain`` of table ``ranges``, N rows.

    Returns
    -------
    polars.Series
        Categorical ``label``, N rows; null where the range has no name.
    """
    # the text is put together once per distinct pair, not once per row
    pairs = ranges.select("domain", "name").unique()
    domain, name = pl.col("domain").cast(pl.String), pl.col("name").cast(pl.String)
    labelled = pairs.with_columns(
        pl.when(domain == "").then(name).otherwise(domain + ":" + name).cast(pl.Categorical()).alias("label")
    )
    joined = ranges.select("domain", "name").join(
        labelled, on=["domain", "name"], how="left", nulls_equal=True, maintain_order="left"
    )
    return joined["label"]


def duration_statistics(duration: str) -> list[pl.Expr]:
    """Aggregations of a duration column: ``mean_ns``, ``median_ns``, ``min_ns``, ``max_ns``, ``std_ns``.

    The standard deviation is that of a sample (N - 1); 0 for a single value, as ``nsys stats`` has it.
    """
    column = pl.col(duration)
    return [
        column.mean().alias("mean_ns"),
        column.median().alias("median_ns"),
        column.min().alias("min_ns"),
        column.max().alias("max_ns"),
        column.std().fill_null(0.0).alias("std_ns"),
    ]


def absent(trace: Trace, table: TableName) -> Unavailable:
    """Why `table` is not there to be summarised."""
    reason = trace.missing.get(table, f"this {trace.meta.format} capture has no {table}")
    return Unavailable(reason)


def range_summary(trace: Trace) -> pl.DataFrame | Unavailable:
    """Counts and wall-clock durations of ranges, per label and style.

    The rows of style ``push_pop`` equal ``nsys stats --report nvtx_pushpop_sum``. A range whose end is not
    in the capture lasts to the capture's end (``nsys stats`` ends it at the last NVTX event instead).

    Parameters
    ----------
    trace : Trace
        Needs table ``ranges``.

    Returns
    -------
    polars.DataFrame or Unavailable
        ``label`` (``domain:name``, exact; null for ranges without a name), ``style``, ``total_ns``,
        ``count``, ``mean_ns``, ``median_ns``, ``min_ns``, ``max_ns``, ``std_ns``; longest total first.
    """
    if not trace.has("ranges"):
        return absent(trace, "ranges")
    ranges = trace.table("ranges", ["start_ns", "end_ns", "name", "style", "domain"])
    return _summary(ranges.with_columns(range_labels(ranges)), ["label", "style"])


def kernel_summary(trace: Trace) -> pl.DataFrame | Unavailable:
    """Counts and durations of kernels, per full name.

    Equals ``nsys stats --report cuda_gpu_kern_sum``. CUDA-graph launches that were recorded as a whole are
    no kernels and are left out.

    Parameters
    ----------
    trace : Trace
        Needs table ``kernels``.

    Returns
    -------
    polars.DataFrame or Unavailable
        ``name`` (demangled, with arguments), ``total_ns``, ``count``, ``mean_ns``, ``median_ns``,
        ``min_ns``, ``max_ns``, ``std_ns``; longest total first. `Unavailable` also where the capture holds
        nothing but whole graph launches.
    """
    if not trace.has("kernels"):
        return absent(trace, "kernels")
    kernels = trace.table("kernels", ["start_ns", "end_ns", "full_name", "kind"])
    single = kernels.filter(pl.col("kind") == "kernel")
    if single.is_empty() and not kernels.is_empty():
        return Unavailable(
            f"all {kernels.height} GPU records are whole CUDA-graph launches; capture with "
            "--cuda-graph-trace=node to see the kernels inside"
        )
    return _summary(single.rename({"full_name": "name"}), ["name"])


def _summary(frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    lengths = frame.select(*keys, (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"))
    return (
        lengths.group_by(keys)
        .agg(
            pl.col("duration_ns").sum().alias("total_ns"),
            pl.len().cast(pl.Int64).alias("count"),
            *duration_statistics("duration_ns"),
        )
        .with_columns(pl.col(keys[0]).cast(pl.String))
        .sort(["total_ns", "count", keys[0]], descending=[True, False, False], nulls_last=True)
    )
