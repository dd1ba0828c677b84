"""Figs 12, 14a, 14b and the overhead: from documents made by hand; what did not run has no number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from rlprof.overlap.optimize.windows import Activity
from rlprof.reproduce.papers import read_paper
from rlprof.reproduce.rose import (
    ablation,
    activity,
    over_time,
    overhead,
    quota,
    reasons,
    results,
    samples,
    schedules,
)
from rlprof.reproduce.rose.rounds import rounds_not_accepted
from rlprof.reproduce.study import obtain, stored_table
from rlprof.unavailable import Unavailable
from tests.conftest import ROOT
from tests.reproduce.rose import made

PAPER = read_paper(ROOT / "datasets" / "papers" / "rose.csv")
NOTHING: pl.DataFrame = pl.DataFrame()


def rows(module: Any, folder: Path, preset: str = "h200", **documents: Any) -> pl.DataFrame:
    there = made.checkout(folder, **documents)
    return obtain(module.study(preset, 0, there), folder / "out").table.frame


# samples --------------------------------------------------------------------------------------------------


def test_what_is_kept_of_samples() -> None:
    start = np.arange(1000, dtype=np.int64) * 1_000_000
    active = np.where(start < 300_000_000, 0.2, 0.9)
    active[0] = np.nan  # not known: neither low nor high
    found = samples.summary(
        Activity(start, start + 1_000_000, active, "made"),
        {"iteration": (0, 10**9), "loop": (0, 5 * 10**8), "after": (2 * 10**9, 3 * 10**9)},
    )
    assert (found["source"], found["period_s"]) == ("made", 0.001)
    whole, loop, after = (found["parts"][name] for name in ("iteration", "loop", "after"))
    assert (whole["seconds"], whole["covered_frac"]) == (1.0, 0.999)
    assert whole["below_half"] == pytest.approx(299 / 999, abs=1e-4)
    assert loop["below_half"] == pytest.approx(299 / 499, abs=1e-4)
    assert whole["active_frac"] == pytest.approx((299 * 0.2 + 700 * 0.9) / 999, abs=1e-4)
    assert sum(whole["levels"]) == pytest.approx(1, abs=1e-3)
    assert whole["levels"][4] == whole["below_half"]
    assert len(found["course"]) == samples.BINS
    assert (found["course"][1], found["course"][-1]) == (0.2, 0.9)
    # nothing is known of it: that is not an activity of 0
    assert after == {"seconds": 1.0, "covered_frac": 0.0} | dict.fromkeys(
        ("active_frac", "below_half", "below_most", "levels")
    )


def test_the_mean_of_a_course_is_that_of_the_samples() -> None:
    draw = np.random.default_rng(0)
    edges = np.cumsum(draw.integers(1, 9, 5000)) * 100_000
    active = draw.random(4999)
    kept = Activity(edges[:-1], edges[1:], active, "made")
    found = samples.summary(kept, {"iteration": (int(edges[0]), int(edges[-1]))})
    assert np.mean(found["course"]) == pytest.approx(np.average(active, weights=np.diff(edges)), abs=1e-3)


# Fig 12 ---------------------------------------------------------------------------------------------------


def test_low_time_before_and_after(tmp_path: Path) -> None:
    frame = rows(over_time, tmp_path, a=made.optimised())
    (pair,) = over_time.pairs(frame)
    assert (pair.before, pair.after) == ("colocated-pipe", "optimised")
    found = {c.quantity: c for c in over_time.compare({"over_time": frame}, PAPER)}
    before = found["libero: share of the iteration below 50 %, before"]
    after = found["libero: share of the interaction loop below 50 %, optimised"]
    less = found["libero: share of the iteration below 50 %, reduced by"]
    assert before.ours == pytest.approx(50)
    assert before.paper == 59.7
    assert after.ours == pytest.approx(35)
    assert after.paper == 8.4
    assert less.ours == pytest.approx(30)
    assert less.paper == 64.3
    assert "samples of 1 ms" in before.cause
    assert "before: colocated-pipe, the best of 2 of today's schedules in that run" in before.cause
    course = over_time.course(frame, pair)
    assert course.group_by("variant").len()["len"].to_list() == [399, 399]  # a step without samples is none
    shares = over_time.distribution(frame, pair).filter(pl.col("part") == "iteration")
    last = shares.group_by("variant").agg(pl.col("share_frac").max())["share_frac"].to_list()
    assert last == [pytest.approx(1)] * 2
    at_half = shares.filter(pl.col("variant") == "optimised", (pl.col("below_frac") - 0.5).abs() < 1e-9)
    assert at_half["share_frac"].to_list() == [pytest.approx(0.35)]


def test_a_run_in_which_nothing_paid_has_no_number_after(tmp_path: Path) -> None:
    one = made.optimised(variants=(("native", 100.0, 0.4),), accepted=(False,))
    frame = rows(over_time, tmp_path, a=one)
    found = {c.quantity: c for c in over_time.compare({"over_time": frame}, PAPER)}
    after = found["libero: share of the iteration below 50 %, optimised"]
    assert isinstance(after.ours, Unavailable)
    assert "found nothing that pays" in after.cause
    before = found["libero: share of the iteration below 50 %, before"]
    assert before.ours == pytest.approx(60)
    assert "before: colocated, the only one of today's schedules in that run" in before.cause


def test_runs_without_samples_are_no_cases(tmp_path: Path) -> None:
    document = made.optimised()
    for found in document["iterations"]:
        del found["over_time"]
    there = made.checkout(tmp_path, a=document)
    study = over_time.study("h200", 0, there)
    assert (dict(study.cases), "optimize.sh" in study.missing) == ({}, True)
    compared = over_time.compare({"over_time": NOTHING}, PAPER)
    assert all(isinstance(c.ours, Unavailable) for c in compared)
    assert [c.paper for c in compared if "optimised" in c.quantity] == [21.3, 8.4]
    assert isinstance(over_time.shares(NOTHING), Unavailable)


# Fig 14 ---------------------------------------------------------------------------------------------------


def warp(*, quota_of: int | None, mps: bool = True) -> dict[str, Any]:
    found = {"quotas": {} if quota_of is None else {"simulator": quota_of}, "reason": "no level pays"}
    variants = (
        ("native", 50.0, 0.4),
        ("hybrid", 40.0, 0.4),
        ("optimised", 60.0, 0.6),
        ("with quota", 65.0, 0.6),
    )
    return made.optimised("mujoco_warp", mps=mps, variants=variants, accepted=(True, False), quotas=found)


def test_graph_alone_with_mps_and_with_a_quota(tmp_path: Path) -> None:
    off = made.optimised("mujoco_warp", variants=(("native", 100.0, 0.4), ("optimised", 108.0, 0.5)))
    frame = rows(ablation, tmp_path, off=off, on=warp(quota_of=90))
    graph, mps, full = made.told(ablation.compare_levers({"ablation": frame}, PAPER))
    assert graph.ours == pytest.approx(1.08)
    assert graph.paper == 1.08
    assert mps.ours == pytest.approx(1.2)
    assert mps.paper == 1.12
    assert full.ours == pytest.approx(1.3)
    assert full.paper == 1.29
    assert "in the same run under MPS" in mps.cause
    drawn = ablation.ladder(frame, "fig14a", PAPER)
    assert isinstance(drawn, pl.DataFrame)
    assert drawn["form"].to_list() == sorted(
        drawn["form"], key=[ablation.GRAPH, ablation.MPS, ablation.FULL].index
    )
    assert drawn["over_best"].null_count() == 0


def test_where_no_quota_pays_all_sms_are_the_last_step_too(tmp_path: Path) -> None:
    frame = rows(ablation, tmp_path, on=warp(quota_of=None))
    graph, mps, full = made.told(ablation.compare_levers({"ablation": frame}, PAPER))
    assert isinstance(graph.ours, Unavailable)
    assert "without MPS" in graph.cause
    assert mps.ours == full.ours == pytest.approx(1.2)
    assert "all SMs were kept: no level pays" in full.cause
    table = ablation.by_form(frame)
    assert isinstance(table, pl.DataFrame)
    assert "graph, MPS, best quota in trials, not kept" in set(table["form"])


def test_a_second_round_that_finds_nothing_adds_nothing(tmp_path: Path) -> None:
    one = made.optimised(variants=(("native", 100.0, 0.4), ("optimised", 125.0, 0.5)), accepted=(True, False))
    one["summary"] = {
        "native": {},
        "optimised": {"most_speedup": {"any graph": 1.31, "graphs of whole batches": 1.3}},
    }
    frame = rows(ablation, tmp_path, a=one)
    first, second, share = made.told(ablation.compare_rounds({"ablation": frame}, PAPER))
    assert first.ours == second.ours == pytest.approx(1.25)
    assert share.ours == pytest.approx(100)
    assert share.paper == 60.7
    assert "round 2 found nothing" in share.cause
    assert "no graph can be more than 1.31 times as fast here" in second.cause
    assert "take turns" not in second.cause
    for binding, told in (("GPU time slices", True), ("graphics slices and SM time", False)):
        one["bound"] = {"any graph": {"least_s": 3.0, "binding": binding}}
        frame = rows(ablation, tmp_path / binding, a=one)
        _, second, _ = made.told(ablation.compare_rounds({"ablation": frame}, PAPER))
        # a result says what its bound was made with
        assert ("as long as kernels of two calls take turns" in second.cause) == told


def compared_pair(reference_s: float, candidate_s: float) -> dict[str, Any]:
    gain_s = reference_s - candidate_s
    return {
        "reference": made.spread(reference_s), "candidate": made.spread(candidate_s),
        "gain_s": gain_s, "gain_frac": gain_s / reference_s, "least_gain_s": 0.01 * reference_s,
        "pairs": [[reference_s, candidate_s]], "reason": "not clear after 1 pairs",
    }  # fmt: skip


SECOND = (
    "round 2 was not accepted: complete iterations, medians 5 s -> 5.5 s; gain pair by pair -10.0% (1 pairs)"
)


@pytest.mark.parametrize("where", ["rounds", "search", "both", "nowhere"])
def test_what_the_second_round_measured_is_told_where_it_was_not_accepted(tmp_path: Path, where: str) -> None:
    """A search whose budget ended in its second round told that in its log alone, in earlier versions."""
    told = where != "nowhere"
    result = compared_pair(5.0, 5.5)
    one = made.optimised(variants=(("native", 100.0, 0.4), ("optimised", 125.0, 0.5)), accepted=(True,))
    one["optimisation"]["ended"] = "the budget of 120 s is spent"
    if where in ("rounds", "both"):
        one["optimisation"]["rounds"].append({"accepted": False, "validation": result})
    if where == "both":  # as it is told since
        one["optimisation"]["ended"] += f"; {SECOND}, not clear after 1 pairs"
    entry = {"what": "validated", "round": 2, "outcome": "not accepted", "result": result}
    first = entry | {"round": 1, "outcome": "accepted", "result": compared_pair(6.0, 5.0)}
    there = made.checkout(tmp_path, a=one)
    if where in ("search", "both"):
        search = {"decisions": [{"what": "ranking", "round": 1}, first, entry, first | {"round": None}]}
        made.write(tmp_path / "benchmarks" / "results" / "searches" / "a.json", search)
    frame = obtain(ablation.study("h200", 0, there), tmp_path / "out").table.frame
    once, second, share = made.told(ablation.compare_rounds({"ablation": frame}, PAPER))
    assert once.ours == second.ours == pytest.approx(1.25)
    assert [c.cause.count(SECOND) for c in (second, share)] == [int(told)] * 2
    assert "the budget of 120 s is spent" in share.cause
    spent = obtain(overhead.study("h200", 0, there), tmp_path / "spent").table.frame
    (net,) = [c for c in overhead.compare({"overhead": spent}, PAPER) if c.quantity == "libero: net overhead"]
    assert net.cause.count(SECOND) == int(told)
    assert f"1 of {1 + told} rounds accepted" in net.cause


def test_a_gain_that_is_too_small_to_count_says_what_counts() -> None:
    found = {"rounds": [{"accepted": True}, {"accepted": False, "validation": compared_pair(5.0, 4.96)}]}
    told = rounds_not_accepted({"optimisation": found})
    assert "+0.8% (1 pairs), less than the 1.0% that count, not clear" in told


def test_runs_are_pooled_each_over_its_own_reference(tmp_path: Path) -> None:
    fast = made.optimised(
        variants=(("native", 100.0, 0.4), ("optimised", 120.0, 0.5), ("optimised", 140.0, 0.5))
    )
    slow = made.optimised(variants=(("native", 50.0, 0.4), ("optimised", 65.0, 0.5)))
    table = ablation.by_form(rows(ablation, tmp_path, fast=fast, slow=slow))
    assert isinstance(table, pl.DataFrame)
    (row,) = table.filter(pl.col("form") == ablation.GRAPH).iter_rows(named=True)
    assert (row["over_best"], row["least"], row["most"]) == (pytest.approx(1.3), 1.2, 1.4)
    assert (row["iterations"], row["runs"], row["reference"]) == (3, 2, "colocated")


def test_of_several_runs_it_is_told_in_how_many_other_schedules_ran(tmp_path: Path) -> None:
    one = made.optimised(variants=(("native", 50.0, 0.4), ("optimised", 65.0, 0.5)))
    both = made.optimised(variants=(("native", 100.0, 0.4), ("hybrid", 90.0, 0.4), ("optimised", 120.0, 0.5)))
    least = "only one of today's schedules in"
    for n, (documents, told) in enumerate(
        [
            ({"a": one, "b": one}, f"the {least} the same run;"),
            ({"a": both, "b": both}, "the best of today's schedules in the same run;"),
            ({"a": one, "b": both}, f"the {least} 1 of 2 runs, the best of 2 in the other;"),
            ({"a": one, "b": both, "c": both}, f"the {least} 1 of 3 runs, the best of 2 in the 2 others;"),
        ]
    ):
        frame = rows(ablation, tmp_path / str(n), **documents)
        assert told in ablation.compare_rounds({"ablation": frame}, PAPER)[1].cause


def test_todays_schedules_count_with_the_levers_that_they_had(tmp_path: Path) -> None:
    variants = (("native", 100.0, 0.4), ("colocated-pipe+graph", 120.0, 0.4), ("optimised", 150.0, 0.5))
    frame = rows(ablation, tmp_path, a=made.optimised(variants=variants))
    compared = ablation.compare_rounds({"ablation": frame}, PAPER)[1]
    assert compared.ours == pytest.approx(1.25)
    assert "over colocated-pipe+graph, the best of today's" in compared.cause


def test_a_processor_has_no_mps_and_stands_for_both_figures(tmp_path: Path) -> None:
    document = made.optimised("mujoco_arm", device="cpu")
    there = tmp_path / "benchmarks" / "results" / "optimize"
    made.checkout(tmp_path, gpu=made.run())
    made.write(there / "a.json", document)
    frame = obtain(ablation.study("smoke", 0, tmp_path), tmp_path / "out").table.frame
    graph, mps, full = made.told(ablation.compare_levers({"ablation": frame}, PAPER))
    assert graph.quantity == "mujoco_arm: graph only over Colocated"
    assert graph.ours == pytest.approx(1.3)
    assert isinstance(mps.ours, Unavailable)
    assert isinstance(full.ours, Unavailable)
    assert mps.cause == full.cause == "a processor has no MPS"
    assert ablation.compare_rounds({"ablation": frame}, PAPER)[0].ours == pytest.approx(1.2)
    assert ablation.study("h200", 0, tmp_path).missing  # it is no measurement on a GPU


def test_a_report_of_the_optimiser_is_a_run_of_two_orders(tmp_path: Path) -> None:
    config = {
        "simulator": "mujoco_arm", "policy": "pi0", "preset": "tiny", "envs": 64, "device": "cpu",
        "rollout_epochs": 2, "chunks": 8, "chunk_steps": 5,
    }  # fmt: skip
    times = (("a", 9.0), ("a", 2.0), ("b", 1.6), ("c", 1.0), ("a", 2.2), ("b", 1.7))
    document = {
        "format": "rlprof optimisation",
        "version": 1,
        "facts": {"config": config, "hardware": {"cores": 2, "torch": "2.13.0"}},
        "machine": {"date": "2026-11-30"},
        "steps": ["split", "interleave"],
        "decisions": [{"what": "started", "graph": "a"}, {"what": "ended", "graph": "b"}],
        "iterations": [{"graph": g, "time_s": t, "sm_activity": 0.5} for g, t in times],
        "total": {"pairs": [[2.0, 1.6], [2.2, 1.7]]},
        "rounds": [{"accepted": True}, {"accepted": False}],
        "ended": "round 2 found nothing that pays",
        "overhead": {"total_s": 60.0, "retained_training_s": 29.0, "net_s": 31.0, "gain_s": 0.4},
    }
    made.checkout(tmp_path)
    made.write(tmp_path / "benchmarks" / "results" / "optimize" / "cpu.json", document)
    frame = obtain(ablation.study("smoke", 0, tmp_path), tmp_path / "out").table.frame
    # the first iteration, and that of a graph which was not selected, were compared with nothing
    assert frame["variant"].to_list() == ["native", "optimised"] * 2
    assert frame["steps_per_s"].to_list() == [pytest.approx(5120 / t) for t in (2.0, 1.6, 2.2, 1.7)]
    first, *_ = ablation.compare_rounds({"ablation": frame}, PAPER)
    assert first.ours == pytest.approx((5120 / 1.6 + 5120 / 1.7) / (5120 / 2.0 + 5120 / 2.2))
    assert "over colocated, the only one of today's" in first.cause
    spent = obtain(overhead.study("smoke", 0, tmp_path), tmp_path / "spent").table.frame
    net = {c.quantity: c.ours for c in overhead.compare({"overhead": spent}, PAPER)}
    assert net["mujoco_arm: net overhead"] == 31.0
    assert "here" in over_time.study("smoke", 0, tmp_path).cases  # it has no samples: a run here makes some


def test_without_a_run_there_is_nothing_to_draw() -> None:
    assert isinstance(ablation.by_form(NOTHING), Unavailable)
    assert isinstance(ablation.ladder(NOTHING, "fig14a", PAPER), Unavailable)
    for compare in (ablation.compare_levers, ablation.compare_rounds):
        compared = compare({"ablation": NOTHING}, PAPER)
        assert all(isinstance(c.ours, Unavailable) and isinstance(c.paper, float) for c in compared)
    assert isinstance(overhead.spent_rows(NOTHING, PAPER), Unavailable)
    assert all(isinstance(c.ours, Unavailable) for c in overhead.compare({"overhead": NOTHING}, PAPER))


# section 5.4 ----------------------------------------------------------------------------------------------


def test_searching_a_quota_is_told_apart(tmp_path: Path) -> None:
    document = warp(quota_of=90)
    document["steps"] |= {"levels": {"ok": True, "seconds": 20.0}, "quotas": {"ok": True, "seconds": 60.0}}
    frame = rows(overhead, tmp_path, on=document)
    found = {c.quantity: c for c in overhead.compare({"overhead": frame}, PAPER)}
    assert found["mujoco_warp, MPS: net overhead"].ours == 100.0
    assert found["mujoco_warp, MPS: net overhead"].paper == 2325
    assert found["mujoco_warp, MPS: quota search, apart"].ours == 80.0
    assert "paid back after 34 iterations" in found["mujoco_warp, MPS: net overhead"].cause
    spent = overhead.spent_rows(frame, PAPER)
    assert isinstance(spent, pl.DataFrame)
    assert spent.filter(pl.col("run") == "mujoco_warp, MPS")["seconds"].sum() == 380.0


def rollout_quota(**quotas: Any) -> dict[str, Any]:
    """A document as `benchmarks.gpu.rollout_quota` writes it."""
    document = made.run("mujoco_warp", mps=True) | {"command": "rollout_quota"}
    seconds = {"build": 35.0, "levels": 0.4, "alone": 7.0, "pair": 8.1, "sweep_52": 60.0, "fine_76_72": 47.0}
    document["steps"] = {name: {"ok": True, "seconds": taken} for name, taken in seconds.items()}
    trials = [{"setting": p, "amount": p, "time_s": t, "runs": 4} for p, t in ((100, 1.3), (76, 1.1))]
    document["quotas"] = {
        "pair": {"earlier": "rollout", "later": "simulator", "earlier_ready_s": 0.5, "later_ready_s": 1.3},
        "quotas": {"rollout": 76},
        "reason": "76 % takes 15.4 % less than all SMs",
        "search": {"trials": trials},
        "sweep": trials,
        **quotas,
    }
    return document


def test_a_quota_search_by_itself_has_its_seconds_and_no_others(tmp_path: Path) -> None:
    frame = rows(overhead, tmp_path, graph=made.optimised("mujoco_warp", mps=True), quota=rollout_quota())
    compared = overhead.compare({"overhead": frame}, PAPER)
    found = {c.quantity: c for c in compared}
    assert len(found) == len(compared)
    alone = found["mujoco_warp, MPS, a quota by itself: quota search, apart"]
    assert alone.ours == pytest.approx(0.4 + 8.1 + 60 + 47)
    assert isinstance(alone.paper, Unavailable)
    assert "by itself, not within that of a graph: 2 levels, without a complete iteration" in alone.cause
    assert "building the program took 35 s, apart" in alone.cause
    assert "rounds accepted" not in alone.cause
    assert sum("a quota by itself" in name for name in found) == 1
    assert found["mujoco_warp, MPS: net overhead"].ours == 100.0
    assert "mujoco_warp, MPS: quota search, apart" not in found  # it had none
    spent = overhead.spent_rows(frame, PAPER)
    assert isinstance(spent, pl.DataFrame)
    mine = spent.filter(pl.col("run") == "mujoco_warp, MPS, a quota by itself")
    assert mine.select("what", "seconds").rows() == [("quota search", pytest.approx(115.5))]
    table = overhead.shares(frame)
    assert isinstance(table, pl.DataFrame)
    assert dict(table.select("file", "of_own_run").iter_rows())["quota.json"] is None


def test_a_quota_search_that_is_the_only_result_is_told_too(tmp_path: Path) -> None:
    frame = rows(overhead, tmp_path, quota=rollout_quota())
    (found,) = overhead.compare({"overhead": frame}, PAPER)
    assert found.ours == pytest.approx(115.5)


def test_where_the_rollout_did_not_wait_there_was_no_search(tmp_path: Path) -> None:
    there = made.checkout(tmp_path, quota=rollout_quota(search=None, quotas={}))
    assert not overhead.study("h200", 0, there).cases


def test_quotas_that_were_compared_by_other_chunks_say_so(tmp_path: Path) -> None:
    for form, told in (({}, True), ({"compared_by": "seconds of the mean chunk"}, False)):
        frame = rows(quota, tmp_path / str(told), a=rollout_quota(**form))
        least, *_ = made.told(quota.compare_sweep({"quota": frame}, PAPER))
        assert least.ours == 76
        assert "76 % takes 15.4 % less" in least.cause
        assert ("medians over unequal chunks of an episode" in least.cause) == told


def test_runs_of_one_simulator_are_told_apart(tmp_path: Path) -> None:
    frame = rows(overhead, tmp_path, first=made.optimised(), second=made.optimised())
    names = [c.quantity for c in overhead.compare({"overhead": frame}, PAPER)]
    assert len(set(names)) == len(names)
    assert "libero, second: net overhead" in names


# Figs 10 and 15 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_off", [True, False])
def test_a_search_on_embodied_training_comes_before_that_of_commands(tmp_path: Path, with_off: bool) -> None:
    document = warp(quota_of=90)
    levels = ((100, 132, 5.0), (90, 118, 4.0), (50, 66, 6.0))
    document["quotas"] |= {
        "pair": {"earlier": "env", "later": "rollout", "earlier_ready_s": 1.0, "later_ready_s": 4.0},
        "search": {"trials": [{"setting": p, "amount": n, "time_s": t, "runs": 2} for p, n, t in levels]},
        "sweep": [{"setting": 30, "amount": 40, "time_s": 9.0, "runs": 1}],
        "unmanaged": {"time_s": 5.5, "runs": 2} if with_off else None,
    }
    frame = rows(
        quota, tmp_path, on=document, mps=made.tuning(times={100: 5.0, 95: 4.9, 94: 4.8, 93: 4.7, 92: 5})
    )
    table = quota.sweep(frame)
    assert table["percent"].to_list() == [100.0, 90.0, 50.0, 30.0]
    least, shape, seconds = made.told(quota.compare_sweep({"quota": frame}, PAPER))
    assert (seconds.ours, seconds.paper) == (4.0, 84.59)
    assert (least.ours, shape.ours) == (90.0, "yes")
    assert "75 % of the join" in least.cause
    assert "mujoco_warp and its policy" in least.cause
    off, best = quota.compare_best({"quota": frame}, PAPER)
    assert off.ours == pytest.approx(1.1 if with_off else 6 / 5)  # of the commands, if training has none
    assert best.ours == pytest.approx(0.8)


@pytest.mark.parametrize(
    "document",
    [
        {"given": {}},
        {"given": {"accepted": None, "steps": None}},
        {"optimisation": {"rounds": None, "steps": None}},
        {"optimisation": {"rounds": [{}]}, "given": {"accepted": 1, "steps": ["a"]}},
        {"optimisation": None, "given": [], "quotas": {"quotas": None}},
    ],
)
def test_an_outcome_that_is_not_told_is_null_and_no_error(document: dict[str, Any]) -> None:
    found = results.outcome(document)
    assert not found["accepted"]
    assert not found["steps"]


# Which order counts ----------------------------------------------------------------------------------------


def by_hand(**more: Any) -> dict[str, Any]:
    variants = (("native", 100.0, 0.4), ("by hand", 139.0, 0.6))
    return made.optimised("mujoco_warp", mps=True, variants=variants) | more


def test_without_a_search_the_graph_by_hand_is_the_optimised_one(tmp_path: Path) -> None:
    document = by_hand(summary={"by hand": {"most_speedup": {"any graph": 2.5}}})
    del document["optimisation"]
    frame = rows(ablation, tmp_path, a=document)
    assert set(frame["variant"]) == {"native", "optimised"}
    assert set(frame.filter(pl.col("variant") == "optimised")["bound"]) == {2.5}
    _, mps, _ = made.told(ablation.compare_levers({"ablation": frame}, PAPER))
    assert mps.ours == pytest.approx(1.39)
    assert "optimised" in set(rows(over_time, tmp_path / "time", a=document)["variant"])


def test_beside_a_search_it_is_by_hand(tmp_path: Path) -> None:
    for n, more in enumerate(({}, {"optimisation": None, "given": {"steps": ["split"], "accepted": 1}})):
        frame = rows(ablation, tmp_path / str(n), a=by_hand(**more))
        assert set(frame["variant"]) == {"native", "by hand"}


def test_what_is_withdrawn_stays_so_under_another_name(tmp_path: Path) -> None:
    document = by_hand(withdrawn={"by hand": "images were of another scene"})
    del document["optimisation"]
    assert set(rows(over_time, tmp_path, a=document)["variant"]) == {"native"}
    frame = rows(ablation, tmp_path / "ablation", a=document)
    assert frame.filter(pl.col("withdrawn").is_null())["variant"].to_list() == ["native"]


def test_a_bound_is_that_of_its_own_order(tmp_path: Path) -> None:
    """A medians' table that lacks an order, as of a run that was killed, gives it no other one's."""
    document = by_hand(summary={"by hand": {"most_speedup": {"any graph": 2.5}}})
    del document["optimisation"]
    document["iterations"].append(made.iteration("round 1", 1, 120.0))
    frame = rows(ablation, tmp_path, a=document)
    assert dict(frame.select("variant", "bound").iter_rows()) == {
        "native": None, "optimised": 2.5, "round 1": None
    }  # fmt: skip


def test_orders_of_two_kinds_are_not_taken_together(tmp_path: Path) -> None:
    """A search that ended before it was written down: its graph ran all the same."""
    document = by_hand()
    del document["optimisation"]
    document["iterations"].append(made.iteration("optimised", 1, 150.0))
    assert set(rows(ablation, tmp_path, a=document)["variant"]) == {"native", "by hand", "optimised"}


def test_the_fastest_order_is_one_that_ran_often(tmp_path: Path) -> None:
    lucky = made.optimised(variants=(("native", 100.0, 0.4), ("optimised", 150.0, 0.6)))
    often = made.optimised(
        variants=(("native", 100.0, 0.4), *[("optimised", 131.0, 0.6)] * 5, ("ablation", 160.0, 0.6))
    )
    there = made.checkout(tmp_path, a=lucky, b=often)
    table = schedules.by_variant(obtain(schedules.study("h200", 0, there), tmp_path / "out").table.frame)
    found = schedules.fastest(table, "libero")
    assert found is not None
    assert (found["file"], found["variant"], found["iterations"]) == ("b.json", "optimised", 5)


def test_of_orders_that_ran_equally_often_one_beside_all_of_todays_schedules_counts(tmp_path: Path) -> None:
    """That it gains less is no reason for another one."""
    alone = made.optimised(variants=(("native", 100.0, 0.4), *[("optimised", 150.0, 0.6)] * 2))
    beside = made.optimised(
        variants=(
            *[("native", 100.0, 0.4)] * 2,
            *[("colocated-pipe", 110.0, 0.4)] * 2,
            *[("optimised", 132.0, 0.6)] * 2,
        )
    )
    for name, documents in (("one", {"a": alone, "b": beside}), ("other", {"a": beside, "b": alone})):
        there = made.checkout(tmp_path / name, **documents)
        frame = obtain(schedules.study("h200", 0, there), tmp_path / name / "out").table.frame
        found = schedules.fastest(schedules.by_variant(frame), "libero")
        assert found is not None
        assert found["over_best"] == pytest.approx(1.2)
        assert "of_todays" not in found


def test_todays_schedules_are_compared_with_as_they_are_drawn_best(tmp_path: Path) -> None:
    variants = (("native", 100.0, 0.4), ("native, egl-one:2", 120.0, 0.4), ("optimised", 150.0, 0.6))
    there = made.checkout(tmp_path, a=made.optimised(variants=variants))
    table = schedules.by_variant(obtain(schedules.study("h200", 0, there), tmp_path / "out").table.frame)
    found = schedules.fastest(table, "libero")
    assert found is not None
    assert (found["variant"], found["over_best"]) == ("optimised", pytest.approx(1.25))


def test_what_halves_cost_is_told_by_whole_iterations_where_nothing_else_is_known(tmp_path: Path) -> None:
    variants = (("native", 100.0, 0.4), ("colocated-pipe", 72.0, 0.3), ("optimised", 130.0, 0.5))
    there = made.checkout(tmp_path, a=made.optimised(variants=variants))
    frame = obtain(schedules.study("h200", 0, there), tmp_path / "out").table.frame
    table = schedules.by_variant(frame)
    told = schedules.cause_of_halves(frame.head(0), "libero", table)
    assert told == "two groups, colocated-pipe, change the throughput of colocated by -28 % in a"
    assert "was not measured" in schedules.cause_of_halves(frame.head(0), "mujoco_warp", table)


def test_workloads_with_other_chunks_are_not_taken_together(tmp_path: Path) -> None:
    five = made.optimised(variants=(("native", 100.0, 0.4), ("optimised", 130.0, 0.5)))
    ten = made.optimised(variants=(("native", 200.0, 0.5), ("optimised", 300.0, 0.7)))
    ten["config"] |= {"chunk_steps": 10, "denoise_steps": 4}
    there = made.checkout(tmp_path, five=five, ten=ten)
    longer = "libero, 10 actions a chunk"

    graphs = obtain(ablation.study("h200", 0, there), tmp_path / "graphs").table.frame
    compared = {c.quantity: c for c in ablation.compare_rounds({"ablation": graphs}, PAPER)}
    for workload, gain in (("libero", 1.3), (longer, 1.5)):
        assert compared[f"{workload}: two rounds over Colocated+Pipe"].ours == pytest.approx(gain)
    cause = compared[f"{longer}: two rounds over Colocated+Pipe"].cause
    assert "chunks of 10 actions and 4 denoise steps" in cause

    frame = obtain(schedules.study("h200", 0, there), tmp_path / "schedules").table.frame
    table = schedules.by_variant(frame)
    best = schedules.best_schedule(table, "libero")
    assert best is not None
    assert best["steps_per_s"] == 100.0
    active = {c.quantity: c.ours for c in schedules.compare_activity({"schedules": frame}, PAPER)}
    assert active[f"{longer}: relative improvement"] == pytest.approx(40)
    assert active["libero: relative improvement"] == pytest.approx(25)

    spent = obtain(overhead.study("h200", 0, there), tmp_path / "spent").table.frame
    assert {c.quantity.partition(":")[0] for c in overhead.compare({"overhead": spent}, PAPER)} == {
        "libero",
        longer,
    }


def test_workloads_with_other_numbers_of_environments_are_not_taken_together(tmp_path: Path) -> None:
    many, few = (
        made.optimised("mujoco_warp", variants=(("native", 100.0, 0.4), ("by hand", rate, 0.5)))
        for rate in (140.0, 160.0)
    )
    few["config"]["envs"] = 16
    few["optimisation"] = many["optimisation"] = None
    there = made.checkout(tmp_path, many=many, few=few)
    smaller = "mujoco_warp, 16 environments"
    for study, compare, label in (
        (ablation, ablation.compare_levers, "graph only over Colocated"),
        (schedules, schedules.compare, "fastest variant (optimised) over it"),
    ):
        name = study.__name__.rpartition(".")[2]
        frame = obtain(study.study("h200", 0, there), tmp_path / name).table.frame
        found = {c.quantity: c.ours for c in compare({name: frame, "alone": frame.head(0)}, PAPER)}
        assert found[f"mujoco_warp: {label}"] == pytest.approx(1.4)
        assert found[f"{smaller}: {label}"] == pytest.approx(1.6)


def test_turns_on_the_cores_are_a_form_of_their_own(tmp_path: Path) -> None:
    shared = made.optimised(variants=(("native", 100.0, 0.4), ("optimised", 124.0, 0.5)))
    turns = made.optimised(
        variants=(("native", 100.0, 0.4), ("by hand", 148.0, 0.5), ("by hand, cores shared", 136.0, 0.5))
    )
    turns["optimisation"] = None
    turns["config"]["simulator_cores"] = 16
    frame = rows(ablation, tmp_path, shared=shared, turns=turns)
    table = ablation.by_form(frame)
    assert isinstance(table, pl.DataFrame)
    over = {row["form"]: row["over_best"] for row in table.iter_rows(named=True)}
    assert over[ablation.GRAPH] == pytest.approx(1.24)
    assert over[ablation.TURNS] == pytest.approx(1.48)
    assert over["by hand, cores shared"] == pytest.approx(1.36)
    compared = {c.quantity: c for c in ablation.compare_rounds({"ablation": frame}, PAPER)}
    assert compared["libero: two rounds over Colocated+Pipe"].ours == pytest.approx(1.24)
    assert compared[f"libero: {ablation.TURNS}"].ours == pytest.approx(1.48)
    drawn = ablation.ladder(frame, "fig14b", PAPER)
    assert isinstance(drawn, pl.DataFrame)
    assert drawn["form"].to_list()[-1] == ablation.TURNS
    assert "turns on 16 cores" in results.with_run(frame)["run"][-1]


def test_rows_of_a_run_with_turns_on_the_cores_say_so(tmp_path: Path) -> None:
    orders = (("native", 100.0, 0.4), *[("by hand", 148.0, 0.5)] * 2, ("by hand, cores shared", 136.0, 0.5))
    for turns in (True, False):
        document = made.optimised(variants=orders)
        del document["optimisation"]
        document["config"]["simulator_cores"] = 16 * turns
        there = made.checkout(tmp_path / str(turns), cores=document)
        document["bound"] = {"any graph": {"limits": [{"name": "cores", "least_s": 4.0}]}}
        made.write(there / "benchmarks/results/gpu/cores.json", document)
        frames = {
            name: obtain(module.study("h200", 0, there), tmp_path / f"{turns} {name}").table.frame
            for name, module in (("schedules", schedules), ("over_time", over_time), ("reasons", reasons))
        }
        said = ", turns on the cores" if turns else ""
        alone = "the only one of today's schedules in"
        hand = f"; the graph {'and turns on the cores are' if turns else 'is'} by hand: no search ran there"
        frames["alone"] = frames["schedules"].head(0)
        rows_of = {c.quantity: c for c in schedules.compare(frames, PAPER)}
        gain = rows_of[f"libero: fastest variant (optimised{said}) over it"]
        assert gain.ours == pytest.approx(1.48)
        over = f"; median of 2 over that of 1 iterations of colocated{said}, {alone} cores{hand}"
        assert over in gain.cause
        active = schedules.compare_activity(frames, PAPER)
        assert [c.quantity for c in active[:2]] == [
            f"libero: SM activity, colocated{said}", f"libero: SM activity, optimised{said}"
        ]  # fmt: skip
        assert over in active[0].cause
        low = over_time.compare(frames, PAPER)[0]
        assert low.quantity == f"libero{said}: share of the interaction loop below 50 %, before"
        assert f"before: colocated, {alone} that run{hand}" in low.cause
        frames["activity"] = stored_captures()
        first = activity.compare(frames, PAPER)[0]
        assert first.quantity == f"libero{said}: share of the interaction loop below 50 %, colocated"
        table = schedules.by_variant(frames["schedules"])
        shared = schedules.variant_row(table, "libero", "by hand, cores shared", mps=False)
        assert shared is not None
        assert schedules.called(shared) == "by hand, cores shared"


def stored_captures() -> pl.DataFrame:
    table = stored_table(activity.study("smoke", 0, ROOT), ROOT)
    assert not isinstance(table, Unavailable)
    return table.frame


def test_a_graph_that_a_search_selected_is_not_called_by_hand(tmp_path: Path) -> None:
    document = made.optimised(variants=(("native", 100.0, 0.4), ("optimised", 148.0, 0.5)))
    document["bound"] = {"any graph": {"limits": [{"name": "cores", "least_s": 4.0}]}}
    frames = {
        name: rows(module, tmp_path / name, a=document)
        for name, module in (("schedules", schedules), ("over_time", over_time), ("reasons", reasons))
    }
    frames["alone"] = frames["schedules"].head(0)
    for compare in (schedules.compare, schedules.compare_activity, over_time.compare):
        assert not any("by hand" in c.cause for c in compare(frames, PAPER))


@pytest.mark.parametrize("simulator", ["libero", "mujoco_warp"])
@pytest.mark.parametrize("chunk_steps", [1, 5, 10])
@pytest.mark.parametrize("envs", [16, 80])
def test_a_workload_is_named_after_its_simulator(simulator: str, chunk_steps: int, envs: int) -> None:
    name = results.workload(simulator, chunk_steps, envs=envs)
    usual = results.workload(simulator, chunk_steps)
    assert results.simulator_of(name) == simulator
    assert (usual == simulator) == (chunk_steps == 5)
    assert (name == usual) == (envs == results.USUAL_ENVS[simulator])
    assert results.policy_of(name) == results.USUAL_POLICY
    assert results.file_stem(name).isidentifier()


def with_levels(times: dict[int, float], **how: str) -> dict[str, Any]:
    """A search of a rollout's quota with these times, of levels whose SMs are as many as their percentage."""
    trials = [{"setting": p, "amount": p, "time_s": t, "runs": 4} for p, t in times.items()]
    return rollout_quota(search={"trials": trials}, sweep=trials, **how)


