from __future__ import annotations

import pytest
from pytest import approx  # noqa: PT013

from rlprof.planning.cluster import EXTRA_UNITS, LinkRate
from rlprof.planning.cost_time import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    operator_time,
    p2p_s,
    reshard_s,
    transfer_s,
)
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Model
from rlprof.planning.plan import Assignment, Box, Parallelism
from rlprof.planning.shapes import SHAPES, ModelShape
from rlprof.planning.times import fused_s
from rlprof.planning.workload import Workload
from tests.planning.made import at, cluster, line

ACTOR = Model("actor", SHAPES["llama2-7b"], trainable=True)
CRITIC = Model("critic", SHAPES["llama2-7b"], "scalar", trainable=True)
WORK = Workload(512, 128, 384)
NODES = Box((0, 0, 0), (1, 4, 4))
TWO_NODES = Box((0, 0, 0), (1, 2, 4))
TRAINING = Assignment(NODES, Parallelism(2, 4, 2), 16)
GENERATION = Assignment(TWO_NODES, Parallelism(4, 1, 2))
MIB = 2**20


def digits(value: float, places: int) -> object:
    """Equal to so many decimal places."""
    return approx(value, abs=0.5000001 * 10**-places)


def test_collectives_of_64_mib_over_four_gpus_of_a_node() -> None:
    collective, p2p = LinkRate(5e-6, 1 / 150e9), LinkRate(3e-6, 1 / 100e9)
    assert all_reduce_s(64 * MIB, 4, collective) * 1e3 == digits(0.701089, 6)
    assert all_gather_s(64 * MIB, 4, collective) * 1e3 == digits(0.350544, 6)
    assert all_to_all_s(64 * MIB, 4, collective) * 1e3 == digits(0.462392, 6)
    assert p2p_s(64 * MIB, p2p) * 1e3 == digits(0.674089, 6)


def test_a_collective_of_one_gpu_takes_no_time() -> None:
    link = LinkRate(1.0, 1.0)
    assert [f(5.0, 1, link) for f in (all_reduce_s, all_gather_s, all_to_all_s)] == [0, 0, 0]


def test_training_of_a_7b_actor_term_by_term() -> None:
    t = operator_time("training", ACTOR, WORK, TRAINING, cluster())
    assert t.main.work_flop == approx(1.399678e16, rel=5e-7)
    assert t.main.intensity_flop_per_byte == digits(5076.1, 1)
    assert t.main.efficiency_frac == digits(0.875214, 6)
    assert t.main.gemm_s == digits(2.498815, 6)
    assert t.main.bubble_s == digits(0.468528, 6)
    assert t.tp_s == digits(0.351277, 6)
    assert t.pp_s == digits(0.016540, 6)
    assert t.dp_s == digits(0.042133, 6)
    assert t.nongemm_s == digits(0.025600, 6)
    assert t.optimizer_s == digits(0.002527, 6)
    assert t.total_s == digits(3.405420, 6)


def test_norms_and_activations_as_the_paper_prints_them() -> None:
    t = operator_time("training", ACTOR, WORK, TRAINING, cluster(), ModelOptions(nongemm="as_printed"))
    assert t.nongemm_s == digits(0.001600, 6)


def test_generation_of_a_7b_actor_term_by_term() -> None:
    t = operator_time("generation", ACTOR, WORK, GENERATION, cluster())
    assert t.decode is not None
    assert t.main.gemm_s == digits(0.301572, 6)
    assert t.decode.gemm_s == digits(2.206148, 6)
    assert t.decode.gemm_s / 383 * 1e3 == digits(5.7602, 4)
    assert t.decode.intensity_flop_per_byte == digits(49.561, 3)
    assert t.decode.rate_flops == approx(t.decode.intensity_flop_per_byte * 3e12)  # bandwidth-bound
    assert (t.tp_s, t.decode_tp_s) == (digits(0.057906, 6), digits(0.416471, 6))
    assert (t.main.bubble_s, t.decode.bubble_s, t.nongemm_s, t.pp_s) == (0, 0, 0, 0)
    assert t.total_s == digits(2.982098, 6)


def test_a_dp_step_between_nodes_moves_gradients_and_weights() -> None:
    # by hand: M = 6,738,149,376 x 2 / 8 B, twice (1/2 M / 40e9 + 10 us)
    t = operator_time("training", ACTOR, WORK, TRAINING, cluster())
    assert t.dp_s == approx(2 * (6_738_149_376 * 2 / 8 / 2 / 40e9 + 10e-6))


