from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx  # noqa: PT013

from rlprof.planning.algorithms import grpo, ppo, share_actor_critic
from rlprof.planning.cost_time import transfer_s
from rlprof.planning.executable import ExecutableGraph
from rlprof.planning.lower import lower
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Pipeline
from rlprof.planning.plan import Assignment, Box, Parallelism, Plan
from rlprof.planning.unroll import served_version
from rlprof.planning.workload import LengthQuantile, Workload
from tests.planning.made import TINY, at, cluster, plans

WORK = Workload(64, 128, 384)
PHASES = Workload(
    64, 128, 384, quantiles=(LengthQuantile(0.5, 96), LengthQuantile(0.85, 192), LengthQuantile(1.0, 384))
)
FOUR = cluster(1, 1, 4)
ONE_STEP, TWO_STEPS = ModelOptions(steps=1), ModelOptions(steps=2)
EVERYWHERE = ("actor_generation", "reference_inference", "reward_inference", "actor_training")


def grpo_plan(**changed: Assignment) -> Plan:
    return Plan({name: changed.get(name, at(0, 4)) for name in EVERYWHERE})


def labels(graph: ExecutableGraph, kind: str) -> list[str]:
    return sorted(graph.label(i) for i, node in enumerate(graph.nodes) if node.kind == kind)


def edge_names(graph: ExecutableGraph) -> set[tuple[str, str]]:
    return {(graph.label(u), graph.label(v)) for u, v in graph.edges}


def test_one_allocation_and_layout_needs_neither_transfer_nor_reshard() -> None:
    graph = lower(grpo(TINY, TINY), grpo_plan(), WORK, FOUR, TWO_STEPS)
    assert Counter(n.kind for n in graph.nodes) == {"op": 8}
    assert edge_names(graph) == {
        (f"{a} {k}", f"{b} {j}")
        for a, b, k, j in [
            *(("actor_generation", f"{m}_inference", k, k) for m in ("reference", "reward") for k in (0, 1)),
            *((f"{m}_inference", "actor_training", k, k) for m in ("reference", "reward") for k in (0, 1)),
            ("actor_training", "actor_generation", 0, 1),
            ("actor_training", "actor_training", 0, 1),
        ]
    }


def test_another_layout_on_the_same_gpus_is_resharded_within_and_between_steps() -> None:
    graph = lower(grpo(TINY, TINY), grpo_plan(actor_training=at(0, 4, (1, 1, 4))), WORK, FOUR, TWO_STEPS)
    assert labels(graph, "reshard") == [
        "actor_generation 1 ◀ reshard actor_weights from actor_training",
        "actor_training 0 ◀ reshard weights of actor from actor_generation",
        "actor_training 1 ◀ reshard weights of actor from actor_generation",
    ]
    assert {n.payload_bytes for n in graph.nodes if n.kind == "reshard"} == {2.0 * TINY.parameters()}
    assert not labels(graph, "comm")


def test_a_frozen_model_is_never_resharded() -> None:
    graph = lower(grpo(TINY, TINY), grpo_plan(reference_inference=at(0, 4, (1, 1, 4))), WORK, FOUR, TWO_STEPS)
    assert not labels(graph, "reshard")


def test_data_between_allocations_is_sent_whole_even_if_they_overlap() -> None:
    graph = lower(grpo(TINY, TINY), grpo_plan(reward_inference=at(0, 2)), WORK, FOUR, ONE_STEP)
    sent = {graph.label(i): n.payload_bytes for i, n in enumerate(graph.nodes) if n.kind == "comm"}
    assert sent == {
        "reward_inference 0 ◀ comm sequences from actor_generation": 64 * 512 * 2,
        "actor_training 0 ◀ comm rewards from reward_inference": 64 * 2,
    }


def test_training_elsewhere_waits_for_generation_unless_a_copy_is_kept() -> None:
    # no chain of data joins the two once inference is cut off: only the weights do
    apart = grpo_plan(actor_generation=at(0, 2), actor_training=at(2, 2))
    in_step = ("actor_generation 0", "actor_training 0")
    assert in_step in edge_names(lower(grpo(TINY, TINY), apart, WORK, FOUR, ONE_STEP))
    stale = grpo(TINY, TINY, staleness={"actor": 1})
    assert in_step not in edge_names(lower(stale, apart, WORK, FOUR, ONE_STEP))
    overlapping = grpo_plan(actor_generation=at(0, 4), actor_training=at(2, 2))
    assert in_step in edge_names(lower(stale, overlapping, WORK, FOUR, ONE_STEP))


