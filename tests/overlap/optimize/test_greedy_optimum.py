"""Greedy against the known optimum: a few programs always, more of them in the slow tests."""

from __future__ import annotations

import pytest

from benchmarks.greedy_optimum import WITHIN, solve, summary
from benchmarks.rl_programs import make
from rlprof.overlap.legality import check
from rlprof.overlap.optimize import Options


def test_equal_seeds_make_equal_programs() -> None:
    for seed in range(20):
        one, other = make(seed), make(seed)
        assert one.graph.hash == other.graph.hash
        assert one.model == other.model
        assert not check(one.graph, one.graph)
    assert len({make(seed).graph.hash for seed in range(40)}) > 30


def test_greedy_is_near_the_optimum_of_a_few() -> None:
    cases = [solve(make(seed), Options()) for seed in (1, 2, 4, 103)]
    assert all(c.optimum_s <= c.native_s for c in cases)
    assert all(c.greedy_s <= c.native_s for c in cases)
    assert all(c.excess_frac >= -1e-9 for c in cases)  # the enumeration holds what the optimiser may choose
    assert all(c.excess_frac <= WITHIN for c in cases)
    assert all(c.reachable > 1 for c in cases)


@pytest.mark.slow
def test_greedy_is_near_the_optimum_in_95_percent() -> None:
    found = summary([solve(make(seed), Options()) for seed in range(1_000, 1_060)])
    assert found["within_5_percent_frac"] >= 0.95  # type: ignore[operator]
