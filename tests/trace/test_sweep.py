"""Sweeps over sorted intervals, against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.trace.sweep import LARGEST, dense, disjoint_layers, nest, slice_minimum

times = st.integers(0, 25)


@st.composite
def grouped(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(Group, start, end), sorted as `nest` wants them; nested, crossing, equal, empty."""
    raw = draw(st.lists(st.tuples(st.integers(0, 2), times, times), max_size=18))
    return sorted(((g, min(a, b), max(a, b)) for g, a, b in raw), key=lambda r: (r[0], r[1], -r[2]))


@settings(max_examples=300)
@given(grouped())
def test_crossing_equals_brute_force(rows: list[tuple[int, int, int]]) -> None:
    found = nest(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)

    def cross(x: tuple[int, int, int], y: tuple[int, int, int]) -> bool:
        return x[0] == y[0] and (x[1] < y[1] < x[2] < y[2] or y[1] < x[1] < y[2] < x[2])

    assert found.crossing.tolist() == [any(cross(x, y) for y in rows) for x in rows]


@settings(max_examples=200)
@given(
    values=st.lists(st.integers(-9, 9), max_size=40),
    slices=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=20),
)
def test_slice_minimum_equals_min(values: list[int], slices: list[tuple[int, int]]) -> None:
    pairs = [(min(lo, len(values)), min(hi, len(values))) for lo, hi in slices]
    lo, hi = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    got = slice_minimum(np.array(values, dtype=np.int64), lo, hi)
    assert got.tolist() == [min(values[a:b], default=LARGEST) for a, b in pairs]


@given(st.lists(st.tuples(times, times), max_size=20))
def test_layers_hold_all_once_and_rise(pairs: list[tuple[int, int]]) -> None:
    spans = sorted((min(p), max(p)) for p in pairs)
    end = np.array([e for _, e in spans], dtype=np.int64)
    layers = disjoint_layers(end)
    assert sorted(np.concatenate([*layers, np.zeros(0, dtype=np.int64)]).tolist()) == list(range(len(spans)))
    for layer in layers:
        assert (np.diff(layer) > 0).all()
        assert (np.diff(end[layer]) >= 0).all()


def test_intervals_one_after_another_are_one_layer() -> None:
    assert len(disjoint_layers(np.array([2, 4, 6]))) == 1


numbers = st.sampled_from([0, 1, 2, 7, -3, 1 << 40, (1 << 62) + 1])


@settings(max_examples=200)
@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=20))
def test_dense_numbers_rows_in_order_of_appearance(rows: list[tuple[int, ...]]) -> None:
    number, first = dense(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)
    seen = list(dict.fromkeys(rows))
    assert number.tolist() == [seen.index(r) for r in rows]
    assert first.tolist() == [rows.index(r) for r in seen]
