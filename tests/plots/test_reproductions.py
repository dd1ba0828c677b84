"""Charts of figures: what they hold, and that they can be drawn."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from rlprof.errors import UsageError
from rlprof.plots import RowBudgetError, save
from rlprof.plots.reproductions import bars_chart, beside_chart, beside_rows, lines_chart
from rlprof.reproduce.compare import Compared
from rlprof.unavailable import Unavailable

BARS = pl.DataFrame(
    {
        "size": ["8G 7B", "8G 7B", "16G 13B"],
        "method": ["a", "b", "a"],
        "rate": [1.0, 2.0, 3.0],
        "fits": [True, False, True],
    }
)


def test_bars_keep_the_order_of_the_table_and_pale_what_does_not_fit(tmp_path: Path) -> None:
    chart = bars_chart(
        BARS, category="size", value="rate", group="method", value_title="r", fits="fits", column="method"
    )
    spec = chart.to_dict()
    assert spec["encoding"]["x"]["sort"] == ["8G 7B", "16G 13B"]
    assert spec["encoding"]["opacity"]["value"] == 0.25
    save(chart, tmp_path / "bars.svg")
    assert (tmp_path / "bars.svg").read_text().startswith("<svg")


def test_bars_in_one_place_are_refused_and_not_stacked() -> None:
    twice = pl.concat([BARS, BARS.head(1)])
    with pytest.raises(UsageError, match="2 bars share their places, the first ones at size 8G 7B, method a"):
        bars_chart(twice, category="size", value="rate", group="method", value_title="r")


def test_axes_are_written_without_exponents(tmp_path: Path) -> None:
    chart = bars_chart(BARS.with_columns(pl.col("rate") * 80), category="size", value="rate", group="method",
                       value_title="r", form="~r")  # fmt: skip
    save(chart, tmp_path / "bars.svg")
    assert "e+2" not in (tmp_path / "bars.svg").read_text()
    assert ">200<" in (tmp_path / "bars.svg").read_text()


def test_points_whose_line_is_not_known_have_none(tmp_path: Path) -> None:
    rows = pl.DataFrame({"x": [8, 16, 8], "y": [1.0, 2.0, 1.5], "who": ["ours", "ours", "paper"]})
    chart = lines_chart(rows, x="x", y="y", group="who", x_title="x", y_title="y", points_only=["paper"])
    line, points = chart.to_dict()["layer"]
    assert (line["mark"]["type"], points["mark"]["type"]) == ("line", "point")
    data = chart.to_dict()["datasets"]
    assert [r["who"] for r in data[points["data"]["name"]]] == ["paper"]
    save(chart, tmp_path / "lines.svg")


def test_values_of_one_unit_that_are_known_stand_side_by_side(tmp_path: Path) -> None:
    compared = [
        Compared("a", "%", 1.0, 2.0),
        Compared("b", "%", Unavailable("x"), 3.0),
        Compared("c", "s", 4.0, 5.0),
        Compared("d", "%", "yes", "no"),
    ]
    rows = beside_rows(compared, "%")
    assert rows.rows() == [("a", "rlprof", 1.0), ("a", "paper", 2.0), ("b", "paper", 3.0)]
    save(beside_chart(rows, unit="%", title="t"), tmp_path / "beside.svg")


def test_too_many_rows_are_refused() -> None:
    many = pl.DataFrame({"x": range(6000), "y": range(6000), "who": ["a"] * 6000})
    with pytest.raises(RowBudgetError):
        lines_chart(many, x="x", y="y", group="who", x_title="x", y_title="y")
