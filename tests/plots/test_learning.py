"""Learning curves of several seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlprof.errors import UsageError
from rlprof.plots import ROW_BUDGET, RowBudgetError
from rlprof.plots.learning import learning_chart, learning_end, learning_rows, learning_spread
from rlprof.plots.static import save
from tests.conftest import ROOT


def curve(*success: float) -> dict[str, Any]:
    return {"iteration": list(range(len(success))), "success_frac": list(success)}


CURVES = {
    "ppo": {"0": curve(0.0, 0.2, 0.6), "1": curve(0.0, 0.4, 1.0)},
    "grpo": {"0": curve(0.0, 0.1, 0.3), "1": curve(0.1)},
}


def test_the_range_is_that_of_all_seeds_and_ends_where_one_of_them_ends() -> None:
    spread = learning_spread(learning_rows(CURVES))
    found = {(r["run"], r["iteration"]): r for r in spread.iter_rows(named=True)}
    assert list(found) == [("ppo", 0), ("ppo", 1), ("ppo", 2), ("grpo", 0)]
    assert found["ppo", 1]["mean_frac"] == pytest.approx(0.3)
    assert (found["ppo", 1]["min_frac"], found["ppo", 1]["max_frac"]) == (0.2, 0.4)
    assert found["grpo", 0]["seeds"] == 2


def test_the_end_is_the_mean_of_the_last_and_half_that_was_not_reached_is_not_known() -> None:
    end = learning_end(learning_rows(CURVES), last=2)
    assert end.select("run", "seed", "iterations", "half_at").rows() == [
        ("ppo", "0", 3, 2), ("ppo", "1", 3, 2), ("grpo", "0", 3, None), ("grpo", "1", 1, None),
    ]  # fmt: skip
    assert end["last_frac"].to_list() == pytest.approx([0.4, 0.7, 0.2, 0.1])


def test_curves_that_are_damaged_are_refused() -> None:
    with pytest.raises(UsageError, match="seed 3 of ppo has 2 iterations and 1 values"):
        learning_rows({"ppo": {"3": {"iteration": [0, 1], "success_frac": [0.0]}}})


def test_no_curves_are_an_empty_table() -> None:
    rows = learning_rows({})
    assert rows.height == 0
    assert learning_spread(rows).height == learning_end(rows).height == 0


def test_the_chart_has_a_panel_for_each_run_with_all_seeds(tmp_path: Path) -> None:
    chart = learning_chart(learning_rows(CURVES), title="t", subtitle=["s"])
    spec = chart.to_dict()
    (rows,) = spec["datasets"].values()
    assert len([r for r in rows if r["seed"] is not None]) == 10
    assert len([r for r in rows if r["mean_frac"] is not None]) == 4
    assert spec["facet"]["column"]["sort"] == ["ppo", "grpo"]
    save(chart, tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text()
    assert "ppo" in text
    # a line for each seed and the mean of each run
    assert text.count('aria-roledescription="line mark"') == 6


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(RowBudgetError):
        learning_chart(learning_rows({"ppo": {"0": curve(*[0.0] * (ROW_BUDGET + 1))}}))


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_the_kept_curves_end_where_their_file_says(algorithm: str) -> None:
    file = ROOT / "benchmarks" / "results" / "workloads" / f"learning_{algorithm}_pi0.json"
    kept = json.loads(file.read_text())
    end = learning_end(learning_rows({algorithm: kept["curves"]}))
    assert end["seed"].to_list() == [str(seed) for seed in kept["configuration"]["seed"]]
    assert end["last_frac"].mean() == pytest.approx(kept["success_frac_of_last_10"]["mean"], abs=1e-4)
    assert end["last_frac"].min() == pytest.approx(kept["success_frac_of_last_10"]["min"], abs=1e-4)
