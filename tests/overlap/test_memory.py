"""The bound of what is held at once."""

from __future__ import annotations

from rlprof.overlap.memory import peak_memory_bytes
from rlprof.overlap.transforms import interleave, rewire, split_spatial, split_temporal
from rlprof.unavailable import Unavailable
from tests.overlap.graphs import Node, graph_of, rollout, state

CHUNK = "it/epoch/chunk"


def test_one_stream_holds_its_largest_call() -> None:
    native = rollout()
    sizes = {call.node: float(i + 1) for i, call in enumerate(native.calls)}
    assert peak_memory_bytes(native, sizes) == max(sizes[c.node] for c in native.calls)


def test_calls_of_one_worker_are_never_held_together() -> None:
    native = rollout()
    graph = interleave(split_spatial(native, CHUNK), CHUNK)
    sizes = {call.node: 1.0 for call in native.calls}
    sizes |= {f"{CHUNK}/policy": 80.0, f"{CHUNK}/step": 20.0}
    # halves: a policy call beside a step of the other half, never beside the other half's policy call
    assert peak_memory_bytes(graph, sizes) == 40 + 10


def test_an_estimate_for_one_call_goes_before_that_of_its_node() -> None:
    native = graph_of((Node("a", "a", ("x",)), Node("b", "b", ("x",))), ())
    apart = rewire(native, "it/b", stream="own")
    assert peak_memory_bytes(apart, {"it/a": 2.0, "it/b": 3.0}) == 5
    assert peak_memory_bytes(split_spatial(native, "it/a"), {"it/a": 2.0, "it/a@1": 9.0, "it/b": 3.0}) == 9


def test_spare_copies_count_once_they_are_used() -> None:
    native = rollout(copies=2)
    sizes = {call.node: 1.0 for call in native.calls} | {"state:ENV": 1000.0}
    assert peak_memory_bytes(native, sizes) == 1
    assert peak_memory_bytes(split_temporal(native, "it/epoch"), sizes) == 1001


def test_what_is_not_known_is_not_zero() -> None:
    native = graph_of((Node("a", "a", (), {"S": "update"}),), (state("S"),))
    answer = peak_memory_bytes(native, {})
    assert isinstance(answer, Unavailable)
    assert "it/a" in answer.reason
    sizes = {call.node: 1.0 for call in rollout().calls}
    assert isinstance(peak_memory_bytes(split_temporal(rollout(copies=2), "it/epoch"), sizes), Unavailable)
