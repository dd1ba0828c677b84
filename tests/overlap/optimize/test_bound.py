"""Lower bounds on the time of an iteration: worked by hand, and never above what a legal graph takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rl_programs import make
from rlprof.errors import UsageError
from rlprof.overlap.optimize import Options, optimize
from rlprof.overlap.optimize.bound import CHAIN, Bound, Resource, bound, sm_resource, worker_s
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.overlap.optimize.windows import Window
from rlprof.unavailable import Unavailable
from tests.overlap.graphs import rollout

#: Two epochs of a reset, three chunks of policy and simulator, and a reward.
DURATIONS = {
    "it/epoch/reset": 1.0,
    "it/epoch/chunk/policy": 2.0,
    "it/epoch/chunk/step": 3.0,
    "it/epoch/reward": 0.5,
    "it/advantage": 4.0,
}


def window(node: str, total_s: float, activity: float | None, *, eligible: bool = True) -> Window:
    return Window(node, 1, total_s, total_s, activity, 1.0, (), eligible)


def test_a_bound_worked_by_hand() -> None:
    found = bound(rollout(copies=2), DURATIONS, whole_batches=True)
    limits = {one.name: one.least_s for one in found.limits}
    # one epoch: 1 + 3 x (2 + 3) + 0.5, then advantages; epochs need nothing of each other
    assert limits[CHAIN] == pytest.approx(20.5)
    assert limits["component worker policy"] == pytest.approx(2 * 3 * 2)
    assert limits["component worker simulator"] == pytest.approx(2 * (1 + 3 * 3 + 0.5))
    assert (found.binding, found.least_s) == ("component worker simulator", 21.0)
    assert found.speedup(37) == pytest.approx(37 / 21)
    assert found.reached(37, 25) == pytest.approx(21 / 25)
    assert found.speedup(20) == 1.0  # what is shorter than the bound cannot be sped up


def test_copies_that_are_workers_of_their_own_share_the_work() -> None:
    native = rollout(copies=2)
    env = replace(native.states["ENV"], component="simulator", separate=True)
    native = replace(native, states={**native.states, "ENV": env})
    assert worker_s(native, DURATIONS)["simulator"] == pytest.approx(10.5)
    assert bound(native, DURATIONS, whole_batches=True).binding == CHAIN


def test_parts_of_a_batch_shorten_a_chain() -> None:
    parts = {"it/epoch/reset": 0.5, "it/epoch/chunk/policy": 1.5, "it/epoch/chunk/step": 1.0}
    chain = {one.name: one.least_s for one in bound(rollout(), DURATIONS, smallest_s=parts).limits}[CHAIN]
    assert chain == pytest.approx(0.5 + 3 * 2.5 + 4)  # the reward can be split, and its parts are not known


def test_resources_bound_and_what_is_not_known_is_said() -> None:
    given_: dict[str, Resource | Unavailable] = {
        "SM time": Resource(18.0),
        "cores": Resource(400.0, 16),
        "GPU time slices": Unavailable("no utilisation was read"),
    }
    found = bound(rollout(), DURATIONS, given_)
    assert (found.binding, found.least_s) == ("cores", 25.0)
    assert dict(found.unknown) == {"GPU time slices": "no utilisation was read"}
    assert Bound.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    ("durations", "resources"),
    [
        ({"it/advantage": 1.0}, {}),
        ({**DURATIONS, "it/advantage": -1.0}, {}),
        (DURATIONS, {"cores": Resource(1.0, 0)}),
        (DURATIONS, {"cores": Resource(-1.0)}),
    ],
)
def test_what_makes_no_bound_is_refused(
    durations: dict[str, float], resources: dict[str, Resource | Unavailable]
) -> None:
    with pytest.raises(UsageError):
        bound(rollout(), durations, resources)


def test_sm_time_is_that_of_what_is_called_once() -> None:
    windows = [window("it/epoch/chunk/policy", 12, 0.5), window("it/epoch", 30, 0.4)]
    assert sm_resource(rollout(), windows) == Resource(6.0)
    unknown = sm_resource(rollout(), [*windows, window("it/advantage", 4, None)])
    assert isinstance(unknown, Unavailable)
    assert sm_resource(rollout(), [*windows, window("it/advantage", 0, None, eligible=False)]) == Resource(
        6.0
    )


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 400))
def test_no_graph_that_is_found_is_faster_than_the_bound(seed: int) -> None:
    program = make(seed)
    workload = SimulatedWorkload(program.graph, replace(program.model, friction=0.0))
    alone = workload.profile(program.graph)
    durations = {w.node: w.mean_s for w in alone.windows}
    resources = {"SM time": sm_resource(program.graph, alone.windows)}
    found = optimize(workload, Options(combinations=2))
    split = any(one.kind == "split_spatial" for one in found.steps)
    least = bound(program.graph, durations, resources, whole_batches=not split)
    assert least.least_s <= workload.simulated(found.graph).makespan_s * (1 + 1e-6)
    assert least.least_s <= workload.simulated(program.graph).makespan_s * (1 + 1e-6)
