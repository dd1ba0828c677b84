"""Copies of a state that are component workers of their own: calls on distinct copies may run at once."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.legality import check
from rlprof.overlap.lower import lower
from rlprof.overlap.replacement import Replacement
from rlprof.overlap.transforms import interleave, split_temporal
from rlprof.taskgraph import RunRecord, verify
from tests.overlap.graphs import rollout
from tests.overlap.programs import Simulator, final_state, wrapped

EPOCH = "iteration/rollout/epoch"


def workers(graph: CallGraph) -> dict[str, set[str]]:
    """Workers of the tasks of each node."""
    found: dict[str, set[str]] = {}
    for task in lower(graph).tasks:
        found.setdefault(task.name.rpartition("/")[2], set()).add(str(task.worker))
    return found


def separate(graph: CallGraph) -> CallGraph:
    env = replace(graph.states["ENV"], component="simulator", separate=True)
    return replace(graph, states={**graph.states, "ENV": env})


def test_calls_on_a_spare_copy_have_a_worker_of_their_own() -> None:
    native = separate(rollout(copies=2))
    assert workers(native)["step"] == {"simulator"}  # natively all is done on the first object
    after = workers(interleave(split_temporal(native, "it/epoch"), "it/epoch"))
    assert after["step"] == after["reset"] == {"simulator", "simulator#1"}
    # who does not touch the state is served by the component itself
    assert after["policy"] == {"policy"}
    assert after["reward"] == {"simulator"}
    shared = workers(interleave(split_temporal(rollout(copies=2), "it/epoch"), "it/epoch"))
    assert shared["step"] == {"simulator"}


def test_it_is_a_property_of_the_program_that_a_graph_cannot_change() -> None:
    native = rollout(copies=2)
    assert "separate" not in native.to_dict()["states"][0]
    assert separate(native).hash != native.hash
    assert any("ENV" in str(refusal) for refusal in check(native, separate(native)))


def test_a_state_of_another_component_gives_its_readers_no_worker() -> None:
    native = separate(rollout(copies=2))
    foreign = replace(native, states={**native.states, "ENV": replace(native.states["ENV"], component="x")})
    assert workers(interleave(split_temporal(foreign, "it/epoch"), "it/epoch"))["step"] == {"simulator"}


def at_once(record: RunRecord) -> bool:
    """Whether simulators of two epochs ever stepped at the same time."""
    steps = [(t.task, t.start_ns, t.end_ns) for t in record.tasks if t.task.endswith("/step")]
    epochs: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for name, start, end in steps:
        epochs[1 if "epoch[1]" in name else 0].append((start, end))
    return any(a < d and c < b for (a, b), (c, d) in product(epochs[0], epochs[1]))


@pytest.mark.parametrize("own", [True, False])
def test_simulators_of_two_epochs_step_at_once_and_train_the_same(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = Simulator.step

    def slow(self: Simulator, action: Any, samples: Any = None) -> Any:
        time.sleep(0.03)
        return quick(self, action, samples)

    native = wrapped()
    expected = native.trainer.train(3)
    monkeypatch.setattr(Simulator, "step", slow)
    made = wrapped(separate=own)
    recording = made.program.record(made.iteration, run=lambda: made.trainer.train(2))
    graph = interleave(split_temporal(made.program.graph(recording), EPOCH, 2), EPOCH)
    made.program.install(graph)
    result = made.trainer.train(1)
    ran = made.program.table[made.iteration.path]
    assert isinstance(ran, Replacement)
    assert ran.last_record is not None
    assert not verify(lower(graph), ran.last_record)
    assert at_once(ran.last_record) == own
    assert equal_bits(result[-1], expected[-1])
    kept = final_state(native.trainer)
    for name, array in final_state(made.trainer).items():
        assert np.array_equal(array, kept[name]), name
