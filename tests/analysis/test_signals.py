"""Sources of activity: order, bounds, and what is unavailable."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.analysis.signals import foreign_frac, signals
from rlprof.unavailable import Unavailable
from tests.analysis.made import trace_of
from tests.analysis.test_windows import made_ranges, made_samples


def kernels(*rows, device=0):
    """(start, end, blocks) rows."""
    frame = pl.DataFrame(rows, schema=["start_ns", "end_ns", "blocks"], orient="row")
    return frame.with_columns(pl.lit(device).alias("device"), pl.lit("kernel").alias("kind"))


def gpus(*sm_counts):
    n = len(sm_counts)
    return pl.DataFrame(
        {"device": range(n), "name": ["g"] * n, "sm_count": sm_counts},
        schema_overrides={"sm_count": pl.Int64},
    )


def test_counters_come_before_kernels():
    found = signals(trace_of(kernels=kernels((0, 10, 1)), activity=made_samples([0.5] * 3)))
    assert [s.source for s in found] == ["sm_counters"]
    assert found[0].period_ns == 10


def test_kernels_come_before_host_cores():
    samples = made_samples([0.5] * 3, device=-1, source="host_cores")
    assert signals(trace_of(kernels=kernels((0, 10, 1)), activity=samples))[0].source == "kernel_union"
    assert signals(trace_of(activity=samples))[0].source == "host_cores"


def test_no_source_is_unavailable_with_the_reason():
    found = signals(trace_of())
    assert isinstance(found, Unavailable)
    assert found.reason


def test_a_kernel_table_without_rows_is_unavailable():
    assert isinstance(signals(trace_of(kernels=kernels().head(0))), Unavailable)


def test_grids_bound_the_union():
    """One block on 100 SMs reaches a hundredth of them; unknown grids and graphs may reach all."""
    rows = kernels((0, 10, 1), (10, 20, 50), (15, 30, 70), (40, 50, None))
    found = signals(trace_of(kernels=rows, devices=gpus(100)))[0]
    assert found.grid_bounded
    steps = list(zip(found.start_ns.tolist(), found.end_ns.tolist(), found.active_frac.tolist(), strict=True))
    assert steps == [(0, 10, 0.01), (10, 15, 0.5), (15, 20, 1.0), (20, 30, 0.7), (30, 40, 0.0), (40, 50, 1.0)]


def test_without_sm_count_busy_is_busy():
    found = signals(trace_of(kernels=kernels((0, 10, 1), (20, 30, 1)), devices=gpus(None)))[0]
    assert not found.grid_bounded
    assert found.active_frac.tolist() == [1.0, 0.0, 1.0]


def test_idle_before_the_first_kernel_counts_if_a_range_is_there():
    found = signals(trace_of(kernels=kernels((50, 60, 1)), ranges=made_ranges((0, 100, "a"))))[0]
    assert (found.start_ns[0], found.end_ns[-1]) == (0, 100)


def test_one_signal_per_device():
    rows = pl.concat([kernels((0, 10, 1)), kernels((0, 5, 1), device=3)])
    assert [s.device for s in signals(trace_of(kernels=rows))] == [0, 3]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=15)
)
def test_bound_equals_counting(rows):
    rows = [(min(a, b), max(a, b), g) for a, b, g in rows]
    found = signals(trace_of(kernels=kernels(*rows), devices=gpus(16)))[0]
    dense = np.zeros(50)
    for s, e, g in rows:
        dense[s:e] += min(g, 16)
    got = np.zeros(50)
    for s, e, v in zip(found.start_ns, found.end_ns, found.active_frac, strict=True):
        got[s:e] = v
    np.testing.assert_allclose(got, np.minimum(dense, 16) / 16)
    assert (found.start_ns[1:] >= found.end_ns[:-1]).all()


def test_foreign_share():
    trace = trace_of(kernels=kernels((0, 15, 1)), activity=made_samples([1.0] * 4))
    assert foreign_frac(trace, signals(trace)[0]) == pytest.approx(0.5)
    trace = trace_of(activity=made_samples([1.0] * 4))
    assert foreign_frac(trace, signals(trace)[0]) is None
