"""Nested values and memory of arrays."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.strided import take_view
from rlprof.overlap.structures import put_together
from rlprof.overlap.values import (
    at_path,
    describe,
    extent_of,
    flatten,
    memory_key,
    same_bits,
    stamp,
    take_apart,
    view_of,
)

Point = namedtuple("Point", "x y")


@dataclass
class Plain:
    a: Any
    b: Any = field(init=False, default=3)


@dataclass(frozen=True)
class Frozen:
    a: Any


@dataclass(slots=True)
class Slots:
    a: Any


leaves = st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.none(), st.just(np.arange(3)))
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
        st.tuples(inner, inner).map(lambda t: Point(*t)),
        inner.map(Plain),
        inner.map(Frozen),
        inner.map(Slots),
    ),
    max_leaves=12,
)


def put_back(value: Any) -> Any:
    parts = take_apart(value)
    if parts is None:
        return value
    return put_together(parts.kind, parts.keys, tuple(put_back(item) for item in parts.items))


@given(nested)
def test_what_is_taken_apart_can_be_put_together(value: Any) -> None:
    again = put_back(value)
    assert type(again) is type(value)
    before, after = list(flatten(value)), list(flatten(again))
    assert [path for path, _ in before] == [path for path, _ in after]
    assert all(a is b for (_, a), (_, b) in zip(before, after, strict=True))
    assert all(at_path(value, path) is leaf for path, leaf in before)


@pytest.mark.parametrize(
    "leaf", [OrderedDict(a=1), {1.5: 2}, {(1, 2): 3}, {True: 1}, {1, 2}, range(3), Plain, np.arange(3), b"x"]
)
def test_leaves(leaf: Any) -> None:
    assert take_apart(leaf) is None


def test_a_dataclass_with_more_than_its_fields_is_a_leaf() -> None:
    value = Plain(1)
    value.other = 3  # type: ignore[attr-defined]
    assert take_apart(value) is None


def test_what_contains_itself_ends() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert 2 < len(list(flatten(loop))) < 100


slices = st.builds(
    slice,
    st.none() | st.integers(-3, 3),
    st.none() | st.integers(-3, 4),
    st.sampled_from([None, 1, 2, -1, -2]),
)


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    st.lists(st.tuples(slices, slices), max_size=3),
    st.permutations(range(3)),
    st.booleans(),
    st.sampled_from(["f8", "i4", "u1"]),
)
def test_a_view_can_be_taken_again(
    shape: tuple[int, int, int], cuts: list[Any], axes: list[int], first_is_view: bool, dtype: str
) -> None:
    base = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    whole = base[::-1, :, ::-1] if first_is_view else base
    part = whole.transpose(axes)
    for cut in cuts:
        part = part[cut]
    view = view_of(part, whole)
    if part.size == 0:
        return  # lies nowhere
    assert view is not None
    again = take_view(whole, view)
    assert again.tolist() == part.tolist()
    assert again.dtype == part.dtype
    assert memory_key(again) == memory_key(part)
    assert extent_of(again) == extent_of(part)


def test_no_view() -> None:
    a = np.arange(12.0).reshape(3, 4)
    assert view_of(a.copy(), a) is None
    assert view_of(a, a[1:]) is None
    record = np.zeros(3, dtype=[("x", "f8"), ("y", "i1")])
    assert view_of(record["x"], record) is None


def test_a_view_of_another_type() -> None:
    a = np.arange(4, dtype=np.int64)
    view = view_of(a.view(np.int32)[1:3], a)
    assert view is not None
    assert view.whole_shape is None
    assert take_view(a, view).tolist() == [0, 1]


@given(st.sampled_from([12, 4000]), st.integers(0, 11), st.booleans())
def test_a_write_in_place_changes_the_stamp(size: int, position: int, strided: bool) -> None:
    a = np.arange(2.0 * size).reshape(size, 2)[:, 0] if strided else np.arange(float(size))
    before = stamp(a)
    a[position] += 1e-9
    assert stamp(a) != before
    a[position] = position * (2 if strided else 1)
    assert stamp(a) == before


@pytest.mark.parametrize("dtype", ["f4", "i8", "?", "c16", "U3", "M8[s]", "S2", [("x", "f8")]])
def test_stamps_of_all_types(dtype: Any) -> None:
    a = np.zeros(3, dtype)
    assert stamp(a) is not None
    assert isinstance(stamp(np.zeros(5000, dtype)), int)
    assert stamp(np.array(1.0)) is not None
    assert stamp(np.zeros((0, 3))) is not None


def test_objects_are_compared_by_what_they_are() -> None:
    texts = np.array([object(), "".join(["a", "b"])] * 1000, dtype=object)
    before = stamp(texts)
    assert stamp(texts) == before == stamp(texts.copy())
    texts[1] = "".join(["a", "b"])
    assert stamp(texts) != before
    assert stamp(np.zeros(2, dtype=[("a", object)])) is None


def test_same_bits() -> None:
    nan = np.array([np.nan, 0.0])
    assert same_bits(nan, nan.copy())
    assert not same_bits(nan, np.array([np.nan, -0.0]))
    assert not same_bits(nan, nan.astype("f4"))
    assert not same_bits(nan, nan[:, None])
    assert not same_bits(nan, [1])
    assert describe(nan) == "array float64 (2,)"
    assert describe(3) == "int 3"


def test_memory_is_found_through_whatever_lies_between() -> None:
    a = np.arange(6.0)
    strided = np.lib.stride_tricks.sliding_window_view(a, 2)[1:]
    assert memory_key(strided) == memory_key(a)
    data = bytearray(16)
    assert memory_key(np.frombuffer(data)) == memory_key(np.frombuffer(data, "i4")[1:])


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    a = torch.arange(12.0).reshape(3, 4)
    part = a[1:, ::2]
    view = view_of(part, a)
    assert view is not None
    assert torch.equal(take_view(a, view), part)
    assert memory_key(a.T) == memory_key(a) != memory_key(a.clone())
    before = stamp(a)
    part.add_(1)
    assert stamp(a) != before
    weight = torch.nn.Parameter(a)
    assert view_of(weight.detach(), weight) is None  # a gradient would get lost
    assert same_bits(a, a.clone())
    assert not same_bits(a, a + 1)
    with torch.inference_mode():
        kept = torch.ones(2)
        before = stamp(kept)
        kept.add_(1)
        assert stamp(kept) != before, "by its contents: it has no version"
