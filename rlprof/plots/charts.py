"""Charts of activity and windows. Pure: a prepared table in, an Altair chart out; nothing is computed here.

Every function takes tables of `rlprof.plots.prepare` or `rlprof.plots.lanes`, checks them against the row
budget and returns a chart whose time axis is numeric, in seconds from the zero of the trace's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from rlprof.plots.budget import check_rows
from rlprof.plots.lanes import Lanes
from rlprof.plots.theme import (
    ACTIVITY_DOMAIN,
    ACTIVITY_RANGE,
    CATEGORY_COLOURS,
    MEAN,
    TEXT,
    UNKNOWN,
    WINDOW_COLOURS,
    style,
)

if TYPE_CHECKING:
    import altair as alt

Width = int | Literal["container"]
TIME_TITLE = "time from the zero of the trace's clock (s)"
ROW_HEIGHT = 17


def _title(text: str | None, subtitle: Sequence[str]) -> dict[str, Any]:
    import altair as alt

    return {"title": alt.TitleParams(text=text, subtitle=list(subtitle))} if text else {}


def _time(lo_s: float, hi_s: float, *, title: str = TIME_TITLE) -> dict[str, Any]:
    """Scale and axis of a numeric time axis over a span."""
    import altair as alt

    return {
        "scale": alt.Scale(domain=[lo_s, hi_s], nice=False, zero=False),
        "axis": alt.Axis(title=title, grid=False, labelFlush=True, tickCount=10),
    }


def _percent(title: str, **more: Any) -> Any:
    """Axis of a share in per cent, with the two limits of the tiers."""
    import altair as alt

    values = [0, 0.25, 0.5, 0.8, 1]
    return alt.Axis(title=f"{title} (%)", labelExpr="format(datum.value * 100, '.0f')", values=values, **more)


def _pan(name: str) -> Any:
    """Drag to move, Shift and wheel to zoom, double click to reset; the plain wheel scrolls the page."""
    import altair as alt

    return alt.selection_interval(name=name, bind="scales", encodings=["x"], zoom="wheel![event.shiftKey]")


def activity_chart(
    bins: pl.DataFrame,
    spans: pl.DataFrame,
    iterations: pl.DataFrame,
    *,
    lo_s: float,
    hi_s: float,
    quantity: str = "SM activity",
    title: str | None = None,
    subtitle: Sequence[str] = (),
    width: Width = 900,
) -> alt.LayerChart:
    """Draw the activity of one device over time with the windows marked.

    Parameters
    ----------
    bins : polars.DataFrame
        As given by `prepare.envelope`: the line is the mean, the band the minimum and maximum of each bin.
    spans : polars.DataFrame
        As given by `prepare.marked_spans`: shaded, with a strip above the plot.
    iterations : polars.DataFrame
        As given by `prepare.iteration_bounds`: vertical lines.
    lo_s, hi_s : float
        Span of the time axis, in seconds.
    quantity : str
        What the activity is: "SM activity", or "share of time with a kernel running".
    title, subtitle, width
        As in Altair; "container" fits the page.

    Raises
    ------
    RowBudgetError
        If the tables hold more than 5,000 rows.
    """
    import altair as alt

    check_rows("activity", bins, spans, iterations)
    windows = spans.select("window", "position").unique(maintain_order=True).sort("position")
    strips = windows.height
    top = 1.02 + 0.06 * strips
    x = alt.X("start_s:Q", **_time(lo_s, hi_s))
    y_scale = alt.Scale(domain=[0, top], nice=False)
    y_axis = _percent(quantity)
    y = alt.Y("mean_frac:Q", scale=y_scale, axis=y_axis)
    tips = [
        alt.Tooltip("start_s:Q", title="from (s)", format=".6f"),
        alt.Tooltip("end_s:Q", title="to (s)", format=".6f"),
        alt.Tooltip("mean_frac:Q", title="mean", format=".1%"),
        alt.Tooltip("min_frac:Q", title="minimum", format=".1%"),
        alt.Tooltip("max_frac:Q", title="maximum", format=".1%"),
    ]
    layers: list[Any] = []
    if strips:
        colour = alt.Color(
            "window:N",
            sort=windows["window"].to_list(),
            scale=alt.Scale(
                domain=windows["window"].to_list(),
                range=[WINDOW_COLOURS[p % len(WINDOW_COLOURS)] for p in windows["position"]],
            ),
            legend=alt.Legend(
                title=None, orient="top", labelLimit=330, columns=3, symbolType="square", symbolOpacity=1
            ),
        )
        span_tips = [
            alt.Tooltip("window:N"),
            alt.Tooltip("start_s:Q", title="from (s)", format=".6f"),
            alt.Tooltip("end_s:Q", title="to (s)", format=".6f"),
            alt.Tooltip("count:Q", title="invocations", format=","),
        ]
        shaded = alt.Chart(spans).encode(x=x, x2="end_s:Q", color=colour, tooltip=span_tips)
        layers.append(
            shaded.mark_rect(opacity=0.16, clip=True).encode(
                y=alt.datum(0, type="quantitative"), y2=alt.datum(1)
            )
        )
        strip = shaded.mark_rect(clip=True).transform_calculate(
            strip_low=f"{top - 0.05} - 0.06 * datum.position", strip_high=f"{top} - 0.06 * datum.position"
        )
        layers.append(strip.encode(y=alt.Y("strip_low:Q", scale=y_scale, axis=y_axis), y2="strip_high:Q"))
    base = alt.Chart(bins)
    layers.append(
        base.mark_area(interpolate="step-after", color=MEAN, opacity=0.3, clip=True).encode(
            x=x, y=alt.Y("min_frac:Q", scale=y_scale, axis=y_axis), y2="max_frac:Q"
        )
    )
    layers.append(
        base.mark_line(interpolate="step-after", color=MEAN, strokeWidth=1.3, clip=True).encode(x=x, y=y)
    )
    layers.append(
        alt.Chart(pl.DataFrame({"limit": [0.5, 0.8]}))
        .mark_rule(strokeDash=[5, 4], color=TEXT, opacity=0.8)
        .encode(y=alt.Y("limit:Q", scale=y_scale, axis=y_axis))
    )
    if iterations.height:
        edges = alt.Chart(iterations).mark_rule(color=TEXT, clip=True, opacity=0.9)
        tip = [alt.Tooltip("iteration:Q", title="iteration")]
        layers += [
            edges.encode(x=x, tooltip=tip),
            edges.encode(x=alt.X("end_s:Q", **_time(lo_s, hi_s)), tooltip=tip),
        ]
    # the rule that shows a bin's numbers: wide enough to be hit
    layers.append(
        base.mark_rect(opacity=0, clip=True).encode(
            x=x, x2="end_s:Q", y=alt.datum(0, type="quantitative"), y2=alt.datum(1), tooltip=tips
        )
    )
    layers[0] = layers[0].add_params(_pan("pan"))
    chart = alt.layer(*layers).properties(width=width, height=190 + 12 * strips, **_title(title, subtitle))
    return style(chart)  # type: ignore[no-any-return]


def timeline_chart(
    lanes: Lanes,
    iterations: pl.DataFrame,
    *,
    lo_s: float,
    hi_s: float,
    title: str | None = None,
    subtitle: Sequence[str] = (),
    width: Width = 900,
) -> alt.LayerChart:
    """Draw the ranges of each process and thread as bars by depth, and the devices' kernels below.

    Parameters
    ----------
    lanes : Lanes
        As given by `lanes.lay_out`; its notes belong into `subtitle`.
    iterations : polars.DataFrame
        As given by `prepare.iteration_bounds`.
    lo_s, hi_s : float
        Span of the time axis, in seconds.
    title, subtitle, width
        As in Altair.

    Raises
    ------
    RowBudgetError
        If the tables hold more than 5,000 rows.
    """
    import altair as alt

    bars, busy, headers = lanes.bars, lanes.busy, lanes.headers
    check_rows("timeline", bars, busy, headers, lanes.levels, iterations)
    x = alt.X("start_s:Q", **_time(lo_s, hi_s))
    y_scale = alt.Scale(domain=[0, max(lanes.rows, 1)], reverse=True, nice=False)
    colour: Any = alt.value(CATEGORY_COLOURS[UNKNOWN])
    if bars["activity_frac"].is_not_null().any():
        scale = alt.Scale(
            domain=list(ACTIVITY_DOMAIN), range=list(ACTIVITY_RANGE), clamp=True, interpolate="rgb"
        )
        legend = alt.Legend(
            title="mean activity while the range runs, of the whole device (%)",
            orient="top",
            gradientLength=260,
            gradientThickness=10,
            titleLimit=420,
            values=[0, 0.5, 0.8, 1],
            labelExpr="format(datum.value * 100, '.0f')",
        )
        known = alt.Color("activity_frac:Q", scale=scale, legend=legend)
        colour = alt.condition("isValid(datum.activity_frac)", known, alt.value(CATEGORY_COLOURS[UNKNOWN]))
    layers: list[Any] = []
    if iterations.height:
        edges = alt.Chart(iterations).mark_rule(color=TEXT, clip=True, opacity=0.5, strokeDash=[3, 3])
        layers += [edges.encode(x=x), edges.encode(x=alt.X("end_s:Q", **_time(lo_s, hi_s)))]
    rect = (
        alt.Chart(bars)
        .mark_rect(clip=True, stroke="#101318", strokeWidth=0.4, strokeOpacity=0.35)
        .transform_calculate(bottom="datum.row + 0.92")
        .encode(
            x=x,
            x2="end_s:Q",
            y=alt.Y("row:Q", scale=y_scale, axis=None),
            y2="bottom:Q",
            color=colour,
            opacity=alt.condition("datum.count > 1", alt.value(0.55), alt.value(0.92)),
            tooltip=[
                alt.Tooltip("name:N"),
                alt.Tooltip("where:N"),
                alt.Tooltip("start_s:Q", title="from (s)", format=".6f"),
                alt.Tooltip("end_s:Q", title="to (s)", format=".6f"),
                alt.Tooltip("duration_s:Q", title="duration (s)", format=".6f"),
                alt.Tooltip("count:Q", title="ranges", format=","),
                alt.Tooltip("activity_frac:Q", title="mean activity", format=".1%"),
            ],
        )
        .transform_calculate(duration_s="datum.end_s - datum.start_s")
    )
    layers.append(rect)
    layers.append(
        alt.Chart(bars)
        .transform_filter("datum.label !== ''")
        .mark_text(align="left", baseline="middle", dx=3, fontSize=10, color="#101318", clip=True)
        .transform_calculate(middle="datum.row + 0.48")
        .encode(x=x, y=alt.Y("middle:Q", scale=y_scale, axis=None), text="label:N")
    )
    if busy.height:
        layers.append(
            alt.Chart(busy)
            .mark_rect(clip=True, color=MEAN)
            .encode(
                x=x,
                x2="end_s:Q",
                y=alt.Y("top:Q", scale=y_scale, axis=None),
                y2="bottom:Q",
                tooltip=[
                    alt.Tooltip("where:N"),
                    alt.Tooltip("start_s:Q", title="from (s)", format=".6f"),
                    alt.Tooltip("end_s:Q", title="to (s)", format=".6f"),
                    alt.Tooltip("busy_frac:Q", title="with a kernel", format=".1%"),
                ],
            )
        )
    layers.append(
        alt.Chart(headers)
        .mark_text(align="left", baseline="middle", fontSize=11, fontWeight="bold", color=TEXT)
        .transform_calculate(middle="datum.row + 0.5")
        .encode(x=alt.value(0), y=alt.Y("middle:Q", scale=y_scale, axis=None), text="label:N")
    )
    layers.append(
        alt.Chart(lanes.levels)
        .mark_text(align="right", baseline="middle", fontSize=10, color=TEXT, dx=-6, clip=False)
        .transform_calculate(middle="datum.row + 0.48")
        .encode(x=alt.value(0), y=alt.Y("middle:Q", scale=y_scale, axis=None), text="label:N")
    )
    layers[0] = layers[0].add_params(_pan("pan"))
    height = max(ROW_HEIGHT * lanes.rows, 60)
    chart = alt.layer(*layers).properties(width=width, height=round(height), **_title(title, subtitle))
    return style(chart)  # type: ignore[no-any-return]


def distribution_chart(
    rows: pl.DataFrame,
    *,
    quantity: str = "SM activity",
    title: str | None = None,
    subtitle: Sequence[str] = (),
    width: Width = 620,
) -> alt.LayerChart:
    """Draw, for each node, how its time is spread over activity; dashed lines at 50 % and 80 %.

    Parameters
    ----------
    rows : polars.DataFrame
        As given by `prepare.distribution_rows`. The tallest bar of each node has full height.
    quantity : str
        What the activity is.
    title, subtitle, width
        As in Altair.

    Raises
    ------
    RowBudgetError
        If the table holds more than 5,000 rows.
    """
    import altair as alt

    check_rows("distribution", rows)
    nodes = rows.unique("row", maintain_order=True)
    count = nodes.height
    y_scale = alt.Scale(domain=[0, max(count, 1)], reverse=True, nice=False)
    x_scale = alt.Scale(domain=[0, 1], nice=False)
    x_axis = _percent(quantity, grid=False)
    present = rows["class"].unique().to_list()
    classes = [c for c in CATEGORY_COLOURS if c in present]
    bars = (
        alt.Chart(rows)
        .transform_calculate(top="datum.row + 1 - 0.86 * datum.height", bottom="datum.row + 1")
        .mark_rect()
        .encode(
            x=alt.X("low_frac:Q", scale=x_scale, axis=x_axis),
            x2="high_frac:Q",
            y=alt.Y("top:Q", scale=y_scale, axis=None),
            y2="bottom:Q",
            color=alt.Color(
                "class:N",
                scale=alt.Scale(domain=classes, range=[CATEGORY_COLOURS[c] for c in classes]),
                legend=None,
            ),
            tooltip=[
                alt.Tooltip("path:N", title="node"),
                alt.Tooltip("low_frac:Q", title="activity from", format=".0%"),
                alt.Tooltip("high_frac:Q", title="to", format=".0%"),
                alt.Tooltip("share_frac:Q", title="share of the node's time", format=".1%"),
                alt.Tooltip("mean_frac:Q", title="mean activity", format=".1%"),
                alt.Tooltip("below_50_frac:Q", title="time below 50 %", format=".1%"),
                alt.Tooltip("below_80_frac:Q", title="time below 80 %", format=".1%"),
            ],
        )
    )
    floor = (
        alt.Chart(nodes)
        .transform_calculate(bottom="datum.row + 1")
        .mark_rule(color=TEXT, opacity=0.35)
        .encode(y=alt.Y("bottom:Q", scale=y_scale, axis=None))
    )
    limits = (
        alt.Chart(pl.DataFrame({"limit": [0.5, 0.8]}))
        .mark_rule(strokeDash=[5, 4], color=TEXT, opacity=0.8)
        .encode(x=alt.X("limit:Q", scale=x_scale, axis=x_axis))
    )
    text = alt.Chart(nodes).transform_calculate(
        middle="datum.row + 0.66",
        below="format(datum.below_50_frac * 100, '.0f') + ' % below 50, '"
        " + format(datum.below_80_frac * 100, '.0f') + ' % below 80'",
    )
    middle = alt.Y("middle:Q", scale=y_scale, axis=None)
    names = text.mark_text(align="right", baseline="middle", fontSize=11, color=TEXT, dx=-8).encode(
        x=alt.value(0), y=middle, text="node:N"
    )
    below = text.mark_text(align="left", baseline="middle", fontSize=11, color=TEXT, dx=8).encode(
        x=alt.datum(1, type="quantitative"), y=middle, text="below:N"
    )
    chart = alt.layer(bars, floor, limits, names, below).properties(
        width=width, height=max(36 * count, 40), **_title(title, subtitle)
    )
    return style(chart)  # type: ignore[no-any-return]


def ranking_chart(
    rows: pl.DataFrame,
    *,
    title: str | None = None,
    subtitle: Sequence[str] = (),
    width: Width = 620,
) -> alt.LayerChart:
    """Draw the ranked windows: unused time D_v (1 - a_v) of each, coloured by tier.

    Parameters
    ----------
    rows : polars.DataFrame
        As given by `prepare.ranking_rows`.
    title, subtitle, width
        As in Altair.

    Raises
    ------
    RowBudgetError
        If the table holds more than 5,000 rows.
    """
    import altair as alt

    check_rows("ranking", rows)
    present = rows["class"].unique().to_list()
    classes = [c for c in CATEGORY_COLOURS if c in present]
    base = alt.Chart(rows).encode(
        y=alt.Y(
            "label:N", sort=rows["label"].to_list(), axis=alt.Axis(title=None, labelLimit=300, ticks=False)
        ),
        x=alt.X(
            "score_s:Q",
            axis=alt.Axis(title="score D (1 − a): unused GPU time per iteration (s)", tickCount=6),
        ),
    )
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        color=alt.Color(
            "class:N",
            scale=alt.Scale(domain=classes, range=[CATEGORY_COLOURS[c] for c in classes]),
            legend=alt.Legend(title=None, orient="top", symbolType="square", labelLimit=260),
        ),
        tooltip=[
            alt.Tooltip("path:N", title="node"),
            alt.Tooltip("process:N"),
            alt.Tooltip("rank:Q"),
            alt.Tooltip("score_s:Q", title="score (s per iteration)", format=".4f"),
            alt.Tooltip("sm_activity:Q", title="mean activity", format=".1%"),
            alt.Tooltip("total_s:Q", title="total in the capture (s)", format=".4f"),
            alt.Tooltip("count:Q", title="invocations", format=","),
        ],
    )
    values = base.mark_text(align="left", dx=4, fontSize=11, color=TEXT).encode(
        text=alt.Text("score_s:Q", format=".3g")
    )
    chart = alt.layer(bars, values).properties(width=width, height=alt.Step(22), **_title(title, subtitle))
    return style(chart)  # type: ignore[no-any-return]
