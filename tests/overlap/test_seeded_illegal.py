"""Over 1,000 legal graphs broken on purpose: what the check lets pass computes the same in every order tried.

Three nets, each tested by itself: `rlprof.overlap.legality.check` on call graphs, the dispatcher's comparison
of versions on task graphs that lost a dependency, `rlprof.taskgraph.verify` on records of runs. The fourth,
the checked mode, is held against wrong declarations in ``test_checked_generated.py``.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from rlprof.errors import RlprofError
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.legality import check
from rlprof.overlap.recording import Recording
from rlprof.taskgraph import RunRecord, SerialBackend, TaskGraph, verify
from tests.overlap.adversary import RandomOrder, last_first
from tests.overlap.case import Mismatch, compare, same, transformed
from tests.overlap.generated import generate
from tests.overlap.interpreter import Outcome, interpret
from tests.overlap.mutants import MUTATIONS
from tests.overlap.wrapping import Wrapped, wrapped

RECORDED = 2


class Run(NamedTuple):
    """What one iteration did: what was to be dispatched, what was, and the difference that it made."""

    tasks: TaskGraph
    record: RunRecord
    difference: str


@dataclass
class Subject:
    """A recorded program that can be run again and again from one state."""

    found: Wrapped
    recording: Recording
    native: CallGraph
    wanted: Outcome
    saved: dict[str, Any]

    def run(
        self, graph: CallGraph, order: Any, change: Callable[[TaskGraph], TaskGraph] | None = None
    ) -> Run:
        """One iteration: task graph, record, and in what it differs from the plain program, if it does."""
        self.restore()
        self.found.program.install(
            graph, recording=self.recording, backend=SerialBackend, priorities=order, on_mismatch="native"
        )
        replacement: Any = self.found.program.table[graph.region]
        tasks = replacement.executor.tasks
        if change is not None:
            replacement.executor.tasks = change(tasks)
        difference = ""
        try:
            output = self.found.world.iterate(RECORDED)
            compare("run", self.wanted, output, self.found)
        except Mismatch as error:
            difference = str(error)
        finally:
            self.found.program.uninstall(self.found.region)
            self.found.world.record()
        return Run(tasks, replacement.last_record, difference)

    def restore(self) -> None:
        main, program = self.found.world.main, self.found.world.program
        for name in program.components:
            for attribute, value in vars(getattr(main, name)).items():
                if isinstance(value, np.ndarray):
                    value[...] = self.saved[f"{name}.{attribute}"]
            for spare in self.found.states[name].copies:
                spare.x[...] = 12345  # nobody may rely on what lies in a spare copy
        for state in program.states:
            if state.kind != "rows":
                getattr(self.found.world.boxes, state.name).v = self.saved[state.name].copy()


def subject(seed: int) -> Subject | None:
    """Record the program of a seed; None if it cannot be, or draws: each iteration draws anew."""
    program = generate(seed)
    if "noise(" in program.source:
        return None
    truth = interpret(program, RECORDED + 1)
    found = wrapped(program)
    try:
        recording = found.program.record(
            found.region, runs=2, run=lambda: [found.world.iterate(i) for i in range(RECORDED)]
        )
        native = found.program.graph(recording)
    except RlprofError:
        return None
    found.world.record()
    main = found.world.main
    saved = {
        f"{name}.{attribute}": value.copy()
        for name in program.components
        for attribute, value in vars(getattr(main, name)).items()
        if isinstance(value, np.ndarray)
    }
    boxes = found.world.boxes
    saved |= {s.name: getattr(boxes, s.name).v.copy() for s in program.states if s.kind != "rows"}
    return Subject(found, recording, native, truth[RECORDED], saved)


def bases(made: Subject, draw: random.Random) -> list[CallGraph]:
    """The native graph and two legal transformed ones."""
    return [made.native, *(transformed(made.native, draw, Counter()) for _ in range(2))]


def mutate_graphs(seeds: range) -> Counter[str]:
    """Break graphs of these programs; what the check lets pass has to compute the same in every order."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        made = subject(seed)
        if made is None:
            continue
        draw = random.Random(seed)
        for base in bases(made, draw):
            for mutation in draw.sample(MUTATIONS, 13):
                mutant = mutation(base, draw)
                if mutant is None or (same(mutant, base) and mutant.output == base.output):
                    continue
                name = mutation.__name__
                if check(made.native, mutant):
                    counts["caught"] += 1
                    counts[f"{name} caught"] += 1
                    continue
                counts["harmless"] += 1
                counts[f"{name} harmless"] += 1
                for order in (last_first, *(RandomOrder(seed * 10 + n) for n in range(4))):
                    difference = made.run(mutant, order).difference
                    what = f"seed {seed}: {name} of [{'; '.join(base.history)}]"
                    assert not difference, f"{what} passed the check, and {difference}"
    return counts


