from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import active_children
from random import Random
from time import sleep
from typing import Any

import pytest

from rlprof.errors import UsageError
from rlprof.planning import annealing
from rlprof.planning.algorithms import grpo, ppo
from rlprof.planning.annealing import Annealer, Budget, Record
from rlprof.planning.baselines import concurrent_plan
from rlprof.planning.candidates import directories
from rlprof.planning.compiled import CompiledJudge
from rlprof.planning.errors import InfeasibleError
from rlprof.planning.evaluate import Problem, efficiency_score, evaluate, memory_penalty
from rlprof.planning.moves import Moves
from rlprof.planning.options import ModelOptions
from rlprof.planning.search import search, structures
from rlprof.planning.search_options import SearchOptions
from rlprof.planning.shapes import ModelShape
from rlprof.planning.space import Space, State, Verdict
from rlprof.planning.workload import Workload, three_phases
from tests.planning.made import TINY, cluster

WORK = Workload(32, 64, 64, quantiles=three_phases(64))
SMALL = Problem(ppo(TINY, TINY, TINY), WORK, cluster(1, 2, 2), ModelOptions(steps=4))
FEW = SearchOptions(evaluations=2_000)


def test_the_penalty_of_ten_percent_too_much() -> None:
    assert memory_penalty(1.10) == pytest.approx(0.018316, abs=5e-7)
    assert memory_penalty(1.0) == memory_penalty(0.2) == 1.0
    assert memory_penalty(1.05) == pytest.approx(0.1353352832)  # exp(-2)


def test_a_plan_beyond_the_memory_is_penalised_by_its_fullest_gpu() -> None:
    """By hand: the usable memory is made a twenty-first of the peak smaller than it."""
    plan = concurrent_plan(SMALL)
    fits = evaluate(SMALL, plan)
    assert fits.penalised_score == fits.score
    tight = replace(SMALL, cluster=cluster(1, 2, 2, memory_bytes=fits.peak_bytes / 1.05 / 0.9))
    over = evaluate(tight, plan)
    assert not over.feasible
    assert over.memory_ratio == pytest.approx(1.05)
    assert over.penalised_score == pytest.approx(fits.score * 0.1353352832)


def test_efficiency_gives_up_at_most_what_it_may() -> None:
    assert efficiency_score(90.0, 0.5, 100.0, 0.10) == 45.0
    assert efficiency_score(89.9, 0.9, 100.0, 0.10) == 1e-12


def test_a_search_beats_both_baselines_and_fits() -> None:
    result = search(SMALL, FEW, workers=1)
    assert result.evaluation.feasible
    for baseline in (concurrent_plan(SMALL),):
        assert result.evaluation.score > evaluate(SMALL, baseline).score
    assert 0 < result.evaluations <= 2_000 + 6 * 4 + 10_000  # annealing, its last rounds, polishing
    assert {name for name, _ in result.by_structure} == {
        f"actor {a}, critic {c}" for a, c in itertools.product((0, 1), repeat=2)
    }


def test_a_seed_and_a_budget_give_one_result_whatever_the_number_of_workers() -> None:
    options = SearchOptions(evaluations=10_000, seed=3)
    one, two = (search(SMALL, options, workers=n) for n in (1, 2))
    assert (one.parts, one.workers, two.workers) == (2, 1, 2)
    assert one.plan == two.plan
    assert one.evaluations == two.evaluations
    assert one.elites == two.elites


def test_sharing_is_tried_only_when_asked_for() -> None:
    assert len(structures(SMALL, FEW)) == 4
    both = structures(SMALL, replace(FEW, share_actor_critic=True))
    assert len(both) == 4 + 2
    grp = Problem(grpo(TINY, TINY), WORK, cluster(1, 1, 2))
    assert len(structures(grp, replace(FEW, share_actor_critic=True, staleness=(0, 1, 2)))) == 3


def test_resuming_is_never_worse() -> None:
    first = search(SMALL, replace(FEW, evaluations=1_000), workers=1)
    again = search(SMALL, replace(FEW, evaluations=200, polish=False), start=first.elites, workers=1)
    assert again.evaluation.score >= first.evaluation.score


def test_plans_of_another_problem_are_no_start() -> None:
    other = replace(SMALL, cluster=cluster(1, 1, 1))
    with pytest.raises(UsageError, match="none of the plans to start from"):
        search(other, FEW, start=(concurrent_plan(SMALL),), workers=1)


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8, 0.95])
def test_what_a_search_returns_fits_however_little_memory_there_is(share: float) -> None:
    """Shares of what the concurrent baseline takes."""
    most = evaluate(SMALL, concurrent_plan(SMALL)).peak_bytes
    tight = replace(SMALL, cluster=cluster(1, 2, 2, memory_bytes=share * most / 0.9))
    found = None
    with suppress(InfeasibleError):
        found = search(tight, replace(FEW, evaluations=400, polish=False), workers=1).evaluation
    assert found is not None or share < 0.8
    if found is not None:
        assert found.memory_ratio <= 1
        assert all(g.peak_bytes <= tight.cluster.usable_bytes for g in found.memory)


