"""What trials tell: durations by batch size with nothing beside them, lines through them, and resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rl_programs import make
from rlprof.analysis.batch_time import BatchFit
from rlprof.analysis.interference import Interference, Ran, interference
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize import Options, optimize
from rlprof.overlap.optimize.comparison import Comparison
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.result import document
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.overlap.optimize.steps import derive, step
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.optimize.trials import Estimates, Seen, alone, size_of, watch

CHUNK = "iteration/rollout/epoch/chunk"
#: A program whose chunks may be split by samples; found by going through seeds.
SPLITS = next(
    s for s in range(50) if not (p := make(s)).shape["mixes"] and not p.shape["two_policies"]
)  # fmt: skip


def in_turn(graph: CallGraph, duration_s: float = 1.0) -> dict[str, tuple[float, float]]:
    """All calls, one after the other, each as long."""
    return {c.id: (i * duration_s, (i + 1) * duration_s) for i, c in enumerate(graph.calls)}


def halves(graph: CallGraph, groups: int = 2) -> CallGraph:
    return derive(graph, (step("split_spatial", CHUNK, groups=groups), step("interleave", CHUNK)))


def test_nodes_above_calls_take_as_long_as_their_calls() -> None:
    graph = make(SPLITS).graph
    found = alone(graph, in_turn(graph))
    chunks = [seconds for node, _, seconds in found if node == CHUNK]
    calls = [c for c in graph.calls if c.node.startswith(CHUNK + "/")]
    assert len(chunks) == len({c.origin.rpartition("/")[0] for c in calls})
    assert sum(chunks) == pytest.approx(len(calls))
    assert not [node for node, *_ in found if node == graph.region]


def test_an_invocation_that_ran_in_part_is_left_away() -> None:
    graph = make(SPLITS).graph
    spans = in_turn(graph)
    first = next(c for c in graph.calls if c.node.startswith(CHUNK + "/"))
    del spans[first.id]
    before = [s for node, _, s in alone(graph, in_turn(graph)) if node == CHUNK]
    assert len([s for node, _, s in alone(graph, spans) if node == CHUNK]) == len(before) - 1


def test_a_call_beside_another_is_not_alone() -> None:
    graph = make(SPLITS).graph
    spans = in_turn(graph)
    one, other = [c.id for c in graph.calls if size_of(c)][:2]
    spans[one] = spans[other]
    assert len(alone(graph, spans)) < len(alone(graph, in_turn(graph)))


@settings(max_examples=6, deadline=None)
@given(st.floats(0, 0.05), st.floats(1e-4, 0.02), st.floats(0, 0.08))
def test_a_known_line_is_found_again_from_trials(fixed_s: float, per_sample_s: float, noise: float) -> None:
    """Native runs and serial runs of halves and quarters, each duration with its noise."""
    program = make(SPLITS)
    node = next(c.node for c in program.graph.calls if c.node.endswith("/step"))
    known = replace(program.model.nodes[node], fixed_s=fixed_s, per_sample_s=per_sample_s)
    model = replace(program.model, nodes={**program.model.nodes, node: known}, friction=0.3)
    here = SimulatedWorkload(program.graph, model, noise_frac=noise)
    estimates = Estimates().having(Seen(here.profile(program.graph).alone))
    for groups in (2, 4):
        graph = halves(program.graph, groups)
        work = _whole(program.graph)
        with here.prepared(work, [program.graph, graph]) as trials:
            for trial in trials:
                trial.run()
            estimates = estimates.having(watch(estimates, [(program.graph, trials[0]), (graph, trials[1])]))
    fit = estimates.times.fit(node)
    assert isinstance(fit, BatchFit)
    assert len(fit.sizes) == 3
    for size in fit.sizes:
        exact = fixed_s + model.dispatch_s + per_sample_s * size
        assert fit.at(size) == pytest.approx(exact, rel=0.01 + 2 * noise)
    assert fit.residual_frac <= 0.001 + 2 * noise


def _whole(graph: CallGraph) -> Comparison:
    return Comparison(graph.region, frozenset(c.origin for c in graph.calls), None, 1.0)


def test_calls_that_are_alone_by_chance_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their half batches come of a serial run: those beside others that are alone are the short ones."""
    program = make(SPLITS)
    graph = halves(program.graph)
    here = SimulatedWorkload(program.graph, program.model)
    with here.prepared(_whole(program.graph), [graph]) as (trial,):
        trial.run()
        seen = watch(Estimates(), [(graph, trial)])
        model = program.model
        for node, size, seconds in seen.alone:
            if node in model.nodes:
                exact = model.dispatch_s + model.nodes[node].fixed_s + model.nodes[node].per_sample_s * size
                assert seconds == pytest.approx(exact)
        assert len(seen.together) == 1
        # known now: it is not run serially again
        monkeypatch.setattr(trial, "serially", lambda: pytest.fail("it is known"))
        trial.run()
        assert not watch(Estimates().having(seen), [(graph, trial)]).alone


