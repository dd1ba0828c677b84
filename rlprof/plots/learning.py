"""Learning curves of several seeds: each seed, their mean, and how far apart they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from rlprof.errors import UsageError
from rlprof.plots.budget import check_rows
from rlprof.plots.theme import MEAN, style

if TYPE_CHECKING:
    import altair as alt

_SCHEMA = {"run": pl.String, "seed": pl.String, "iteration": pl.Int64, "success_frac": pl.Float64}


def learning_rows(curves: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]]) -> pl.DataFrame:
    """One row for each iteration of each seed.

    Parameters
    ----------
    curves : mapping of str to mapping
        For each run (an algorithm, say) its seeds, and for each seed ``iteration`` and ``success_frac``
        (0..1), as `benchmarks.learning_curve` writes under ``curves``.

    Returns
    -------
    polars.DataFrame
        ``run``, ``seed`` (str), ``iteration`` (int), ``success_frac`` (float, 0..1).

    Raises
    ------
    UsageError
        If the two columns of a seed are not of one length.
    """
    parts = []
    for run, seeds in curves.items():
        for seed, curve in seeds.items():
            iterations, success = list(curve["iteration"]), list(curve["success_frac"])
            if len(iterations) != len(success):
                raise UsageError(
                    f"seed {seed} of {run} has {len(iterations)} iterations and {len(success)} values",
                    hint="make the curves again",
                )
            columns = {"run": run, "seed": str(seed), "iteration": iterations, "success_frac": success}
            parts.append(pl.DataFrame(columns, schema=_SCHEMA))
    return pl.concat(parts) if parts else pl.DataFrame(schema=_SCHEMA)


def learning_spread(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean and range over the seeds, for iterations that all seeds of a run have.

    Parameters
    ----------
    rows : polars.DataFrame
        As given by `learning_rows`.

    Returns
    -------
    polars.DataFrame
        ``run``, ``iteration``, ``seeds`` (int), ``mean_frac``, ``min_frac``, ``max_frac`` (0..1), in the
        order of runs and iterations.
    """
    most = rows.group_by("run").agg(pl.col("seed").n_unique().alias("of"))
    found = rows.group_by("run", "iteration", maintain_order=True).agg(
        pl.col("seed").n_unique().alias("seeds").cast(pl.Int64),
        pl.col("success_frac").mean().alias("mean_frac"),
        pl.col("success_frac").min().alias("min_frac"),
        pl.col("success_frac").max().alias("max_frac"),
    )
    return (
        found.join(most, on="run", maintain_order="left").filter(pl.col("seeds") == pl.col("of")).drop("of")
    )


def learning_end(rows: pl.DataFrame, last: int = 10) -> pl.DataFrame:
    """Where each seed came to: mean success of its last iterations, and when it first had half.

    Parameters
    ----------
    rows : polars.DataFrame
        As given by `learning_rows`.
    last : int
        Iterations that are averaged.

    Returns
    -------
    polars.DataFrame
        ``run``, ``seed``, ``iterations`` (done), ``last_frac`` (mean of the last ones, 0..1), ``half_at``
        (the first iteration with at least 50 % success; null if there was none).
    """
    ordered = rows.sort("iteration", maintain_order=True)
    return ordered.group_by("run", "seed", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("iterations"),
        pl.col("success_frac").tail(last).mean().alias("last_frac"),
        pl.col("iteration").filter(pl.col("success_frac") >= 0.5).first().alias("half_at"),
    )


def learning_chart(
    rows: pl.DataFrame, *, title: str | None = None, subtitle: Sequence[str] = (), width: int = 320
) -> alt.FacetChart:
    """Draw success over iterations, one panel for each run: a line for each seed, their mean, their range.

    Parameters
    ----------
    rows : polars.DataFrame
        As given by `learning_rows`.
    title, subtitle
        As in Altair.
    width : int
        Of one panel, in pixels.

    Raises
    ------
    RowBudgetError
        If the table holds more than 5,000 rows.
    """
    import altair as alt

    check_rows("learning curves", rows)
    spread = learning_spread(rows)
    # a faceted chart has one table: what is drawn by which mark is told by a column
    both = pl.concat([rows, spread], how="diagonal")
    runs = rows["run"].unique(maintain_order=True).to_list()
    x = alt.X("iteration:Q", title="iteration")
    share = alt.Axis(title="success", format=".0%")
    y = alt.Y("success_frac:Q", axis=share, scale=alt.Scale(domain=[0, 1]))
    base = alt.Chart(both)
    band = (
        base.transform_filter("isValid(datum.mean_frac)")
        .mark_area(color=MEAN, opacity=0.18)
        .encode(x=x, y=alt.Y("min_frac:Q", axis=share), y2="max_frac:Q")
    )
    seeds = (
        base.transform_filter("isValid(datum.seed)")
        .mark_line(strokeWidth=0.8, color=MEAN, opacity=0.6)
        .encode(x=x, y=y, detail="seed:N", tooltip=["run:N", "seed:N", "iteration:Q", "success_frac:Q"])
    )
    mean = (
        base.transform_filter("isValid(datum.mean_frac)")
        .mark_line(strokeWidth=2.2, color=MEAN)
        .encode(x=x, y=alt.Y("mean_frac:Q", axis=share))
    )
    heads = alt.Header(title=None, labelFontSize=12, labelFontWeight="bold")
    chart = (
        alt.layer(band, seeds, mean)
        .properties(width=width, height=200)
        .facet(column=alt.Column("run:N", sort=runs, header=heads), spacing=24)
    )
    if title:
        chart = chart.properties(title=alt.TitleParams(text=title, subtitle=list(subtitle)))
    return style(chart)  # type: ignore[no-any-return]