def test_no_feasible_plan_names_the_gpu_and_what_it_lacks() -> None:
    shape = ModelShape("fits alone", 8, 512, 2048, 8, 8, 1000)
    problem = Problem(ppo(shape, shape, shape), WORK, cluster(1, 1, 1))
    alone = max(evaluate(problem, concurrent_plan(problem)).memory[0].transient, key=lambda t: t[1])[1]
    tight = cluster(1, 1, 1, memory_bytes=(alone * 1.3 + 13 * shape.parameters()) / 0.9)
    with pytest.raises(InfeasibleError, match=r"GPU 0/0/0 needs [\d,]+ bytes of [\d,]+ usable") as caught:
        search(replace(problem, cluster=tight), FEW, workers=1)
    assert caught.value.lacking_bytes > 0
    assert f"{caught.value.lacking_bytes:,} bytes are lacking" in str(caught.value)


def test_efficiency_keeps_gpus_busier_and_stays_within_its_loss() -> None:
    fast = search(SMALL, FEW, workers=1)
    lean = search(SMALL, replace(FEW, objective="efficiency", most_loss_frac=0.2), workers=1)
    assert lean.evaluation.utilisation_frac >= fast.evaluation.utilisation_frac
    assert lean.evaluation.score >= 0.75 * fast.evaluation.score


def test_a_record_under_the_efficiency_objective_forgets_slow_plans() -> None:
    record = Record(SearchOptions(evaluations=1, objective="efficiency"))
    record.note(0, ((0, 0),), Verdict(50.0, 1.0, 0.5))
    record.note(0, ((1, 0),), Verdict(100.0, 0.6, 0.5))
    record.note(0, ((2, 0),), Verdict(95.0, 0.7, 0.5))
    record.note(0, ((3, 0),), Verdict(200.0, 1.0, 1.5))  # does not fit
    best = record.best()
    assert best is not None
    assert best.state == ((2, 0),)
    assert record.least_infeasible is not None


def test_moves_stay_in_the_space_and_donors_shrink() -> None:
    space = Space(SMALL, directories(SMALL))
    rng = Random(0)
    pairs = Moves(space, rng, pair_probability=1.0, critical_probability=0.6, guided_probability=0.5)
    state = space.state(concurrent_plan(SMALL, space.directories))
    assert state is not None
    changed = []
    for _ in range(300):
        new = pairs.neighbour(state, [1.0] * len(state))
        space.plan(new).check(SMALL.pipeline, SMALL.workload, SMALL.cluster)
        changed.append(sum(a != b for a, b in zip(state, new, strict=True)))
    assert max(changed) == 2
    assert changed.count(2) > 150


class CtrlC:
    """Progress that is interrupted the first time it is told of the search."""

    def __init__(self) -> None:
        self.sent = False

    def __call__(self, stage: str, fraction: float) -> None:
        if stage == "searching" and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGINT)


def test_compiling_the_evaluator_is_told_and_not_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, calls, told = CompiledJudge._judge, itertools.count(), []

    def compiling(self: CompiledJudge, states: Sequence[State]) -> Any:
        if next(calls) == 0:
            sleep(0.6)
        return judge(self, states)

    monkeypatch.setattr(CompiledJudge, "_judge", compiling)
    monkeypatch.setattr("rlprof.planning.search.TELL_S", 0.1)
    options = SearchOptions(seconds=0.5)
    result = search(SMALL, options, workers=1, progress=lambda stage, _: told.append(stage))
    assert result.evaluations > 100  # a budget that began before was spent after a few
    first = told.index("searching")
    assert first > 0
    assert set(told[:first]) == {"compiling the evaluator, once"}
    assert set(told[first:]) == {"searching"}


