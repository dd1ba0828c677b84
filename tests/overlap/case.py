"""One generated program: recorded, transformed at random, run, and compared with its interpretation."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import IllegalTransformationError, RecordingError
from rlprof.overlap.legality import check
from rlprof.overlap.recording import Recording
from rlprof.overlap.replacement import Replacement
from rlprof.taskgraph import SerialBackend, verify
from tests.overlap.adversary import RandomOrder
from tests.overlap.generated import generate
from tests.overlap.interpreter import Outcome, interpret
from tests.overlap.runtime import Fault, digest
from tests.overlap.steps import STEPS, choose
from tests.overlap.wrapping import Wrapped, wrapped

#: Recorded natively, before anything is transformed.
RECORDED = 2


@dataclass
class Report:
    """What was tried.

    Parameters
    ----------
    counts : Counter
        Of steps taken and refused, graphs changed, features of the programs.
    """

    counts: Counter[str] = field(default_factory=Counter)


class Mismatch(AssertionError):
    """A transformed program did something else than the plain one."""


def transformed(native: CallGraph, draw: random.Random, counts: Counter[str]) -> CallGraph:
    """Apply 1 to 4 random steps; one that is refused is not taken."""
    graph = native
    for _ in range(draw.randint(1, 4)):
        name = choose(graph, draw)
        before = graph
        try:
            graph = STEPS[name](graph, draw)
        except IllegalTransformationError:
            counts[f"{name} refused"] += 1
            continue
        counts[f"{name} {'without effect' if same(graph, before) else 'taken'}"] += 1
    return graph


def same(one: CallGraph, other: CallGraph) -> bool:
    """Whether nothing was changed but history."""
    return one.calls == other.calls and one.streams == other.streams and one.order_edges == other.order_edges


def compare(what: str, wanted: Outcome, output: Any, found: Wrapped) -> None:
    """Raise Mismatch unless an iteration did exactly what the interpreter says."""
    rollouts, updates = found.world.record()
    if digest(output) != wanted.output:
        raise Mismatch(f"{what}: the output differs")
    state = found.world.state()
    wrong = [name for name, value in wanted.state.items() if state[name] != value]
    if wrong:
        raise Mismatch(f"{what}: state {', '.join(wrong)} differs")
    if updates != wanted.updates:
        raise Mismatch(f"{what}: another order or contents of updates")
    if rollouts != wanted.rollouts:
        raise Mismatch(f"{what}: rollout calls used other weights or inputs")


def run_case(seed: int, report: Report, *, sequences: int = 5) -> None:
    """Run everything for one seed; raise Mismatch if anything differs from the interpreter."""
    program = generate(seed)
    truth = interpret(program, RECORDED + sequences + 2)
    found = wrapped(program)

    def native_training() -> None:
        for i in range(RECORDED):
            compare(f"seed {seed}, recorded", truth[i], found.world.iterate(i), found)

    try:
        recording = found.program.record(found.region, runs=2, run=native_training)
        native = found.program.graph(recording)
    except RecordingError as error:
        report.counts["not recorded"] += 1
        report.counts[f"not recorded: {str(error).rpartition(':')[2][:40]}"] += 1
        return
    report.counts["recorded"] += 1
    report.counts.update(f"has {feature}" for feature in program.features())
    legal(f"seed {seed}, native", native, native)
    graph = native
    for number in range(sequences):
        draw = random.Random(seed * 100 + number)
        graph = transformed(native, draw, report.counts)
        what = f"seed {seed}, sequence {number}: {'; '.join(graph.history) or 'native'}"
        report.counts["sequences"] += 1
        report.counts["changed"] += not same(graph, native)
        legal(what, native, graph)
        replacement = install(found, recording, graph, draw)
        iteration = RECORDED + number
        compare(what, truth[iteration], found.world.iterate(iteration), found)
        record = replacement.last_record
        if record is None:
            report.counts["other arguments"] += 1
        else:
            wrong = verify(replacement.executor.tasks, record)
            if wrong:
                raise Mismatch(f"{what}: {wrong[0]}")
        found.program.uninstall(found.region)
    iteration = RECORDED + sequences
    compare(f"seed {seed}, uninstalled", truth[iteration], found.world.iterate(iteration), found)
    fail_once(found, recording, graph, iteration + 1, truth[iteration + 1], report)


def legal(what: str, native: CallGraph, graph: CallGraph) -> None:
    """Raise Mismatch unless the check finds nothing."""
    refusals = check(native, graph)
    if refusals:
        raise Mismatch(f"{what}: {refusals[0]}")


def install(found: Wrapped, recording: Recording, graph: CallGraph, draw: random.Random) -> Replacement:
    """Install a graph, to be run one call at a time in random order, or in threads."""
    how: dict[str, Any] = {"on_mismatch": "native"}  # of a region that is called with several small numbers
    found.world.probe.restless = draw.random() < 0.25
    if not found.world.probe.restless:
        how |= {"backend": SerialBackend, "priorities": RandomOrder(draw.randrange(1 << 30))}
    found.program.install(graph, recording=recording, **how)
    replacement = found.program.table[graph.region]
    assert isinstance(replacement, Replacement)
    return replacement


def fail_once(
    found: Wrapped, recording: Recording, graph: CallGraph, iteration: int, wanted: Outcome, report: Report
) -> None:
    """Have one unit of work of the next iteration fail: its exception comes out, and nothing else happens."""
    units = Counter(wanted.units)
    seed = found.world.program.seed
    draw = random.Random(seed)
    single = [unit for unit, times in units.items() if times == 1]
    if not single or draw.random() < 0.7:
        return
    found.world.probe.armed = draw.choice(single)
    install(found, recording, graph, draw)
    what = f"seed {seed}, failing at {found.world.probe.armed}: {'; '.join(graph.history) or 'native'}"
    try:
        found.world.iterate(iteration)
    except Fault:
        report.counts["failed as asked"] += 1
    except BaseException as error:
        raise Mismatch(f"{what}: {type(error).__name__} came out: {error}") from error
    else:
        raise Mismatch(f"{what}: no exception came out")
    finally:
        found.world.probe.armed = None
        found.program.uninstall(found.region)