def test_a_search_whose_levels_are_right_is_shown_before_one_with_more_levels(tmp_path: Path) -> None:
    """By MPS there were more levels, and products were wrong with the best one."""
    by_mps = with_levels({100: 5.0, 92: 4.5, 76: 4.0, 50: 4.2})
    by_green = with_levels({100: 5.0, 90: 4.6, 60: 4.3}, mechanism="green contexts")
    right = {"tried": 36, "wrong": []}
    looked = {
        "rows": [
            {"percent": 76, "way": "as they are", "sms": 76, "wrong": [1]},
            *({"percent": p, "way": "as they are", "sms": p, "wrong": []} for p in (100, 92)),
            {"percent": 100, "way": "green contexts", "parts": [{"sms": 60, "plain": right}]},
        ]
    }
    there = made.checkout(tmp_path, mps=by_mps, green=by_green, looked=looked)
    frame = obtain(quota.study("h200", 0, there), tmp_path / "out").table.frame
    table = quota.sweep(frame)
    assert table["percent"].to_list() == [100.0, 90.0, 60.0]
    shown = quota.chosen(frame)
    assert set(shown["mechanism"]) == {"green contexts"}
    levels = shown.filter(pl.col("kind") == "trial").sort("percent")
    assert levels["products"].to_list() == ["right", None, None]
    there = made.checkout(tmp_path / "mps", mps=by_mps, looked=looked)
    frame = obtain(quota.study("h200", 0, there), tmp_path / "other").table.frame
    assert quota.sweep(frame)["percent"].to_list() == [100.0, 92.0, 76.0, 50.0]
    assert "matrix products are wrong with 76 %" in quota.cause(frame)
