from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from rlprof.trace.skew import MIN_MATCHES, collectives, skew

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kernels(rows: list[tuple[int, int, str]], stream: int = 20) -> pl.DataFrame:
    schema = {"start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.lit(stream).alias("stream"))


def test_only_collectives_that_every_rank_waits_in_are_taken() -> None:
    names = [
        ALL_REDUCE,
        "ncclKernel_AllGather_RING_LL_Sum_int8_t",
        "ncclDevKernel_ReduceScatter_Sum_bf16",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
        "ncclDevKernel_Broadcast_RING_LL",
        "my_allreduce_kernel",
    ]
    found = collectives(kernels([(i, i + 1, n) for i, n in enumerate(names)]))
    assert [kind for _, kind in found.kind] == ["allreduce", "allgather", "reducescatter"]


@given(
    offset=st.integers(-(10**9), 10**9),
    arrivals=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**5)),
        min_size=MIN_MATCHES,
        max_size=30,
    ),
)
def test_the_bounds_hold_the_true_offset(offset: int, arrivals: list[tuple[int, int, int]]) -> None:
    # two ranks enter each collective at their own time and leave it once both are in
    a, b, now = [], [], 0
    for wait_a, wait_b, transfer in arrivals:
        done = now + max(wait_a, wait_b) + transfer
        a.append((now + wait_a, done, ALL_REDUCE))
        b.append((now + wait_b + offset, done + offset, ALL_REDUCE))
        now = done + 1
    found = skew(collectives(kernels(a)), collectives(kernels(b)))
    assert found is not None
    assert found.low_ns <= offset <= found.high_ns
    assert found.bound_ns >= abs(offset)
    assert found.ahead_ns == offset
    assert found.matched == len(arrivals)


def test_different_sequences_tell_nothing() -> None:
    rows = [(i * 10, i * 10 + 5, ALL_REDUCE) for i in range(5)]
    gather = [(i * 10, i * 10 + 5, "ncclKernel_AllGather") for i in range(5)]
    assert skew(collectives(kernels(rows)), collectives(kernels(rows[:4]))) is None
    assert skew(collectives(kernels(rows)), collectives(kernels(gather))) is None
    assert skew(collectives(kernels(rows)), collectives(kernels(rows, stream=21))) is None
    assert skew(collectives(kernels(rows[:2])), collectives(kernels(rows[:2]))) is None
    assert skew(collectives(kernels([])), collectives(kernels([]))) is None


def test_collectives_that_do_not_belong_together_contradict_each_other() -> None:
    a = [(0, 10, ALL_REDUCE), (10**9, 10**9 + 10, ALL_REDUCE), (2 * 10**9, 2 * 10**9 + 10, ALL_REDUCE)]
    b = [(0, 10, ALL_REDUCE), (10, 20, ALL_REDUCE), (20, 30, ALL_REDUCE)]
    assert skew(collectives(kernels(a)), collectives(kernels(b))) is None


def test_communicators_on_different_streams_are_compared_stream_by_stream() -> None:
    one = [(i * 100, i * 100 + 50, ALL_REDUCE) for i in range(3)]
    other = [(i * 100 + 20, i * 100 + 70, "ncclKernel_AllGather") for i in range(3)]
    late = [(s + 45, e + 45, n) for s, e, n in other]  # starts after the next all-reduce on this rank
    a = pl.concat([kernels(one, 7), kernels(other, 8)])
    b = pl.concat([kernels(one, 7), kernels(late, 8)])
    found = skew(collectives(a), collectives(b))
    assert found is not None
    assert found.matched == 6
    assert np.sign(found.low_ns) <= 0 <= np.sign(found.high_ns)