def test_stages_within_a_node_use_the_fast_links() -> None:
    # by hand: (1,2,2) on 4 GPUs of a node, 16 + 2 - 2 steps of P2P
    t = operator_time("inference", ACTOR, WORK, at(0, 4, (1, 2, 2), 16), cluster())
    message = 512 * 512 * 4096 * 2 / (1 * 2 * 16)
    assert t.pp_s == approx(16 * (3e-6 + message / 100e9))
    assert t.main.bubble_s == approx(t.main.gemm_s / 16)


def test_microbatched_decode_pays_for_small_batches() -> None:
    here = at(0, 4, (1, 2, 2), 16)
    batched = operator_time("generation", ACTOR, WORK, here, cluster())
    split = operator_time("generation", ACTOR, WORK, here, cluster(), ModelOptions(decode="microbatched"))
    assert batched.decode is not None
    assert split.decode is not None
    assert batched.decode.bubble_s == approx(batched.decode.gemm_s)  # (1 + 2 - 1) / 1
    assert split.decode.bubble_s == approx(split.decode.gemm_s / 16)
    assert split.decode.gemm_s > 2.5 * batched.decode.gemm_s
    # by hand: 383 steps of (16 + 2 - 2) messages of 32 tokens
    assert split.decode_pp_s == approx(383 * 16 * (3e-6 + 512 * 4096 * 2 / (2 * 16) / 100e9))
    assert batched.decode_pp_s == approx(383 * 1 * (3e-6 + 512 * 4096 * 2 / 2 / 100e9))


def test_kv_traffic_can_be_left_out() -> None:
    without = operator_time(
        "generation", ACTOR, WORK, GENERATION, cluster(), ModelOptions(count_kv_traffic=False)
    )
    assert without.decode is not None
    # by hand: weights (32/2) layers x 2 B, activations 2 x 128 x 4096 x 32 x 2 B
    flop = (2 * 512 * 32 * 202_375_168 + 4 * 512 * 320 * 4096 * 32 + 2 * 512 * 4096 * 32000) / 8
    moved = 16 * 202_375_168 * 2 + 2 * 128 * 4096 * 32 * 2
    assert without.decode.intensity_flop_per_byte == approx(flop / moved)


def test_one_token_responses_have_no_decode_steps() -> None:
    t = operator_time("generation", ACTOR, Workload(512, 128, 1), GENERATION, cluster())
    assert t.decode_s == 0
    assert t.total_s == t.prefill_s > 0


def test_mixture_of_experts_computes_with_few_and_reads_many() -> None:
    dense = ModelShape("one expert", 8, 1024, 4096, 8, 8, 1000)
    moe = ModelShape("eight experts", 8, 1024, 4096, 8, 8, 1000, experts=8, active_experts=1)
    one, eight = (
        operator_time("generation", Model("m", s), Workload(512, 8, 9), at(0), cluster())
        for s in (dense, moe)
    )
    assert one.decode is not None
    assert eight.decode is not None
    assert eight.decode.work_flop == approx(one.decode.work_flop, rel=0.01)  # and the router
    assert eight.decode.intensity_flop_per_byte < 0.3 * one.decode.intensity_flop_per_byte
    few = operator_time("generation", Model("m", moe), Workload(1, 8, 9), at(0), cluster())
    assert few.decode is not None
    assert few.decode.gemm_s < 0.4 * eight.decode.gemm_s  # one token reads one expert


def test_a_transfer_takes_the_slowest_level_between_both_ends() -> None:
    here = line(0, 2)
    assert transfer_s(2e9, here, line(2, 2), cluster()) == approx(3e-6 + 1e9 / 100e9)
    assert transfer_s(2e9, here, Box((0, 1, 0), (1, 1, 2)), cluster()) == approx(8e-6 + 1e9 / 20e9)
    racks = cluster(2, **{"p2p.inter_rack.bandwidth": 10e9})
    assert transfer_s(2e9, here, Box((1, 0, 0), (1, 1, 1)), racks) == approx(8e-6 + 2e9 / 10e9)


def test_a_reshard_exchanges_each_gpus_share() -> None:
    assert reshard_s(8e9, line(0, 4), cluster()) == approx(3 * 5e-6 + 2e9 / 150e9)
    assert reshard_s(8e9, TWO_NODES, cluster()) == approx(7 * 10e-6 + 1e9 / 40e9)
    assert reshard_s(8e9, line(0, 1), cluster()) == 0


