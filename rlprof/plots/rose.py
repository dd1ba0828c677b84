"""Charts of Rose's figures: forms of a program beside each other, activity over time, where time went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from rlprof.plots.budget import check_rows
from rlprof.plots.calibration import GROUP_COLOURS
from rlprof.plots.reproductions import LABEL, bars_chart, lines_chart
from rlprof.plots.theme import TEXT, style
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import altair as alt

#: Of shares that are compared with a half.
TICKS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
#: Ours first; the paper's paler.
OURS_COLOURS, PAPER_COLOUR = ("#0072b2", "#d55e00", "#009e73"), "#9a9fa6"


def show(found: pl.DataFrame | Unavailable, chart: Callable[[pl.DataFrame], Any], path: Path) -> None:
    """Draw a table in a notebook and keep the picture; say why there is none where the table is unavailable.

    Parameters
    ----------
    found : polars.DataFrame or Unavailable
        What to draw.
    chart : callable
        Makes the chart of the table.
    path : pathlib.Path
        Where the picture goes.
    """
    from IPython.display import display

    from rlprof.plots import save

    if isinstance(found, Unavailable):
        print(f"no chart: {found.reason}")
        return
    drawn = chart(found)
    save(drawn, path)
    display(drawn)  # type: ignore[no-untyped-call]


def ladder_chart(
    rows: pl.DataFrame,
    *,
    value_title: str = "x the best of today's schedules",
    title: str | None = None,
    subtitle: Sequence[str] = (),
    width: int = 420,
    height: int = 240,
) -> alt.LayerChart:
    """Draw how much faster forms of a program are, with the range over iterations, beside the paper's.

    Parameters
    ----------
    rows : polars.DataFrame
        ``form``, ``who``, ``over_best``, ``least`` and ``most`` (null: one number), a row for each bar.
    value_title : str
        Title of the vertical axis.
    title, subtitle
        As in Altair.
    width, height : int
        In pixels.

    Raises
    ------
    RowBudgetError
        If there are more than 5,000 bars.
    """
    import altair as alt

    check_rows("ladder", rows)
    forms, who = (rows[c].unique(maintain_order=True).to_list() for c in ("form", "who"))
    ours = [w for w in who if not w.startswith("paper")]
    paper = [w for w in who if w.startswith("paper")]
    colours = [OURS_COLOURS[n % len(OURS_COLOURS)] for n in range(len(ours))] + [PAPER_COLOUR] * len(paper)
    x = alt.X("form:N", sort=forms, title=None, axis=alt.Axis(labelAngle=0, labelLimit=200))
    offset = alt.XOffset("who:N", sort=[*ours, *paper])
    axis = alt.Axis(format="~r", tickCount=6)
    base = alt.Chart(rows).encode(x=x, xOffset=offset)
    bars = base.mark_bar().encode(
        y=alt.Y("over_best:Q", title=value_title, axis=axis),
        color=alt.Color(
            "who:N",
            title=None,
            scale=alt.Scale(domain=[*ours, *paper], range=colours),
            legend=alt.Legend(orient="top", labelLimit=LABEL),
        ),
        tooltip=[
            "form:N",
            "who:N",
            alt.Tooltip("over_best:Q", format=".3f"),
            alt.Tooltip("least:Q", format=".3f"),
            alt.Tooltip("most:Q", format=".3f"),
        ],
    )
    ranges = (
        base.transform_filter("isValid(datum.least)")
        .mark_rule(color=TEXT, strokeWidth=1.5)
        .encode(y=alt.Y("least:Q"), y2="most:Q")
    )
    one = alt.Chart(pl.DataFrame({"at": [1.0]})).mark_rule(color=TEXT, strokeDash=[4, 4]).encode(y="at:Q")
    chart = alt.layer(bars, ranges, one).properties(width=width, height=height)
    if title:
        chart = chart.properties(title=alt.TitleParams(text=title, subtitle=list(subtitle)))
    return style(chart)  # type: ignore[no-any-return]


def course_chart(
    rows: pl.DataFrame, *, quantity: str = "SM activity", title: str | None = None, width: int = 760
) -> alt.LayerChart:
    """Draw activity over an iteration, a line for each variant.

    Parameters
    ----------
    rows : polars.DataFrame
        ``variant``, ``at_s``, ``active_frac``: as given by `rlprof.reproduce.rose.over_time.course`.
    quantity : str
        What the activity is.
    title, width
        As in Altair.

    Raises
    ------
    RowBudgetError
        If there are more than 5,000 points.
    """
    return lines_chart(
        rows,
        x="at_s",
        y="active_frac",
        group="variant",
        x_title="s from the start of the iteration",
        y_title=quantity,
        x_scale="linear",
        step=True,
        form=".0%",
        title=title,
        width=width,
        height=200,
    )


def distribution_chart(
    rows: pl.DataFrame, *, quantity: str = "SM activity", title: str | None = None, width: int = 360
) -> alt.LayerChart:
    """Draw how much of the time activity is below a level, a line for each variant.

    Parameters
    ----------
    rows : polars.DataFrame
        ``variant``, ``below_frac``, ``share_frac``: as given by
        `rlprof.reproduce.rose.over_time.distribution`, of one part.
    quantity : str
        What the activity is.
    title, width
        As in Altair.

    Raises
    ------
    RowBudgetError
        If there are more than 5,000 points.
    """
    import altair as alt

    check_rows("distribution", rows)
    variants = rows["variant"].unique(maintain_order=True).to_list()
    x = alt.X("below_frac:Q", title=f"{quantity} below", axis=alt.Axis(format=".0%", values=TICKS))
    lines = (
        alt.Chart(rows)
        .mark_line(point=True)
        .encode(
            x=x,
            y=alt.Y("share_frac:Q", title="share of the time", axis=alt.Axis(format=".0%")),
            color=alt.Color(
                "variant:N",
                title=None,
                scale=alt.Scale(domain=variants, range=list(GROUP_COLOURS[: len(variants)])),
                legend=alt.Legend(symbolType="stroke", symbolStrokeWidth=3, labelLimit=LABEL),
            ),
            tooltip=[
                "variant:N",
                alt.Tooltip("below_frac:Q", format=".0%"),
                alt.Tooltip("share_frac:Q", format=".1%"),
            ],
        )
    )
    half = alt.Chart(pl.DataFrame({"at": [0.5]})).mark_rule(color=TEXT, strokeDash=[4, 4])
    chart = alt.layer(lines, half.encode(x=alt.X("at:Q"))).properties(width=width, height=220)
    if title:
        chart = chart.properties(title=title)
    return style(chart)  # type: ignore[no-any-return]


def overhead_chart(
    rows: pl.DataFrame, *, title: str | None = None, subtitle: Sequence[str] = (), width: int = 300
) -> alt.Chart:
    """Draw where the time of optimising went, runs beside each other.

    Parameters
    ----------
    rows : polars.DataFrame
        ``run``, ``what``, ``seconds``: as given by `rlprof.reproduce.rose.overhead.spent_rows`.
    title, subtitle, width
        As in Altair.

    Raises
    ------
    RowBudgetError
        If there are more than 5,000 bars.
    """
    return bars_chart(
        rows,
        category="run",
        value="seconds",
        group="what",
        value_title="s",
        form="~s",
        title=title,
        subtitle=subtitle,
        width=max(width, 160 * rows["run"].n_unique()),
        height=220,
    )
