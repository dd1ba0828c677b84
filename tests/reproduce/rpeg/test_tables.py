"""Tables of the studies, on rows made by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.planning.baselines import concurrent_plan, greedy_plan, synchronous
from rlprof.planning.evaluate import evaluate
from rlprof.planning.plan import Assignment, Box, Parallelism, Plan
from rlprof.reproduce.errors import RawTableError
from rlprof.reproduce.rpeg import ablation, causes, convergence, problems, stability, validation, weak_scaling
from rlprof.reproduce.rpeg.plans import again, judged, plan_of, plan_text, stale_plans
from rlprof.unavailable import Unavailable

SMALL = problems.Setting("small", "7", "7", "7", 1, 2, 64, 128)


def test_the_problems_are_those_of_the_paper() -> None:
    cases = problems.weak_scaling()
    assert len({c.name for c in cases}) == len(cases) == 36
    assert Counter(c.gpus for c in cases) == {8: 6, 16: 9, 32: 9, 64: 9, 128: 3}
    joint = [c for c in cases if c.name.startswith("joint")]
    assert [c.reward for c in joint[::3]] == ["7", "7", "13", "13"]
    assert {(c.prompts, c.response_tokens) for c in cases} == {(512, 128), (256, 384), (128, 896)}
    assert [s.gpus for s in problems.ABLATION] == [16, 128, 32, 64]
    assert problems.ABLATION[0].problem.cluster.usable_bytes == pytest.approx(45e9)
    assert [s.gpus for s in problems.STABILITY] == [64, 128, 256, 512, 1024]
    assert [s.gpus for s in problems.CONVERGENCE] == [256, 512, 1024, 2048]


def row(
    method: str, score: float | None, used: float = 0.9, fits: bool = True, case: str = "c"
) -> dict[str, Any]:
    facts = {
        "case": case,
        "sweep": "actor",
        "models": "7B/7B",
        "gpus": 8,
        "prompts": 1,
        "response_tokens": 128,
    }
    return {**facts, "method": method, "tokens_per_s": score, "utilisation_frac": used, "fits": fits}


def test_gains_count_only_where_the_baseline_fits() -> None:
    g, c, t, u = weak_scaling.METHODS
    rows = [row(g, 80.0), row(c, 100.0), row(t, 130.0, 0.8), row(u, 126.1, 0.95)]
    rows += [row(m, s, fits=m != c, case="d") for m, s in ((g, 80.0), (c, 100.0), (t, 130.0), (u, 130.0))]
    table = weak_scaling.gains(pl.DataFrame(rows))
    assert table["gain_frac"].to_list() == [pytest.approx(0.3), None]
    assert table["loss_frac"].to_list() == [pytest.approx(0.03), 0.0]
    assert table["more_utilisation"].to_list() == [pytest.approx(0.15), 0.0]


def test_losses_are_those_of_means_over_seeds() -> None:
    rows = [
        {"scenario": s, "change": c, "guided": g, "tokens_per_s": v, "fits": v is not None}
        for s, c, g, v in (
            ("Deep", "full", 0.5, 90.0), ("Deep", "full", 0.5, 110.0),
            ("Deep", "A2", 0.5, 80.0), ("Deep", "A2", 0.5, 80.0),
            ("Deep", "A7", 0.5, 105.0), ("Deep", "A7", 0.5, None),
            ("Wide", "full", 0.5, 10.0), ("Wide", "A2", 0.5, 4.0),
            ("Deep", "full", 0.0, 100.0), ("Deep", "A2", 0.0, 50.0),
        )
    ]  # fmt: skip
    lost = ablation.losses(pl.DataFrame(rows))
    by = {(r["scenario"], r["change"]): r for r in lost.iter_rows(named=True)}
    assert by["Deep", "A2"]["loss_frac"] == pytest.approx(0.2)
    assert by["Deep", "A7"]["loss_frac"] == pytest.approx(-0.05)
    assert by["Deep", "A7"]["found"] == 1
    mean = ablation.averages(lost)
    assert mean == {"A2": pytest.approx(0.2), "A7": pytest.approx(-0.05)}  # Wide is not printed
    assert ablation.order(mean, 2) == "A2, A7"
    assert ablation.losses(pl.DataFrame(rows), guided=0.0)["loss_frac"].to_list() == [0.5]


def test_spread_and_gaps_over_seeds() -> None:
    frame = pl.DataFrame(
        {
            "gpus": [64, 64, 64, 128, 128],
            "tokens_per_s": [100.0, 98.0, 96.0, 50.0, 50.0],
            "evaluations": [10, 20, 30, 5, 5],
            "search_s": [1.0, 1.0, 2.0, 1.0, 1.0],
        }
    )
    first, second = stability.spread(frame).iter_rows(named=True)
    assert first["cv_frac"] == pytest.approx(2.0 / 98.0)
    assert first["worst_gap_frac"] == pytest.approx(0.04)
    assert (first["per_second"], second["cv_frac"]) == (15.0, 0.0)
    shares = stability.gaps(frame)
    assert shares["gap_percent"].to_list() == pytest.approx([0.0, 2.0, 4.0, 0.0, 0.0])
    assert shares["share"].to_list() == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5, 1.0])


def test_convergence_is_over_the_initial_plan() -> None:
    kinds = [("initial", 0.0, 100.0), ("better", 1.0, 110.0), ("better", 4.0, 123.0), ("last", 9.0, 125.0)]
    frame = pl.DataFrame(
        [
            {"setting": "s", "gpus": 8, "kind": k, "seconds": t, "tokens_per_s": v, "fits": k != "initial"}
            for k, t, v in kinds
        ]
    )
    curve = convergence.relative(frame)
    assert curve["makespan_over_initial"].to_list() == pytest.approx([100 / 110, 100 / 123, 0.8])
    (end,) = convergence.reached(frame).iter_rows(named=True)
    assert end["saved_frac"] == pytest.approx(0.2)
    assert (end["near_s"], end["search_s"], end["initial_fits"]) == (4.0, 9.0, False)


def test_agreement_of_predictions() -> None:
    a = validation.agreement([1.1, 1.8, 3.3], [1.0, 2.0, 3.0])
    assert a["mape"] == pytest.approx(0.1)
    assert a["bias"] == pytest.approx(0.1 / 3)
    assert (a["spearman"], a["ordered"]) == (pytest.approx(1.0), 1.0)
    swapped = validation.agreement([2.0, 1.0, 3.0], [1.0, 2.0, 3.0])
    assert (swapped["spearman"], swapped["ordered"]) == (pytest.approx(0.5), pytest.approx(2 / 3))
    tied = validation.agreement([1.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 3.0])
    assert tied["spearman"] == pytest.approx(8 / 9)  # ranks 1.5 1.5 3 4 against 1 2 3.5 3.5
    assert isinstance(validation.agreement([1.0], [1.0])["mape"], Unavailable)


coordinates = st.integers(0, 7)
counts = st.integers(1, 64)
assignments = st.builds(
    Assignment,
    st.builds(Box, st.tuples(coordinates, coordinates, coordinates), st.tuples(counts, counts, counts)),
    st.builds(Parallelism, counts, counts, counts),
    counts,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), assignments, min_size=1, max_size=6))
def test_plans_come_back_from_their_text(found: dict[str, Assignment]) -> None:
    plan = Plan(found)
    assert plan_of(plan_text(plan)) == plan


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a":[1]}', '{"a":[0,0,0,1,1,1,1,1,1,1,1]}', '{"a":1}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(RawTableError, match="no plan"):
        plan_of(text)


def test_a_stored_prediction_of_another_cost_model_is_told() -> None:
    problem = synchronous(SMALL.problem)
    rows = [
        {"case": name, **judged(evaluate(problem, make(problem)))}
        for name, make in (("g", greedy_plan), ("c", concurrent_plan))
    ]
    frame = pl.DataFrame(rows)
    assert stale_plans(frame, lambda _: SMALL.problem) is None
    assert again(SMALL.problem, rows[0]).score == rows[0]["tokens_per_s"]
    slower = frame.with_columns(pl.col("tokens_per_s") * 1.001)
    said = stale_plans(slower, lambda _: SMALL.problem)
    assert said is not None
    assert "the cost model has changed" in said


def test_the_rate_that_a_printed_throughput_implies() -> None:
    problem = synchronous(SMALL.problem)
    evaluation = evaluate(problem, greedy_plan(problem))
    slower = causes.scaled(problem, {"peak_flops": 0.4})
    printed = evaluate(slower, evaluation.plan).score
    implied = causes.implied_peak_flops(evaluation, printed)
    assert implied == pytest.approx(0.4 * problem.cluster.hardware.value("peak_flops"), rel=1e-5)
    assert causes.implied_peak_flops(evaluation, math.inf) is None


def test_layers_without_a_gate_are_those_of_the_printed_formula() -> None:
    shape = causes.ungated(SMALL.problem).pipeline.models[0].shape
    assert shape.layer_parameters == 4 * 4096**2 + 2 * 4096 * 11008
