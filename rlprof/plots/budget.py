"""The row budget of a chart, enforced before a chart is built."""

from __future__ import annotations

import polars as pl

from rlprof.errors import RlprofError

#: Rows that all tables of one chart may hold together. Browsers stay quick and Altair's own limit of
#: 5,000 rows for one table is never met.
ROW_BUDGET = 5_000


class RowBudgetError(RlprofError):
    """A chart was given more rows than a browser should hold."""


def check_rows(chart: str, *frames: pl.DataFrame, budget: int = ROW_BUDGET) -> None:
    """Refuse tables that hold more rows together than one chart may.

    Parameters
    ----------
    chart : str
        Name of the chart, for the message.
    *frames : polars.DataFrame
        All tables of the chart.
    budget : int
        Rows allowed.

    Raises
    ------
    RowBudgetError
        If there are more rows than `budget`.
    """
    rows = sum(frame.height for frame in frames)
    if rows > budget:
        raise RowBudgetError(
            f"{rows:,} rows for one chart, at most {budget:,} are drawn",
            where=f"chart {chart}",
            hint="aggregate them first with the functions of rlprof.plots.prepare and rlprof.plots.lanes",
        )
