"""2,000 random programs, each transformed in 5 random ways, do exactly what they do without rlprof.

Bits of outputs, of all state afterwards, the order and contents of updates, and the weights that every
rollout call used are those of the interpreter (`tests.overlap.interpreter`). To see one program and run it
again: ``python -m tests.overlap.generated SEED``.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter

import pytest

from rlprof.overlap.callgraph import CallGraph
from tests.overlap import case, mutants
from tests.overlap.case import Report, run_case
from tests.overlap.generated import generate
from tests.overlap.steps import STEPS

PROGRAMS, SEQUENCES, CHUNK = 2000, 5, 100


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_transformed_programs_do_what_plain_ones_do(first: int) -> None:
    before = set(threading.enumerate())
    report = Report()
    for seed in range(first, first + CHUNK):
        run_case(seed, report, sequences=SEQUENCES)
    counts = report.counts
    # few programs cannot be recorded, and what cannot is no mismatch that went unseen
    assert counts["recorded"] >= 0.97 * CHUNK, counts
    assert counts["sequences"] == SEQUENCES * counts["recorded"]
    # most sequences changed something, and every kind of step was taken
    assert counts["changed"] >= 0.6 * counts["sequences"], counts
    assert not [name for name in STEPS if not counts[f"{name} taken"]], counts
    assert counts["failed as asked"] >= 5, counts
    gc.collect()  # threads of workers end with the graphs that have them
    until = time.monotonic() + 60
    while (left := _further(before)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left


def _further(before: set[threading.Thread]) -> list[str]:
    return [t.name for t in threading.enumerate() if t not in before and "future of a" not in t.name]


@pytest.mark.parametrize(
    "feature",
    [
        "kind loop", "kind body", "kind plain", "flavour condition", "flavour coroutine", "flavour future",
        "flavour buffer", "flavour argument", "state rows", "state shared", "state keyed", "mode read",
        "mode update", "mode refresh", "role sync", "role update", "undeclared", "inner region", "copies",
        "units", "sequences", "coroutine region", "shared outputs", "draws",
    ],
)  # fmt: skip
def test_generated_programs_have_all_that_is_claimed(feature: str) -> None:
    assert sum(feature in generate(seed).features() for seed in range(300)) >= 5


def test_a_seed_always_gives_one_program() -> None:
    assert all(generate(seed) == generate(seed) for seed in range(20))


@pytest.mark.parametrize("mutation", [mutants.rebind, mutants.rebind_external, mutants.shuffle_gather])
def test_a_wrong_transformation_is_noticed(
    mutation: mutants.Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a transformation that breaks values and a check that looks away, the comparison still tells."""
    right = case.transformed

    def wrong(native: CallGraph, draw: random.Random, counts: Counter[str]) -> CallGraph:
        graph = right(native, draw, counts)
        return mutation(graph, draw) or graph

    monkeypatch.setattr(case, "transformed", wrong)
    monkeypatch.setattr(case, "legal", lambda *_: None)
    noticed = 0
    for seed in range(20):
        try:
            run_case(seed, Report())
        except Exception:
            noticed += 1
    assert noticed >= 12
