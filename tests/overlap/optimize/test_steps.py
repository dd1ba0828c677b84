"""Steps: transformations as data."""

from __future__ import annotations

import json

import pytest

from benchmarks.rl_programs import make
from rlprof.errors import UsageError
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.optimize.steps import KINDS, Step, apply, derive, step
from rlprof.overlap.transforms import interleave, split_spatial

EPOCH = "iteration/rollout/epoch"


def test_a_step_does_what_the_transformation_does() -> None:
    graph = make(1).graph
    split = step("split_spatial", EPOCH, groups=2)
    assert apply(graph, split).hash == split_spatial(graph, EPOCH, 2).hash
    both = derive(graph, [split, step("interleave", EPOCH)])
    assert both.hash == interleave(split_spatial(graph, EPOCH, 2), EPOCH).hash


def test_a_step_survives_json() -> None:
    steps = [
        step("split_spatial", EPOCH, groups=2, downstream=("a/b", "a/c")),
        step("split_chained", EPOCH, cuts=(1, 3)),
        step("rewire", EPOCH, stream="own"),
        step("interleave", EPOCH),
    ]
    again = [Step.from_dict(json.loads(json.dumps(one.to_dict()))) for one in steps]
    assert again == steps
    assert str(again[0]) == f"split_spatial {EPOCH} downstream=a/b,a/c groups=2"


def test_options_have_no_order() -> None:
    one = Step("split_spatial", EPOCH, (("groups", 2), ("downstream", ("a",))))
    assert one == Step("split_spatial", EPOCH, (("downstream", ("a",)), ("groups", 2)))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"kind": "teleport", "target": EPOCH, "options": {}}, "no transformation is called 'teleport'"),
        ({"kind": "merge", "target": EPOCH, "options": {"groups": 2}}, "merge takes no 'groups'"),
        ({"kind": "merge", "target": EPOCH}, "has no kind, target and options"),
        ({"kind": "merge", "target": EPOCH, "options": 3}, "has no kind, target and options"),
    ],
)
def test_what_is_no_step_is_refused(document: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Step.from_dict(document)


def test_refusals_pass_through() -> None:
    with pytest.raises(IllegalTransformationError, match="is dependent"):
        apply(make(1).graph, step("split_temporal", f"{EPOCH}/chunk", groups=2))


def test_every_kind_can_be_applied() -> None:
    from rlprof.overlap.optimize import steps

    assert set(steps._FUNCTIONS) == set(steps._TAKES) == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("interleave", {"in_turn": "policy"}, "in_turn is 'policy'.*give a list of texts"),
        ("interleave", {"in_turn": None}, "in_turn is None"),
        ("interleave", {"in_turn": True}, "in_turn is True"),
        ("interleave", {"in_turn": ["a", 1]}, "in_turn is"),
        ("interleave", {"in_turn": [["a"]]}, "in_turn is"),
        ("interleave", {"in_turn": {"a": 1}}, "in_turn is"),
        ("split_spatial", {"cuts": 2}, "cuts is 2.*give a list of whole numbers"),
        ("split_spatial", {"cuts": [[1]]}, "cuts is"),
        ("split_spatial", {"downstream": 3}, "downstream is 3"),
        ("split_spatial", {"groups": {"a": 1}}, "groups is.*give a whole number"),
        ("split_spatial", {"groups": True}, "groups is True"),
        ("rewire", {"shift": "a"}, "shift is 'a'"),
        ("rewire", {"shift": 1.5}, "shift is 1.5"),
        ("rewire", {"stream": 1}, "stream is 1.*give a text"),
        ("train_beside_next_epoch", {}, "lacks 'training'"),
    ],
)
def test_options_of_another_type_are_refused_when_they_are_read(
    kind: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Step.from_dict({"kind": kind, "target": EPOCH, "options": options})
