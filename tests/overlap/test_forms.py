from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from rlprof.overlap.forms import common, form_of, mismatch


@dataclass
class Batch:
    obs: np.ndarray
    size: int


def arguments(n=4, size=3, extra=None):
    return ((Batch(np.zeros((n, 2)), size), [1.5, None]), {"mode": "train", "extra": extra})


def test_what_has_the_recorded_form_matches():
    assert mismatch(form_of(arguments()), arguments()) is None
    assert mismatch(form_of(float("nan")), float("nan")) is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (arguments(n=5), r"\[0\]\[0\]\['obs'\] is ndarray of float64, shape \(5, 2\)"),
        (arguments(size=4), r"\['size'\] is 4, 3 was recorded"),
        (arguments(extra=1), r"\['extra'\] is int 1, NoneType was recorded"),
        (((), {}), r"\[0\] is"),
        ((arguments()[0], {"mode": "train"}), r"\[1\] is dict with 'mode', dict with 'mode', 'extra'"),
    ],
)
def test_what_differs_is_named(value, says):
    assert mismatch(form_of(arguments()), value) is not None
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(mismatch(form_of(arguments()), value))


def test_what_was_not_always_the_same_is_free():
    form = common([form_of(arguments(size=1)), form_of(arguments(size=2, extra=np.zeros(1)))])
    assert mismatch(form, arguments(size=9, extra="x")) is None
    assert mismatch(form, arguments(n=5)) is not None
    assert mismatch(form, ((Batch(np.zeros((4, 2)), 1.0), [1.5, None]), arguments()[1])) is not None
    assert common([form]) == form
