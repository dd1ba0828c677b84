from __future__ import annotations

import numpy as np
import pytest

from rlprof.overlap.execute import execute
from rlprof.overlap.lower import lower
from rlprof.taskgraph import SerialBackend, verify
from tests.overlap.handmade import SAMPLES, Player, rollout_graph

OBS = np.linspace(-1, 1, SAMPLES * 3).reshape(SAMPLES, 3)


@pytest.mark.parametrize(
    "groups", [(), ((0, 1, 2), (3, 4, 5)), ((0, 2, 4), (1, 3, 5)), ((5, 0), (1,), (4, 2, 3))]
)
@pytest.mark.parametrize("backend", [None, SerialBackend])
def test_a_graph_gives_the_bits_of_the_native_program(groups, backend):
    native, other = Player(), Player()
    graph = rollout_graph(3, groups)
    for _ in range(2):  # state goes on
        wanted = native.rollout(OBS, 3)
        output, record = execute(graph, other.entries(), {}, ((OBS, 3), {}), backend=backend)
        assert np.array_equal(output["last"], wanted["last"])
        assert all(np.array_equal(a, b) for a, b in zip(output["rewards"], wanted["rewards"], strict=True))
        assert np.array_equal(native.position, other.position)
        assert not verify(lower(graph), record)
