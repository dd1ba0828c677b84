"""What belongs to a program as a whole: components, ranges of a capture, recording, installing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlprof.capture.annotate import annotate
from rlprof.errors import RlprofError
from rlprof.overlap import ExecutionNode, LoopNode, Program, State, updates, wrap
from rlprof.overlap.errors import RecordingError, WrapError
from rlprof.overlap.program import entries
from rlprof.overlap.transforms import interleave, split_spatial
from tests.capture.made import ranges, recording
from tests.overlap.programs import build, final_state, wrapped


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[k].tobytes() == b[k].tobytes() for k in a)


def paths(folder: Path) -> list[str]:
    """Of all ranges, by how they nest on their threads."""
    found = []
    for _, table in ranges(folder).group_by("thread"):
        around: list[tuple[int, str]] = []
        for row in table.sort("start_ns", "end_ns", descending=[False, True]).iter_rows(named=True):
            while around and around[-1][0] < row["end_ns"]:
                around.pop()
            path = "/".join((*(p for _, p in around[-1:]), row["name"]))
            around.append((row["end_ns"], path))
            found.append(path)
    return found


def test_wrapping_changes_no_result() -> None:
    plain, made = build(), wrapped()
    # the keys of draws are those of calls: without nodes there are none
    for trainer in (plain, made.trainer):
        trainer.policy.draws.normal = lambda n, shape, samples=None: np.zeros((n, *shape))  # type: ignore[method-assign]
        trainer.simulator.draws.normal = lambda n, shape, samples=None: np.ones((n, *shape))  # type: ignore[method-assign]
        trainer.learner.draws.uniform = lambda n: np.arange(n)[::-1].astype(float)  # type: ignore[method-assign]
        trainer.train(3)
    assert same(final_state(plain), final_state(made.trainer))
    made.program.unwrap()
    assert "infer" not in vars(made.trainer.policy)
    made.trainer.chunk = made.trainer.minibatch = iter
    plain.train(1)
    made.trainer.train(1)
    assert same(final_state(plain), final_state(made.trainer))


def test_recording_changes_no_result() -> None:
    made, other = wrapped(), wrapped()
    made.program.record("iteration/rollout", runs=3, skip=1, run=lambda: made.trainer.train(5))
    other.trainer.train(5)
    assert same(final_state(made.trainer), final_state(other.trainer))


def test_runs_have_one_structure_and_the_facts_of_the_program() -> None:
    made = wrapped()
    found = made.program.record(made.rollout, run=lambda: made.trainer.train(2))
    assert [i.id for i in found.runs[0][:4]] == [
        "rollout",
        "rollout/epoch[0]",
        "rollout/epoch[0]/reset",
        "rollout/epoch[0]/chunk[0]",
    ]
    assert len(found.runs[0]) == 1 + 2 * (1 + 1 + 3 * 3)
    kept = [
        [(i.id, i.arguments, i.output, i.accesses, i.memory, i.batch_size) for i in r] for r in found.runs
    ]
    assert kept[0] == kept[1]
    last = found.runs[1][-1]
    assert last.indices == (("iteration/rollout/epoch", 1), ("iteration/rollout/epoch/chunk", 2))
    assert {n.component for n in found.nodes.values()} == {"Trainer", "Policy", "Simulator", "Learner"}
    assert {name: s.component for name, s in found.states.items()} == {
        "W": "Policy",
        "ENV": "Simulator",
        "THETA": "Learner",
        "OPT": "Learner",
    }
    assert found.states["ENV"].copies == 2
    assert set(entries(made.program)) == set(found.nodes) - {n for n, s in found.nodes.items() if s.marked}


def test_a_recording_can_be_made_around_native_training() -> None:
    made = wrapped()
    with made.program.record(made.iteration) as recorder:
        with pytest.raises(RecordingError, match="has not been recorded to the end"):
            recorder.recording  # noqa: B018
        with pytest.raises(RecordingError, match="is being recorded already"):
            made.program.record(made.rollout, run=lambda: None)
        made.trainer.train(2)
    assert len(recorder.recording.runs) == 2
    with pytest.raises(KeyError), made.program.record(made.iteration):
        raise KeyError
    made.trainer.train(1)


def test_components_of_two_objects_of_one_class() -> None:
    class Sim:
        def step(self) -> None: ...

    one, two = Sim(), Sim()
    root = ExecutionNode(None, lambda: None, name="main", component="Driver")
    nodes = [
        ExecutionNode(root, one.step, name="a"),
        ExecutionNode(root, two.step, name="b"),
        ExecutionNode(root, one.step, name="c"),
        ExecutionNode(root, lambda: None, name="d"),
        ExecutionNode(root, one.step, name="e", component="Other"),
    ]
    root.program.add(State("HELD", one))
    # what is said of one node holds for its object
    assert [n.component for n in nodes] == ["Other", "Sim", "Other", "Driver", "Other"]
    assert root.program.state_specs()["HELD"].component == "Other"


def test_nodes_are_ranges_of_a_capture(tmp_path: Path) -> None:
    made = wrapped(epochs=1, chunks=2, minibatches=1)
    recorded = made.program.record(made.rollout, run=lambda: made.trainer.train(2))
    graph = made.program.graph(recorded)
    chunk = made.nodes["chunk"].path
    split = interleave(split_spatial(graph, chunk), chunk)
    found = []
    for number, installed in enumerate((None, graph, split)):
        if installed is not None:
            made.program.install(installed)
        with recording(tmp_path / str(number)):
            made.trainer.train(1)
        made.program.uninstall()
        found.append(Counter(paths(tmp_path / str(number))))
    native, same_graph, in_parts = found
    infer = "iteration/rollout/epoch/chunk/infer"
    assert native[infer] == same_graph[infer] == 2
    assert in_parts[infer] == 4
    assert native["iteration/rollout/epoch/chunk"] == 2
    assert native["iteration/minibatch/update"] == in_parts["iteration/minibatch/update"] == 1
    assert set(in_parts) <= set(native)


def test_a_call_that_cannot_be_recorded_leaves_no_range_open(tmp_path: Path) -> None:
    env = State("ENV", partitions=4)
    root = LoopNode(None, None, lambda: [step()], name="main")
    step = ExecutionNode(root, lambda: None, updates(env[lambda call: 9]), name="step")
    with recording(tmp_path):
        with pytest.raises(WrapError, match="no partition 9"):
            root.program.record(root, run=root)
        with annotate("later"):
            pass
    assert sorted(paths(tmp_path)) == ["later", "main", "main/step"]


def test_a_graph_without_its_recording_is_not_installed() -> None:
    made, other = wrapped(), wrapped()
    found = made.program.record(made.rollout, run=lambda: made.trainer.train(2))
    graph = made.program.graph(found)
    with pytest.raises(WrapError, match="recording behind the graph"):
        other.program.install(graph)
    other.program.install(graph, recording=found)
    assert "iteration/rollout" in other.program.table
    other.program.uninstall()
    assert not other.program.table


def test_a_program_of_its_own_and_one_that_is_given() -> None:
    root = LoopNode(None, entry=lambda: 3, name="iteration")
    assert list(root.program.nodes) == ["iteration"]
    assert root() == 3
    given = Program()
    assert LoopNode(None, given, lambda: 3, name="iteration").program is given
    assert "iteration" in repr(given)
    with pytest.raises(WrapError, match="has no node 'iteration'"):
        given.record(root)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda p: p.record("main", runs="2", run=print), "runs='2' is no number of runs"),
        (lambda p: p.record("main", skip=-1, run=print), "skip=-1 is no number of runs"),
        (lambda p: p.record("main", run=3), "run is a value of type int"),
        (lambda p: p.record("main", ignore="log", run=print), "ignore='log' is one text"),
        (lambda p: p.record(None, run=print), "a value of type NoneType is no node"),
        (lambda p: p.install(None), "a value of type NoneType is no node"),
        (lambda p: p.graph(p), "a value of type Program is no recording"),
        (lambda p: wrap(p, 3, p), "3 is no name of an attribute"),
        (lambda p: split_spatial(p, "main"), "the graph is a Program"),
    ],
)
def test_values_of_a_wrong_type_are_told(wrong: Callable[[Program], Any], message: str) -> None:
    program = Program()
    ExecutionNode(program, len, name="main")
    with pytest.raises(RlprofError, match=re.escape(message)):
        wrong(program)
