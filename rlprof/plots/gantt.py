"""Gantt charts: which task holds which resource, or runs on which worker, over time.

`lay_out` turns the table of a schedule or of a run into bars within the row budget; `gantt_chart` draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from rlprof.errors import UsageError
from rlprof.plots.budget import ROW_BUDGET, check_rows
from rlprof.plots.lanes import MOST_ROWS, merge_short, sub_lanes
from rlprof.plots.theme import GRID, TEXT, UNKNOWN, style, unique_labels
from rlprof.text import clean, shorten

if TYPE_CHECKING:
    import altair as alt

#: Colours of task names, after Okabe and Ito; further names share the grey.
NAME_COLOURS = ("#0a7fc2", "#d55e00", "#009e73", "#cc79a7", "#e6a700", "#56b4e9", "#8c6bb1")
OTHER, OTHER_COLOUR = "other tasks", "#9a9fa6"
COLUMNS = ("task", "name", "lane", "start_s", "end_s")


@dataclass(frozen=True)
class Gantt:
    """A Gantt chart laid out.

    Parameters
    ----------
    bars : polars.DataFrame
        ``row`` (label of the row), ``start_s``, ``end_s``, ``task`` (id, or how many tasks), ``name``,
        ``colour`` (the name, or "other tasks").
    rows : tuple of str
        Labels from the top; a lane whose tasks overlap has several rows.
    names : tuple of str
        Values of ``colour``, the ones with most time first.
    notes : tuple of str
        What was merged or left out, with counts.
    """

    bars: pl.DataFrame
    rows: tuple[str, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def lay_out(
    tasks: pl.DataFrame,
    *,
    lanes: Sequence[str] | None = None,
    budget: int = ROW_BUDGET,
    most_rows: int = MOST_ROWS,
) -> Gantt:
    """Lay out the tasks of a schedule or a run.

    Parameters
    ----------
    tasks : polars.DataFrame
        ``task``, ``name``, ``lane``, ``start_s``, ``end_s``: `Schedule.to_frame` or `RunRecord.to_frame`.
    lanes : sequence of str, optional
        Lanes to draw, from the top; all, sorted, by default.
    budget : int
        Most bars.
    most_rows : int
        Most rows of bars; what lies below is left out, and counted.

    Raises
    ------
    UsageError
        If a column is missing.
    """
    if missing := [c for c in COLUMNS if c not in tasks.columns]:
        raise UsageError(
            f"a Gantt chart needs the columns {', '.join(COLUMNS)}; there is no {', '.join(missing)}",
            hint="use to_frame() of a schedule or of a record",
        )
    notes: list[str] = []
    order = sorted(tasks["lane"].unique()) if lanes is None else list(lanes)
    pieces: list[pl.DataFrame] = []
    labels: list[str] = []
    for lane in order:
        here = tasks.filter(pl.col("lane") == lane).sort("start_s", "end_s", "task")
        # in nanoseconds, so that tasks one after the other never overlap by a rounding error
        start_ns = (here["start_s"] * 1e9).round().cast(pl.Int64)
        end_ns = (here["end_s"] * 1e9).round().cast(pl.Int64)
        sub = sub_lanes(start_ns.to_list(), end_ns.to_list())
        track = pl.Series("track", [len(labels) + n for n in sub], dtype=pl.Int64)
        pieces.append(here.with_columns(track, start_ns.alias("start_ns"), end_ns.alias("end_ns")))
        shown = shorten(clean(lane), 40)
        labels += [shown if n == 0 else f"{shown}, {n + 1}" for n in range(max(sub, default=0) + 1)]
    if not pieces or not sum(piece.height for piece in pieces):
        empty = {"row": pl.String, "start_s": pl.Float64, "end_s": pl.Float64}
        text = {"task": pl.String, "name": pl.String, "colour": pl.String}
        return Gantt(pl.DataFrame(schema={**empty, **text}), tuple(unique_labels(labels)), ())
    bars = pl.concat(pieces)
    most_rows = min(most_rows, budget)
    if len(labels) > most_rows:
        left = bars.filter(pl.col("track") >= most_rows).height
        notes.append(f"{len(labels) - most_rows} rows with {left:,} bars are not drawn")
        bars, labels = bars.filter(pl.col("track") < most_rows), labels[:most_rows]
    rows = tuple(unique_labels(labels))
    by_time = (
        bars.group_by("name")
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("time_ns"))
        .sort("time_ns", "name", descending=[True, False])["name"]
        .to_list()
    )
    own = by_time[: len(NAME_COLOURS)]
    bars, merged = _within(bars, budget)
    if merged:
        notes.append(f"{merged:,} short tasks are merged into blocks; a block's tooltip says how many")
    colour = [shorten(clean(n), 40) if n in own else OTHER for n in bars["name"]]
    names = [shorten(clean(n), 40) for n in own] + ([OTHER] if OTHER in colour else [])
    return Gantt(
        bars.select(
            pl.Series("row", [rows[t] for t in bars["track"]], dtype=pl.String),
            (pl.col("start_ns") / 1e9).alias("start_s"),
            (pl.col("end_ns") / 1e9).alias("end_s"),
            pl.Series("task", [shorten(clean(t), 120) for t in bars["task"]], dtype=pl.String),
            pl.Series("name", [shorten(clean(n), 80) for n in bars["name"]], dtype=pl.String),
            pl.Series("colour", colour, dtype=pl.String),
        ),
        rows,
        tuple(dict.fromkeys(names)),
        tuple(notes),
    )


def _within(bars: pl.DataFrame, budget: int) -> tuple[pl.DataFrame, int]:
    """Bars merged until they fit, and how many tasks are in blocks."""
    if bars.height <= budget:
        return bars, 0
    lo_ns, hi_ns = int(bars["start_ns"].min() or 0), int(bars["end_ns"].max() or 0)  # type: ignore[arg-type]
    blocks = merge_short(
        bars.with_columns(pl.lit(None, dtype=pl.Float64).alias("activity_frac")),
        lo_ns=lo_ns,
        hi_ns=hi_ns + 1,
        budget=budget,
    )
    single = bars.select("track", "start_ns", "end_ns", "name", "task").unique(
        subset=["track", "start_ns", "end_ns", "name"], keep="first", maintain_order=True
    )
    blocks = blocks.join(
        single, on=["track", "start_ns", "end_ns", "name"], how="left", maintain_order="left"
    )
    text = [
        f"{count:,} tasks" if count > 1 else task
        for count, task in zip(blocks["count"], blocks["task"], strict=True)
    ]
    merged = int(blocks.filter(pl.col("count") > 1)["count"].sum())
    return blocks.with_columns(pl.Series("task", text, dtype=pl.String)), merged


def gantt_chart(
    gantt: Gantt,
    *,
    title: str | None = None,
    subtitle: Sequence[str] = (),
    end_s: float | None = None,
    width: int | Literal["container"] = 800,
) -> alt.Chart:
    """Draw a Gantt chart.

    Parameters
    ----------
    gantt : Gantt
        As given by `lay_out`; its notes belong into `subtitle`.
    title, subtitle, width
        As in Altair.
    end_s : float, optional
        End of the time axis, so that charts to compare have the same one; the last end by default.

    Raises
    ------
    RowBudgetError
        If there are more than 5,000 bars.
    """
    import altair as alt

    check_rows("gantt", gantt.bars)
    if end_s is None:
        end_s = max(gantt.bars["end_s"].to_list(), default=0.0) or 1.0
    scale = alt.Scale(domain=[0, end_s], nice=False)
    colours = [
        OTHER_COLOUR if name in {OTHER, UNKNOWN} else NAME_COLOURS[n] for n, name in enumerate(gantt.names)
    ]
    chart = (
        alt.Chart(gantt.bars)
        .mark_bar(clip=True, stroke=GRID, strokeWidth=0.5)
        .encode(
            x=alt.X("start_s:Q", scale=scale, axis=alt.Axis(title="time (s)", grid=False)),
            x2="end_s:Q",
            y=alt.Y(
                "row:N",
                scale=alt.Scale(domain=list(gantt.rows), padding=0.15),
                axis=alt.Axis(title=None, labelLimit=240, ticks=False, domain=False),
            ),
            color=alt.Color(
                "colour:N",
                scale=alt.Scale(domain=list(gantt.names), range=colours),
                legend=alt.Legend(title=None, orient="top", columns=4, labelColor=TEXT),
            ),
            tooltip=[
                alt.Tooltip("task:N"),
                alt.Tooltip("name:N"),
                alt.Tooltip("start_s:Q", title="from (s)", format=".6f"),
                alt.Tooltip("end_s:Q", title="to (s)", format=".6f"),
            ],
        )
        .properties(width=width, height=max(24 * len(gantt.rows), 24))
    )
    if title or subtitle:
        chart = chart.properties(title=alt.TitleParams(text=title or "", subtitle=list(subtitle)))
    return style(chart)  # type: ignore[no-any-return]