def test_a_publication_skips_as_many_steps_as_may_be_stale() -> None:
    apart = grpo_plan(actor_generation=at(0, 2), actor_training=at(2, 2))
    for tau in (0, 1, 2):
        graph = lower(grpo(TINY, TINY, staleness={"actor": tau}), apart, WORK, FOUR, ModelOptions(steps=4))
        sent = {
            (graph.nodes[p].step, node.step)
            for i, node in enumerate(graph.nodes)
            if node.publishes
            for p in graph.predecessors[i]
        }
        assert sent == {(k - tau - 1, k) for k in range(tau + 1, 4)}


def test_weights_are_sent_for_the_gpus_that_do_not_have_them() -> None:
    work, machines = Workload(512, 128, 384), cluster(1, 8, 4)
    training = Assignment(Box((0, 0, 0), (1, 4, 4)), Parallelism(2, 4, 2), 16)
    generation = Assignment(Box((0, 3, 0), (1, 2, 4)), Parallelism(4, 1, 2))
    plan = grpo_plan(actor_training=training, actor_generation=generation)
    graph = lower(grpo("llama2-7b", "llama2-7b"), plan, work, machines, TWO_STEPS)
    (sent,) = [n for n in graph.nodes if n.publishes]
    assert sent.payload_bytes == 10_107_224_064
    assert transfer_s(sent.payload_bytes, sent.source, sent.target, machines) == approx(0.063178, abs=5e-7)


def shared_plan(**changed: Assignment) -> Plan:
    names = (
        "actor_generation",
        "reference_inference",
        "reward_inference",
        "critic_inference",
        "actor_critic_training",
    )
    return Plan({name: changed.get(name, at(0, 4)) for name in names})


def test_a_version_in_place_is_published_once() -> None:
    pipeline = share_actor_critic(ppo(TINY, TINY, TINY))
    graph = lower(pipeline, shared_plan(actor_critic_training=at(2, 2)), WORK, FOUR, TWO_STEPS)
    published = [i for i, n in enumerate(graph.nodes) if n.publishes]
    assert len(published) == 1
    assert [graph.label(j) for j in graph.successors[published[0]]] == [
        "actor_generation 1",
        "critic_inference 1",
    ]


def test_a_reshard_of_the_same_step_serves_the_publication_too() -> None:
    pipeline = share_actor_critic(ppo(TINY, TINY, TINY))
    plan = shared_plan(actor_critic_training=at(2, 2), critic_inference=at(0, 4, (1, 1, 4)))
    graph = lower(pipeline, plan, WORK, FOUR, TWO_STEPS)
    assert [graph.label(i) for i, n in enumerate(graph.nodes) if n.publishes] == [
        "actor_generation 1 ◀ comm actor_critic_weights from actor_critic_training"
    ]
    assert len(labels(graph, "reshard")) == 2  # generation to inference, in each step


def test_generation_is_split_where_an_inference_runs_elsewhere() -> None:
    plan = grpo_plan(actor_generation=at(0, 2), reference_inference=at(2, 2), reward_inference=at(0, 2))
    graph = lower(grpo(TINY, TINY), plan, PHASES, FOUR, ONE_STEP)
    assert labels(graph, "op") == [
        *(f"actor_generation 0 phase {q}" for q in (1, 2, 3)),
        "actor_training 0",
        *(f"reference_inference 0 phase {q}" for q in (1, 2, 3)),
        "reward_inference 0",
    ]
    sent = [n for n in graph.nodes if n.kind == "comm" and n.phases == 3]
    assert [n.payload_bytes for n in sent] == approx([64 * 512 * 2 * f for f in (0.5, 0.35, 0.15)])
    names = edge_names(graph)
    for q in (1, 2, 3):
        comm = f"reference_inference 0 phase {q} ◀ comm sequences from actor_generation"
        assert {(f"actor_generation 0 phase {q}", comm), (comm, f"reference_inference 0 phase {q}")} <= names
    # the reward model, on the same GPUs, waits for the last phase; training for the last of the inference
    assert ("actor_generation 0 phase 3", "reward_inference 0") in names
    assert (
        "reference_inference 0 phase 3",
        "actor_training 0 ◀ comm reference_logprobs from reference_inference",
    ) in names
    heads = {graph.chain_head[i] for i, n in enumerate(graph.nodes) if n.vertex == 0}
    assert len(heads) == 1


