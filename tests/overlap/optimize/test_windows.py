"""Windows of a recorded iteration: the same numbers as those of a capture of it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.rl_programs import make
from rlprof.analysis.targets import Ranked, choose
from rlprof.analysis.windows import windows
from rlprof.overlap.optimize.simulated import simulate
from rlprof.overlap.optimize.steps import derive, step
from rlprof.overlap.optimize.windows import Activity, CallTime, invocations, rank, targets
from tests.analysis.made import trace_of

EPOCH = "iteration/rollout/epoch"


def captured(graph, times, activity, *, tau_abs_s: float = 1e-3):
    """The table of windows of a capture in which the native calls are ranges."""
    spans = invocations(graph, times)
    rows = [(int(start), int(end), path) for path, found in spans.items() for start, end in found]
    rows.sort(key=lambda r: (r[0], -r[1], r[2].count("/")))
    ranges = pl.DataFrame(
        {
            "process": [0] * len(rows),
            "thread": [1] * len(rows),
            "name": [path.rpartition("/")[2] for *_, path in rows],
            "start_ns": [r[0] for r in rows],
            "end_ns": [r[1] for r in rows],
            "domain": [None] * len(rows),
            "style": ["push_pop"] * len(rows),
            "cut": [False] * len(rows),
        }
    )
    samples = pl.DataFrame(
        {
            "device": [0] * len(activity.start_ns),
            "start_ns": activity.start_ns,
            "end_ns": activity.end_ns,
            "active_frac": activity.active_frac,
            "source": ["sm_counters"] * len(activity.start_ns),
        }
    )
    processes = pl.DataFrame({"process": [0], "pid": [1], "label": ["p"], "devices": [[0]]})
    trace = trace_of(ranges=ranges, activity=samples, processes=processes)
    return windows(trace, iteration="iteration", tau_abs_ns=round(tau_abs_s * 1e9))


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000))
def test_ranking_is_that_of_a_capture(seed: int) -> None:
    program = make(seed)
    run = simulate(program.graph, program.model)
    ours = {w.node: w for w in rank(program.graph, run.times, run.activity)}
    theirs = {r["node"]: r for r in captured(program.graph, run.times, run.activity).frame.to_dicts()}
    assert set(ours) == set(theirs)
    for node, row in theirs.items():
        mine = ours[node]
        assert mine.count == row["count"], node
        assert mine.total_s == pytest.approx(row["total_s"], rel=1e-6), node
        assert mine.mean_s == pytest.approx(row["mean_s"], rel=1e-6), node
        assert mine.sm_activity == pytest.approx(row["sm_activity"], abs=1e-6), node
        assert (mine.tier, mine.eligible, mine.rank) == (row["tier"], row["eligible"], row["rank"]), node


def test_time_of_groups_side_by_side_is_counted_once() -> None:
    program = make(3)
    graph = derive(program.graph, [step("split_temporal", EPOCH, groups=2), step("interleave", EPOCH)])
    run = simulate(graph, program.model)
    found = {w.node: w for w in rank(graph, run.times, run.activity)}
    assert found["iteration"].count == 1
    assert found["iteration"].total_s == pytest.approx(run.makespan_s, rel=1e-6)
    assert found[EPOCH].total_s < found[EPOCH].count * found[EPOCH].mean_s
    assert found[EPOCH].total_s <= found["iteration"].total_s


def test_poor_coverage_is_no_activity_and_no_rank() -> None:
    program = make(3)
    run = simulate(program.graph, program.model)
    end = max(t.end_ns for t in run.times)
    early = Activity(np.array([0]), np.array([end // 10]), np.array([0.3]), "made")
    found = {w.node: w for w in rank(program.graph, run.times, early)}
    assert found["iteration"].sm_activity is None
    assert found["iteration"].rank is None
    assert all(w.rank is None for w in rank(program.graph, run.times, None))


def test_targets_lie_in_one_worker_and_are_no_relatives() -> None:
    for seed in range(30):
        program = make(seed)
        run = simulate(program.graph, program.model)
        chosen = targets(rank(program.graph, run.times, run.activity), "iteration", 3)
        for one in chosen:
            assert len(one.workers) == 1
            assert one.node != "iteration"
            assert (one.sm_activity or 0) < 0.8
            assert not any(other.node.startswith(one.node + "/") for other in chosen)


def test_a_node_with_a_busy_part_is_left_for_its_parts() -> None:
    def node(path: str, tier: int | None, rank: int | None, *, excluded: bool = False) -> Ranked:
        return Ranked(path, "", tier, excluded, True, True, rank)

    busy = node("i/a/busy", None, None, excluded=True)
    idle = node("i/a/idle", 1, 2)
    assert choose([node("i/a", 1, 1), busy, idle], "i", 3) == (("i/a/idle", ""),)
    assert choose([node("i/a", 1, 1), idle], "i", 3) == (("i/a", ""),)


def test_windows_survive_json() -> None:
    from rlprof.overlap.optimize.windows import Window

    program = make(2)
    run = simulate(program.graph, program.model)
    for window in rank(program.graph, run.times, run.activity):
        assert Window.from_dict(window.to_dict()) == window


def test_a_call_time_is_of_one_call() -> None:
    program = make(2)
    spans = invocations(program.graph, [CallTime(program.graph.calls[0].id, 5, 9)])
    assert spans["iteration"].tolist() == [[5, 9]]
