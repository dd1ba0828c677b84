from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.batches import cut, join
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.errors import ReplayError


class Action(NamedTuple):
    value: np.ndarray
    log_prob: np.ndarray


@dataclass(frozen=True)
class Step:
    obs: np.ndarray
    info: dict[str, np.ndarray]


@st.composite
def partitions(draw):
    size = draw(st.integers(1, 12))
    order = draw(st.permutations(range(size)))
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), max_size=3))) if size > 1 else []
    edges = [0, *cuts, size]
    return size, tuple(tuple(order[a:b]) for a, b in pairwise(edges))


@given(partitions(), st.integers(0, 2))
def test_what_is_cut_and_joined_is_what_it_was(case, axis):
    size, samples = case
    shape = [2, 3, 4]
    shape[axis] = size
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    whole = Step(array, {"a": array.copy(), "b": (array * 2, [array > 3])})
    parts = [cut(whole, part, axis, size) for part in samples]
    assert all(type(part) is Step for part in parts)
    assert equal_bits(join(parts, samples, axis), whole)


def test_parts_by_a_regular_step_share_memory_and_others_do_not():
    array = np.zeros((6, 2))
    cut(array, (1, 3, 5))[:] = 1
    assert array[:, 0].tolist() == [0, 1, 0, 1, 0, 1]
    cut(array, (5, 1))[:] = 2
    assert array.max() == 1


def test_what_has_no_samples_stays_as_it_is():
    text, scalar = "prompt", np.array(3.0)
    value = {"text": text, "scalar": scalar, "number": 0.5, "x": np.arange(4)}
    part = cut(value, (0, 1))
    assert part["text"] is text
    assert part["scalar"] is scalar
    assert part["number"] == 0.5
    assert part["x"].tolist() == [0, 1]


def test_sequences_are_cut_by_item():
    assert cut(["a", "b", "c"], (2, 0), None) == ["c", "a"]
    assert cut(("a", "b", "c"), (1,), None) == ("b",)
    with pytest.raises(ReplayError, match="has not 3 samples"):
        cut("abc", (0,), None, 3)
    with pytest.raises(ReplayError, match="has not 4 samples"):
        cut(["a", "b", "c"], (0,), None, 4)


def test_samples_that_would_be_lost_are_refused():
    with pytest.raises(ReplayError, match="has not 4 samples along axis 0"):
        cut(np.zeros((6, 2)), (0, 1), 0, batch_size=4)
    with pytest.raises(ReplayError, match="3 samples or more"):
        cut(np.zeros(2), (0, 2))
    with pytest.raises(ReplayError, match="along axis 1"):
        cut(np.zeros(2), (0,), 1)


@pytest.mark.parametrize("leaf", [0.5, 3, True, "text", np.float64(2), np.array(2.0), b"x"])
def test_a_result_that_is_no_batch_is_refused_unless_it_is_shared(leaf):
    parts = [{"x": np.zeros(2), "mean": leaf}, {"x": np.ones(1), "mean": leaf}]
    with pytest.raises(ReplayError, match=r"at \['mean'\].*not known"):
        join(parts, ((0, 1), (2,)))
    assert join(parts, ((0, 1), (2,)), shared=("mean",))["mean"] is leaf


def test_an_object_handed_through_by_all_parts_is_itself():
    thing = object()
    whole = join([(np.zeros(1), None, thing)] * 2, ((0,), (1,)))
    assert whole[1] is None
    assert whole[2] is thing
    with pytest.raises(ReplayError, match="not known"):
        join([(object(),), (object(),)], ((0,), (1,)))


@pytest.mark.parametrize("shared", [(1,), ("log_prob",)])
def test_named_tuples_share_by_name_or_position(shared):
    scale = np.float64(7)
    parts = [Action(np.zeros(2), scale), Action(np.ones(1), scale)]
    whole = join(parts, ((0, 2), (1,)), shared=shared)
    assert type(whole) is Action
    assert whole.value.tolist() == [0, 1, 0]
    assert whole.log_prob is scale


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([np.zeros(2), np.zeros(2)], "axis 0 is not that of samples"),
        ([np.zeros(2), "x"], "axis 0"),
        ([np.zeros(2), np.zeros(1, np.float32)], "float64 and float32"),
        ([[np.zeros(2)] * 2, [np.zeros(1)]], "differ in form"),
        ([{"a": np.zeros(2)}, {"b": np.zeros(1)}], "differ in form"),
        ([(np.zeros(2),), [np.zeros(1)]], "differ in form"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, says):
    with pytest.raises(ReplayError, match=says):
        join(parts, ((0, 1), (2,)))
