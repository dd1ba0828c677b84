"""Charts of Rose's figures: what is drawn is what the tables hold, and nothing is drawn of nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlprof.plots.budget import RowBudgetError
from rlprof.plots.rose import course_chart, distribution_chart, ladder_chart, overhead_chart, show
from rlprof.plots.static import render
from rlprof.unavailable import Unavailable

LADDER = pl.DataFrame(
    [("graph", "mujoco_warp", 1.1, 1.0, 1.2), ("graph", "paper, ManiSkill", 1.08, None, None)],
    schema=["form", "who", "over_best", "least", "most"],
    orient="row",
)
COURSE = pl.DataFrame({"variant": ["native", "optimised"], "at_s": [0.0, 0.5], "active_frac": [0.2, 0.9]})
SHARES = pl.DataFrame(
    {"variant": ["native"] * 2, "below_frac": [0.5, 1.0], "share_frac": [0.4, 1.0], "part": ["iteration"] * 2}
)
SPENT = pl.DataFrame({"run": ["libero", "paper"], "what": ["net overhead"] * 2, "seconds": [100.0, 662.0]})


@pytest.mark.parametrize(
    ("chart", "rows", "words"),
    [
        (ladder_chart, LADDER, ("mujoco_warp", "paper, ManiSkill", "graph")),
        (course_chart, COURSE, ("native", "optimised", "SM activity")),
        (distribution_chart, SHARES, ("native", "SM activity below", "50%")),
        (overhead_chart, SPENT, ("libero", "paper", "net overhead")),
    ],
)
def test_a_chart_shows_what_it_is_given(chart: Any, rows: pl.DataFrame, words: tuple[str, ...]) -> None:
    drawn = render(chart(rows, title="made by hand"), ".svg").decode()
    assert all(word in drawn for word in (*words, "made by hand"))


@pytest.mark.parametrize(
    ("chart", "rows"), [(ladder_chart, LADDER), (course_chart, COURSE), (distribution_chart, SHARES)]
)
def test_too_many_rows_are_refused(chart: Any, rows: pl.DataFrame) -> None:
    with pytest.raises(RowBudgetError):
        chart(pl.concat([rows] * 2600))


def test_ranges_are_drawn_where_they_are_known() -> None:
    spec = ladder_chart(LADDER).to_dict()
    assert "isValid(datum.least)" in str(spec["layer"][1]["transform"])


def test_what_is_unavailable_is_said_and_not_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("IPython")
    show(Unavailable("it did not run"), ladder_chart, tmp_path / "chart.svg")
    assert capsys.readouterr().out == "no chart: it did not run\n"
    assert not list(tmp_path.iterdir())
    show(LADDER, ladder_chart, tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").stat().st_size > 1000
