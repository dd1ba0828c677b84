"""What the budget cuts short is not complete, and what more pairs would tell is measured; simulated time."""

from __future__ import annotations

from functools import cache

import pytest

from rlprof.analysis.trials import Rule
from rlprof.overlap.optimize import Optimization, Options, optimize
from rlprof.overlap.optimize.store import Store
from tests.overlap.optimize.test_resuming import TWO_ROUNDS, Timed


def session(store: Store | None = None, options: Options | None = None) -> tuple[Timed, Optimization]:
    """One session; a store is one of earlier sessions."""
    here = Timed.of(TWO_ROUNDS)
    return here, optimize(here, options, store=store, clock=lambda: here.now_s)


@cache
def whole() -> tuple[float, str]:
    """Seconds of a search without a budget, and the graph that it finds."""
    here, found = session()
    return here.now_s, found.graph.hash


@pytest.mark.parametrize("share", [0.15, 0.44, 0.61, 0.88, 0.95, 0.99])
def test_what_is_complete_has_nothing_left_to_measure(share: float) -> None:
    total_s, graph = whole()
    budget_s = share * total_s
    store = Store()
    here, found = session(store, Options(budget_s=budget_s))
    assert found.stopped  # shares of the last tenth end while all rounds together are compared
    assert found.ended.startswith("the budget of ")
    began_s, late = 0.0, []
    for did, time_s in here.done:
        if began_s >= budget_s:
            late.append(did[0])
        began_s += time_s
    assert len(late) <= 2  # what a pair or a warm-up lacks, and one serial run
    more, resumed = session(store)
    assert more.done
    assert not resumed.stopped
    assert resumed.graph.hash == graph
    again, _ = session(store)
    assert not again.done


@pytest.mark.parametrize("budget", ["own", "of all"])
def test_only_the_budget_of_all_leaves_something_for_another_session(budget: str) -> None:
    """Comparisons that end by their own budget are as long as somebody wanted them."""
    seconds = 1e-3 if budget == "own" else 1e9
    rule = Rule(confidence=0.9, most_pairs=9, budget_s=seconds)
    total_s, _ = whole()
    limit_s = 2 * total_s if budget == "own" else 0.36 * total_s
    _, found = session(options=Options(local=rule, validation=rule, budget_s=limit_s))
    assert found.stopped == (budget == "of all")


def test_more_pairs_do_not_lose_what_fewer_have_found() -> None:
    few = Rule(confidence=0.9, most_pairs=8)
    more = Rule(confidence=0.9, most_pairs=16)
    assert few.least_pairs == 5
    assert more.least_pairs == 6  # five that decided do not any more
    store = Store()
    _, first = session(store, Options(local=few, validation=few))
    here, found = session(store, Options(local=more, validation=more))
    assert found.graph.hash == first.graph.hash
    assert not found.stopped
    assert {did[0] for did, _ in here.done} == {"preparing", "trial", "iteration"}
    again, same = session(store, Options(local=few, validation=few))
    assert same.graph.hash == first.graph.hash
    assert not again.done