LONG = [SearchOptions(seconds=120), SearchOptions(evaluations=1_000_000)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("options", LONG, ids=["seconds", "evaluations"])
def test_ctrl_c_ends_a_search_with_what_it_has(options: SearchOptions, workers: int) -> None:
    result = search(SMALL, options, workers=workers, progress=CtrlC())
    assert result.interrupted
    assert result.workers == workers
    assert result.seconds < 60
    assert result.evaluations < 500_000
    assert result.evaluation.feasible


@pytest.mark.parametrize("options", LONG, ids=["seconds", "evaluations"])
def test_what_ctrl_c_leaves_is_polished(options: SearchOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlprof.planning.search.POLISH_STOPPED_S", 60.0)
    raw = search(SMALL, replace(options, polish=False), workers=1, progress=CtrlC())
    result = search(SMALL, options, workers=1, progress=CtrlC())
    assert result.interrupted
    assert result.evaluation.score > raw.evaluation.score
    assert [score for _, score in raw.by_structure].count(None) == 3  # one had its turn
    assert all(score for _, score in result.by_structure)  # its best plan was tried in the others
    problem = result.evaluation.problem
    space = Space(problem, directories(problem))
    state = space.state(result.plan)
    assert state is not None
    record = Record(options)
    again = Annealer(space, CompiledJudge(space), 0, record, Random(0)).polish(state, Budget())
    assert again == state  # nothing that polishing tries is better


def while_processes_end(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """Have a signal come as the processes of a search are told to end."""
    shutdown = ProcessPoolExecutor.shutdown

    def disturbed(*args: Any, **named: Any) -> None:
        os.kill(os.getpid(), number)
        shutdown(*args, **named)

    monkeypatch.setattr(ProcessPoolExecutor, "shutdown", disturbed)


def test_ctrl_c_while_processes_end_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    while_processes_end(monkeypatch, signal.SIGINT)
    result = search(SMALL, SearchOptions(evaluations=10_000, polish=False), workers=2)
    assert result.interrupted
    assert result.evaluations >= 10_000
    assert not active_children()


def test_a_second_signal_leaves_no_process_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that still waited for work was then waited for at exit, for ever."""
    while_processes_end(monkeypatch, signal.SIGTERM)
    before = signal.signal(signal.SIGTERM, lambda got, _: sys.exit(128 + got))
    try:
        with pytest.raises(SystemExit):
            search(SMALL, LONG[1], workers=2, progress=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert not active_children()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_ctrl_c_ends_polishing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    polish = Annealer.polish

    def interrupted(*args: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return polish(*args, **named)

    raw = search(SMALL, replace(LONG[1], polish=False), workers=1, progress=CtrlC())
    monkeypatch.setattr(Annealer, "polish", interrupted)
    result = search(SMALL, LONG[1], workers=1, progress=CtrlC())
    assert result.interrupted
    assert result.plan == raw.plan


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "without a budget"),
        ({"seconds": 0.0}, "a budget of 0.0 s"),
        ({"evaluations": 0}, "evaluations is 0"),
        ({"evaluations": 1, "pair_probability": 1.5}, "pair_probability is 1.5"),
        ({"evaluations": 1, "objective": "beauty"}, "the objective is 'beauty'"),
        ({"evaluations": 1, "staleness": (-1,)}, r"staleness budgets \(-1,\)"),
    ],
)
def test_options_that_cannot_be(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SearchOptions(**wrong)  # type: ignore[arg-type]


def exhaustive_case(seed: int) -> tuple[float, float]:
    """The best score of a small random problem: by trying every plan, and by annealing and polishing."""
    rng = Random(seed)
    shape = ModelShape(
        "s", rng.choice([2, 4]), rng.choice([256, 512, 1024]), 2048, 8, 8, rng.choice([1000, 32000])
    )
    pipeline = grpo(shape, shape)
    keep = [v for v in pipeline.invocations if v.name != "reward_inference"]
    pipeline = replace(
        pipeline,
        models=tuple(m for m in pipeline.models if m.name != "reward"),
        containers=tuple(c for c in pipeline.containers if not c.name.startswith("reward")),
        invocations=tuple(replace(v, inputs=tuple(i for i in v.inputs if i != "rewards")) for v in keep),
        data=tuple(e for e in pipeline.data if "reward_inference" not in (e.source, e.target)),
        inputs=tuple(i for i in pipeline.inputs if i != "reward_weights"),
        staleness={"actor": rng.choice([0, 1])},
    )
    gpus = rng.choice([(1, 1, 2), (1, 1, 3), (1, 1, 4), (1, 2, 2), (2, 1, 2), (1, 4, 1)])
    response = rng.choice([16, 64, 256])
    work = Workload(rng.choice([4, 8, 16]), rng.choice([16, 128]), response, quantiles=three_phases(response))
    problem = Problem(pipeline, work, cluster(*gpus), ModelOptions(steps=4))
    space = Space(problem, directories(problem))
    judge = CompiledJudge(space)
    places = [[(c, o) for c, n in enumerate(counts) for o in range(n)] for counts in space.origins]
    best = 0.0
    states = itertools.product(*places)
    while batch := list(itertools.islice(states, 4096)):
        best = max(best, *(v.score for v in judge.judge(batch) if v.feasible), 0.0)
    record = Record(SearchOptions(evaluations=4_000))
    annealer = Annealer(space, judge, 0, record, Random(seed))
    baseline = space.state(concurrent_plan(problem, space.directories))
    annealer.anneal(baseline, (), Budget(4_000))
    for found in list(record.front):
        annealer.polish(found.state, Budget())
    return best, record.best_score


@pytest.mark.parametrize("seed", range(6))
def test_annealing_finds_the_optimum_of_small_spaces(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annealing, "SMALL_SPACE", 0)
    best, found = exhaustive_case(seed)
    assert found == best > 0


@pytest.mark.slow
def test_annealing_finds_the_optimum_of_two_hundred_small_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annealing, "SMALL_SPACE", 0)
    missed = [seed for seed in range(200) for best, found in (exhaustive_case(seed),) if found != best]
    assert not missed
