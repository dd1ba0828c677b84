"""The training program of `tests.overlap.programs`: recorded, transformed, installed, trained, compared."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.lower import lower
from rlprof.overlap.program import entries
from rlprof.overlap.replay import replay
from rlprof.overlap.semantics import Watch, compare, of_graph, watch_native
from rlprof.overlap.state import State
from rlprof.overlap.transforms import interleave, split_spatial, split_temporal
from rlprof.taskgraph import SerialBackend, VersionMismatchError, verify
from tests.overlap.adversary import RandomOrder, last_first
from tests.overlap.programs import Wrapped, final_state, wrapped

CHUNK = "iteration/rollout/epoch/chunk"
EPOCH = "iteration/rollout/epoch"


def spatial(graph: CallGraph) -> CallGraph:
    return interleave(split_spatial(graph, CHUNK, 2), CHUNK)


def spatial_epochs(graph: CallGraph) -> CallGraph:
    return interleave(split_spatial(graph, EPOCH, 3), EPOCH)


def temporal(graph: CallGraph) -> CallGraph:
    return interleave(split_temporal(graph, EPOCH, 2), EPOCH)


TRANSFORMED = [spatial, spatial_epochs, temporal]


def test_a_run_has_the_semantic_record_of_the_native_calls_themselves():
    made, graph, _ = recorded("iteration")
    with watch_native(made.program, graph) as natives:
        made.trainer.train(2)
    made.trainer.train(1)
    other, _, _ = recorded("iteration")
    watches: list[Watch] = []
    changed = spatial_epochs(graph)
    other.program.install(changed, watch=lambda: watches.append(Watch(changed)) or watches[-1])
    other.trainer.train(2)
    assert len(natives) == len(watches) == 2
    for native, seen in zip(natives, watches, strict=True):
        assert len(native.record.updates) == 2
        assert len(native.record.policy) == 2 * 3 * 8
        assert not compare(of_graph(graph), native.record)
        assert not compare(native.record, seen.record, bits=True)
    # another iteration has other minibatches
    assert {d.kind for d in compare(natives[0].record, watches[1].record)} == {"minibatch contents"}


def recorded(region: str) -> tuple[Wrapped, CallGraph, list]:
    made = wrapped()
    out = []
    recording = made.program.record(made.nodes[region], run=lambda: out.extend(made.trainer.train(2)))
    return made, made.program.graph(recording), out


@pytest.fixture(scope="module")
def native():
    trainer = wrapped().trainer
    return trainer.train(6), final_state(trainer)


@pytest.mark.parametrize("transform", TRANSFORMED)
@pytest.mark.parametrize("region", ["rollout", "iteration"])
@pytest.mark.parametrize("order", ["threads", "random", "last first"])
def test_training_goes_on_bit_for_bit(native, region, transform, order):
    made, graph, out = recorded(region)
    options = {
        "threads": {},
        "random": {"backend": SerialBackend, "priorities": RandomOrder(7)},
        "last first": {"backend": SerialBackend, "priorities": last_first},
    }[order]
    made.program.install(transform(graph), **options)
    out += made.trainer.train(3)
    made.program.uninstall(region if region == "iteration" else made.rollout)
    out += made.trainer.train(1)  # natively again
    assert equal_bits(out, native[0])
    assert equal_bits(final_state(made.trainer), native[1])


@pytest.mark.parametrize("transform", TRANSFORMED)
def test_the_semantic_record_and_the_run_agree_with_the_graph(transform):
    made, graph, _ = recorded("iteration")
    changed = transform(graph)
    watched: list[Watch] = []

    def watch(of: CallGraph) -> Watch:
        watched.append(Watch(of))
        return watched[-1]

    made.program.install(graph, watch=lambda: watch(graph))
    made.trainer.train(1)
    other, _, _ = recorded("iteration")
    other.program.install(changed, recording=None, watch=lambda: watch(changed))
    other.trainer.train(1)
    native, seen = (w.record for w in watched)
    assert len(native.updates) == 2
    assert len(native.policy) == 2 * 3 * 8
    assert not compare(native, seen, bits=True)
    assert not compare(of_graph(graph), native)
    assert not compare(of_graph(graph), of_graph(changed))
    replacement = other.program.table["iteration"]
    assert not verify(lower(changed), replacement.last_record)


def test_graphs_that_are_installed_one_after_another_have_the_same_threads():
    """What a library keeps for each thread is memory: it is not to grow with every graph that is tried."""
    made, graph, _ = recorded("iteration")
    before, seen, kept = set(threading.enumerate()), [], []
    for changed in (spatial(graph), spatial_epochs(graph), spatial(graph), spatial_epochs(graph)):
        made.program.install(changed)
        kept.append(made.program.table["iteration"])  # as a search does
        made.trainer.train(1)
        seen.append(set(threading.enumerate()) - before)
    assert len(seen[0]) >= 2
    assert set().union(*seen) == seen[0]
    made.program.unwrap()
    assert not set(threading.enumerate()) & seen[0]


@pytest.mark.parametrize("transform", TRANSFORMED)
@pytest.mark.parametrize(("source", "cell"), [("sync", "W"), ("minibatch[0]/update", "OPT")])
def test_a_dependency_removed_on_purpose_is_caught(transform, source, cell):
    made, graph, _ = recorded("iteration")
    made.program.install(transform(graph), backend=SerialBackend, priorities=last_first)
    executor = made.program.table["iteration"].executor
    tasks = executor.tasks
    kept = tuple(e for e in tasks.edges if e.source != f"iteration/{source}" or e.kind == "data")
    assert len(kept) < len(tasks.edges)
    executor.tasks = replace(tasks, edges=kept)
    with pytest.raises(VersionMismatchError) as caught:
        made.trainer.train(1)
    assert caught.value.cell == cell
    # and a record of such a run is seen not to be one of the graph
    kinds = {type(v).__name__ for v in verify(tasks, caught.value.record)}
    assert kinds & {"EdgeBroken", "WrongGraph", "NotRun"}


@pytest.mark.parametrize("transform", [spatial, spatial_epochs])
def test_parts_replayed_on_native_inputs_give_native_bits(transform):
    made, graph, _ = recorded("rollout")
    program, trainer = made.program, made.trainer
    constants = program._recordings[graph.region].constants
    nodes = dict(entries(program))
    states = {name: state.obj for name, state in program.states.items()}
    program.install(
        made.rollout,
        lambda: reports.append(replay(graph, transform(graph), nodes, constants, states=states)) or [],
    )
    reports: list = []
    reset = trainer.simulator.position.copy()
    made.rollout()
    (report,) = reports
    assert report.passed
    assert report.equality == "bitwise"
    assert len(report.calls) + report.unsplit == len(graph)
    assert {c.node for c in report.calls} >= {f"{CHUNK}/infer", f"{CHUNK}/step"}
    assert all(sum(c.parts) == 8 for c in report.calls)
    assert report.to_frame().height == len(report.calls)
    # the program went on natively
    program.uninstall()
    other = wrapped().trainer
    other.train(2)
    other.rollout()
    assert np.array_equal(other.simulator.position, trainer.simulator.position)
    assert not np.array_equal(reset, trainer.simulator.position)


def test_a_node_that_mixes_samples_fails_the_replay():
    made, graph, _ = recorded("rollout")
    program = made.program
    constants = program._recordings[graph.region].constants
    nodes = dict(entries(program))
    native = nodes[f"{CHUNK}/step"].entry

    def mixing(action, samples=None):
        obs, reward = native(action, samples)
        return obs, reward - reward.mean()

    states = {name: state.obj for name, state in program.states.items()}
    nodes[f"{CHUNK}/step"] = mixing
    report = replay(graph, spatial(graph), nodes, constants, states=states)
    wrong = {c.node for c in report.calls if not c.passed}
    assert wrong == {f"{CHUNK}/step"}
    assert report.equality == "none"
    with pytest.raises(ReplayError, match="ENV, of which there is no object"):
        replay(graph, spatial(graph), nodes, constants)
    without = {**program.states, "ENV": State("ENV")}
    with pytest.raises(ReplayError, match="ENV, of which there is no object"):
        replay(graph, spatial(graph), nodes, constants, states=without)


def test_state_objects_stand_for_what_they_hold_in_a_replay():
    """A State itself has no contents: put back in place of its object, every part would seem wrong."""
    made, graph, _ = recorded("rollout")
    program = made.program
    constants = program._recordings[graph.region].constants
    assert replay(graph, spatial(graph), entries(program), constants, states=program.states).passed


def test_overlap_is_between_components():
    made, graph, _ = recorded("rollout")
    made.program.install(spatial(graph))
    made.trainer.train(1)
    record = made.program.table["iteration/rollout"].last_record
    assert {run.worker for run in record.tasks} == {"Policy", "Simulator"}
    # each component serves one call at a time: verify has checked it, and the groups take turns
    steps = [run.task for run in sorted(record.tasks, key=lambda r: r.start_ns) if "step" in run.task]
    groups = [step.partition("@")[2] for step in steps]
    assert groups == ["0", "1"] * (len(steps) // 2)


def test_uninstalling_restores_the_native_path(native):
    made, graph, out = recorded("rollout")
    entry = made.rollout.entry
    made.program.install(spatial(graph))
    assert made.rollout.switch.target is not entry
    made.program.uninstall(made.rollout)
    assert made.rollout.entry == entry
    assert made.rollout.switch.target == entry
    assert not made.program.table
    out += made.trainer.train(4)
    assert equal_bits(out, native[0])


def test_a_failing_call_raises_what_it_raises_natively_and_names_the_call():
    made, graph, _ = recorded("rollout")
    made.program.install(temporal(graph))
    step = made.trainer.simulator.push
    made.trainer.simulator.push = step[:, :2]  # shapes no longer fit
    with pytest.raises(ValueError, match=r"broadcast|could not") as caught:
        made.trainer.train(1)
    assert any("chunk[0]/step" in note for note in caught.value.__notes__)
    made.trainer.simulator.push = step
    made.trainer.train(1)
