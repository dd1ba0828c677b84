"""The course of activity over the iteration of median length, before and after."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.rl_programs import make
from rlprof.overlap.optimize import Options, optimize
from rlprof.overlap.optimize.cost import Trained
from rlprof.overlap.optimize.outcome import Optimization
from rlprof.overlap.optimize.over_time import courses, kept, phases
from rlprof.overlap.optimize.result import document
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.overlap.optimize.windows import Activity
from rlprof.overlap.optimize.workload import Measurement

TASKS = (
    ("it/sync", "it/sync", "rollout", 0.0, 0.1),
    ("it/rollout/step[0]", "it/rollout/step", "env", 0.1, 0.4),
    ("it/rollout/step[1]", "it/rollout/step", "env", 0.4, 0.7),
    ("it/train", "it/train", "actor", 0.6, 1.0),
)


def samples(count: int, period_ns: int = 1_000_000) -> Activity:
    start = np.arange(count, dtype=np.int64) * period_ns
    return Activity(start, start + period_ns, np.linspace(0.0, 1.0, count), "made")


@pytest.fixture(scope="module")
def found() -> Optimization:
    program = make(1)
    return optimize(SimulatedWorkload(program.graph, program.model, noise_frac=0.01), Options())


def test_phases_reach_from_the_first_call_to_the_end_of_the_last() -> None:
    assert phases("it", TASKS) == {"sync": (0.0, 0.1), "rollout": (0.1, 0.7), "train": (0.6, 1.0)}
    assert phases("it", (("it", "it", "host", 0.0, 1.0),)) == {}


def test_what_is_kept_has_no_finer_steps_than_the_samples() -> None:
    few, many = (
        kept(samples(50, 20_000_000), 0, 10**9, "it", TASKS),
        kept(samples(1000), 0, 10**9, "it", TASKS),
    )
    assert few is not None
    assert many is not None
    assert (len(few["course"]), len(many["course"])) == (50, 400)
    assert few["period_s"] == pytest.approx(0.02)
    assert list(many["parts"]) == ["iteration", "sync", "rollout", "train"]
    assert many["parts"]["train"]["active_frac"] == pytest.approx(0.8, abs=0.01)
    assert kept(None, 0, 10**9, "it", TASKS) is None


def test_a_measurement_keeps_its_course_as_json() -> None:
    one = Measurement(1.0, 0.5, TASKS, over_time=kept(samples(10), 0, 10**7, "it", ()))
    assert Measurement.from_dict(one.to_dict()) == one
    document = one.to_dict()
    del document["over_time"]  # of earlier versions
    assert Measurement.from_dict(document) == replace(one, over_time=None)


def test_the_iterations_are_those_of_the_gain(found: Optimization) -> None:
    assert found.total is not None
    told = courses(found)
    for n, order in enumerate(("before", "after")):
        times = sorted(pair[n] for pair in found.total.pairs)
        assert told[order]["iterations"] == len(times)
        assert told[order]["time_s"] == times[(len(times) - 1) // 2]
        assert len(told[order]["course"]) <= 400
        assert len(told[order]["parts"]) > 1


def test_phases_of_native_code_are_those_of_the_profiled_iteration(found: Optimization) -> None:
    # native code tells nobody when its calls ran: only the iteration as a whole has samples
    def dark(one: Trained) -> Trained:
        m = one.measurement
        if one.graph != found.native.hash or m == found.rounds[0].profile.measurement:
            return one
        over = dict(m.over_time or {})
        over["parts"] = {"iteration": over["parts"]["iteration"]}
        return replace(one, measurement=replace(m, tasks=(), over_time=over))

    before = courses(replace(found, trained=tuple(map(dark, found.trained))))["before"]
    assert before["phases_of"].startswith("the profiled iteration")
    assert len(before["parts"]) > 1


def test_what_was_not_measured_says_why(found: Optimization) -> None:
    kept_native = courses(replace(found, graph=found.native, steps=()))
    assert kept_native["after"] == {"reason": "the native order is kept"}
    nothing = courses(replace(found, graph=found.native, steps=(), rounds=(), trained=()))
    assert nothing["before"] == {"reason": "no iteration was measured"}
    dark = tuple(replace(one, measurement=replace(one.measurement, over_time=None)) for one in found.trained)
    first = found.rounds[0]
    profile = replace(
        first.profile, measurement=replace(first.profile.measurement, over_time=None), source="no GPU"
    )
    told = courses(replace(found, trained=dark, rounds=(replace(first, profile=profile),)))
    assert told["before"] == {"reason": "no activity was sampled: no GPU"}


def test_iterations_with_a_setting_that_was_not_kept_tell_nothing_of_the_graph(found: Optimization) -> None:
    """A lever that is tried on the selected graph runs with it, and only its value differs."""
    plain = document(found, [])
    for graph in (found.native.hash, found.graph.hash):
        tried = [
            Trained(1, "levers", graph, Measurement(time_s, 0.01, TASKS, over_time=None))
            for time_s in (1e-3, 1e3)
        ]
        with_lever = replace(found, trained=(*tried[:1], *found.trained, *tried[1:]))
        told = document(with_lever, [])
        for part in ("sm_activity", "timelines", "over_time"):
            assert told[part] == plain[part], part
