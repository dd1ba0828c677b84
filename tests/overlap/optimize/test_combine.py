"""Combination of alternatives."""

from __future__ import annotations

import pytest

from benchmarks.rl_programs import make
from rlprof.overlap.legality import check
from rlprof.overlap.optimize.combine import Item, combine, estimated_gain_s
from rlprof.overlap.optimize.steps import step

EPOCH = "iteration/rollout/epoch"
CHUNK = f"{EPOCH}/chunk"
TEMPORAL = (step("split_temporal", EPOCH, groups=2), step("interleave", EPOCH))
SPATIAL = (step("split_spatial", CHUNK, groups=2), step("interleave", CHUNK))
TRAINING = (step("train_beside_next_epoch", EPOCH, training="iteration/training/pass/part"),)


@pytest.fixture(scope="module")
def graph():
    return next(
        p.graph
        for p in map(make, range(500))
        if p.shape["copies"] == 2
        and p.shape["by_epoch"]
        and p.shape["epochs"] == 2
        and not p.shape["auto_reset"]
        and not p.shape["mixes"]
    )


def item(target: str, steps, gain_s: float, *origins: str) -> Item:
    return Item(target, steps, gain_s, frozenset(origins))


def test_of_overlapping_comparisons_the_larger_gain_counts() -> None:
    a, b, c = item("a", TEMPORAL, 3.0, "x", "y"), item("b", SPATIAL, 2.0, "y"), item("c", TRAINING, 1.0, "z")
    assert estimated_gain_s([a, b, c]) == 4.0
    assert estimated_gain_s([b, c]) == 3.0
    assert estimated_gain_s([]) == 0.0


def test_gains_of_separate_comparisons_add_up(graph) -> None:
    found = combine(graph, [item("a", TEMPORAL, 3.0, "x"), item("c", TRAINING, 1.0, "z")])
    assert found[0].gain_s == 4.0
    assert {s.kind for s in found[0].steps} == {"split_temporal", "interleave", "train_beside_next_epoch"}
    assert not check(graph, found[0].graph)


def test_one_alternative_for_each_target(graph) -> None:
    found = combine(graph, [item("a", TEMPORAL, 3.0, "x"), item("a", TRAINING, 1.0, "z")])
    assert [len(c.items) for c in found] == [1, 1]
    assert found[0].gain_s == 3.0


def test_what_counts_nothing_need_not_come_along(graph) -> None:
    found = combine(graph, [item("a", TEMPORAL, 3.0, "x"), item("b", SPATIAL, 2.0, "x")])
    assert found[0].items == (item("a", TEMPORAL, 3.0, "x"),)
    assert any(len(c.items) == 2 for c in found)


def test_a_transformation_that_cannot_join_is_told(graph) -> None:
    said: list[str] = []
    whole = (step("split_spatial", EPOCH, groups=2), step("interleave", EPOCH))
    found = combine(
        graph,
        [item("a", whole, 3.0, "x"), item("b", SPATIAL, 2.0, "z")],
        refused=lambda one, others, reason: said.append(f"{one.target} after {others[0].target}: {reason}"),
    )
    assert all(len(c.items) == 1 for c in found)
    assert any("b after a" in line and "is split already" in line for line in said)


def test_nothing_gives_nothing(graph) -> None:
    assert combine(graph, []) == ()
