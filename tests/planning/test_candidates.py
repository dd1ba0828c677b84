from __future__ import annotations

import re

import pytest

from rlprof.planning.algorithms import grpo, ppo
from rlprof.planning.baselines import concurrent_plan, greedy_plan, independent_groups, overlap
from rlprof.planning.candidates import directories, directory, extents, microbatch_counts
from rlprof.planning.cost_memory import operator_memory
from rlprof.planning.errors import InfeasibleError
from rlprof.planning.evaluate import Problem, evaluate
from rlprof.planning.plan import Box, Parallelism
from rlprof.planning.workload import Workload
from tests.planning.made import TINY, cluster

MACHINES = cluster(2, 4, 4)
PROBLEM = Problem(ppo("llama2-7b", "llama2-7b", "llama2-7b"), Workload(256, 128, 384), MACHINES)
ALL = directories(PROBLEM)


def test_every_candidate_keeps_the_rules() -> None:
    """P1 to P8, from their statement."""
    for i, d in enumerate(ALL):
        assert len(set(d.index)) == len(d) > 20
        model, role = PROBLEM.pipeline.model_of(i), PROBLEM.pipeline.invocations[i].role
        for c in d.candidates:
            pi, (racks, nodes, width) = c.parallelism, c.extent
            assert 4 % pi.tensor == 0
            assert model.shape.layers % pi.pipeline == 0
            assert pi.pipeline == 1 or pi.pipeline % 2 == 0
            assert 256 % pi.data == 0
            local = 256 // pi.data
            if pi.pipeline == 1:
                assert c.microbatches == 1
            else:
                assert local % c.microbatches == 0
                assert c.microbatches >= pi.pipeline
                assert local // c.microbatches >= 8
            on_node = min(pi.pipeline, 4 // pi.tensor)
            assert pi.pipeline % on_node == 0
            assert racks * nodes * width == pi.gpus
            assert width % (on_node * pi.tensor) == 0
            assert racks == 1 or nodes == 4
            for n in range(d.origins(c)):
                origin = d.origin(c, n)
                assert all(o % e == 0 for o, e in zip(origin, c.extent, strict=True))
                assert c.at(origin).box.within(MACHINES)
                assert d.number_of(c, origin) == n
                assert d.find(c.at(origin)) == (d.index[c.extent, pi, c.microbatches], n)
            need = operator_memory(role, model, PROBLEM.workload, c.at((0, 0, 0)))
            assert need.optimizer_bytes + need.transient_bytes(resident=False) <= MACHINES.usable_bytes
        times = [c.time_s for c in d.candidates]
        assert times == sorted(times)


def test_boxes_by_hand() -> None:
    limits = (2, 4, 4)
    assert extents(Parallelism(8, 1, 1), limits) == [(2, 4, 1), (1, 4, 2), (1, 2, 4)]
    assert extents(Parallelism(1, 8, 2), limits) == [(1, 4, 4)]
    assert extents(Parallelism(2, 8, 2), limits) == [(2, 4, 4)]
    assert extents(Parallelism(1, 6, 1), limits) == []  # four stages on a node do not divide six
    assert extents(Parallelism(6, 1, 4), limits) == []  # neither in one rack nor whole racks
    assert extents(Parallelism(3, 1, 1), limits) == [(1, 3, 1), (1, 1, 3)]


def test_microbatches_by_hand() -> None:
    assert microbatch_counts(64, 1) == [1]
    assert microbatch_counts(64, 2) == [2, 4, 8]
    assert microbatch_counts(64, 16) == []


def test_microbatches_may_be_fixed() -> None:
    v = PROBLEM.pipeline.index["actor_training"]
    fixed = directory(PROBLEM, v, search_microbatches=False)
    assert {(c.parallelism.pipeline, c.microbatches) for c in fixed.candidates} <= {
        (1, 1), (2, 4), (4, 8), (8, 16), (16, 32), (32, 64),
    }  # fmt: skip


def test_nothing_fits_says_how_much_is_lacking() -> None:
    small = Problem(PROBLEM.pipeline, PROBLEM.workload, cluster(1, 1, 1))
    with pytest.raises(InfeasibleError, match="no feasible plan: actor_generation alone needs") as caught:
        directories(small)
    needs, usable, lacking = (int(n.replace(",", "")) for n in re.findall(r"[\d,]{4,}", str(caught.value)))
    assert caught.value.lacking_bytes == lacking == needs - usable > 0
    odd = Problem(grpo(TINY, TINY), Workload(3, 8, 8), cluster(1, 1, 2))
    assert directories(odd)  # three prompts on one GPU, or pairs of tensor ranks


def test_groups_follow_the_data() -> None:
    names = [v.name for v in PROBLEM.pipeline.invocations]
    assert [[names[i] for i in group] for group in independent_groups(PROBLEM.pipeline)] == [
        ["actor_generation"],
        ["reference_inference", "reward_inference", "critic_inference"],
        ["actor_training", "critic_training"],
    ]


def test_greedy_takes_the_fastest_of_all_gpus() -> None:
    plan = greedy_plan(PROBLEM, ALL)
    for d in ALL:
        a = plan[d.invocation]
        assert a.box == Box((0, 0, 0), (2, 4, 4))
        c = d.candidates[d.index[a.box.extent, a.parallelism, a.microbatches]]
        assert c.time_s == min(o.time_s for o in d.candidates if o.gpus == 32)
    assert evaluate(PROBLEM, plan).timeline.parallelism <= 1


def test_concurrent_gives_disjoint_boxes_within_a_group() -> None:
    plan = concurrent_plan(PROBLEM, ALL)
    for group in independent_groups(PROBLEM.pipeline):
        boxes = [plan[ALL[i].invocation].box for i in group]
        assert not any(overlap(a, b) for n, a in enumerate(boxes) for b in boxes[:n])
    assert evaluate(PROBLEM, plan).timeline.parallelism > 1.3


def test_concurrent_on_one_gpu_runs_one_after_the_other() -> None:
    one = Problem(ppo(TINY, TINY, TINY), Workload(8, 8, 8), cluster(1, 1, 1))
    plan = concurrent_plan(one)
    assert {a.box.size for a in plan.assignments.values()} == {1}


@pytest.mark.parametrize("names", [("reward_inference", "reference_inference", "critic_inference")])
def test_the_partition_is_the_best_there_is(names: tuple[str, ...]) -> None:
    """Against all partitions of four GPUs."""
    problem = Problem(
        ppo("qwen2.5-0.5b", "qwen2.5-0.5b", "qwen2.5-1.5b"), Workload(64, 64, 64), cluster(1, 1, 4)
    )
    found = {d.invocation: d for d in directories(problem)}
    plan = concurrent_plan(problem)
    took = max(
        found[n].candidates[at[0]].time_s for n in names for at in [found[n].find(plan[n])] if at is not None
    )
    placed = [
        [(c.time_s, c.at(d.origin(c, o)).box) for c in d.candidates for o in range(d.origins(c))]
        for d in (found[n] for n in names)
    ]
    best = min(
        max(a[0], b[0], c[0])
        for a in placed[0]
        for b in placed[1]
        if not overlap(a[1], b[1])
        for c in placed[2]
        if not overlap(a[1], c[1]) and not overlap(b[1], c[1])
    )
    assert took == best