@pytest.mark.parametrize("why", ["same GPUs", "no quantiles", "switched off"])
def test_generation_is_whole_otherwise(why: str) -> None:
    plan = (
        grpo_plan() if why == "same GPUs" else grpo_plan(actor_generation=at(0, 2), reward_inference=at(2, 2))
    )
    work = WORK if why == "no quantiles" else PHASES
    options = ModelOptions(steps=1, split_generation=why != "switched off")
    graph = lower(grpo(TINY, TINY), plan, work, FOUR, options)
    assert all(n.phases == 1 for n in graph.nodes)


def test_actor_and_critic_training_fuse_where_they_agree() -> None:
    pipeline = ppo(TINY, TINY, TINY)
    plan = Plan({v.name: at(0, 4) for v in pipeline.invocations})
    options = ModelOptions(steps=2, fuse_training=True)
    graph = lower(pipeline, plan, WORK, FOUR, options)
    assert "actor_training + critic_training 0" in labels(graph, "op")
    assert sum(n.kind == "op" for n in graph.nodes) == 2 * 5
    apart = Plan({**plan.assignments, "critic_training": at(0, 4, (1, 1, 4))})
    assert sum(n.kind == "op" for n in lower(pipeline, apart, WORK, FOUR, options).nodes) == 2 * 6


# Every graph that lowering makes, on two racks of two nodes of two GPUs.
MACHINES = cluster(2, 2, 2)
SMALL = Workload(16, 4, 8, quantiles=(LengthQuantile(0.5, 2), LengthQuantile(1.0, 8)))
PIPELINES = (ppo(TINY, TINY, TINY), grpo(TINY, TINY), share_actor_critic(ppo(TINY, TINY, TINY)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Pipeline, Plan, ModelOptions]:
    pipeline = draw(st.sampled_from(PIPELINES))
    pipeline = pipeline.with_staleness({m: draw(st.integers(0, 2)) for m in pipeline.tau})
    options = ModelOptions(steps=draw(st.integers(1, 4)), fuse_training=draw(st.booleans()))
    return pipeline, draw(plans(pipeline, SMALL, MACHINES)), options


@settings(max_examples=60, deadline=None)
@given(cases())
def test_every_lowered_graph_keeps_the_rules(case: tuple[Pipeline, Plan, ModelOptions]) -> None:
    pipeline, plan, options = case
    graph = lower(pipeline, plan, SMALL, MACHINES, options)
    masks = [plan[v.name].box.mask(MACHINES) for v in pipeline.invocations]
    layouts = [plan[v.name].parallelism for v in pipeline.invocations]
    # acyclic: every node comes after its predecessors in some order
    waiting = [len(p) for p in graph.predecessors]
    order = [i for i, n in enumerate(waiting) if not n]
    for i in order:
        for j in graph.successors[i]:
            waiting[j] -= 1
            if not waiting[j]:
                order.append(j)
    assert len(order) == len(graph.nodes)
    for node in graph.nodes:
        moved = node.source.mask(MACHINES) != node.target.mask(MACHINES)
        if node.kind == "comm":
            assert moved
        elif node.kind == "reshard":
            assert not moved
            assert node.source_layout != node.target_layout
            assert pipeline.model_of(node.vertex).trainable
    # every serving invocation is preceded by the training of the version it may use at the oldest
    before: list[set[tuple[int, int]]] = [set() for _ in graph.nodes]
    for i in order:
        node = graph.nodes[i]
        for p in graph.predecessors[i]:
            before[i] |= before[p]
        if node.kind == "op":
            before[i] |= {(node.vertex, node.step), (node.fused_with, node.step)}
    for i, node in enumerate(graph.nodes):
        model = pipeline.invocations[node.vertex].model
        if node.kind != "op" or model not in pipeline.tau:
            continue
        trained = pipeline.training[model]
        version = served_version(node.step, pipeline.tau[model])
        if node.vertex == trained:
            version = node.step
        assert node.step - version <= pipeline.tau[model]
        if version > 0:
            assert (trained, version - 1) in before[i]
    # intra-step reshards exactly between consecutive invocations of one model that share GPUs, not layout
    expected = sum(masks[u] == masks[v] and layouts[u] != layouts[v] for u, v, _ in pipeline.weight_pairs)
    found = sum(n.kind == "reshard" and not n.publishes for n in graph.nodes)
    assert found == expected * options.steps
