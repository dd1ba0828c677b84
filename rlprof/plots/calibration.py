"""Fitted or predicted times beside measured ones: points that should lie on a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from rlprof.plots.budget import check_rows
from rlprof.plots.theme import TEXT, style
from rlprof.text import clean, shorten

if TYPE_CHECKING:
    import altair as alt

    from rlprof.planning.calibration.estimate import Residual
    from rlprof.planning.calibration.validate import Comparison

#: After Okabe and Ito (2008), and four more for as many kinds as are measured.
GROUP_COLOURS = (
    *("#0a7fc2", "#d55e00", "#009e73", "#cc79a7", "#e6a700", "#56b4e9", "#8c6bb1", "#9a9fa6"),
    *("#8c564b", "#a6b82e", "#c2185b", "#5f6b7a"),
)
_SCHEMA = {
    "group": pl.String,
    "label": pl.String,
    "part": pl.String,
    "measured_s": pl.Float64,
    "predicted_s": pl.Float64,
    "error_frac": pl.Float64,
}


def residual_rows(residuals: Sequence[Residual]) -> pl.DataFrame:
    """One row for each measurement that constants were fitted to.

    Returns
    -------
    polars.DataFrame
        ``group`` (what was measured), ``label``, ``part`` ("fit"), ``measured_s``, ``predicted_s``,
        ``error_frac``.
    """
    rows = [
        (r.kind.replace("_", " "), shorten(clean(r.label), 90), "fit", r.measured_s, r.fitted_s, r.error_frac)
        for r in residuals
    ]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def comparison_rows(compared: Sequence[Comparison]) -> pl.DataFrame:
    """One row for each operator, as `residual_rows`; ``part`` is "fit half" or "held out"."""
    rows = [
        (
            c.role,
            shorten(
                clean(f"{c.model}, {c.sequences} x ({c.prompt_tokens} + {c.response_tokens}) tokens"), 90
            ),
            "held out" if c.split == "held_out" else "fit half",
            c.measured_s,
            c.predicted_s,
            c.error_frac,
        )
        for c in compared
    ]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def agreement_chart(
    rows: pl.DataFrame,
    *,
    unit: str = "s",
    title: str | None = None,
    subtitle: Sequence[str] = (),
    width: int = 420,
    height: int = 380,
) -> alt.LayerChart:
    """Draw predicted over measured times, both logarithmic, with the line of equality.

    Parameters
    ----------
    rows : polars.DataFrame
        As given by `residual_rows` or `comparison_rows`.
    unit : str
        Of both axes, where the columns of times hold something else.
    title, subtitle
        As in Altair.
    width, height : int
        In pixels.

    Raises
    ------
    RowBudgetError
        If the table holds more than 5,000 rows.
    """
    import altair as alt

    check_rows("agreement", rows)
    groups = rows["group"].unique(maintain_order=True).to_list()
    parts = rows["part"].unique(maintain_order=True).to_list()
    times = pl.concat([rows["measured_s"], rows["predicted_s"]])
    ends = [times.min(), times.max()] if rows.height else [1e-3, 1.0]
    line = (
        alt.Chart(pl.DataFrame({"measured_s": ends, "predicted_s": ends}))
        .mark_line(color=TEXT, strokeDash=[4, 3])
        .encode(x="measured_s:Q", y="predicted_s:Q")
    )
    log = alt.Scale(type="log", nice=False)
    points = (
        alt.Chart(rows)
        .mark_point(filled=True, size=45, opacity=0.75)
        .encode(
            x=alt.X(
                "measured_s:Q", scale=log, title=f"measured ({unit})", axis=alt.Axis(format="~g", tickCount=6)
            ),
            y=alt.Y(
                "predicted_s:Q",
                scale=log,
                title=f"predicted ({unit})",
                axis=alt.Axis(format="~g", tickCount=6),
            ),
            color=alt.Color(
                "group:N",
                title=None,
                scale=alt.Scale(domain=groups, range=list(GROUP_COLOURS[: len(groups)])),
            ),
            shape=alt.Shape("part:N", title=None, scale=alt.Scale(domain=parts), legend=None)
            if len(parts) < 2
            else alt.Shape("part:N", title=None, scale=alt.Scale(domain=parts)),
            tooltip=[
                "label:N",
                alt.Tooltip("measured_s:Q", format=".4g"),
                alt.Tooltip("predicted_s:Q", format=".4g"),
                alt.Tooltip("error_frac:Q", title="error", format="+.1%"),
            ],
        )
    )
    chart = alt.layer(line, points).properties(width=width, height=height)
    if title:
        chart = chart.properties(title=alt.TitleParams(text=title, subtitle=list(subtitle)))
    return style(chart)  # type: ignore[no-any-return]
