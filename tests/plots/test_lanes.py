"""Layout of timelines: nothing lost in silence, nothing drawn over another bar."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.plots.lanes import RANGE_COLUMNS, lay_out, merge_short, sub_lanes

# machines of continuous integration are slow at times
quick = settings(deadline=None, max_examples=60)
intervals = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 300)), min_size=1, max_size=200)


def ranges_of(pairs: list[tuple[int, int]], **more: object) -> pl.DataFrame:
    """Ranges of one process; `more` sets columns."""
    columns = {"process": 1, "thread": 1, "depth": 0, "name": "v", "activity_frac": 0.25} | more
    frame = pl.DataFrame(
        {"start_ns": [a for a, _ in pairs], "end_ns": [a + d for a, d in pairs]},
        schema={"start_ns": pl.Int64, "end_ns": pl.Int64},
    )
    return frame.with_columns(
        pl.Series(k, v) if isinstance(v, list) else pl.lit(v).alias(k) for k, v in columns.items()
    ).select(RANGE_COLUMNS)


@quick
@given(intervals)
def test_bars_on_one_lane_never_overlap_and_lanes_are_as_few_as_can_be(pairs: list[tuple[int, int]]) -> None:
    pairs = sorted(pairs)
    starts, ends = [a for a, _ in pairs], [a + d for a, d in pairs]
    lanes = sub_lanes(starts, ends)
    free: dict[int, int] = {}
    for start, end, lane in zip(starts, ends, lanes, strict=True):
        assert free.get(lane, start) <= start
        free[lane] = end
    open_at_once = max(sum(s <= t < e for s, e in zip(starts, ends, strict=True)) for t in starts)
    assert max(lanes) + 1 <= max(open_at_once, 1) + sum(s == e for s, e in zip(starts, ends, strict=True))


@quick
@given(intervals, st.integers(1, 50))
def test_merging_keeps_the_budget_the_counts_and_the_bounds(
    pairs: list[tuple[int, int]], budget: int
) -> None:
    ranges = ranges_of(pairs).with_columns(track=pl.lit(0, dtype=pl.UInt32))
    bars = merge_short(ranges, lo_ns=0, hi_ns=2_400, budget=budget)
    assert bars.height <= budget
    assert bars["count"].sum() == len(pairs)
    assert bars["start_ns"].min() == ranges["start_ns"].min()
    assert bars["end_ns"].max() == ranges["end_ns"].max()


def test_ranges_within_the_budget_stay_as_they_are() -> None:
    ranges = ranges_of([(0, 5), (10, 0), (20, 7)]).with_columns(track=pl.lit(0, dtype=pl.UInt32))
    bars = merge_short(ranges, lo_ns=0, hi_ns=100, budget=3)
    assert bars["count"].to_list() == [1, 1, 1]
    assert bars["end_ns"].to_list() == [5, 10, 27]


def test_a_block_of_one_name_keeps_it_and_its_activity() -> None:
    ranges = ranges_of([(i, 1) for i in range(100)] + [(200, 100)], name=["a"] * 100 + ["b"])
    bars = merge_short(ranges.with_columns(track=pl.lit(0, dtype=pl.UInt32)), lo_ns=0, hi_ns=300, budget=5)
    assert set(bars["name"]) == {"a", "b"}
    assert bars["activity_frac"].to_list() == pytest.approx([0.25] * bars.height)


def test_a_block_of_several_names_says_so() -> None:
    ranges = ranges_of([(i, 1) for i in range(100)], name=["a", "b", "c", "d"] * 25)
    bars = merge_short(ranges.with_columns(track=pl.lit(0, dtype=pl.UInt32)), lo_ns=0, hi_ns=100, budget=1)
    assert bars["name"].to_list() == ["several names"]
    assert bars["count"].to_list() == [100]


@quick
@given(intervals)
def test_no_two_bars_of_a_timeline_lie_over_each_other(pairs: list[tuple[int, int]]) -> None:
    depth = [i % 3 for i in range(len(pairs))]
    thread = [i % 2 for i in range(len(pairs))]
    lanes = lay_out(
        ranges_of(pairs, depth=depth, thread=thread), {1: "rank 0"}, [], lo_ns=0, hi_ns=2_400, budget=200
    )
    for _, row in lanes.bars.sort("start_s").group_by("row", maintain_order=True):
        assert (row["start_s"][1:] >= row["end_s"][:-1]).all()
    assert lanes.bars["count"].sum() == len(pairs)
    assert lanes.bars["row"].max() < lanes.rows
    total = sum(f.height for f in (lanes.bars, lanes.levels, lanes.headers, lanes.busy))
    assert total <= 200


def test_what_does_not_fit_into_the_rows_is_counted_in_the_notes() -> None:
    pairs = [(i * 10, 5) for i in range(60)]
    many_threads = ranges_of(pairs, thread=list(range(60)))
    lanes = lay_out(many_threads, {}, [], lo_ns=0, hi_ns=700, budget=500, most_rows=30)
    assert lanes.headers.height == 10
    assert lanes.notes == ("the 50 threads with the least time in ranges (83.3% of it) are not drawn",)

    deep = ranges_of([(i, 200 - 2 * i) for i in range(60)], depth=list(range(60)))
    lanes = lay_out(deep, {}, [], lo_ns=0, hi_ns=700, budget=500, most_rows=30)
    assert lanes.bars["row"].n_unique() == 29
    assert lanes.notes == ("31 ranges deeper than 29 levels are not drawn",)


def test_overlapping_ranges_of_one_depth_get_lanes_of_their_own() -> None:
    lanes = lay_out(ranges_of([(0, 100), (50, 100), (60, 20)]), {}, [], lo_ns=0, hi_ns=200, budget=100)
    assert lanes.bars.sort("start_s")["row"].to_list() == [1.0, 2.0, 3.0]


def test_threads_without_a_number_are_drawn() -> None:
    ranges = ranges_of([(0, 10), (20, 10)]).with_columns(thread=pl.lit(None, dtype=pl.Int64))
    lanes = lay_out(ranges, {1: "rank 0"}, [], lo_ns=0, hi_ns=100, budget=50)
    assert lanes.bars.height == 2
    assert lanes.headers["label"].to_list() == ["rank 0"]
