from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx  # noqa: PT013

from rlprof.planning.algorithms import grpo, ppo
from rlprof.planning.cost_memory import group_memory, operator_memory, same_gpus, shard_parameters
from rlprof.planning.evaluate import Problem, plan_memory
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Model
from rlprof.planning.plan import Assignment, Box, Parallelism, Plan
from rlprof.planning.shapes import SHAPES, ModelShape
from rlprof.planning.workload import Workload
from tests.planning.made import TINY, at, cluster

ACTOR = Model("actor", SHAPES["llama2-7b"], trainable=True)
WORK = Workload(512, 128, 384)
NODES = Box((0, 0, 0), (1, 4, 4))
TRAINING = Assignment(NODES, Parallelism(2, 4, 2), 16)
SERVING = Assignment(NODES, Parallelism(8, 1, 2))


def test_training_of_a_7b_actor_term_by_term() -> None:
    m = operator_memory("training", ACTOR, WORK, TRAINING)
    assert m.shard_parameters == 940_572_672
    assert m.activation_bytes == approx(5.662310e9, rel=5e-7)
    assert m.transient_bytes(resident=False) == approx(8.484028e9, rel=5e-7)
    assert m.optimizer_bytes == approx(5.643436e9, rel=5e-7)


def test_generation_of_a_7b_actor_term_by_term() -> None:
    m = operator_memory("generation", ACTOR, WORK, SERVING)
    assert m.shard_parameters == 3_500_146_688
    assert m.kv_bytes == approx(8.589935e9, rel=5e-7)
    assert m.transient_bytes(resident=False) == approx(16.181625e9, rel=5e-7)


def test_the_peak_of_training_generation_and_a_frozen_reference() -> None:
    pipeline = grpo("llama2-7b", "llama2-7b")
    needs = {
        "actor_generation": operator_memory("generation", ACTOR, WORK, SERVING),
        "reference_inference": operator_memory("inference", Model("r", ACTOR.shape), WORK, SERVING),
        "actor_training": operator_memory("training", ACTOR, WORK, TRAINING),
    }
    assert needs["reference_inference"].weights_bytes == approx(7.000293e9, rel=5e-7)
    assert needs["reference_inference"].transient_bytes(resident=True) == approx(2.365587e9, rel=5e-7)
    # the reward model sits elsewhere
    masks = [0xFFFF if v.name in needs else 1 << 16 for v in pipeline.invocations]
    everywhere = [needs.get(v.name, needs["reference_inference"]) for v in pipeline.invocations]
    first, second = group_memory(pipeline, masks, everywhere)
    assert (first.mask, second.mask) == (0xFFFF, 1 << 16)
    assert first.peak_bytes == approx(28.825354e9, rel=5e-8)


def test_a_copy_kept_beside_training_is_persistent_and_one_that_shares_gpus_is_not() -> None:
    stale = grpo(TINY, TINY, staleness={"actor": 1})
    work = Workload(8, 4, 4)
    apart = Plan(
        {
            "actor_generation": at(0),
            "reference_inference": at(1),
            "reward_inference": at(1),
            "actor_training": at(2),
        }
    )
    groups = {g.mask: g for g in plan_memory(Problem(stale, work, cluster(1, 1, 4)), apart)}
    weights = shard_parameters(stale.model_by_name["actor"], at(0)) * 2
    assert dict(groups[1].persistent) == {"actor": weights}
    assert set(dict(groups[2].persistent)) == {"reference", "reward"}
    assert dict(groups[4].persistent) == {"actor": weights * 6}  # 12 bytes of optimizer for 2 of a weight
    fresh = {g.mask: g for g in plan_memory(Problem(grpo(TINY, TINY), work, cluster(1, 1, 4)), apart)}
    assert fresh[1].persistent == ()
    assert fresh[1].peak_bytes == approx(groups[1].peak_bytes)  # the same weights, but only while it runs
    together = Plan({**apart.assignments, "actor_generation": at(2)})
    shared = {g.mask: g for g in plan_memory(Problem(stale, work, cluster(1, 1, 4)), together)}
    assert dict(shared[4].persistent) == {"actor": weights * 6}  # training wins


def test_fused_invocations_add_what_they_take_while_they_run() -> None:
    pipeline, work = ppo(TINY, TINY, TINY), Workload(8, 4, 4)
    masks = [1] * len(pipeline.invocations)
    needs = [
        operator_memory(v.role, pipeline.model_of(i), work, at(0)) for i, v in enumerate(pipeline.invocations)
    ]
    a, c = pipeline.index["actor_training"], pipeline.index["critic_training"]
    (fused,) = group_memory(pipeline, masks, needs, {a: c})
    both = needs[a].transient_bytes(resident=False) + needs[c].transient_bytes(resident=False)
    assert dict(fused.transient)[a] == approx(both)
    assert c not in dict(fused.transient)