def remove_dependencies(seeds: range) -> Counter[str]:
    """Take an edge away from what is dispatched: it is caught, or nothing changes."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        made = subject(seed)
        if made is None:
            continue
        draw = random.Random(seed)
        for base in bases(made, draw):
            for order in (last_first, last_first, RandomOrder(seed)):
                try:
                    done = made.run(base, order, functools.partial(without_one, draw=draw))
                except RlprofError as error:
                    counts[type(error).__name__] += 1
                    continue
                violations = verify(done.tasks, replace(done.record, graph_hash=done.tasks.hash))
                if done.difference:
                    what = f"seed {seed}: [{'; '.join(base.history)}]"
                    assert violations, f"{what} without a dependency ran to its end, and {done.difference}"
                kinds = {type(v).__name__ for v in violations}
                counts[
                    "VersionsReordered" if "VersionsReordered" in kinds else min(kinds, default="kept")
                ] += 1
    return counts


def without_one(tasks: TaskGraph, draw: random.Random) -> TaskGraph:
    """All edges but those of one pair of tasks."""
    if not tasks.edges:
        return tasks
    gone = draw.choice(tasks.edges)
    kept = tuple(e for e in tasks.edges if (e.source, e.target) != (gone.source, gone.target))
    return replace(tasks, edges=kept)


def forged(tasks: TaskGraph, record: RunRecord, draw: random.Random) -> tuple[str, RunRecord]:
    """A record that says something that did not happen."""
    runs = list(record.tasks)
    at = draw.randrange(len(runs))
    run = runs[at]
    others = [t.id for t in tasks.tasks if t.id != run.task]
    kind = draw.choice(
        ("lost", "repeated", "stranger", "failed", "backwards", "edge", "graph", "seen", "made")
    )
    if kind == "graph":
        return kind, replace(record, graph_hash="0" * 64)
    if kind == "lost":
        del runs[at]
    elif kind == "repeated":
        runs.append(run)
    elif kind == "stranger":
        runs[at] = run._replace(task="nobody")
    elif kind == "failed":
        runs[at] = run._replace(failed=True)
    elif kind == "backwards":
        runs[at] = run._replace(end_ns=run.start_ns - 1)
    elif kind == "edge" and tasks.edges:
        edge = draw.choice(tasks.edges)
        first = next(r for r in runs if r.task == edge.source)
        at = next(i for i, r in enumerate(runs) if r.task == edge.target)
        early = first.end_ns - 1
        runs[at] = runs[at]._replace(start_ns=early, returned_ns=early, end_ns=early)
    elif kind == "seen" and run.seen:
        runs[at] = run._replace(seen=(run.seen[0]._replace(version="nobody"), *run.seen[1:]))
    elif kind == "made" and run.made:
        runs[at] = run._replace(made=run.made[1:])
    else:
        kind = "swapped"
        runs[at] = run._replace(task=draw.choice(others or ["nobody"]))
    return kind, replace(record, tasks=tuple(runs))


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_no_broken_graph_escapes_the_check(first: int) -> None:
    counts = mutate_graphs(range(first, first + 20))
    assert counts["caught"] >= 250, counts
    # what order alone breaks is often still legal; what values and state break hardly ever
    for name in ("rebind", "drop_access", "weaken_access", "see_another_version", "drop_call", "repeat_call"):
        assert not counts[f"{name} harmless"], counts
        assert counts[f"{name} caught"], counts


@pytest.mark.parametrize("first", range(0, 80, 40))
def test_no_removed_dependency_escapes_the_dispatcher(first: int) -> None:
    counts = remove_dependencies(range(first, first + 40))
    # most edges of a graph follow from others or from its streams; versions and inputs catch the rest
    assert counts["VersionMismatchError"] >= 5, counts
    assert counts["ReplayError"] >= 10, counts


def test_no_forged_record_escapes_verification() -> None:
    counts: Counter[str] = Counter()
    for seed in range(40):
        made = subject(seed)
        if made is None:
            continue
        draw = random.Random(seed)
        for base in bases(made, draw):
            tasks, record, difference = made.run(base, RandomOrder(seed))
            assert not difference
            assert not verify(tasks, record)
            for _ in range(4):
                kind, wrong = forged(tasks, record, draw)
                assert verify(tasks, wrong), (seed, kind)
                counts[kind] += 1
    assert sum(counts.values()) >= 300
    assert min(counts.values()) >= 5, counts
