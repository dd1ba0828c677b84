"""Charts of reproduced figures: grouped bars, lines, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from rlprof.errors import UsageError
from rlprof.plots.budget import check_rows
from rlprof.plots.calibration import GROUP_COLOURS
from rlprof.plots.theme import TEXT, style

if TYPE_CHECKING:
    import altair as alt

    from rlprof.reproduce.compare import Compared

OURS, PAPER = "rlprof", "paper"
#: Longest label of a legend, in pixels.
LABEL = 420


def _colour(groups: Sequence[str]) -> Any:
    import altair as alt

    colours = [GROUP_COLOURS[n % len(GROUP_COLOURS)] for n in range(len(groups))]
    return alt.Scale(domain=list(groups), range=colours)


def _wrapped(alt: Any) -> Any:
    """An axis whose labels break at blanks, so that long ones do not run into each other."""
    return alt.Axis(labelAngle=0, labelExpr="split(datum.label, ' ')", labelLimit=160)


def _titled(chart: Any, title: str | None, subtitle: Sequence[str]) -> Any:
    import altair as alt

    if title:
        chart = chart.properties(title=alt.TitleParams(text=title, subtitle=list(subtitle)))
    return style(chart)


def bars_chart(
    rows: pl.DataFrame,
    *,
    category: str,
    value: str,
    group: str,
    value_title: str,
    row: str | None = None,
    column: str | None = None,
    fits: str | None = None,
    form: str = "~s",
    title: str | None = None,
    subtitle: Sequence[str] = (),
    width: int = 150,
    height: int = 130,
) -> alt.Chart:
    """Draw grouped bars, in panels if `row` or `column` is given.

    Parameters
    ----------
    rows : polars.DataFrame
        One row for each bar.
    category, value, group : str
        Columns: where on the horizontal axis, how tall, which colour.
    value_title : str
        Title of the vertical axis.
    row, column : str, optional
        Columns that make panels.
    fits : str, optional
        A boolean column; bars where it is false are pale: plans that do not fit into memory.
    form : str
        Format of the vertical axis.
    title, subtitle
        As in Altair.
    width, height : int
        Of a panel, in pixels.

    Raises
    ------
    RowBudgetError
        If there are more than 5,000 bars.
    UsageError
        If two bars have the same place: they would be stacked, as if they were one.
    """
    import altair as alt

    check_rows("bars", rows)
    place = [name for name in dict.fromkeys((category, group, row, column)) if name is not None]
    twice = rows.filter(rows.select(place).is_duplicated())
    if not twice.is_empty():
        where = ", ".join(f"{name} {twice[name][0]}" for name in place)
        raise UsageError(
            f"{len(twice)} bars share their places, the first ones at {where}",
            hint="group them by what tells them apart, or take their median first",
        )
    groups = rows[group].unique(maintain_order=True).to_list()
    categories = rows[category].unique(maintain_order=True).to_list()
    encoding: dict[str, Any] = {
        "x": alt.X(f"{category}:N", sort=categories, title=None, axis=_wrapped(alt)),
        "xOffset": alt.XOffset(f"{group}:N", sort=groups),
        "y": alt.Y(f"{value}:Q", title=value_title, axis=alt.Axis(format=form, tickCount=4)),
        "color": alt.Color(
            f"{group}:N", title=None, scale=_colour(groups), legend=alt.Legend(orient="top", labelLimit=LABEL)
        ),
        "tooltip": [f"{category}:N", f"{group}:N", alt.Tooltip(f"{value}:Q", format=".4g")],
    }
    if fits is not None:
        encoding["opacity"] = alt.condition(f"datum['{fits}']", alt.value(1.0), alt.value(0.25))
    if row is not None:
        sort = rows[row].unique(maintain_order=True).to_list()
        encoding["row"] = alt.Row(f"{row}:N", sort=sort, title=None)
    if column is not None:
        sort = rows[column].unique(maintain_order=True).to_list()
        encoding["column"] = alt.Column(f"{column}:N", sort=sort, title=None)
    chart = alt.Chart(rows).mark_bar().encode(**encoding).properties(width=width, height=height)
    return _titled(chart, title, subtitle)  # type: ignore[no-any-return]


def lines_chart(
    rows: pl.DataFrame,
    *,
    x: str,
    y: str,
    group: str,
    x_title: str,
    y_title: str,
    x_scale: Literal["log", "linear"] = "log",
    x_values: Sequence[float] | None = None,
    points_only: Sequence[str] = (),
    step: bool = False,
    zero: bool = True,
    form: str = "~s",
    title: str | None = None,
    subtitle: Sequence[str] = (),
    width: int = 420,
    height: int = 260,
) -> alt.LayerChart:
    """Draw a line with points for each group.

    Parameters
    ----------
    rows : polars.DataFrame
        One row for each point.
    x, y, group : str
        Columns.
    x_title, y_title : str
        Titles of the axes.
    x_scale : {"log", "linear"}
        Of the horizontal axis.
    x_values : sequence of float, optional
        Ticks of the horizontal axis.
    points_only : sequence of str
        Groups without a line: what lies between their points is not known.
    step : bool
        The value holds until the next point; without marks.
    zero : bool
        The vertical axis begins at 0.
    form, title, subtitle, width, height
        As `bars_chart`.

    Raises
    ------
    RowBudgetError
        If there are more than 5,000 points.
    """
    import altair as alt

    check_rows("lines", rows)
    groups = rows[group].unique(maintain_order=True).to_list()
    axis = alt.Axis(values=list(x_values), format="~r") if x_values else alt.Axis(format="~r", tickCount=6)
    mark: dict[str, Any] = {"interpolate": "step-after"} if step else {"point": True}
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3, labelLimit=LABEL)
    encoding = {
        "x": alt.X(f"{x}:Q", scale=alt.Scale(type=x_scale, nice=False), title=x_title, axis=axis),
        "y": alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=zero), axis=alt.Axis(format=form)),
        "color": alt.Color(f"{group}:N", title=None, scale=_colour(groups), legend=legend),
        "tooltip": [
            f"{group}:N",
            alt.Tooltip(f"{x}:Q", format=".4g"),
            alt.Tooltip(f"{y}:Q", format=".4g"),
        ],
    }
    alone = pl.col(group).is_in(list(points_only))
    lines = alt.Chart(rows.filter(~alone)).mark_line(**mark).encode(**encoding)
    points = (
        alt.Chart(rows.filter(alone)).mark_point(filled=True, size=80, shape="diamond").encode(**encoding)
    )
    chart = alt.layer(lines, points).properties(width=width, height=height)
    return _titled(chart, title, subtitle)  # type: ignore[no-any-return]


def agreement_rows(rows: pl.DataFrame, of: Literal["s", "bytes"] = "s") -> pl.DataFrame:
    """Rows of the study of operators as `rlprof.plots.calibration.agreement_chart` draws them.

    Parameters
    ----------
    rows : polars.DataFrame
        Of `rlprof.reproduce.rpeg.validation`.
    of : {"s", "bytes"}
        Times; or peak memory, which is then in GB, in the columns of times.
    """
    scale = 1.0 if of == "s" else 1e-9
    measured, predicted = pl.col(f"measured_{of}") * scale, pl.col(f"predicted_{of}") * scale
    tokens = pl.format("{}, {} x ({} + {}) tokens", "model", "sequences", "prompt_tokens", "response_tokens")
    held = pl.when(pl.col("split") == "held_out").then(pl.lit("held out")).otherwise(pl.lit("fit half"))
    return rows.select(
        group="role",
        label=tokens,
        part=held,
        measured_s=measured,
        predicted_s=predicted,
        error_frac=predicted / measured - 1,
    )


def beside_rows(compared: Sequence[Compared], unit: str) -> pl.DataFrame:
    """One row for each value of one unit: ``quantity``, ``who`` ("rlprof", "paper"), ``value``."""
    rows = []
    for c in compared:
        if c.unit == unit:
            for who, value in ((OURS, c.ours), (PAPER, c.paper)):
                if isinstance(value, int | float):
                    rows.append((c.quantity, who, float(value)))
    return pl.DataFrame(
        rows, schema={"quantity": pl.String, "who": pl.String, "value": pl.Float64}, orient="row"
    )


def beside_chart(
    rows: pl.DataFrame,
    *,
    unit: str,
    title: str | None = None,
    subtitle: Sequence[str] = (),
    width: int = 420,
) -> alt.LayerChart:
    """Draw ours and the paper's values as two points of a row each, joined by a line.

    Parameters
    ----------
    rows : polars.DataFrame
        As given by `beside_rows`.
    unit : str
        Title of the axis.
    title, subtitle, width
        As `bars_chart`.

    Raises
    ------
    RowBudgetError
        If there are more than 5,000 values.
    """
    import altair as alt

    check_rows("beside", rows)
    order = rows["quantity"].unique(maintain_order=True).to_list()
    y = alt.Y("quantity:N", sort=order, title=None, axis=alt.Axis(labelLimit=420))
    line = (
        alt.Chart(rows)
        .mark_line(color=TEXT, strokeWidth=1)
        .encode(y=y, x=alt.X("value:Q", title=unit), detail="quantity:N")
    )
    points = (
        alt.Chart(rows)
        .mark_point(filled=True, size=70, opacity=1)
        .encode(
            y=y,
            x=alt.X("value:Q", title=unit, axis=alt.Axis(format="~s")),
            color=alt.Color("who:N", title=None, scale=_colour([OURS, PAPER])),
            shape=alt.Shape("who:N", title=None, scale=alt.Scale(domain=[OURS, PAPER])),
            tooltip=["quantity:N", "who:N", alt.Tooltip("value:Q", format=".4g")],
        )
    )
    chart = alt.layer(line, points).properties(width=width, height=alt.Step(20))
    return _titled(chart, title, subtitle)  # type: ignore[no-any-return]
