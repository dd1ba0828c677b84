"""Views of views, paths in words, modes one after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.specs import Mode
from rlprof.overlap.strided import take_view
from rlprof.overlap.units import argument, combined, spell, within
from rlprof.overlap.values import view_of

SLICES = st.builds(slice, st.integers(0, 2), st.integers(3, 5), st.integers(1, 2))


@given(st.tuples(SLICES, SLICES), st.tuples(SLICES, SLICES), st.booleans())
def test_a_view_of_a_view_shows_the_same_elements(
    outer: tuple[slice, slice], inner: tuple[slice, slice], turned: bool
) -> None:
    whole = np.arange(30).reshape(5, 6)
    part = whole[outer]
    seen = part[inner].T if turned else part[inner]
    if not seen.size:
        return
    inside, view = within(view_of(seen, whole), view_of(part, whole))
    assert inside
    shown = part if view is None else take_view(part, view)
    assert np.array_equal(shown, seen)
    assert shown.base is not None, "and not a copy"


def test_what_lies_outside_is_no_view() -> None:
    whole = np.arange(10)
    outer = view_of(whole[2:5], whole)
    for other in (whole[1:4], whole[4:6], whole[:1], whole[::-1], whole[4:1:-1]):
        assert within(view_of(other, whole), outer) == (False, None)
    assert within(None, outer) == (False, None), "the whole is no part of its part"
    assert within(outer, None) == (True, outer)
    assert within(outer, outer) == (True, None)


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (["read"], "read"),
        (["read", "update"], "update"),
        (["read", "refresh"], "update"),
        (["update", "refresh"], "update"),
        (["refresh", "update"], "refresh"),
        (["refresh", "read"], "refresh"),
    ],
)
def test_modes_one_after_another(modes: list[Mode], expected: Mode) -> None:
    assert combined(modes) == expected


def test_places_in_words() -> None:
    assert spell(("a", 0)) == "['a'][0]"
    assert argument((0, 1, "obs")) == "argument 1['obs']"
    assert argument((1, "mask")) == "argument mask"
    assert argument(()) == "the arguments"