def test_fused_training_keeps_the_larger_bubble() -> None:
    a = operator_time("training", ACTOR, WORK, TRAINING, cluster())
    b = operator_time("training", CRITIC, WORK, TRAINING, cluster())
    assert b.main.bubble_s < a.main.bubble_s
    assert fused_s(a, b) == approx(a.total_s + b.total_s - b.main.bubble_s)


@pytest.mark.parametrize("role", ["generation", "inference", "training"])
def test_time_falls_with_faster_hardware(role: str) -> None:
    slow = operator_time(role, ACTOR, WORK, TRAINING, cluster())  # type: ignore[arg-type]
    fast = operator_time(role, ACTOR, WORK, TRAINING, cluster(peak_flops=800e12, memory_bandwidth=6e12))  # type: ignore[arg-type]
    assert fast.total_s < slow.total_s


def test_neutral_extras_change_nothing() -> None:
    """Bitwise: a hardware file that names every extra at its neutral value, and one that has none."""
    neutral = cluster(**{name: value for name, (_, value) in EXTRA_UNITS.items()})  # type: ignore[arg-type]
    for role, here in (("training", TRAINING), ("generation", GENERATION), ("inference", GENERATION)):
        assert operator_time(role, ACTOR, WORK, here, neutral) == operator_time(  # type: ignore[arg-type]
            role,  # type: ignore[arg-type]
            ACTOR,
            WORK,
            here,
            cluster(),
        )


def test_what_real_machines_need_by_hand() -> None:
    plain = operator_time("training", ACTOR, WORK, TRAINING, cluster())
    # (2,4,2), mb 16: 32 / 4 = 8 layers of a stage, 16 microbatches, 4 passes
    t = operator_time("training", ACTOR, WORK, TRAINING, cluster(layer_s=10e-6))
    assert t.main.layers_s == approx(4 * 16 * 8 * 10e-6)
    assert t.main.bubble_s == approx((plain.main.gemm_s + t.main.layers_s) * 3 / 16)
    # a vector of 16 sequences of 512 tokens in 8 layers, divided by the tensor ranks; and all logits
    t = operator_time("training", ACTOR, WORK, TRAINING, cluster(elementwise_vectors=50))
    assert t.main.elementwise_s == approx(4 * 16 * 50 * (16 * 512 * 4096 * 8 * 2) / 2 / 3e12)
    t = operator_time("training", ACTOR, WORK, TRAINING, cluster(logits_moves=3))
    assert t.main.elementwise_s == approx(4 * 16 * 3 * (16 * 512 * 32_000 * 2 / 4) / 2 / 3e12)
    # the host needs 5 ms for each layer and microbatch: a floor
    t = operator_time("training", ACTOR, WORK, TRAINING, cluster(training_launch_s=50e-3, launch_s=9.0))
    assert t.main.gemm_s + t.main.launch_s == approx(16 * 8 * 50e-3)
    t = operator_time("training", ACTOR, WORK, TRAINING, cluster(training_launch_s=1e-3))
    assert t.main.launch_s == 0
    t = operator_time("training", ACTOR, WORK, TRAINING, cluster(optimizer_bytes=36))
    assert t.optimizer_s == approx(2 * plain.optimizer_s)


def test_what_decode_steps_need_besides_by_hand() -> None:
    plain = operator_time("generation", ACTOR, WORK, GENERATION, cluster())
    assert plain.decode is not None
    # (4,1,2), 128 sequences of a replica, bandwidth-bound: bytes of one step over 3 TB/s, 383 steps
    kv = 2 * 2 * 128 * (128 + 384 / 2) * 32 * 2048
    t = operator_time("generation", ACTOR, WORK, GENERATION, cluster(kv_reads_factor=1.5))
    assert t.decode is not None
    assert t.decode.gemm_s - plain.decode.gemm_s == approx(383 * 0.5 * kv / 3e12)
    t = operator_time("generation", ACTOR, WORK, GENERATION, cluster(head_reads_frac=1.0))
    assert t.decode is not None
    assert t.decode.gemm_s - plain.decode.gemm_s == approx(383 * 32_000 * 4096 / 2 * 2 / 3e12)
    # decode steps are replayed: no host, and less latency; the prefill is launched
    t = operator_time("generation", ACTOR, WORK, GENERATION, cluster(launch_s=1.0, graph_alpha_frac=0.25))
    assert t.decode is not None
    assert t.decode.launch_s == 0
    assert t.main.gemm_s + t.main.launch_s == approx(32 * 1.0)
    assert plain.decode_tp_s - t.decode_tp_s == approx(383 * 2 * 32 * 2 * 0.75 * 5e-6)
    assert t.tp_s == plain.tp_s


