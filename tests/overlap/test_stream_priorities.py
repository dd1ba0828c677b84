"""Priorities of CUDA streams, as far as they can be seen without a GPU: what streams are asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlprof.overlap.device import CudaStreams
from rlprof.overlap.execute import Executor
from rlprof.overlap.replacement import Replacement
from tests.overlap.handmade import rollout_graph


class Cuda:
    """Makes streams that remember how they were asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def Stream(self, device: int, priority: int) -> object:
        self.asked.append((device, priority))
        return object()


@pytest.mark.parametrize(
    ("priorities", "wanted"),
    [
        (None, {"policy": 0, "simulator": 0, "simulator#1": 0, "stream 2": 0}),
        ({"policy": -1}, {"policy": -1, "simulator": 0, "simulator#1": 0, "stream 2": 0}),
        ({"simulator": -1}, {"policy": 0, "simulator": -1, "simulator#1": -1, "stream 2": 0}),
    ],
)
def test_streams_of_a_component_and_of_its_copies(priorities: Any, wanted: dict[str, int]) -> None:
    cuda = Cuda()
    streams = CudaStreams(priorities)
    torch = SimpleNamespace(cuda=cuda)
    first = {lane: streams.stream(torch, lane, 1) for lane in wanted}
    assert cuda.asked == [(1, priority) for priority in wanted.values()]
    assert {lane: streams.stream(torch, lane, 1) for lane in wanted} == first  # kept
    assert len(cuda.asked) == len(wanted)


def test_a_graph_is_installed_with_priorities() -> None:
    graph = rollout_graph()
    entries = dict.fromkeys(graph.nodes, lambda *_: None)
    made = Executor(graph, entries, {}, stream_priorities={"policy": -1})
    assert made._streams.priorities == {"policy": -1}
    assert Executor(graph, entries, {})._streams.priorities == {}
    stands_for = Replacement(graph, entries, {}, native=lambda: None, stream_priorities={"policy": -1})
    assert stands_for.executor._streams.priorities == {"policy": -1}
