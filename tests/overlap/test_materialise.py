from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from rlprof.overlap.bindings import Const, External, Gather, Pack, Ref, Slice, View
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.materialise import materialise


class Action(NamedTuple):
    value: np.ndarray
    log_prob: np.ndarray


@dataclass
class Step:
    obs: np.ndarray
    done: bool

    def __post_init__(self):
        raise AssertionError("no code of the program runs")


def step(obs) -> Step:
    made = object.__new__(Step)
    made.obs, made.done = obs, False
    return made


OUTPUTS = {
    "a": {"x": [np.arange(6.0), (np.ones(2),)], 3: "three"},
    "b": Action(np.arange(4), np.zeros(4)),
    "c": step(np.arange(3)),
    "p@0": (np.array([0, 2]), "same"),
    "p@1": (np.array([1, 3]), "same"),
}
EXTERNAL = ((np.arange(8.0).reshape(4, 2), 5), {"seed": 7})
CONSTANTS = {"one": 1, "Action": Action, "Step": Step}


def value(binding, batch_size=None):
    return materialise(binding, OUTPUTS, EXTERNAL, CONSTANTS, batch_size)


def test_parts_of_outputs_and_arguments_are_themselves():
    assert value(Ref("a", ("x", 0))) is OUTPUTS["a"]["x"][0]
    assert value(Ref("a", (3,))) == "three"
    assert value(Ref("b", ("value",))) is value(Ref("b", (0,))) is OUTPUTS["b"].value
    assert value(Ref("c", ("obs",))) is OUTPUTS["c"].obs
    assert value(External((1, "seed"))) == 7
    assert value(External((0,))) is EXTERNAL[0]
    assert value(Const("one")) == 1


def test_views_share_memory():
    column = value(External((0, 0), View(1, (4,), (2,), "float64", (4, 2), (2, 1))))
    assert column.tolist() == [1, 3, 5, 7]
    assert np.shares_memory(column, EXTERNAL[0][0])


def test_structures_are_put_together():
    x, y = Ref("a", ("x", 0)), Const("one")
    assert value(Pack("tuple", (0, 1), (x, y)))[1] == 1
    assert type(value(Pack("list", (0,), (y,)))) is list
    assert value(Pack("dict", ("k", 2), (y, y))) == {"k": 1, 2: 1}
    action = value(Pack("Action", ("value", "log_prob"), (x, y)))
    assert type(action) is Action
    assert action.log_prob == 1
    made = value(Pack("Step", ("obs", "done"), (x, y)))
    assert type(made) is Step
    assert made.obs is OUTPUTS["a"]["x"][0]
    assert value(Pack("list", (0,), (y,))) is not value(Pack("list", (0,), (y,)))


def test_slices_and_gathers_nest():
    gathered = Gather((Ref("p@0", (0,)), Ref("p@1", (0,))), ((0, 2), (1, 3)))
    assert value(gathered).tolist() == [0, 1, 2, 3]
    whole = Gather((Ref("p@0"), Ref("p@1")), ((0, 2), (1, 3)), 0, (1,))
    assert value(whole)[1] == "same"
    assert value(Slice(gathered, (3, 0)), 4).tolist() == [3, 0]
    assert value(Slice(Slice(External((0, 0)), (1, 2, 3)), (0, 2)), 4)[:, 0].tolist() == [2, 6]


@pytest.mark.parametrize(
    ("binding", "says"),
    [
        (Ref("z"), "output of z is needed before it is there"),
        (Ref("a", ("x", 5)), r"output of a has no \['x'\]\[5\]"),
        (Ref("b", ("reward",)), r"output of b has no \['reward'\]"),
        (Ref("a", ("x", 0, "k")), r"has no \['x'\]\[0\]\['k'\]: there is array float64 \(6,\)"),
        (External((0, 9)), r"arguments has no \[0\]\[9\]"),
        (External((1, "seed"), View(0, (1,), (1,), "int64")), "where an array was recorded"),
        (External((0, 0), View(0, (4,), (2,), "float64", (5, 2))), r"had the shape \(5, 2\)"),
        (External((0, 0), View(0, (9,), (1,), "float64")), "reaches beyond"),
        (Const("two"), "no constant 'two'"),
        (Pack("Unknown", (0,), (Const("one"),)), "no type 'Unknown'"),
    ],
)
def test_what_is_not_as_recorded_is_named(binding, says):
    with pytest.raises(ReplayError, match=says):
        value(binding)


def test_a_batch_of_another_size_is_refused_before_samples_are_lost():
    with pytest.raises(ReplayError, match="has not 6 samples"):
        value(Slice(External((0, 0)), (0, 1)), batch_size=6)
