"""Spatial split."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlprof.overlap.bindings import Gather, Ref
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.legality import check
from rlprof.overlap.transforms import split_spatial
from tests.overlap.graphs import Loop, Node, graph_of, rollout, run, same, state

CHUNK = "it/epoch/chunk"


def test_halves_compute_what_the_whole_batch_does() -> None:
    native = rollout()
    halves = split_spatial(native, CHUNK)
    assert check(native, halves) == ()
    assert len(halves) == len(native) + 12
    assert len(halves.streams) == 1
    for seed in range(5):
        assert same(run(native), run(halves, seed))
