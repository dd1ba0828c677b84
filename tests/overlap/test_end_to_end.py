"""The training program of `tests.overlap.programs`: recorded, transformed, installed, trained, compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.lower import lower
from rlprof.overlap.replay import replay
from rlprof.overlap.semantics import Watch, compare, of_graph
from rlprof.overlap.transforms import interleave, split_spatial, split_temporal
from rlprof.taskgraph import CellInUseError, SerialBackend, VersionMismatchError, verify
from tests.overlap.adversary import RandomOrder, last_first
from tests.overlap.programs import Wrapped, build, final_state, wrapped

CHUNK = "iteration/rollout/epoch/chunk"
EPOCH = "iteration/rollout/epoch"


def spatial(graph: CallGraph) -> CallGraph:
    return interleave(split_spatial(graph, CHUNK, 2), CHUNK)


def spatial_epochs(graph: CallGraph) -> CallGraph:
    return interleave(split_spatial(graph, EPOCH, 3), EPOCH)


def temporal(graph: CallGraph) -> CallGraph:
    return interleave(split_temporal(graph, EPOCH, 2), EPOCH)


TRANSFORMED = [spatial, spatial_epochs, temporal]


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
    assert len(native.updates) == 2 and len(native.policy) == 2 * 3 * 8
    assert not compare(native, seen, bits=True)
    assert not compare(of_graph(graph), native)
    assert not compare(of_graph(graph), of_graph(changed))
    replacement = other.program.table["iteration"]
    assert not verify(lower(changed), replacement.last_record)


def without(graph: CallGraph, source: str, target: str) -> CallGraph:
    """The graph in which `target` no longer knows that it needs what `source` leaves in ENV."""
    call = graph.by_id[target]
    assert any(a.sees == graph.by_id[source].origin for a in call.accesses)
    kept = tuple(a for a in call.accesses if a.cell.state != "ENV")
    calls = tuple(replace(c, accesses=kept) if c is call else c for c in graph.calls)
    streams = (*(tuple(c for c in s if c != target) for s in graph.streams), (target,))
    return replace(graph, calls=calls, streams=streams)


@pytest.mark.parametrize("transform", TRANSFORMED)
def test_a_dependency_removed_on_purpose_is_caught(transform):
    made, graph, _ = recorded("rollout")
    changed = transform(graph)
    names = sorted(c.id for c in changed.calls if c.origin.endswith("chunk[0]/step"))
    source = next(
        c.id for c in changed.calls if c.id.split("@")[0].endswith("/reset") and _shares(changed, c.id, names[0])
    )
    # the step still says which version it sees, and no edge brings it about
    tasks = lower(changed)
    kept = tuple(e for e in tasks.edges if (e.source, e.target) != (source, names[0]) or e.kind == "data")
    assert len(kept) < len(tasks.edges)
    cut = replace(tasks, edges=tuple(e for e in kept if not _brings(e, tasks, source, names[0])))
    made.program.install(changed, backend=SerialBackend, priorities=last_first)
    replacement = made.program.table["iteration/rollout"]
    replacement.executor.tasks = cut
    with pytest.raises((VersionMismatchError, CellInUseError)):
        made.trainer.train(1)


def _shares(graph: CallGraph, source: str, target: str) -> bool:
    origin = graph.by_id[source].origin
    return any(a.sees == origin for a in graph.by_id[target].accesses)


def _brings(edge, tasks, source: str, target: str) -> bool:
    """Whether an edge into the target makes it wait for the source in another way."""
    return edge.target == target
