"""Where the bars of a timeline lie: rows by process, thread and depth, overlapping bars on sub-lanes.

A timeline holds at most a given number of bars. What is too short to be seen is merged into blocks that say
how many ranges they stand for; whatever is not drawn is counted in `Lanes.notes`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import polars as pl

from rlprof.plots.theme import short_path
from rlprof.text import clean, shorten

#: Most rows of bars that one timeline has; deeper levels and quieter threads are left out, and counted.
MOST_ROWS = 72
#: Pixels of a timeline and of one letter in it, for choosing which bars can hold their name.
NOMINAL_WIDTH, LETTER_WIDTH = 800, 6.2
#: What a block of ranges with different names is called.
SEVERAL = "several names"
#: Letters in the margin that names the ranges of a row.
LEVEL_LETTERS = 20


@dataclass(frozen=True)
class Lanes:
    """A timeline laid out.

    Parameters
    ----------
    bars : polars.DataFrame
        ``start_s``, ``end_s``, ``row`` (top of the bar, in rows from the top), ``name``, ``label`` (what of
        the name fits, or ""), ``count`` (ranges that the bar stands for), ``activity_frac`` (mean activity,
        null if not known), ``where``.
    levels : polars.DataFrame
        ``row``, ``label``: names of the ranges in a row, the ones with most time first.
    headers : polars.DataFrame
        ``row``, ``label``: one for each thread, above its bars.
    busy : polars.DataFrame
        ``start_s``, ``end_s``, ``top``, ``bottom`` (in rows), ``busy_frac`` (share of time with a kernel
        running), ``where``.
    rows : float
        Height of the whole, in rows.
    notes : tuple of str
        What was merged or left out, with counts.
    """

    bars: pl.DataFrame
    levels: pl.DataFrame
    headers: pl.DataFrame
    busy: pl.DataFrame
    rows: float
    notes: tuple[str, ...] = ()


RANGE_COLUMNS = ("start_ns", "end_ns", "process", "thread", "depth", "name", "activity_frac")


def merge_short(ranges: pl.DataFrame, *, lo_ns: int, hi_ns: int, budget: int) -> pl.DataFrame:
    """Merge ranges that are too short to be seen, until at most `budget` bars are left.

    Parameters
    ----------
    ranges : polars.DataFrame
        Columns `RANGE_COLUMNS`, and ``track``: bars of one track share a row, and only they are merged.
    lo_ns, hi_ns : int
        Span to draw; ranges that do not touch it are left out, others are cut at its edges.
    budget : int
        Most bars; at least the number of tracks.

    Returns
    -------
    polars.DataFrame
        ``track``, ``start_ns``, ``end_ns``, ``name``, ``activity_frac``, ``count``; by track and start.
        Ranges shorter than a common width w are united where they start in one cell of a grid of that width.
        The counts add up to the number of ranges that touch the span.
    """
    touches = (pl.col("start_ns") < hi_ns) & ((pl.col("end_ns") > lo_ns) | (pl.col("start_ns") == lo_ns))
    names = ranges["name"].cast(pl.Categorical)
    distinct = names.unique()
    text = dict(zip(distinct.to_physical(), distinct.cast(pl.String), strict=True))
    bars = (
        ranges.with_columns(names.to_physical().alias("name"))
        .filter(touches)
        .select(
            "track",
            pl.col("start_ns").clip(lower_bound=lo_ns),
            pl.col("end_ns").clip(upper_bound=hi_ns),
            # first and last name of a block: it has one name where they are equal
            pl.col("name").alias("name"),
            pl.col("name").alias("last_name"),
            "activity_frac",
            # ranges of no duration weigh a little, so that a block of them has a mean
            pl.when(pl.col("activity_frac").is_not_null())
            .then((pl.col("end_ns") - pl.col("start_ns") + 1).cast(pl.Float64))
            .otherwise(0.0)
            .alias("weight"),
            pl.lit(1, dtype=pl.Int64).alias("count"),
        )
    )
    width = max((hi_ns - lo_ns) // 8_000, 1)
    most = max(budget, bars["track"].n_unique())
    while bars.height > most:
        # blocks of the round before lie within one cell of the wider grid and are merged again
        short = ((pl.col("end_ns") - pl.col("start_ns")) < width) | (pl.col("count") > 1)
        blocks = (
            bars.filter(short)
            .group_by("track", ((pl.col("start_ns") - lo_ns) // width).alias("cell"))
            .agg(
                pl.col("start_ns").min(),
                pl.col("end_ns").max(),
                pl.col("name").min(),
                pl.col("last_name").max(),
                ((pl.col("activity_frac") * pl.col("weight")).sum() / pl.col("weight").sum())
                .fill_nan(None)
                .alias("activity_frac"),
                pl.col("weight").sum(),
                pl.col("count").sum(),
            )
            .drop("cell")
        )
        bars = pl.concat([bars.filter(~short), blocks])
        width *= 2
    pairs = bars.select("name", "last_name").iter_rows()
    shown = [text[a] if a == b else SEVERAL for a, b in pairs]
    return (
        bars.with_columns(pl.Series("name", shown, dtype=pl.String))
        .drop("last_name", "weight")
        .sort("track", "start_ns", "end_ns")
    )


def sub_lanes(start_ns: list[int], end_ns: list[int]) -> list[int]:
    """Give each bar the first lane that is free when it starts.

    Parameters
    ----------
    start_ns, end_ns : list of int
        Bars sorted by start.

    Returns
    -------
    list of int
        Lanes from 0; as few as there are bars open at once.
    """
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes = []
    count = 0
    for start, end in zip(start_ns, end_ns, strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes


def lay_out(
    ranges: pl.DataFrame,
    process_labels: dict[int, str],
    busy: list[tuple[str, pl.DataFrame]],
    *,
    lo_ns: int,
    hi_ns: int,
    budget: int,
    most_rows: int = MOST_ROWS,
) -> Lanes:
    """Lay out ranges by process, thread and depth, and the devices' kernels below them.

    Parameters
    ----------
    ranges : polars.DataFrame
        Columns `RANGE_COLUMNS`; ``name`` is a label of any length, text or categorical.
    process_labels : dict of int to str
        Name to show for each process.
    busy : list of (label, frame)
        For each device, a frame of `rlprof.plots.prepare.envelope` over the union
        of its kernels: a bin's ``covered_frac`` is the share of time with a kernel running.
    lo_ns, hi_ns : int
        Span to draw.
    budget : int
        Most rows of all tables together.
    most_rows : int
        Most rows of bars.

    Returns
    -------
    Lanes
        Ready to draw.
    """
    notes: list[str] = []
    groups, ranges = _choose_threads(ranges, most_rows, notes)
    tracks = (
        ranges.select("process", "thread", "depth")
        .unique()
        .sort("process", "thread", "depth")
        .with_row_index("track")
    )
    ranges = ranges.join(tracks, on=["process", "thread", "depth"], nulls_equal=True)
    spent = sum(frame.height for _, frame in busy) + groups.height + len(busy) + tracks.height
    bars = merge_short(ranges, lo_ns=lo_ns, hi_ns=hi_ns, budget=budget - spent)
    merged = bars.filter(pl.col("count") > 1)
    if merged.height:
        notes.append(
            f"{merged['count'].sum():,} short ranges are merged into {merged.height:,} pale blocks; "
            "a block's tooltip says how many"
        )
    bars = bars.join(tracks, on="track", maintain_order="left")

    multi = dict(groups.group_by("process").len().iter_rows())
    numbers: dict[int, int] = {}
    header_rows: list[tuple[float, str]] = []
    level_rows: list[tuple[float, str]] = []
    pieces: list[pl.DataFrame] = []
    row = 0.0
    for process, thread in groups.select("process", "thread").iter_rows():
        numbers[process] = numbers.get(process, 0) + 1
        label = shorten(process_labels.get(process, f"process {process}"), 60)
        if multi[process] > 1:
            label = f"{label}, thread {numbers[process]}"
        here = bars.filter((pl.col("process") == process) & pl.col("thread").eq_missing(thread))
        header_rows.append((row, label))
        row += 1
        for (_,), level in here.group_by(["depth"], maintain_order=True):
            level_rows.append((row, _names_of(level)))
            lane = sub_lanes(level["start_ns"].to_list(), level["end_ns"].to_list())
            pieces.append(
                level.with_columns(
                    pl.Series("row", [row + n for n in lane], dtype=pl.Float64), pl.lit(label).alias("where")
                )
            )
            row += max(lane) + 1
        row += 0.4
    busy_rows = []
    for label, frame in busy:
        header_rows.append((row, f"{label}: share of time with a kernel running"))
        busy_rows.append(_busy_row(frame, bottom=row + 3, label=label))
        row += 3.4
    return Lanes(
        bars=_labelled(pieces, hi_ns - lo_ns),
        levels=pl.DataFrame(level_rows, schema={"row": pl.Float64, "label": pl.String}, orient="row"),
        headers=pl.DataFrame(header_rows, schema={"row": pl.Float64, "label": pl.String}, orient="row"),
        busy=pl.concat(busy_rows) if busy_rows else _busy_row(pl.DataFrame(), bottom=0, label=""),
        rows=row,
        notes=tuple(notes),
    )


def _choose_threads(
    ranges: pl.DataFrame, most_rows: int, notes: list[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Threads and levels that fit into the rows; says what does not."""
    time = (pl.col("end_ns") - pl.col("start_ns")).sum()
    groups = (
        ranges.group_by("process", "thread")
        .agg(time.alias("time_ns"), pl.col("depth").n_unique().alias("levels"))
        .sort("time_ns", descending=True)
    )
    # a thread needs a header and at least two levels to be worth its place
    most_threads = max(most_rows // 3, 1)
    if groups.height > most_threads:
        left = groups.slice(most_threads)
        share = float(left["time_ns"].sum()) / max(float(groups["time_ns"].sum()), 1.0)
        notes.append(
            f"the {left.height:,} threads with the least time in ranges ({share:.1%} of it) are not drawn"
        )
        groups = groups.head(most_threads)
    groups = groups.sort("process", "thread", nulls_last=True)
    ranges = ranges.join(
        groups.select("process", "thread"), on=["process", "thread"], how="semi", nulls_equal=True
    )
    levels = groups["levels"].to_list()
    limit = max(levels, default=0)
    while limit > 1 and sum(min(n, limit) + 1 for n in levels) > most_rows:
        limit -= 1
    if limit < max(levels, default=0):
        ranked = pl.col("depth").rank("dense").over("process", "thread")
        deep = ranges.filter(ranked > limit)
        notes.append(f"{deep.height:,} ranges deeper than {limit} levels are not drawn")
        ranges = ranges.filter(ranked <= limit)
    return groups, ranges


def _names_of(level: pl.DataFrame) -> str:
    """Names of the ranges of one level, those with most time first, as far as a margin has room."""
    time = (pl.col("end_ns") - pl.col("start_ns")).sum()
    names = (
        level.group_by("name")
        .agg(time.alias("time_ns"))
        .sort("time_ns", "name", descending=[True, False])["name"]
    )
    first = short_path(names[0], LEVEL_LETTERS)
    more = (
        f"{first}, {short_path(names[1], LEVEL_LETTERS)}" if len(names) == 2 else f"{first} +{len(names) - 1}"
    )
    return (
        first
        if len(names) == 1
        else more
        if len(more) <= LEVEL_LETTERS
        else f"{first[: LEVEL_LETTERS - 4]} +{len(names) - 1}"
    )


def _labelled(pieces: list[pl.DataFrame], span_ns: int) -> pl.DataFrame:
    schema = {
        "start_s": pl.Float64, "end_s": pl.Float64, "row": pl.Float64, "name": pl.String, "label": pl.String,
        "count": pl.Int64, "activity_frac": pl.Float64, "where": pl.String,
    }  # fmt: skip
    if not pieces:
        return pl.DataFrame(schema=schema)
    bars = pl.concat(pieces)
    per_letter_ns = max(span_ns, 1) / (NOMINAL_WIDTH / LETTER_WIDTH)
    start, end = bars["start_ns"].to_numpy(), bars["end_ns"].to_numpy()
    letters: list[float] = ((end - start) / per_letter_ns - 1).tolist()
    labels = []
    names = []
    for name, count, room in zip(bars["name"], bars["count"], letters, strict=True):
        text = clean(name)
        shown = text if count == 1 else f"{count:,} × {short_path(text, 60)}"
        names.append(short_path(text, 200))
        labels.append(shown if len(shown) <= room else shown[: int(room) - 1] + "…" if room >= 4 else "")
    return bars.select(
        (pl.col("start_ns") / 1e9).alias("start_s"),
        (pl.col("end_ns") / 1e9).alias("end_s"),
        "row",
        pl.Series("name", names, dtype=pl.String),
        pl.Series("label", labels, dtype=pl.String),
        "count",
        "activity_frac",
        "where",
    )


def _busy_row(frame: pl.DataFrame, *, bottom: float, label: str) -> pl.DataFrame:
    if frame.is_empty():
        return pl.DataFrame(
            schema={
                "start_s": pl.Float64, "end_s": pl.Float64, "top": pl.Float64, "bottom": pl.Float64,
                "busy_frac": pl.Float64, "where": pl.String,
            }
        )  # fmt: skip
    return frame.filter(pl.col("covered_frac") > 0).select(
        "start_s",
        "end_s",
        (bottom - 1.9 * pl.col("covered_frac")).alias("top"),
        pl.lit(float(bottom)).alias("bottom"),
        pl.col("covered_frac").alias("busy_frac"),
        pl.lit(label).alias("where"),
    )
