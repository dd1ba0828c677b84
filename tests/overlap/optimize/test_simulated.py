"""Simulated time: the scheduler's where nothing is shared, and slower where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.rl_programs import make
from rlprof.overlap.lower import lower, priorities
from rlprof.overlap.optimize.search import search
from rlprof.overlap.optimize.simulated import DeviceModel, _with_durations, simulate
from rlprof.overlap.transforms import interleave, split_spatial
from rlprof.taskgraph import schedule


def without_demand(model: DeviceModel) -> DeviceModel:
    return replace(model, nodes={path: replace(node, demand=0.0) for path, node in model.nodes.items()})


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), st.integers(0, 5))
def test_without_sharing_it_is_the_list_schedule(seed: int, which: int) -> None:
    program = make(seed)
    model = without_demand(program.model)
    node = next(c.node for c in program.graph.calls if c.node.endswith("/step"))
    graphs = [program.graph, *(c.graph for c in search(program.graph, node, {}).candidates)]
    graph = graphs[which % len(graphs)]
    tasks = lower(_with_durations(graph, model))
    planned = schedule(tasks, priority=priorities(tasks))
    assert simulate(graph, model).makespan_s == pytest.approx(planned.makespan_s, rel=1e-6)


def test_calls_that_share_the_device_take_as_long_as_their_demands() -> None:
    program = next(p for p in map(make, range(200)) if not p.shape["mixes"] and not p.shape["two_policies"]
                   and not p.shape["reward"] and not p.shape["transfers"])  # fmt: skip
    chunk = "iteration/rollout/epoch/chunk"
    graph = interleave(split_spatial(program.graph, chunk, 2), chunk)

    def makespan(demand: float) -> float:
        nodes = {path: replace(node, demand=demand) for path, node in program.model.nodes.items()}
        return simulate(graph, replace(program.model, nodes=nodes, friction=0.0)).makespan_s

    free, half, full = makespan(0.0), makespan(0.5), makespan(1.0)
    assert free == pytest.approx(half)  # two halves fit
    assert full > half * 1.05


def test_activity_is_what_runs() -> None:
    program = make(0)
    run = simulate(program.graph, program.model)
    demand = {path: node.demand for path, node in program.model.nodes.items()}
    nodes = {c.id: c.node for c in program.graph.calls}
    expected = sum((t.end_ns - t.start_ns) * demand[nodes[t.call]] for t in run.times)
    end = max(t.end_ns for t in run.times)
    assert run.activity.mean(0, end) == pytest.approx(expected / end, rel=1e-6)