def test_inference_of_a_70b_critic_over_two_racks_term_by_term() -> None:
    """By hand: B 256, R 2; (2,8,4), mb 8, so 16 nodes; grouped queries, a scalar head."""
    work, racks = Workload(256, 128, 384, rollouts_per_prompt=2), cluster(2, 8, 4)
    critic = Model("critic", SHAPES["llama2-70b"], "scalar", trainable=True)
    everywhere = Assignment(Box((0, 0, 0), (2, 8, 4)), Parallelism(2, 8, 4), 8)
    t = operator_time("inference", critic, work, everywhere, racks)
    # 2 n 80 855,638,016 + 4 n 256 8192 80 + 2 n 8192, n = 512 x 512
    assert t.main.work_flop == approx(3.60639856860201e16, rel=1e-12)
    # W / (64 x 8) over 10 layers / 4 x 855,638,016 x 2 and 2 x 32 x 512 x 8192 x 10 x 2 bytes
    assert t.main.intensity_flop_per_byte == approx(
        3.60639856860201e16 / 512 / (4_278_190_080 + 5_368_709_120)
    )
    assert t.main.efficiency_frac == approx(16_384 / 16_512 * 2048 / 2304)
    assert t.main.gemm_s == digits(1.597225, 6)
    assert t.main.bubble_s == digits(1.397572, 6)  # 7 / 8 of it
    assert t.tp_s == digits(0.434297, 6)
    # every one of seven transfers crosses nodes; 8 + 8 - 2 steps of 64 MiB
    assert t.pp_s == approx(14 * (8e-6 + 67_108_864 / 20e9))
    assert t.nongemm_s == approx(10 * 50e-6 * 3 / 4 * 32 / 8 * 8)
    assert (t.dp_s, t.optimizer_s, t.decode_s) == (0, 0, 0)
    assert t.total_s == digits(3.488181, 6)


def test_gradients_of_a_13b_critic_cross_racks() -> None:
    """By hand: 12,851,614,720 parameters in 2 x 2 shards of 6.4 GB, four replicas; 7 GB/s between racks."""
    slow = cluster(2, 2, 4, **{"collective.inter_rack.alpha_s": 3e-5, "collective.inter_rack.bandwidth": 7e9})
    critic = Model("critic", SHAPES["llama2-13b"], "scalar", trainable=True)
    here = Assignment(Box((0, 0, 0), (2, 2, 4)), Parallelism(4, 2, 2), 16)
    t = operator_time("training", critic, WORK, here, slow)
    assert t.dp_s == approx(2 * (3 * 3e-5 + 3 / 4 * 6_425_807_360 / 7e9), rel=1e-12)
    assert t.dp_s == digits(1.377139, 6)
    assert t.optimizer_s == approx(18 * 12_851_614_720 / (16 * 3e12), rel=1e-12)
    # three transfers would be of four stages: with two there is one, within a node; 16 + 2 x 2 - 3 steps
    assert t.pp_s == approx(17 * (3e-6 + 512 * 512 * 5120 * 2 / (4 * 2 * 16) / 100e9))


def test_a_transfer_is_as_wide_as_its_narrower_end() -> None:
    """By hand: 3e9 bytes from 16 GPUs to two: 1.5 GB each."""
    two = Box((0, 3, 2), (1, 1, 2))
    for ends in ((NODES, two), (two, NODES)):
        assert transfer_s(3e9, *ends, cluster()) == approx(8e-6 + 1.5e9 / 20e9)


def test_half_of_the_sequences_read_all_of_the_weights() -> None:
    """By hand: 13B on one GPU, 8 sequences of two tokens, then 4; products of any number of rows are fast."""
    model, one, work = Model("r", SHAPES["llama2-13b"], "scalar"), at(0), Workload(8, 1, 1)
    quick = cluster(gamma_m=0)
    whole = operator_time("inference", model, work, one, quick)
    half = operator_time("inference", model, work, one, quick, sequence_frac=0.5)
    weights = 40 * 317_194_240 * 2
    for t, tokens in ((whole, 16), (half, 8)):
        assert t.total_s == approx((weights + 2 * tokens * 5120 * 40 * 2) / 3e12)
