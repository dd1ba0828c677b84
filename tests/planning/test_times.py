from __future__ import annotations

import pytest
from pytest import approx  # noqa: PT013

from rlprof.planning.algorithms import grpo
from rlprof.planning.cost_time import operator_time
from rlprof.planning.errors import PlanError
from rlprof.planning.lower import lower
from rlprof.planning.options import ModelOptions
from rlprof.planning.plan import Assignment, Box, Parallelism, Plan
from rlprof.planning.times import GivenTimes, ModelTimes, phase_shares
from rlprof.planning.workload import LengthQuantile, Workload, three_phases
from tests.planning.made import TINY, at, cluster

WORK = Workload(512, 128, 384, quantiles=three_phases(384))


def test_phases_of_the_worked_example_by_hand() -> None:
    """Generation (4,1,2) takes 0.359478 s for the prefill and 2.622619 s for 383 steps: of 95, 96, 192."""
    pipeline, machines = grpo("llama2-7b", "llama2-7b"), cluster(1, 8, 4)
    elsewhere = Assignment(Box((0, 4, 0), (1, 2, 4)), Parallelism(4, 1, 2))
    here = Assignment(Box((0, 0, 0), (1, 2, 4)), Parallelism(4, 1, 2))
    names = [v.name for v in pipeline.invocations]
    plan = Plan({**dict.fromkeys(names, elsewhere), "actor_generation": here})
    times = ModelTimes(pipeline, plan, WORK, machines, ModelOptions())
    generation, reward = pipeline.index["actor_generation"], pipeline.index["reward_inference"]
    phases = [times.phase_s(generation, q) for q in range(3)]
    assert phases == approx([0.359478 + 0.650519, 0.657367, 1.314734], abs=2e-6)
    assert sum(phases) == approx(2.982098, abs=1e-6)
    # inference of 0.5, 0.35 and 0.15 of the sequences: as if there were no more
    model = pipeline.model_by_name["reward"]
    for q, prompts in enumerate((2560, 1792, 768)):
        fewer = operator_time("inference", model, Workload(prompts, 128, 384), elsewhere, machines)
        ten = Workload(5120, 128, 384, quantiles=WORK.quantiles)
        assert ModelTimes(pipeline, plan, ten, machines, ModelOptions()).phase_s(reward, q) == approx(
            fewer.total_s
        )


def test_shares_of_phases_sum_to_the_whole() -> None:
    for work in (WORK, Workload(4, 8, 9, quantiles=(LengthQuantile(0.2, 1), LengthQuantile(1, 9)))):
        shares = [phase_shares(work, q) for q in range(len(work.quantiles))]
        assert [sum(s) for s in zip(*shares, strict=True)] == approx([1.0, 1.0])
        assert all(steps >= 0 and sequences > 0 for steps, sequences in shares)


def test_times_that_are_not_given_are_told() -> None:
    pipeline = grpo(TINY, TINY)
    names = [v.name for v in pipeline.invocations]
    work = Workload(64, 8, 8, quantiles=three_phases(8))
    plan = Plan({**dict.fromkeys(names, at(0)), "reward_inference": at(1)})
    graph = lower(pipeline, plan, work, cluster(1, 1, 2), ModelOptions(steps=1))
    node = next(n for n in graph.nodes if n.phases == 3)
    with pytest.raises(PlanError, match="no time is given"):
        GivenTimes({}, names).node_s(node)
    with pytest.raises(PlanError, match="2 times are given for the 3 phases"):
        GivenTimes(dict.fromkeys(names, (1.0, 2.0)), names).node_s(node)
    assert GivenTimes(dict.fromkeys(names, 6.0), names).node_s(node) == 2.0
    assert GivenTimes(dict.fromkeys(names, (3.0, 2.0, 1.0)), names).node_s(node) == 3.0
