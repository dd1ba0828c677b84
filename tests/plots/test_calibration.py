"""Fitted beside measured times on one chart."""

from __future__ import annotations

from typing import Any

import pytest

from rlprof.planning.calibration.estimate import Residual
from rlprof.planning.calibration.validate import Comparison
from rlprof.plots import ROW_BUDGET, RowBudgetError
from rlprof.plots.calibration import agreement_chart, comparison_rows, residual_rows
from rlprof.plots.static import render

RESIDUALS = [Residual("gemm", "gemm: rows 1", 1e-4, 1.1e-4), Residual("decode_step", "step", 2e-3, 1e-3)]
COMPARED = Comparison(
    "training",
    "tiny",
    4,
    8,
    8,
    1,
    1,
    "held_out",
    1.0,
    0.01,
    1.1,
    None,
    None,
    None,
    None,
    None,
    120.0,
    5,
    "2026",
)


def points(chart: Any) -> list[dict[str, Any]]:
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows if "group" in row]


def test_every_measurement_is_a_point_with_its_error() -> None:
    rows = residual_rows(RESIDUALS)
    assert rows["group"].to_list() == ["gemm", "decode step"]
    assert rows["error_frac"].to_list() == pytest.approx([0.1, -0.5])
    assert points(agreement_chart(rows)) == rows.to_dicts()


def test_operators_tell_their_half_and_sizes() -> None:
    rows = comparison_rows([COMPARED])
    assert rows.to_dicts()[0]["part"] == "held out"
    assert rows.to_dicts()[0]["label"] == "tiny, 4 x (8 + 8) tokens"


def test_the_chart_draws_and_refuses_too_many_rows() -> None:
    svg = render(agreement_chart(residual_rows(RESIDUALS), title="fit", subtitle=["s"]), ".svg").decode()
    assert "decode step" in svg
    assert render(agreement_chart(residual_rows([])), ".svg")
    with pytest.raises(RowBudgetError):
        agreement_chart(residual_rows(RESIDUALS * ROW_BUDGET))
