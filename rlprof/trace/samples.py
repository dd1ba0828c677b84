"""From the instants of a sampled counter to the intervals over which each sample holds."""

from __future__ import annotations

import polars as pl

#: A step longer than this many median steps is a gap: the sample before it does not reach over it.
MAX_HOLD_PERIODS = 1.5


def hold_intervals(samples: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Give every sample the interval over which it holds.

    A sample's timestamp is the start of its interval, which reaches to the next sample of the device, but
    at most 1.5 median steps (specification A, section 4); the last sample holds for a median step.

    Parameters
    ----------
    samples : polars.DataFrame
        Columns ``device``, ``start_ns``, ``active_frac``; any order. Nulls, repeated timestamps of a
        device and values that are no share (0..1) are dropped with a note.

    Returns
    -------
    frame : polars.DataFrame
        Columns ``device``, ``start_ns``, ``end_ns``, ``active_frac``, sorted by device and time.
    notes : tuple of str
        Counts of dropped samples and of gaps.
    """
    clean = (
        samples.drop_nulls()
        .filter(pl.col("active_frac").is_between(0, 1) & pl.col("start_ns").is_between(-(2**62), 2**62))
        .sort("device", "start_ns", maintain_order=True)
        .unique(["device", "start_ns"], keep="first", maintain_order=True)
    )
    step = (pl.col("start_ns").shift(-1) - pl.col("start_ns")).over("device")
    timed = clean.with_columns(step.alias("step_ns")).with_columns(
        pl.col("step_ns").median().over("device").alias("median_ns")
    )
    longest = (pl.col("median_ns") * MAX_HOLD_PERIODS).cast(pl.Int64)
    hold = pl.min_horizontal(pl.coalesce("step_ns", pl.col("median_ns").cast(pl.Int64)), longest)
    # a single sample has no step: it holds for no time
    out = timed.with_columns((pl.col("start_ns") + hold.fill_null(0)).alias("end_ns"))
    notes = []
    if len(clean) < len(samples):
        notes.append(
            f"{len(samples) - len(clean)} of {len(samples)} activity samples repeat a time, are empty or"
            " lie outside 0 to 100 %"
        )
    gaps = timed.filter(pl.col("step_ns") > longest)
    if len(gaps):
        lost_s = float((gaps["step_ns"] - gaps["median_ns"]).sum()) / 1e9
        notes.append(f"{len(gaps)} gaps in the activity samples, {lost_s:.3f} s without one")
    return out.select("device", "start_ns", "end_ns", "active_frac"), tuple(notes)
