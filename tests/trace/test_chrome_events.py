"""Exact times, ids and begin/end pairs of Chrome-trace events."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.trace.chrome_events import (
    PUSH_POP,
    RANGE_ROW,
    START_END,
    Names,
    Pairs,
    Rows,
    ThreadIds,
    as_int,
    us_to_ns,
    worker_label,
)


@settings(deadline=None)
@given(st.integers(0, 2**62))
def test_decimal_strings_and_integers_are_exact_to_the_nanosecond(ns: int) -> None:
    assert us_to_ns(f"{ns // 1000}.{ns % 1000:03d}") == ns
    assert us_to_ns(ns // 1000) == ns // 1000 * 1000
    assert us_to_ns(str(ns // 1000)) == ns // 1000 * 1000


@settings(deadline=None)
@given(st.integers(0, 10**15 - 1))
def test_floats_below_1e12_us_are_exact_to_the_nanosecond(ns: int) -> None:
    assert us_to_ns(float(f"{ns // 1000}.{ns % 1000:03d}")) == ns


@settings(deadline=None)
@given(st.decimals(0, 10**15, places=5))
def test_more_decimals_round_to_the_nearest_nanosecond(us: Decimal) -> None:
    assert us_to_ns(format(us, "f")) == int((us * 1000).to_integral_value(ROUND_HALF_EVEN))


@pytest.mark.parametrize(
    "value", [None, True, [], {}, "", "abc", "nan", "inf", float("nan"), float("inf"), 2**63, "1e30"]
)
def test_what_is_no_time_is_none(value: Any) -> None:
    assert us_to_ns(value) is None


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        (7.0, 7),
        ("7", 7),
        (" -7 ", -7),
        (7.5, None),
        ("stream 7", None),
        (None, None),
        (2**64, None),
        ("9" * 30, None),
    ],
)
def test_integers_come_as_numbers_and_strings(value: Any, number: int | None) -> None:
    assert as_int(value) == number


def test_threads_known_by_name_get_negative_numbers() -> None:
    threads = ThreadIds()
    assert [threads.number(t) for t in (5, "5", "main", "loop", "main")] == [5, 5, -1, -2, -1]


def test_host_and_address_of_a_worker_are_dropped() -> None:
    assert worker_label("EnvGroup:3@node7.cluster(10.1.2.3)") == "EnvGroup:3"
    assert worker_label("RolloutGroup:0") == "RolloutGroup:0"
    assert worker_label("@host") == "process"


def test_rows_pack_without_changing_order_or_nulls() -> None:
    rows = Rows({"a": RANGE_ROW["start_ns"], "b": RANGE_ROW["name"]})
    count = 2 * Rows.PACK_ROWS + 3
    for i in range(count):
        rows.add(i, None if i % 3 else i)
    frame = rows.frame()
    assert frame["a"].to_list() == list(range(count))
    assert frame["b"].null_count() == count - len(range(0, count, 3))


def test_names_are_decoded_and_home_directories_scrubbed() -> None:
    names = Names()
    codes = Rows({"n": RANGE_ROW["name"]})
    for name in ("b", "a", "b", None, "load /home/someone/x"):
        codes.add(names.code(name))
    assert names.decode(codes.frame()["n"]).to_list() == ["b", "a", "b", "", "load ~/x"]


def joined(
    halves: list[tuple[int, str, str | None]], end_ns: int = 100
) -> tuple[list[tuple[Any, ...]], Pairs]:
    names, pairs, rows = Names(), Pairs(), Rows(RANGE_ROW)
    for ts_ns, phase, name in halves:
        if phase == "R":
            pairs.restart(ts_ns, 0)
        else:
            code = None if name is None else names.code(name)
            pairs.add(ts_ns, phase, process=0, thread=1, name=code, key="id" if phase in "be" else None)
    pairs.join(rows, end_ns)
    strings = names.strings
    found = [
        (strings[r["name"]], r["start_ns"], r["end_ns"], r["cut"], r["style"])
        for r in rows.frame().to_dicts()
    ]
    return sorted(found), pairs


def test_begin_and_end_nest() -> None:
    found, pairs = joined([(0, "B", "a"), (1, "B", "b"), (2, "E", "b"), (3, "E", "a")])
    assert found == [("a", 0, 3, False, PUSH_POP), ("b", 1, 2, False, PUSH_POP)]
    assert pairs.notes() == []


def test_an_end_without_name_closes_the_innermost() -> None:
    found, _ = joined([(0, "B", "a"), (1, "B", "b"), (2, "E", None), (3, "E", None)])
    assert found == [("a", 0, 3, False, PUSH_POP), ("b", 1, 2, False, PUSH_POP)]


def test_ends_out_of_order_close_the_range_of_their_name() -> None:
    found, _ = joined([(0, "B", "a"), (1, "B", "b"), (2, "E", "a"), (3, "E", "b")])
    assert found == [("a", 0, 2, False, PUSH_POP), ("b", 1, 3, False, PUSH_POP)]


def test_events_written_out_of_order_are_sorted_first() -> None:
    found, pairs = joined([(3, "E", "a"), (0, "B", "a")])
    assert found == [("a", 0, 3, False, PUSH_POP)]
    assert not pairs.unmatched


def test_begin_without_end_is_cut_and_end_without_begin_is_counted() -> None:
    found, pairs = joined([(0, "E", "x"), (1, "B", "a")])
    assert found == [("a", 1, 100, True, PUSH_POP)]
    assert len(pairs.notes()) == 2


def test_range_open_when_its_process_starts_again_ends_where_it_was_last_seen() -> None:
    first_life = [(0, "B", "step"), (1, "B", "predict"), (2, "E", "predict")]
    second_life = [(50, "R", None), (51, "B", "step"), (60, "E", "step")]
    found, _ = joined([*first_life, *second_life])
    assert ("step", 0, 2, True, PUSH_POP) in found
    assert ("step", 51, 60, False, PUSH_POP) in found


def test_asynchronous_pairs_may_overlap_and_are_start_end() -> None:
    found, _ = joined([(0, "b", "a"), (1, "b", "c"), (2, "e", "a"), (3, "e", "c")])
    assert found == [("a", 0, 2, False, START_END), ("c", 1, 3, False, START_END)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from("BEbeR"), st.sampled_from("xyz")), max_size=40))
def test_no_duration_is_negative_and_every_begin_gives_one_range(halves: list[tuple[int, str, str]]) -> None:
    found, pairs = joined([*halves])
    assert all(end >= start for _, start, end, _, _ in found)
    begins = sum(phase in "Bb" for _, phase, _ in halves)
    ends = sum(phase in "Ee" for _, phase, _ in halves)
    assert len(found) == begins
    assert pairs.unmatched["begin"] == sum(cut for *_, cut, _ in found)
    assert pairs.unmatched["end"] == ends - (begins - pairs.unmatched["begin"])
