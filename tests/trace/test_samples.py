"""The interval over which a sample holds."""

from __future__ import annotations

import itertools

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from rlprof.trace.samples import MAX_HOLD_PERIODS, hold_intervals


def frame(times, device=0):
    return pl.DataFrame(
        {"device": [device] * len(times), "start_ns": times, "active_frac": [0.5] * len(times)},
        schema={"device": pl.Int32, "start_ns": pl.Int64, "active_frac": pl.Float64},
    )


@given(st.lists(st.integers(-(10**6), 10**12), max_size=60))
def test_intervals_are_disjoint_and_bounded(times):
    out, _ = hold_intervals(frame(times))
    start, end = out["start_ns"].to_list(), out["end_ns"].to_list()
    assert start == sorted(set(times))
    assert all(e >= s for s, e in zip(start, end, strict=True))
    assert all(e <= s for e, s in zip(end[:-1], start[1:], strict=True))
    steps = sorted(b - a for a, b in itertools.pairwise(start))
    if steps:
        longest = MAX_HOLD_PERIODS * (steps[len(steps) // 2] + 1)
        assert all(e - s <= longest for s, e in zip(start, end, strict=True))


def test_devices_do_not_mix():
    out, _ = hold_intervals(pl.concat([frame([0, 100, 200]), frame([50, 1050, 2050], device=1)]))
    assert out.select("device", "start_ns", "end_ns").rows() == [
        (0, 0, 100), (0, 100, 200), (0, 200, 300), (1, 50, 1050), (1, 1050, 2050), (1, 2050, 3050),
    ]  # fmt: skip


def test_repeated_and_unsorted_times_are_mended_and_counted():
    out, notes = hold_intervals(frame([200, 0, 100, 100]))
    assert out["start_ns"].to_list() == [0, 100, 200]
    assert "1 of 4" in notes[0]


def test_a_gap_is_counted():
    _, notes = hold_intervals(frame([0, 100, 200, 1200, 1300]))
    assert notes == ("1 gaps in the activity samples, 0.000 s without one",)


def test_one_sample_holds_for_no_time():
    out, _ = hold_intervals(frame([5]))
    assert out.select("start_ns", "end_ns").row(0) == (5, 5)
