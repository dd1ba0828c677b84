"""Levers of a selected graph: parts, copies that take turns, whose stream goes first; on simulated time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchmarks.rl_programs import make
from rlprof.analysis.trials import Rule
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.legality import check
from rlprof.overlap.optimize.graph_levers import (
    HIGH,
    Groups,
    InTurn,
    Priorities,
    Selected,
    regrouped,
    taking_turns,
)
from rlprof.overlap.optimize.levers import Measured, measure_levers
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.simulated import DeviceModel, NodeModel, SimulatedWorkload
from rlprof.overlap.optimize.steps import derive, step
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.optimize.workload import Measurement
from rlprof.unavailable import Unavailable
from tests.overlap.graphs import Loop, Node, graph_of, state

#: A program whose batch has more than two samples; found by going through seeds.
LARGE = 9


def tried(selected: Selected, *levers: Groups | InTurn | Priorities) -> tuple[Measured, str]:
    log = DecisionLog()
    found = measure_levers(
        levers, selected.iterate, key=lambda: selected.graph.hash, rule=Rule(confidence=0.9, most_pairs=8),
        least_gain_frac=0.01, log=log, store=Store(),
    )  # fmt: skip
    return found, log.text()


def selected(program: int = 1) -> Selected:
    """The graph that the optimiser finds for a program."""
    made = make(program)
    loop = "iteration/rollout/epoch/chunk" if program == LARGE else "iteration/rollout/epoch"
    steps = (step("split_spatial", loop, groups=2), step("interleave", loop))
    return Selected(SimulatedWorkload(made.graph, made.model), derive(made.graph, steps), steps)


def test_steps_get_another_number_of_parts_where_they_have_one() -> None:
    steps = (
        step("split_spatial", "a/b", groups=2, downstream=("c",)),
        step("interleave", "a/b"),
        step("split_spatial", "a/d", groups=2, cuts=(3,)),
        step("split_temporal", "a", groups=3),
    )
    assert [dict(s.options).get("groups") for s in regrouped(steps, 4)] == [4, None, 2, 4]
    assert regrouped(regrouped(steps[:2], 4), 2) == steps[:2]


@pytest.mark.parametrize("parts", [2, 4])
def test_the_number_of_parts_that_is_fastest_is_kept(parts: int) -> None:
    """In this program two parts are faster than three, and three than four."""
    here = selected(LARGE)
    native = here.workload.native
    here.steps = regrouped(here.steps, parts)
    here.graph = derive(native, here.steps)
    lever = Groups(here)
    assert lever.present == parts
    found, said = tried(here, lever)
    assert lever.present == 2
    assert [(r.before, r.value, r.outcome) for r in found.rows] == (
        [(2, 3, "dropped"), (2, 4, "dropped")] if parts == 2 else [(4, 2, "kept"), (2, 3, "dropped")]
    )
    assert here.graph.hash == derive(native, regrouped(here.steps, 2)).hash
    assert not check(native, here.graph)
    assert "complete iterations" in said


def test_parts_that_are_not_legal_are_refused_by_name() -> None:
    here = selected()
    before = here.graph
    found, said = tried(here, Groups(here))
    assert [(r.value, r.outcome) for r in found.rows] == [(3, "not measured"), (4, "not measured")]
    assert "2 -> 3: not measured, split: 2 samples in units of 1 cannot be cut into 3 groups" in said
    assert here.graph is before


def test_parts_that_do_not_fit_into_memory_are_not_run() -> None:
    here = selected(LARGE)
    here.refuse = lambda graph: "L7: up to 9e+09 bytes are held at once, of 1e+09"
    found, _ = tried(here, Groups(here, (4,)))
    assert [(r.outcome, r.reason[:3]) for r in found.rows] == [("not measured", "L7:")]


def test_a_graph_without_splits_has_no_parts() -> None:
    made = make(1)
    here = SimulatedWorkload(made.graph, made.model)
    unsplit = Selected(here, here.native, ())
    _, said = tried(unsplit, Groups(unsplit), Priorities(unsplit, Streams(here), ("rollout", "actor")))
    assert "lever groups: does not apply, the selected graph splits nothing" in said
    assert "lever priorities: does not apply, nothing overlaps" in said


def two_simulators(*, cores: float) -> Selected:
    """Two epochs side by side, each with a simulator of its own that keeps such a share of the cores busy."""
    step_ = Node("step", "simulator", ("policy",), {"ENV": "update"}, out="obs")
    chunk = Loop("chunk", 4, (Node("policy", "policy", ("obs",)), step_))
    epoch = (Node("reset", "simulator", (), {"ENV": "refresh"}, out="obs"), chunk)
    env = replace(state("ENV", copies=2), component="simulator", separate=True)
    native = graph_of((Loop("epoch", 2, epoch),), (env,))
    path = "it/epoch/chunk"
    nodes = {f"{path}/policy": NodeModel(1.0), f"{path}/step": NodeModel(2.0, 0.0, cores)}
    nodes["it/epoch/reset"] = NodeModel(0.5)
    steps = (step("split_temporal", "it/epoch", groups=2), step("interleave", "it/epoch"))
    workload = SimulatedWorkload(native, DeviceModel(nodes, friction=0.4))
    return Selected(workload, derive(native, steps), steps)


@pytest.mark.parametrize(("cores", "outcome"), [(1.0, "kept"), (0.0, "dropped")])
def test_simulators_take_turns_where_one_keeps_all_cores_busy(cores: float, outcome: str) -> None:
    here = two_simulators(cores=cores)
    lever = InTurn(here)
    assert lever.present is None
    found, said = tried(here, lever)
    assert [(r.lever, r.before, r.value, r.outcome) for r in found.rows] == [
        ("in-turn", None, "simulator", outcome)
    ]
    assert said.startswith("lever in-turn, none -> simulator: complete iterations")
    kept = outcome == "kept"
    assert here.steps == taking_turns(here.steps, "simulator" if kept else None)
    assert here.graph.hash == derive(here.workload.native, here.steps).hash
    assert not check(here.workload.native, here.graph)
    order = ("it/epoch[0]/chunk[1]/step", "it/epoch[1]/chunk[1]/step")
    assert (order in here.graph.order_edges) == kept
    if kept:  # and from there back
        assert InTurn(here).present == "simulator"
        assert tried(here, InTurn(here))[0].rows[0].outcome == "dropped"


def test_turns_are_of_the_graph_that_another_lever_has_settled() -> None:
    here = two_simulators(cores=1.0)
    lever = InTurn(here)
    here.steps = (*here.steps, step("rewire", "it/epoch/reset", stream="own"))
    here.graph = derive(here.workload.native, here.steps)
    before = here.graph
    lever.use("simulator")
    assert here.steps[-1].kind == "rewire"
    assert dict(here.steps[1].options) == {"in_turn": ("simulator",)}
    lever.use(None)
    assert here.graph is before


def test_without_spare_copies_none_take_turns() -> None:
    here = selected()
    _, said = tried(here, InTurn(here))
    assert "lever in-turn: does not apply, no spare copies work side by side" in said


class Streams:
    """A workload that is faster while one component goes first."""

    def __init__(self, workload: SimulatedWorkload, better: str = "") -> None:
        self.native, self.key, self._workload, self._better = workload.native, workload.key, workload, better
        self.at: dict[str, int] = {}

    def set_stream_priorities(self, priorities: Mapping[str, int]) -> None:
        self.at = dict(priorities)

    def iteration(self, graph: object) -> Measurement:
        found: Measurement = self._workload.iteration(graph)  # type: ignore[arg-type]
        factor = {"": 1.0, self._better: 0.9}.get(next(iter(self.at), ""), 1.1)
        return Measurement(factor * found.time_s)


@pytest.mark.parametrize("better", ["policy", "simulator"])
def test_the_component_that_should_go_first_does(better: str) -> None:
    chosen = selected()
    here = Streams(chosen.workload, better)  # type: ignore[arg-type]
    chosen.workload = here  # type: ignore[assignment]
    told: list[dict[str, int]] = []
    lever = Priorities(chosen, here, ("policy", "simulator"), lambda: told.append(dict(here.at)))
    found, said = tried(chosen, lever)
    assert found.kept == {"priorities": better}
    assert here.at == chosen.streams == {better: HIGH}
    assert told[-1] == here.at  # captured graphs are made anew whenever priorities change
    assert f"none -> {better}" in said
    assert any(f", {better} first" in ran for ran, _ in found.iterations)


def test_priorities_that_make_no_difference_are_not_tried() -> None:
    chosen = selected()
    here = Streams(chosen.workload)  # type: ignore[arg-type]
    _, said = tried(chosen, Priorities(chosen, here, Unavailable("cpu has no streams")))
    assert said == "lever priorities: does not apply, cpu has no streams\n"
    assert not here.at


def test_a_value_that_changes_nothing_is_not_measured() -> None:
    """Nothing is interleaved here, so no turns can be taken; and parts cut at a place keep their number."""
    here = two_simulators(cores=1.0)
    here.steps = here.steps[:1]
    here.graph = derive(here.workload.native, here.steps)
    cut = selected(LARGE)
    cut.steps = (step("split_spatial", "iteration/rollout/epoch/chunk", groups=2, cuts=(1,)), cut.steps[1])
    cut.graph = derive(cut.workload.native, cut.steps)
    for chosen, lever, value in ((here, InTurn(here), "simulator"), (cut, Groups(cut), 3)):
        before = chosen.graph
        with pytest.raises(OverlapError, match="it is the same graph"):
            lever.use(value)
        assert chosen.graph is before


def test_a_step_without_names_has_nobody_take_turns() -> None:
    here = two_simulators(cores=1.0)
    here.steps = (here.steps[0], step("interleave", "it/epoch", in_turn=()))
    assert InTurn(here).present is None