def test_embedding_and_head_lie_on_the_first_and_the_last_stage() -> None:
    tied = ModelShape("tied", 4, 64, 128, 4, 4, 1000, tied=True)
    untied = ModelShape("untied", 4, 64, 128, 4, 4, 1000)
    layer = 4 * 64 * 64 + 3 * 64 * 128
    assert shard_parameters(Model("m", untied), at(0)) == 4 * layer + 2 * 64_000
    assert shard_parameters(Model("m", tied), at(0)) == 4 * layer + 64_000
    assert shard_parameters(Model("m", tied), at(0, 2, (1, 2, 1))) == 2 * layer + 64_000
    assert shard_parameters(Model("m", untied), at(0, 2, (1, 1, 2))) == 2 * layer + 2 * 64_000
    assert shard_parameters(Model("m", tied, "scalar"), at(0)) == 4 * layer + 64_000 + 64


def test_kv_heads_that_cannot_be_divided_are_replicated() -> None:
    model = Model("m", ModelShape("gqa", 4, 64, 128, 8, 2, 100))
    kv = [operator_memory("generation", model, WORK, at(0, t, (1, 1, t))).kv_bytes for t in (1, 2, 4)]
    assert kv == [kv[0], kv[0] / 2, kv[0] / 2]


def test_a_scalar_head_needs_no_logits() -> None:
    lm, scalar = Model("m", SHAPES["qwen2.5-0.5b"]), Model("m", SHAPES["qwen2.5-0.5b"], "scalar")
    needs = [operator_memory("inference", m, WORK, at(0)).activation_bytes for m in (lm, scalar)]
    assert needs[0] == 2 * 512 * 512 * (896 + 151_936)
    assert needs[1] == 2 * 512 * 512 * (2 * 896 + 3 * 4864)


@given(st.lists(st.integers(1, 255), max_size=6))
def test_groups_divide_the_gpus(masks: list[int]) -> None:
    groups = same_gpus(masks)
    for i, mask in enumerate(masks):
        assert sum(g for g, inside in groups if i in inside) == mask  # disjoint, and nothing lost
    assert len({inside for _, inside in groups}) == len(groups)


def test_logits_of_the_last_prompt_token_alone() -> None:
    """By hand: 512 prompts of 128 tokens, one row of logits each, on (8,1,2)."""
    here = at(0, 16, (8, 1, 2))
    every = operator_memory("generation", ACTOR, WORK, here)
    last = operator_memory("generation", ACTOR, WORK, here, ModelOptions(prefill_logits="last"))
    assert every.activation_bytes == 2 * 64 * 128 * (4096 + 32_000)
    # now the buffers of a layer are wider: 2 d + 3 d_ff / 2
    assert last.activation_bytes == 2 * 64 * 128 * (2 * 4096 + 3 * 11_008 / 2)
    assert last.kv_bytes == every.kv_bytes
    inference = [
        operator_memory("inference", ACTOR, WORK, here, options)
        for options in (None, ModelOptions(prefill_logits="last"))
    ]
    assert inference[0] == inference[1]


def test_training_of_a_13b_critic_in_two_stages_by_hand() -> None:
    """20 layers of a stage in chunks of round(4.47) = 4: five inputs and four layers' buffers are kept."""
    critic = Model("critic", SHAPES["llama2-13b"], "scalar", trainable=True)
    here = Assignment(Box((0, 0, 0), (1, 4, 4)), Parallelism(4, 2, 2), 16)
    m = operator_memory("training", critic, WORK, here)
    assert m.shard_parameters == 20 * 317_194_240 / 2 + 32_000 * 5120  # the first stage, with the embedding
    # 2 bytes x 2 microbatches in flight x 8 sequences x 512 tokens x (5 d + 4 (2 d + 3 d_ff / 2))
    assert m.activation_bytes == 2 * 2 * 8 * 512 * (5 * 5120 + 4 * 30_976) == 2_449_473_536
    assert m.transient_bytes(resident=False) == 10_788_929_536
    assert m.optimizer_bytes == 10_007_347_200


def test_a_pipeline_of_few_microbatches_keeps_few_activations() -> None:
    """At most as many microbatches are in flight as there are stages, or as there are."""
    model = Model("m", SHAPES["llama2-7b"], trainable=True)
    kept = [
        operator_memory("training", model, WORK, at(0, 4, (1, 4, 1), mb)).activation_bytes
        for mb in (2, 4, 64)
    ]
    # sequences of a microbatch: 256, 128, 8
    assert kept == [kept[1], kept[1], kept[1] / 16]


def test_kv_of_70b_by_hand() -> None:
    """Grouped queries: 8 heads of 128 over 4 ranks; 4 replicas of 128 sequences of 512 tokens."""
    here = at(0, 16, (4, 1, 4))
    m = operator_memory("generation", Model("m", SHAPES["llama2-70b"]), WORK, here)
    assert m.kv_bytes == 2 * 2 * 128 * 512 * 80 * 256 == 5_368_709_120
