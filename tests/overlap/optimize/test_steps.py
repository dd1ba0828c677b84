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
