"""What `benchmarks.gpu.optimize` decides: what runs again, what a file tells of rounds, solo resources."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu.optimize import Run, _steps_by_round, ways_to_draw
from benchmarks.gpu.solo import Solo
from benchmarks.rl_programs import make
from rlprof.overlap.optimize import Options, optimize
from rlprof.overlap.optimize.bound import Resource
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.overlap.optimize.steps import derive
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.errors import ConfigurationError


def run(walls: dict[str, list[float]], *graphs: str) -> Any:
    """A run with counted iterations and graphs of these names, of which equal letters are equal graphs."""
    made = object.__new__(Run)
    rows = [{"variant": n, "warm_up": False, "wall_s": s} for n, of in walls.items() for s in of]
    made.report = SimpleNamespace(document={"iterations": rows})  # type: ignore[assignment]
    made.args = SimpleNamespace(variants="native,hybrid,by hand,optimised")  # type: ignore[assignment]
    made.graphs = {"native": None}
    made.drawn = {}
    for graph in graphs:
        name, _, kind = graph.partition("=")
        made.graphs[name] = SimpleNamespace(hash=kind)
    return made


def test_a_baseline_is_settled_when_it_is_clearly_slower_than_another() -> None:
    made = run({"native": [10.0, 10.4], "hybrid": [10.6, 10.5], "colocated-pipe": [20.0, 21.0]})
    assert not made.settled("native")
    assert not made.settled("hybrid")  # within 3 % of the slowest of the best
    assert made.settled("colocated-pipe")
    assert not made.settled("hybrid-pipe")  # never ran


def test_an_ablation_is_settled_where_there_is_a_result() -> None:
    assert run({}, "by hand=a", "optimised=b").settled("by hand")
    assert not run({}, "by hand=a").settled("by hand")
    assert not run({}, "by hand=a", "optimised=b").settled("optimised")


def test_a_graph_runs_under_one_name() -> None:
    assert run({}, "by hand=a", "optimised=a", "round 1=a").names() == ["native", "hybrid", "optimised"]
    two = run({}, "by hand=a", "optimised=b", "round 1=a", "round 2=b")
    assert two.names() == ["native", "hybrid", "optimised", "round 1"]


def test_the_steps_of_the_first_round_make_its_graph() -> None:
    rounds = 0
    for seed in (0, 2, 5):
        program = make(seed)
        result = optimize(SimulatedWorkload(program.graph, program.model), Options(rounds=2))
        counts = _steps_by_round(result)
        accepted = [r for r in result.rounds if r.accepted]
        assert len(counts) == len(accepted)
        for count, one in zip(counts, accepted, strict=True):
            assert derive(program.graph, result.steps[:count]).hash == one.after.hash
        rounds = max(rounds, len(accepted))
    assert rounds == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_cores_are_those_of_this_process_and_the_simulators() -> None:
    code = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as simulator:
        with Solo("cpu", SimpleNamespace(process_ids=(simulator.pid,))) as solo:
            until = time.monotonic() + 20
            while solo._processes() < 0.3 and time.monotonic() < until:
                time.sleep(0.05)
        assert simulator.stdin is not None
        simulator.communicate(b"\n")
    assert 0.25 < solo.simulator_core_s < 2
    found = solo.resources()
    expected = solo.own_core_s + solo.simulator_core_s
    assert found["cores"] == Resource(expected, len(os.sched_getaffinity(0)))
    assert found["GPU time slices"] == Unavailable("there is no GPU")


def test_ways_to_draw_are_refused_before_anything_runs() -> None:
    config = configure("tiny", simulator="libero", rendering="egl-one", painters=4)
    found = ways_to_draw("egl,egl-one:2,,osmesa", config)
    assert [c["painters"] for c in found.values()] == [None, 2, None]  # nothing but egl-one has any
    assert {c["shadows"] for c in found.values()} == {True}
    assert ways_to_draw("", config) == {}
    for wrong in ("egl:2", "egl-one:0", "egl-one:1000"):
        with pytest.raises(ConfigurationError, match="painters"):
            ways_to_draw(wrong, config)
    with pytest.raises(ValueError, match="two"):
        ways_to_draw("egl-one:two", config)
    with pytest.raises(ConfigurationError):
        ways_to_draw("egl", configure("tiny"))
