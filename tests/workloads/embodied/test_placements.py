"""The search over placements: as good as trying all, and never worse with more GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.placements import (
    Pricing,
    best_placement,
    bound_s,
    placements,
    predicted_s,
)
from rlprof.workloads.embodied.schedule_graph import Costs, Shape, iteration_graph
from rlprof.workloads.embodied.schedules import SCHEDULES, StageSchedule

shares = st.floats(0.05, 4)
shapes = st.builds(
    Shape, st.integers(1, 2), st.integers(1, 4), st.integers(1, 2), st.just(1), st.integers(1, 2)
)


@st.composite
def pricings(draw: st.DrawFn) -> Pricing:
    """Work that is divided among GPUs and stages, and a floor for each call."""
    env, predict, train, reset, sync, move, floor = (draw(shares) for _ in range(7))
    env_sm, predict_sm = draw(st.integers(1, 100)), draw(st.integers(1, 100))

    def price(schedule: StageSchedule, env_gpus: int, rollout_gpus: int, actor_gpus: int) -> Costs:
        n = schedule.stages
        return Costs(
            sync_s=sync,
            reset_s=reset / n / env_gpus,
            predict_s=floor / 10 + predict / n / rollout_gpus,
            env_s=floor / 10 + env / n / env_gpus,
            adv_s=0.01,
            train_s=train / actor_gpus,
            move_s={"env": move / env_gpus, "rollout": move, "actor": move / actor_gpus},
            env_sm=env_sm,
            predict_sm=predict_sm,
        )

    return price


@settings(deadline=None, max_examples=40)
@given(shapes, pricings())
def test_the_search_finds_what_trying_all_finds(shape: Shape, pricing: Pricing) -> None:
    before = float("inf")
    for gpus in range(1, 5):
        best = best_placement(gpus, shape, pricing)
        every = [predicted_s(p, shape, pricing) for p in placements(gpus)]
        assert best.time_s == min(every)
        assert best.time_s <= before  # GPUs may be idle
        before = best.time_s


@settings(deadline=None, max_examples=40)
@given(shapes, pricings(), st.integers(1, 4))
def test_no_schedule_beats_the_bound(shape: Shape, pricing: Pricing, gpus: int) -> None:
    for placement in placements(gpus):
        assert bound_s(placement, shape, pricing) <= predicted_s(placement, shape, pricing) * (1 + 1e-9)


def test_all_placements_of_three_gpus() -> None:
    found = {(p.schedule.name, p.env, p.rollout, p.actor) for p in placements(3)}
    shared = {(n, g, g, g) for n in ("colocated", "colocated-pipe") for g in (1, 2, 3)}
    apart = {(n, a, b, a + b) for n in ("hybrid", "hybrid-pipe") for a, b in ((1, 1), (1, 2), (2, 1))}
    assert found == shared | apart


def test_most_placements_are_not_scheduled(monkeypatch) -> None:
    """Where rollouts take nearly all the time, one placement stands out."""
    from rlprof.workloads.embodied import placements as module

    counted = []
    monkeypatch.setattr(module, "iteration_graph", lambda *a: counted.append(a) or iteration_graph(*a))

    def price(schedule: StageSchedule, env: int, rollout: int, _actor: int) -> Costs:
        n = schedule.stages
        return Costs(0.0, 0.0, 10 / n / rollout, 0.01 / n / env, 10 / n / rollout, 0.0, 0.01)

    best = best_placement(8, Shape(1, 4), price)
    assert (best.schedule, best.rollout) == (SCHEDULES["colocated"], 8)
    assert len(counted) < len(list(placements(8))) / 4


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="0 GPUs"):
        best_placement(0, Shape(1, 1), lambda *_: Costs())
    with pytest.raises(ConfigurationError, match="give all costs"):
        best_placement(1, Shape(1, 1), lambda *_: Costs())
