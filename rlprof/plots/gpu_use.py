"""Four numbers that are all called GPU use, side by side: what each says of the same work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from rlprof.plots.budget import check_rows
from rlprof.plots.theme import TEXT, style

if TYPE_CHECKING:
    import altair as alt

#: The numbers in the order of the chart: column of the measurements, name, colour (Okabe and Ito).
NUMBERS = (
    ("utilisation", "utilisation (NVML)", "#9a9fa6"),
    ("busy", "busy (a kernel runs)", "#56b4e9"),
    ("sm_activity", "SM activity", "#d55e00"),
    ("occupancy", "occupancy (warps)", "#009e73"),
)


def gpu_use_rows(measured: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """One row for each kind of work and number.

    Parameters
    ----------
    measured : sequence of mapping
        ``rows`` of the file that `benchmarks.gpu.four_numbers` writes: ``work`` and the four numbers, 0..1.

    Returns
    -------
    polars.DataFrame
        ``work`` (str), ``number`` (str), ``share_frac`` (float, 0..1) and ``label`` (str: the share in per
        cent, two digits).

    Raises
    ------
    KeyError
        If a number is missing.
    """
    rows = [
        {
            "work": str(row["work"]),
            "number": name,
            "share_frac": float(row[column]),
            "label": _per_cent(float(row[column])),
        }
        for row in measured
        for column, name, _ in NUMBERS
    ]
    schema = {"work": pl.String, "number": pl.String, "share_frac": pl.Float64, "label": pl.String}
    return pl.DataFrame(rows, schema=schema)


def _per_cent(share_frac: float) -> str:
    per_cent = 100 * share_frac
    return f"{per_cent:.0f} %" if per_cent >= 9.95 else f"{per_cent:.2g} %"


def gpu_use_chart(
    rows: pl.DataFrame, *, title: str | None = None, subtitle: Sequence[str] = (), width: int = 150
) -> alt.FacetChart:
    """Draw one column of bars for each number, one line for each kind of work.

    Parameters
    ----------
    rows : polars.DataFrame
        As given by `gpu_use_rows`.
    title, subtitle
        As in Altair.
    width : int
        Of one column, in pixels.

    Raises
    ------
    RowBudgetError
        If the table holds more than 5,000 rows.
    """
    import altair as alt

    check_rows("gpu use", rows)
    names = [name for _, name, _ in NUMBERS]
    works = rows["work"].unique(maintain_order=True).to_list()
    base = alt.Chart(rows).encode(
        y=alt.Y("work:N", sort=works, title=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False))
    )
    x = alt.X(
        "share_frac:Q",
        scale=alt.Scale(domain=[0, 1.3], nice=False),
        axis=alt.Axis(title=None, values=[0, 0.5, 1], labelExpr="format(datum.value * 100, '.0f') + ' %'"),
    )
    bars = base.mark_bar(height=15).encode(
        x=x,
        color=alt.Color(
            "number:N", scale=alt.Scale(domain=names, range=[c for *_, c in NUMBERS]), legend=None
        ),
        tooltip=["work:N", "number:N", alt.Tooltip("share_frac:Q", title="share", format=".3%")],
    )
    labels = base.mark_text(align="left", dx=4, fontSize=11, color=TEXT).encode(x=x, text="label:N")
    heads = alt.Header(title=None, labelFontSize=12, labelFontWeight="bold")
    chart = (
        alt.layer(bars, labels)
        .properties(width=width, height=alt.Step(24))
        .facet(column=alt.Column("number:N", sort=names, header=heads), spacing=14)
    )
    if title:
        chart = chart.properties(title=alt.TitleParams(text=title, subtitle=list(subtitle)))
    return style(chart)  # type: ignore[no-any-return]
