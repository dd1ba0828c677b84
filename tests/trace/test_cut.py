"""Parts of a trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.errors import UsageError
from rlprof.trace.nsys_sqlite import read_sqlite
from rlprof.trace.tables import TABLE_NAMES
from tests.trace.nsys_made import kernel, made, push_pop


def test_rows_are_clipped_at_the_edges(tmp_path):
    trace = made(
        tmp_path,
        NVTX_EVENTS=[push_pop(0, 100, "whole"), push_pop(10, 20, "before"), push_pop(40, 50, "inside")],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 35), kernel(60, 90), kernel(95, 99)],
        ANALYSIS_DETAILS=[{"duration": 200}],
    )
    part = trace.between(30, 70)
    assert part.ranges.select("start_ns", "end_ns", "name", "cut").rows() == [
        (30, 70, "whole", True), (40, 50, "inside", False),
    ]  # fmt: skip
    assert part.kernels.select("start_ns", "end_ns").rows() == [(30, 35), (60, 70)]
    assert (part.meta.start_ns, part.meta.end_ns) == (30, 70)
    assert any("1 ranges reach over an edge" in n for n in part.notes)


def test_overhead_of_the_whole_is_not_that_of_a_part(data):
    trace = read_sqlite(data / "nsys" / "vla_chunk_and_training.sqlite")
    trace = replace(trace, meta=replace(trace.meta, overhead_ns=1_000))
    start, end = trace.meta.start_ns, trace.meta.end_ns
    assert trace.between(start, end).meta.overhead_ns == 1_000
    assert trace.between(start, (start + end) // 2).meta.overhead_ns is None


@pytest.mark.parametrize(("lo", "hi"), [(300, 400), (50, 50), (70, 20)])
def test_nothing_in_between_is_an_error_that_says_what_there_is(tmp_path, lo, hi):
    trace = made(tmp_path, NVTX_EVENTS=[push_pop(0, 100, "a")], ANALYSIS_DETAILS=[{"duration": 200}])
    with pytest.raises(UsageError, match="the capture covers 0 s to 2e-07 s"):
        trace.between(lo, hi)


@given(st.integers(10_000_000_000, 16_000_000_000), st.integers(1, 2_000_000_000))
@settings(max_examples=15, deadline=None)
def test_two_halves_hold_the_busy_time_of_the_whole(data, start, length):
    trace = read_sqlite(data / "nsys" / "vla_chunk_and_training.sqlite")
    lo, hi = trace.meta.start_ns, trace.meta.end_ns
    middle = lo + (start + length) % (hi - lo - 2) + 1
    total = sum(trace.kernels["end_ns"] - trace.kernels["start_ns"])
    halves = [trace.between(lo, middle), trace.between(middle, hi)]
    assert sum(int((h.kernels["end_ns"] - h.kernels["start_ns"]).sum()) for h in halves) == total


def test_columns_asked_for_are_the_columns_given(data):
    trace = read_sqlite(data / "nsys" / "vla_chunk_and_training.sqlite")
    part = trace.between(trace.meta.start_ns, trace.meta.end_ns)
    for name in TABLE_NAMES:
        for column in part.table(name).columns:
            assert part.table(name, [column]).columns == [column]
