"""The plain evaluator against a second writing of its specification, on random plans."""

from __future__ import annotations

from random import Random

import pytest

from rlprof.planning.algorithms import dpo, grpo, ppo, share_actor_critic
from rlprof.planning.candidates import directories
from rlprof.planning.evaluate import Evaluation, Problem, evaluate
from rlprof.planning.executable import Node
from rlprof.planning.options import ModelOptions
from rlprof.planning.shapes import ModelShape
from rlprof.planning.space import Space
from rlprof.planning.workload import LengthQuantile, Workload, three_phases
from tests.planning import specification as again
from tests.planning.made import TINY, cluster
from tests.planning.test_compiled import random_states, twice_served

#: Grouped queries, heads wider than hidden / heads, a head tied to the embedding; and a plain wide one.
TIED = ModelShape("tied", 8, 512, 1024, 16, 2, 5000, head_dim=64, tied=True)
PLAIN = ModelShape("plain", 16, 1024, 512, 8, 8, 3000, gated=False)
WORK = Workload(64, 20, 40, quantiles=three_phases(40))
GROUPS = Workload(
    16, 33, 80, rollouts_per_prompt=4, quantiles=tuple(LengthQuantile(n / 4, 20 * n) for n in range(1, 5))
)
PPO = ppo(TIED, PLAIN, TINY)
CASES = {
    "ppo": (PPO, WORK, ModelOptions(steps=2)),
    "ppo, stale": (PPO.with_staleness({"actor": 1, "critic": 2}), WORK, ModelOptions(steps=4)),
    "ppo, fused": (
        ppo(TINY, TINY, TIED, staleness={"actor": 1}),
        WORK,
        ModelOptions(steps=3, fuse_training=True),
    ),
    "ppo, sources held": (PPO.with_staleness({"critic": 1}), GROUPS, ModelOptions(3, reserve_source=True)),
    "ppo, whole": (PPO, WORK, ModelOptions(steps=3, split_generation=False)),
    "shared": (
        share_actor_critic(ppo(PLAIN, PLAIN, TINY, staleness={"actor": 1})),
        GROUPS,
        ModelOptions(steps=3),
    ),
    "shared, fresh": (share_actor_critic(ppo(TIED, TIED, TINY)), WORK, ModelOptions(steps=3)),
    "grpo, groups": (
        grpo(PLAIN, TIED, staleness={"actor": 2}),
        GROUPS,
        ModelOptions(4, decode="microbatched", prefill_logits="last"),
    ),
    "dpo, as printed": (dpo(TIED), GROUPS, ModelOptions(2, nongemm="as_printed")),
    "no KV traffic": (grpo(TIED, PLAIN), WORK, ModelOptions(2, count_kv_traffic=False)),
    "served three times": (twice_served(), WORK, ModelOptions(steps=3)),
}
#: Tensor ranks beyond the KV heads, stages across nodes, boxes of several racks; one GPU a node; one node.
MACHINES = (
    cluster(2, 2, 4, **{"collective.inter_rack.bandwidth": 7e9, "p2p.inter_rack.alpha_s": 3e-5}),
    cluster(1, 2, 1),
    cluster(1, 1, 2, nongemm_tokens=100, gamma_m=7, gamma_k=900),
)


def key_of(e: Evaluation, i: int) -> again.Key:
    node: Node = e.graph.nodes[i]
    name = e.problem.pipeline.invocations[node.vertex].name
    return node.kind, name, node.step, node.phase, node.container, node.publishes, again.gpus(node.source)


def check(e: Evaluation) -> None:
    pipeline, work, options = e.problem.pipeline, e.problem.workload, e.problem.options
    machine = again.Machine(e.problem.cluster)
    expected = again.lowered(pipeline, e.plan, work, options)
    keys = [key_of(e, i) for i in range(len(e.graph.nodes))]
    assert len(set(keys)) == len(keys)
    assert dict(zip(keys, [n.payload_bytes for n in e.graph.nodes], strict=True)) == pytest.approx(
        expected.payload
    )
    assert {(keys[a], keys[b]) for a, b in e.graph.edges} == expected.edges
    seconds = {first: second for second, first in again.fusions(pipeline, e.plan).items()}
    times = [e.timeline.finish_s[i] - e.timeline.start_s[i] for i in range(len(keys))]
    given = [e.times.node_s(node) for node in e.graph.nodes]
    assert times == pytest.approx(given, rel=1e-9, abs=1e-12)
    for key, node, time in zip(keys, e.graph.nodes, given, strict=True):
        second = seconds.get(key[1], "") if options.fuse_training and node.kind == "op" else ""
        mine = again.duration(
            key, expected.payload[key], pipeline, e.plan, work, machine, options, node.phases, second
        )
        assert time == pytest.approx(mine, rel=1e-9), key
    split = {key[1] for key, node in zip(keys, e.graph.nodes, strict=True) if node.phases > 1}
    start = again.scheduled(keys, set(e.graph.edges), given, pipeline, e.plan, split, options)
    assert list(e.timeline.start_s) == start
    peaks = again.peaks(pipeline, e.plan, work, options)
    found = {}
    for group in e.memory:
        for number in range(e.problem.cluster.size):
            if group.mask >> number & 1:
                rack, node_, gpu = e.problem.cluster.gpu_name(number).split("/")
                found[int(rack), int(node_), int(gpu)] = group.peak_bytes
    assert found == pytest.approx(peaks)
    # score, share of the GPUs' time, memory
    makespan = max(s + t for s, t in zip(start, given, strict=True))
    tokens = options.steps * work.prompts * work.rollouts_per_prompt
    tokens *= work.prompt_tokens + work.response_tokens
    assert e.score == pytest.approx(tokens / makespan)
    held = 0.0
    for key, time in zip(keys, given, strict=True):
        source = key[6] if options.reserve_source and key[0] != "op" else frozenset()
        held += time * len(again.gpus(e.plan[key[1]].box) | source)
    assert e.utilisation_frac == pytest.approx(held / makespan / e.problem.cluster.size)
    operators = sum(time for key, time in zip(keys, given, strict=True) if key[0] == "op")
    assert e.timeline.parallelism == pytest.approx(operators / makespan)
    usable = (1 - machine.of["reserved_frac"]) * machine.of["memory_bytes"]
    assert e.memory_ratio == pytest.approx(max(peaks.values()) / usable)


@pytest.mark.parametrize("case", CASES)
def test_plans_are_judged_as_the_specification_says(case: str) -> None:
    """Nodes, payloads, edges alike; starts of the same times to the last bit; times, bytes to rounding."""
    pipeline, work, options = CASES[case]
    random = Random(case)
    for machines in MACHINES:
        problem = Problem(pipeline, work, machines, options)
        space = Space(problem, directories(problem))
        for state in random_states(space, 4, seed=random.randrange(2**30)):
            check(evaluate(problem, space.plan(state)))