def test_a_serial_run_that_fails_tells_why_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    program = make(SPLITS)
    graph = halves(program.graph)
    here = SimulatedWorkload(program.graph, program.model)
    with here.prepared(_whole(program.graph), [graph]) as (trial,):
        trial.run()
        broken = RuntimeError("out of memory")

        def fails() -> None:
            raise broken

        monkeypatch.setattr(trial, "serially", fails)
        failed: list[Exception] = []
        seen = watch(Estimates(), [(graph, trial)], lambda: pytest.fail("it did not run"), failed.append)
    assert failed == [broken]
    assert not seen.alone
    assert len(seen.together) == 1


def test_a_node_of_which_a_part_is_split_has_no_size() -> None:
    """The loop is split, what comes before and after it is not."""
    graph = halves(make(SPLITS).graph)
    epoch = CHUNK.rpartition("/")[0]
    around = {c.samples is None for c in graph.below(epoch)}
    assert around == {True, False}
    found = alone(graph, in_turn(graph))
    assert epoch not in {node for node, *_ in found}
    assert CHUNK in {node for node, *_ in found}


@pytest.mark.parametrize("friction", [0.0, 0.3, 1.0])
def test_a_known_factor_of_interference_is_found_again_from_trials(friction: float) -> None:
    """Two calls at a time, which the device has room for: each takes 1 + friction times as long."""
    program = make(SPLITS)
    nodes = {path: replace(node, demand=0.1) for path, node in program.model.nodes.items()}
    here = SimulatedWorkload(program.graph, replace(program.model, nodes=nodes, friction=friction))
    estimates = Estimates().having(Seen(here.profile(program.graph).alone))
    graph = halves(program.graph)
    with here.prepared(_whole(program.graph), [program.graph, graph]) as trials:
        for trial in trials:
            trial.run()
        estimates = estimates.having(watch(estimates, [(program.graph, trials[0]), (graph, trials[1])]))
    lonely = [Ran(n, b, 0.0, t) for (n, b), times in estimates.times.observed.items() for t in times]
    found = interference(lonely, estimates.together)
    assert isinstance(found, Interference)
    assert found.found
    for one in found.found:
        assert one.factor == pytest.approx(1 + friction, rel=1e-6)
        assert one.error_frac < 1e-6


def test_estimates_of_a_graph_are_of_its_own_batches() -> None:
    program = make(SPLITS)
    node = next(c.node for c in program.graph.calls if c.node.endswith("/step"))
    full = next(size_of(c) for c in program.graph.calls if c.node == node)
    assert full
    estimates = Estimates().having(Seen(((node, full, 1.0), (node, full // 2, 0.75), (node, full // 4, 0.7))))
    natively, split = estimates.of(program.graph), estimates.of(halves(program.graph))
    assert natively(node, 1.0) is None  # the profile tells
    assert natively(node, 0.5)[0] == 0.75  # type: ignore[index]
    assert split(node, 0.5)[0] == 0.7  # type: ignore[index]
    assert natively("nowhere", 0.5) is None


def test_the_next_window_is_ordered_by_what_was_measured_and_the_log_says_so(tmp_path: Path) -> None:
    program = make(13)  # splits into halves, and then quarters; found by going through seeds
    store = tmp_path / "measurements.jsonl"
    options = Options(groups=(2, 4))
    log = DecisionLog()
    found = optimize(SimulatedWorkload(program.graph, program.model), options, log=log, store=Store(store))
    shown = [c for e in log.entries if e["what"] == "candidates" for c in e["candidates"]]
    assert any(c["guess"] for c in shown)
    assert any("2 sizes, residual 0.0%" in c["basis"] for c in shown)
    assert "(estimated from 2 sizes, residual 0.0%)" in log.text()
    made = document(found, log.entries)
    rows = [r for r in made["batch_times"] if r["per_sample_s"] is not None]
    assert rows
    for row in rows:
        model = program.model.nodes.get(row["node"])
        if model is not None:
            assert row["per_sample_s"] == pytest.approx(model.per_sample_s, abs=1e-8)
            assert row["fixed_s"] == pytest.approx(model.fixed_s + program.model.dispatch_s, abs=1e-7)
    # what trials told is kept with them
    again_log = DecisionLog()
    again = optimize(
        SimulatedWorkload(program.graph, program.model), options, log=again_log, store=Store(store)
    )
    assert document(again, [])["batch_times"] == made["batch_times"]
    assert document(again, [])["interference"] == made["interference"]
    assert [e for e in again_log.entries if e["what"] == "candidates"][1]["candidates"] == [
        e for e in log.entries if e["what"] == "candidates"
    ][1]["candidates"]


def test_what_was_kept_before_tells_nothing_and_is_read() -> None:
    assert Seen.from_dict({}) == Seen()
    seen = Seen((("a", 2, 0.5),))
    assert Seen.from_dict(seen.to_dict()) == seen
