"""The report of an optimisation: one page that loads nothing, and says what was tried and what it gains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.rl_programs import make
from rlprof.overlap.optimize import Options, optimize
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.result import document
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.report.optimize import optimization_html, task_table, timelines, write_optimization_report


def result_of(seed: int, **options: object) -> dict[str, object]:
    program = make(seed)
    log = DecisionLog()
    found = optimize(SimulatedWorkload(program.graph, program.model), Options(**options), log=log)  # type: ignore[arg-type]
    facts = {"config": {"policy": "<b>pi0", "preset": "tiny"}, "hardware": {"cores": 2}, "rlprof": "0"}
    return json.loads(json.dumps(document(found, log.entries, facts)))


@pytest.fixture(scope="module")
def result() -> dict[str, object]:
    return result_of(1)


def test_the_page_has_the_gain_the_steps_and_the_refusals(result, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_optimization_report(result, path)
    page = path.read_text()
    total = result["total"]
    ratio = total["reference"]["median_s"] / total["candidate"]["median_s"]
    assert f"{ratio:.3f} ×" in page
    assert "split_spatial iteration/rollout/epoch groups=2" in page
    assert "refused: split: loop" in page
    assert "iterations until it is paid back" in page
    assert "&lt;b&gt;pi0" in page
    assert "<b>pi0" not in page
    assert not re.search(r"(?:src|href)=[\"']?http", page)
    assert page.count('type="application/json" data-chart=') == 2


def test_timelines_share_an_axis(result) -> None:
    charts = timelines(result)
    assert list(charts) == ["before", "after"]
    ends = {json.dumps(chart.to_dict()["encoding"]["x"]["scale"]["domain"]) for chart, _ in charts.values()}
    assert len(ends) == 1
    before = task_table(result["timelines"]["before"])
    assert {"rollout", "env", "actor"} <= set(before["lane"])
    assert before["start_s"].min() == 0.0


def test_no_gain_is_said(tmp_path: Path) -> None:
    page = optimization_html(result_of(1, epsilon=0.9))
    assert "no gain" in page
    assert "the native order is kept" in page
    assert page.count('type="application/json" data-chart=') == 1


def test_estimates_are_shown_with_their_residuals(result) -> None:
    assert result["interference"]["reason"] is None
    page = optimization_html(result)
    assert "median residual" in page
    for factor in result["interference"]["factors"]:
        assert factor["factor"] >= 1
