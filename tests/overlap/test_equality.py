from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from rlprof.overlap.equality import distance, equal_bits

OTHER_NAN = struct.unpack("d", struct.pack("Q", 0x7FF8000000000001))[0]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([np.array([np.nan, 1.0])], [np.array([np.nan, 1.0])], True),
        (np.array([math.nan]), np.array([OTHER_NAN]), False),
        (math.nan, math.nan, True),
        (math.nan, OTHER_NAN, False),
        (0.0, -0.0, False),
        (np.array(0.0), np.array(-0.0), False),
        (1, 1.0, False),
        (True, 1, False),
        (np.zeros(2), np.zeros(2, np.float32), False),
        (np.zeros(2), np.zeros((1, 2)), False),
        ((1, [2, {"a": 3}]), (1, [2, {"a": 3}]), True),
        ((1, 2), [1, 2], False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": []}, {"a": ()}, False),
        ({"a": None}, {}, False),
        (np.array([1, "x"], dtype=object), np.array([1, "x"], dtype=object), True),
        (np.array([1, "x"], dtype=object), np.array([1.0, "x"], dtype=object), False),
        (np.float32(1), np.float32(1), True),
    ],
)
def test_bits(a, b, same):
    assert equal_bits(a, b) is same
    assert equal_bits(b, a) is same
    assert equal_bits(a, a)


def far(a, b, rtol=1e-3, atol=0.0):
    return distance(a, b, rtol=rtol, atol=atol)


def test_how_far_is_said_for_the_worst_number():
    found = far(
        {"x": np.array([1.0, 2.0]), "y": [np.array([10.0])]},
        {"x": np.array([1.0, 2.001]), "y": [np.array([10.005])]},
    )
    assert found.max_abs == pytest.approx(0.005)
    assert found.max_rel == pytest.approx(0.001 / 2.001)
    assert found.where == "['y'][0]"
    assert found.within
    assert not found.bitwise
    assert far(1.0, 1.0).bitwise


@pytest.mark.parametrize(
    ("a", "b", "within"),
    [
        (np.array([1.0, np.nan]), np.array([1.0005, np.nan]), True),
        (np.array([np.nan]), np.array([1.0]), False),
        (np.array([1.0]), np.array([np.nan]), False),
        (np.array([np.inf, 1.0]), np.array([np.inf, 1.0001]), True),
        (np.array([np.inf]), np.array([-np.inf]), False),
        (np.array([1e30]), np.array([np.inf]), False),
        (np.array([1e-9]), np.array([0.0]), False),
        (np.array([1 + 1e-4j]), np.array([1 + 0j]), True),
        (np.array([3]), np.array([4]), False),
        (np.array([True]), np.array([False]), False),
        (3, 4, False),
        (1.0, 1.0001, True),
        (np.float32(1), np.float64(1), False),
        (np.zeros(2), np.zeros(3), False),
        ("a", "b", False),
        ([1.0], [1.0, 2.0], False),
    ],
)
def test_tolerance(a, b, within):
    found = far(a, b)
    assert found.within is within
    assert not found.bitwise
    if not within:
        assert found.max_abs > 0


def test_an_absolute_tolerance_is_for_numbers_near_zero():
    assert far(np.array([1e-9]), np.array([0.0]), atol=1e-8).within
