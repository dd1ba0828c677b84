"""Where the boxes of a state lie, compiled: origins, what they share, which invocations fuse."""

from __future__ import annotations

import numba as nb
import numpy as np

from rlprof.planning.kernel.tables import Boxes, Ints, Tables


@nb.njit(cache=True)
def boxes_of(t: Tables, state: Ints) -> Boxes:
    """Return the boxes of a state, int64 (V, 2): candidate and origin of each invocation."""
    count = len(t.first)
    origin, extent = np.empty((count, 3), np.int64), np.empty((count, 3), np.int64)
    at = np.empty(count, np.int64)
    for v in range(count):
        at[v] = t.first[v] + state[v, 0]
        number = state[v, 1]
        for axis in range(2, -1, -1):
            extent[v, axis] = t.extent[at[v], axis]
            slots = t.limits[axis] // extent[v, axis]
            origin[v, axis] = number % slots * extent[v, axis]
            number //= slots
    share = np.empty((count, count), np.int64)
    for u in range(count):
        for v in range(count):
            shared = 1
            for axis in range(3):
                low = max(origin[u, axis], origin[v, axis])
                high = min(origin[u, axis] + extent[u, axis], origin[v, axis] + extent[v, axis])
                shared *= max(0, high - low)
            share[u, v] = shared
    fused, fused_into = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    for u in range(count):
        for v in range(u + 1, count):
            taken = fused[u] >= 0 or fused_into[u] >= 0 or fused[v] >= 0 or fused_into[v] >= 0
            if t.fusable[u, v] == 0 or taken:
                continue
            same_layout = (
                t.layout[at[u]] == t.layout[at[v]] and t.microbatches[at[u]] == t.microbatches[at[v]]
            )
            if same_layout and share[u, v] == share[u, u] and share[u, v] == share[v, v]:
                fused[u], fused_into[v] = v, u
    return Boxes(at, origin, extent, share, fused, fused_into)


@nb.njit(cache=True)
def same_gpus(b: Boxes, u: int, v: int) -> bool:
    """Whether two boxes are the same GPUs."""
    return bool(b.share[u, v] == b.share[u, u] and b.share[u, v] == b.share[v, v])


@nb.njit(cache=True)
def tier(b: Boxes, u: int, v: int) -> int:
    """Slowest level of the network that two boxes span: 0 a node, 1 nodes of a rack, 2 racks."""
    for axis in range(2):
        low = min(b.origin[u, axis], b.origin[v, axis])
        high = max(b.origin[u, axis] + b.extent[u, axis], b.origin[v, axis] + b.extent[v, axis])
        if high - low > 1:
            return 2 - axis
    return 0
