from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from rlprof.planning.algorithms import dpo, grpo, ppo, share_actor_critic
from rlprof.planning.candidates import directories
from rlprof.planning.compiled import CompiledJudge, can_compile, judge_of
from rlprof.planning.evaluate import Problem
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Container, Invocation, Link, Model, Pipeline
from rlprof.planning.space import PlainJudge, Space, State
from rlprof.planning.workload import LengthQuantile, Workload
from tests.planning.made import TINY, cluster

WORK = Workload(16, 4, 8, quantiles=(LengthQuantile(0.5, 2), LengthQuantile(0.8, 5), LengthQuantile(1.0, 8)))
MACHINES = cluster(2, 2, 2)


def twice_served() -> Pipeline:
    """One trainable model that serves three times in a step, so that copies in place are met again."""
    data = ("a", "b", "c", "d")
    return Pipeline(
        "twice served",
        (Model("m", TINY, trainable=True), Model("frozen", TINY)),
        (Container("W", weights_of="m"), *(Container(x, "B*R*L_r") for x in data)),
        (
            Invocation("g", "generation", "m", ("W",), ("a",)),
            Invocation("i", "inference", "frozen", ("a",), ("b",)),
            Invocation("j", "inference", "m", ("W", "a"), ("c",)),
            Invocation("k", "inference", "m", ("W", "b"), ("d",)),
            Invocation("t", "training", "m", ("W", "c", "d"), ("W",)),
        ),
        (
            Link("g", "i", "a"),
            Link("g", "j", "a"),
            Link("i", "k", "b"),
            Link("j", "t", "c"),
            Link("k", "t", "d"),
        ),
        tuple(Link("t", v, "W") for v in "kgj"),
    )


PPO = ppo(TINY, TINY, TINY)
CASES = {
    "ppo": (PPO, ModelOptions()),
    "ppo, stale": (PPO.with_staleness({"actor": 1, "critic": 2}), ModelOptions()),
    "ppo, fused": (PPO.with_staleness({"actor": 1}), ModelOptions(fuse_training=True)),
    "ppo, sources held": (PPO.with_staleness({"actor": 1}), ModelOptions(reserve_source=True)),
    "ppo, whole": (PPO, ModelOptions(split_generation=False, steps=3)),
    "shared": (share_actor_critic(PPO).with_staleness({"actor_critic": 1}), ModelOptions()),
    "grpo": (grpo(TINY, TINY, staleness={"actor": 2}), ModelOptions(decode="microbatched")),
    "dpo": (dpo(TINY), ModelOptions(steps=1, nongemm="as_printed")),
    "served three times": (twice_served(), ModelOptions(steps=4)),
    "served three times, stale": (twice_served().with_staleness({"m": 1}), ModelOptions(steps=4)),
}


def random_states(space: Space, count: int, seed: int = 0) -> list[State]:
    rng = Random(seed)
    return [
        tuple((c, rng.randrange(n[c])) for n in space.origins for c in (rng.randrange(len(n)),))
        for _ in range(count)
    ]


@pytest.mark.parametrize("case", CASES)
def test_compiled_verdicts_are_those_of_the_reference(case: str) -> None:
    """Scores to the last bit; sums over GPUs, which are added in another order, to rounding."""
    pipeline, options = CASES[case]
    problem = Problem(pipeline, WORK, MACHINES, options)
    space = Space(problem, directories(problem))
    assert can_compile(space)
    compiled, plain = CompiledJudge(space), PlainJudge(space)
    states = random_states(space, 60)
    for state, a, b in zip(states, compiled.judge(states), plain.judge(states), strict=True):
        assert a.score == b.score, space.plan(state)
        assert a.utilisation_frac == pytest.approx(b.utilisation_frac, rel=1e-12)
        assert a.memory_ratio == pytest.approx(b.memory_ratio, rel=1e-12)
        assert compiled.critical_s(state) == pytest.approx(plain.critical_s(state), rel=1e-9)


def test_places_of_few_gpus_are_met_again_in_the_served_three_times_case() -> None:
    """The case is there for reshards and publications that are used again: make sure that it has them."""
    pipeline, options = CASES["served three times"]
    problem = Problem(pipeline, WORK, cluster(1, 1, 2), options)
    space = Space(problem, directories(problem))
    compiled, plain = CompiledJudge(space), PlainJudge(space)
    states = random_states(space, 150, seed=1)
    reused = 0
    for state, a in zip(states, compiled.judge(states), strict=True):
        e = plain.evaluate(state)
        assert a.score == e.score
        sent = sum(n.publishes for n in e.graph.nodes)
        served = {
            i
            for (u, i), kind in e.graph.edges.items()
            if kind == "publication" and not e.graph.nodes[i].publishes
        }
        reused += sent < len(served)
    assert reused > 10


def test_what_is_not_covered_goes_to_the_reference() -> None:
    many = replace(
        PPO,
        models=(*PPO.models, *(Model(f"extra {n}", TINY) for n in range(8))),
        invocations=(*PPO.invocations, *(Invocation(f"x{n}", "inference", f"extra {n}") for n in range(8))),
    )
    problem = Problem(many, WORK, cluster(1, 1, 1))
    assert isinstance(judge_of(Space(problem, directories(problem))), PlainJudge)
