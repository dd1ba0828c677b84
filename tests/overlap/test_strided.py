from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.bindings import View
from rlprof.overlap.strided import take_view
from rlprof.overlap.values import view_of


@st.composite
def wholes_and_parts(draw):
    base = np.arange(4 * 5 * 6, dtype=draw(st.sampled_from(["f4", "i8", "u1"]))).reshape(4, 5, 6)
    base = base.transpose(draw(st.permutations(range(3))))
    steps = [draw(st.sampled_from([1, 2, -1])) for _ in range(3)]
    whole = base[tuple(slice(None, None, s) for s in steps)]
    part = whole
    for _ in range(draw(st.integers(0, 3))):
        if not part.ndim:
            break
        axis = draw(st.integers(0, part.ndim - 1))
        a, b = sorted(draw(st.tuples(st.integers(0, 5), st.integers(0, 5))))
        step = draw(st.sampled_from([1, 2, -1]))
        chosen = draw(st.sampled_from(["slice", "item", "transpose", "new"]))
        if chosen == "item" and part.shape[axis]:
            part = part[(slice(None),) * axis + (part.shape[axis] - 1,)]
        elif chosen == "slice":
            part = part[(slice(None),) * axis + (slice(a, b, step),)]
        elif chosen == "transpose":
            part = part.T
        else:
            part = part[..., None]
    return whole, part


@given(wholes_and_parts())
def test_a_view_is_taken_again(case):
    whole, part = case
    if not isinstance(part, np.ndarray):
        return
    view = view_of(part, whole)
    if view is None:
        assert not part.size  # nothing of the whole is in it
        return
    again = take_view(whole, view)
    assert again.shape == part.shape
    assert again.dtype == part.dtype
    assert np.array_equal(again, part)
    if part.size:
        again[...] = 77
        assert (part == 77).all()


def test_a_view_of_another_type_is_taken_in_its_own_elements():
    whole = np.arange(6, dtype=np.int64)
    part = whole.view(np.int32)[2:6]
    view = view_of(part, whole)
    assert view is not None
    assert np.array_equal(take_view(whole, view), part)


def test_objects_and_records_can_be_viewed():
    objects = np.array([object() for _ in range(4)], dtype=object)
    assert take_view(objects, View(1, (2,), (1,), "object"))[1] is objects[2]
    records = np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])
    records["a"] = [1, 2, 3]
    assert take_view(records, View(1, (2,), (1,), str(records.dtype)))["a"].tolist() == [2, 3]


@pytest.mark.parametrize(
    "view",
    [
        View(0, (7,), (1,), "float64"),
        View(-1, (1,), (1,), "float64"),
        View(5, (2,), (1,), "float64"),
        View(0, (2,), (-1,), "float64"),
        View(0, (13,), (1,), "float32"),
    ],
)
def test_memory_of_others_is_never_shown(view):
    row = np.arange(20.0)
    with pytest.raises(ValueError, match="reaches beyond"):
        take_view(row[2:8], view)


def test_an_array_of_another_shape_or_layout_than_recorded_is_refused():
    view = View(0, (2,), (1,), "float64", (3, 2), (2, 1))
    assert take_view(np.zeros((3, 2)), view).shape == (2,)
    with pytest.raises(ValueError, match="shape"):
        take_view(np.zeros((4, 2)), view)
    with pytest.raises(ValueError, match="strides"):
        take_view(np.zeros((2, 3)).T, view)


def test_a_view_of_what_may_not_be_written_may_not_be_written():
    whole = np.arange(4.0)
    whole.flags.writeable = False
    assert not take_view(whole, View(1, (2,), (1,), "float64")).flags.writeable
