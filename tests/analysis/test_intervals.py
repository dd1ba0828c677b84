"""Interval arithmetic against counting nanosecond by nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.analysis.intervals import StepIntegral, clip, cut_steps, load, union

SPAN = 40
intervals = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(sorted), max_size=12)


def arrays(rows):
    return np.array(rows, dtype=np.int64).reshape(-1, 2).T


def covered(start, end):
    out = np.zeros(SPAN, dtype=np.int64)
    for s, e in zip(start, end, strict=True):
        out[s:e] += 1
    return out


@given(intervals)
def test_union_covers_the_same_and_is_disjoint(rows):
    start, end = union(*arrays(rows))
    assert (covered(start, end) == (covered(*arrays(rows)) > 0)).all()
    assert (end > start).all()
    assert (start[1:] > end[:-1]).all()


@given(intervals, st.integers(0, SPAN), st.integers(0, SPAN))
def test_clip(rows, a, b):
    lo, hi = sorted((a, b))
    start, end = clip(*arrays(rows), lo, hi)
    want = covered(*arrays(rows))
    want[:lo] = 0
    want[hi:] = 0
    assert (covered(start, end) == want).all()


@given(intervals, st.data())
def test_load_sums_weights(rows, data):
    start, end = arrays(rows)
    weight = np.array(
        data.draw(st.lists(st.integers(1, 9), min_size=len(rows), max_size=len(rows))), dtype=np.int64
    )
    s, e, total = load(start, end, weight)
    want = np.zeros(SPAN, dtype=np.int64)
    for a, b, w in zip(start, end, weight, strict=True):
        want[a:b] += w
    got = np.zeros(SPAN, dtype=np.int64)
    for a, b, t in zip(s, e, total, strict=True):
        assert (got[a:b] == 0).all()
        got[a:b] = t
    assert (got == want).all()


@given(intervals, intervals, st.integers(0, 2**32 - 1))
def test_integral_and_cut(rows, asked, seed):
    start, end = union(*arrays(rows))
    value = np.random.default_rng(seed).random(len(start))
    dense = np.zeros(SPAN)
    for s, e, v in zip(start, end, value, strict=True):
        dense[s:e] = v
    a, b = arrays(asked)
    ones = np.ones(len(start))
    got = StepIntegral.of(start, end, value, ones).over(a, b)
    np.testing.assert_allclose(got[0], [dense[x:y].sum() for x, y in asked], atol=1e-12)
    np.testing.assert_allclose(got[1], [(dense[x:y] > 0).sum() for x, y in asked], atol=1e-12)
    keep = union(a, b)
    inside = np.where(covered(*keep) > 0, dense, 0)
    cut = np.zeros(SPAN)
    for s, e, v in zip(*cut_steps(start, end, value, *keep), strict=True):
        cut[s:e] += v
    np.testing.assert_allclose(cut, inside)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 50), st.integers(0, 100))
def test_a_short_interval_late_in_a_long_signal_is_exact(step, length, percent):
    """As a difference of integrals from the beginning it would drown in their rounding."""
    start = np.arange(10**6 + 1, dtype=np.int64) * 10_000_000  # three hours
    value = np.full(len(start), percent / 100)
    at = start[[step]] + 7
    got = StepIntegral.of(start, start + 10_000_000, value).over(at, at + length)
    assert got[0, 0] == percent / 100 * length
