"""The four numbers of GPU use on one chart."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from rlprof.plots import ROW_BUDGET, RowBudgetError
from rlprof.plots.gpu_use import NUMBERS, gpu_use_chart, gpu_use_rows
from rlprof.plots.static import render
from tests.conftest import ROOT

ONE_BLOCK = {
    "work": "one block",
    "utilisation": 0.99,
    "busy": 0.98,
    "sm_activity": 0.0074,
    "occupancy": 0.00009,
}
IDLE = {"work": "idle", "utilisation": 0.0, "busy": 0, "sm_activity": 0.0, "occupancy": 0.0}


def bars(chart: Any) -> list[dict[str, Any]]:
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_every_number_of_every_work_is_a_row_with_its_share() -> None:
    rows = gpu_use_rows([ONE_BLOCK, IDLE])
    assert rows.height == 2 * len(NUMBERS)
    labels = dict(rows.filter(pl.col("work") == "one block").select("number", "label").iter_rows())
    assert list(labels.values()) == ["99 %", "98 %", "0.74 %", "0.009 %"]
    assert labels["SM activity"] == "0.74 %"
    assert set(rows.filter(pl.col("work") == "idle")["label"]) == {"0 %"}


def test_a_number_that_was_not_measured_is_an_error_and_not_0() -> None:
    with pytest.raises(KeyError, match="occupancy"):
        gpu_use_rows([{k: v for k, v in ONE_BLOCK.items() if k != "occupancy"}])


def test_the_chart_holds_the_rows_in_the_order_they_were_given() -> None:
    chart = gpu_use_chart(gpu_use_rows([ONE_BLOCK, IDLE]), title="t", subtitle=["s"])
    assert bars(chart) == gpu_use_rows([ONE_BLOCK, IDLE]).to_dicts()
    spec = chart.to_dict()
    assert spec["facet"]["column"]["sort"] == [name for _, name, _ in NUMBERS]
    assert spec["spec"]["layer"][0]["encoding"]["y"]["sort"] == ["one block", "idle"]


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(RowBudgetError):
        gpu_use_chart(gpu_use_rows([ONE_BLOCK] * (ROW_BUDGET // 4 + 1)))


def test_the_measured_numbers_draw() -> None:
    measured = json.loads((ROOT / "benchmarks/results/gpu/four_numbers.json").read_text())["rows"]
    svg = render(gpu_use_chart(gpu_use_rows(measured)), ".svg").decode()
    assert svg.count(" %</text>") >= 4 * len(measured)
