"""What charts are made from: reduction keeps means, bounds, coverage and counts."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.plots import prepare

# machines of continuous integration are slow at times
quick = settings(deadline=None, max_examples=60)
Steps = tuple[np.ndarray, np.ndarray, np.ndarray]


@st.composite
def steps(draw: st.DrawFn) -> Steps:
    """Sorted, disjoint segments with gaps between some of them."""
    n = draw(st.integers(1, 40))
    widths = np.array(draw(st.lists(st.integers(1, 50), min_size=n, max_size=n)))
    gaps = np.array(draw(st.lists(st.integers(0, 20), min_size=n, max_size=n)))
    values = np.array(draw(st.lists(st.floats(0, 1, width=32), min_size=n, max_size=n)), dtype=np.float64)
    origin = draw(st.integers(-100, 100))
    end = origin + np.cumsum(widths + gaps)
    return end - widths, end, values


@quick
@given(steps(), st.integers(1, 60))
def test_envelope_keeps_the_time_weighted_mean_the_bounds_and_the_coverage(s: Steps, bins: int) -> None:
    start, end, value = s
    lo, hi = int(start[0]) - 3, int(end[-1]) + 3
    frame = prepare.envelope(start, end, value, lo_ns=lo, hi_ns=hi, bins=bins)

    assert frame.height == min(bins, hi - lo)
    width = (frame["end_s"] - frame["start_s"]).to_numpy() * 1e9
    covered = frame["covered_frac"].to_numpy() * width
    mean = frame["mean_frac"].fill_null(0).to_numpy()
    assert covered.sum() == pytest.approx((end - start).sum())
    assert (covered * mean).sum() == pytest.approx(((end - start) * value).sum(), abs=1e-6)
    assert frame["min_frac"].min() == value.min()
    assert frame["max_frac"].max() == value.max()
    known = frame.drop_nulls()
    assert (known["min_frac"] <= known["mean_frac"]).all()
    assert (known["mean_frac"] <= known["max_frac"]).all()


@quick
@given(steps(), st.integers(1, 30))
def test_each_bin_of_an_envelope_agrees_with_a_count_by_nanosecond(s: Steps, bins: int) -> None:
    start, end, value = s
    lo, hi = int(start[0]) + 1, int(end[-1]) + 5
    at = np.arange(lo, hi)
    which = np.searchsorted(start, at, side="right") - 1
    inside = (which >= 0) & (at < end[np.maximum(which, 0)])
    expected = np.where(inside, value[np.maximum(which, 0)], np.nan)

    frame = prepare.envelope(start, end, value, lo_ns=lo, hi_ns=hi, bins=bins)

    for a, b, mean, low, high, share in frame.rows():
        part = expected[round(a * 1e9) - lo : round(b * 1e9) - lo]
        known = part[~np.isnan(part)]
        assert share == pytest.approx(len(known) / len(part))
        if len(known) == 0:
            assert mean is low is high is None
        else:
            assert (low, high) == (known.min(), known.max())
            assert mean == pytest.approx(known.mean())


def test_envelope_of_nothing_has_no_value_and_not_zero() -> None:
    none = np.zeros(0, dtype=np.int64)
    frame = prepare.envelope(none, none, np.zeros(0), lo_ns=0, hi_ns=100, bins=4)
    assert frame["mean_frac"].to_list() == [None] * 4
    assert frame["covered_frac"].to_list() == [0.0] * 4
    assert prepare.envelope(none, none, np.zeros(0), lo_ns=5, hi_ns=5, bins=4).height == 0


spans = st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 50)), max_size=60)


@quick
@given(spans, st.integers(0, 30))
def test_merged_spans_hold_all_spans_and_lie_apart(pairs: list[tuple[int, int]], gap: int) -> None:
    start = np.array([a for a, _ in pairs], dtype=np.int64)
    end = start + np.array([d for _, d in pairs], dtype=np.int64)
    lo, hi, count = prepare.merge_spans(start, end, gap_ns=gap)
    assert count.sum() == len(pairs)
    assert (lo[1:] > hi[:-1] + gap).all()
    for a, b in zip(start, end, strict=True):
        assert ((lo <= a) & (b <= hi)).any()


def test_marked_spans_keep_to_the_budget_and_count_every_invocation() -> None:
    start = np.arange(0, 1_000_000, 100)
    frame = prepare.marked_spans(
        [("a/b", None, start, start + 10), ("a/c", "rank 0", start + 50, start + 60)],
        lo_ns=0,
        hi_ns=1_000_000,
        budget=500,
    )
    assert frame.height <= 500
    assert frame.group_by("window").agg(pl.col("count").sum())["count"].to_list() == [10_000, 10_000]
    assert frame["window"].unique(maintain_order=True).to_list() == ["a/b", "a/c (rank 0)"]


def test_too_many_iteration_bounds_are_left_out_and_said_so() -> None:
    start = np.arange(500) * 10
    frame, note = prepare.iteration_bounds(start, start + 9, lo_ns=0, hi_ns=5_000)
    assert frame.height == 0
    assert note == "bounds of the 500 iterations are not drawn"
    frame, note = prepare.iteration_bounds(start, start + 9, lo_ns=0, hi_ns=1_000)
    assert frame["iteration"].to_list() == list(range(1, 101))
    assert note is None


def test_a_value_on_a_threshold_is_not_below_it() -> None:
    at = np.array([0, 10, 20, 30])
    value = np.array([0.5, 0.8, 1.0, 0.49])
    times = prepare.activity_times([(np.array([5]), np.array([40]))], at, at + 10, value)
    assert times.sum() == 35
    rows = prepare.distribution_rows([("v", None)], times, [0.6])
    assert rows["below_50_frac"][0] == pytest.approx(10 / 35)
    assert rows["below_80_frac"][0] == pytest.approx(15 / 35)
    assert rows["share_frac"].sum() == pytest.approx(1)


@quick
@given(steps(), spans.filter(bool))
def test_activity_times_add_up_to_the_covered_time(s: Steps, pairs: list[tuple[int, int]]) -> None:
    start, end, value = s
    lo = np.array([a for a, _ in pairs], dtype=np.int64)
    hi = lo + np.array([d for _, d in pairs], dtype=np.int64)
    covered = sum(
        max(0, min(int(b), int(e)) - max(int(a), int(t)))
        for a, b in zip(lo, hi, strict=True)
        for t, e in zip(start, end, strict=True)
    )
    assert prepare.activity_times([(lo, hi)], start, end, value).sum() == pytest.approx(covered)


def test_nodes_without_known_activity_are_left_out_of_the_distribution() -> None:
    rows = prepare.distribution_rows(
        [("a", None), ("b", None)], np.array([[0.0, 0.0], [3.0, 1.0]]), [None, 0.2]
    )
    assert rows["node"].unique().to_list() == ["b"]


def test_ranking_rows_tell_apart_windows_of_one_name() -> None:
    frame = pl.DataFrame(
        {
            "node": ["x" * 300, "x" * 300, "y"],
            "process": ["rank 0", "rank 1", "rank 1"],
            "rank": [1, 2, None],
            "score_s": [2.0, 1.0, None],
            "sm_activity": [0.1, 0.6, 0.9],
            "tier": [1, 2, None],
            "total_s": [1.0, 1.0, 1.0],
            "count": [1, 1, 1],
        }
    )
    rows = prepare.ranking_rows(frame)
    assert rows.height == 2
    assert rows["label"].n_unique() == 2
    assert rows["class"].to_list() == ["tier 1: below 50 %", "tier 2: 50 to 80 %"]
    assert rows["label"].str.len_chars().max() < 80
