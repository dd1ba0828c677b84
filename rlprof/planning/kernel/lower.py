"""Lowering of one step, compiled: the same nodes and edges as `rlprof.planning.lower`."""

from __future__ import annotations

import numba as nb
import numpy as np

from rlprof.planning.kernel.boxes import same_gpus, tier
from rlprof.planning.kernel.tables import Boxes, StepGraph, Tables


@nb.njit(cache=True)
def comm_s(t: Tables, b: Boxes, payload: float, u: int, v: int) -> float:
    """Time of a transfer between two boxes."""
    link = tier(b, u, v)
    smaller = min(b.share[u, u], b.share[v, v])
    return float(t.p2p[link, 0] + payload / smaller * t.p2p[link, 1])


@nb.njit(cache=True)
def reshard_s(t: Tables, b: Boxes, v: int) -> float:
    """Time of a reshard within a box."""
    size = b.share[v, v]
    if size == 1:
        return 0.0
    link = tier(b, v, v)
    each = t.weight_bytes[v] / size
    return float((size - 1) * t.collective[link, 0] + each * t.collective[link, 1])


@nb.njit(cache=True)
def _empty(t: Tables) -> StepGraph:
    """Arrays large enough for any state."""
    count, phases = len(t.first), len(t.fractions)
    moves = len(t.data) * phases + len(t.pairs) + len(t.publications)
    nodes, edges = count * phases + moves, 2 * moves + count * (phases + 1)
    return StepGraph(
        0,
        0,
        np.empty(nodes, np.int64),
        np.full(nodes, -1, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.empty(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.empty(nodes),
        np.empty(edges, np.int64),
        np.empty(edges, np.int64),
        np.zeros(edges, np.int64),
        np.zeros(edges, np.int64),
    )


@nb.njit(cache=True)
def _install(t: Tables, b: Boxes, installed: np.ndarray, v: int, node: int) -> None:
    """From `node` on the model of v is in place where v runs; what was known of that place is replaced."""
    for x in range(len(installed)):
        if t.model[x] == t.model[v] and t.layout[b.at[x]] == t.layout[b.at[v]] and same_gpus(b, x, v):
            installed[x] = -1
    installed[v] = node


@nb.njit(cache=True)
def lower_step(t: Tables, b: Boxes) -> StepGraph:
    """Return the graph of one step.

    Nodes are in an order in which every edge of the same step leads forward. The tip of an edge is the first
    part of an invocation, or one of its phases, that is made after it: until then it is -1 minus the phase.
    The tail of a publication is made last: until then it is -1 minus the invocation.
    """
    g = _empty(t)
    count, phases = len(t.first), len(t.fractions)
    first_part, last_part = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    split, generates = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for e in range(len(t.data)):
        if t.data[e, 2] and b.share[t.data[e, 0], t.data[e, 1]] == 0:
            split[t.data[e, 0]] = split[t.data[e, 1]] = generates[t.data[e, 0]] = True
    installed, installed_rank = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    published, published_edge = (
        np.full(len(t.publications), -1, np.int64),
        np.full(len(t.publications), -1, np.int64),
    )
    n = x = 0
    for place in range(count):
        v = t.order[place]
        one, two = v, -1
        if b.fused[v] >= 0:
            two = b.fused[v]
        elif b.fused_into[v] >= 0:
            one, two = b.fused_into[v], v
        if first_part[one] >= 0:
            continue  # made with the other half
        begin = x
        for e in range(len(t.data)):
            u, w = t.data[e, 0], t.data[e, 1]
            if w not in (one, two):
                continue
            if t.data[e, 2] and b.share[u, w] == 0:
                before = 0.0
                for q in range(phases):
                    g.time_s[n] = comm_s(t, b, t.volume[e] * (t.fractions[q] - before), u, w)
                    before = t.fractions[q]
                    g.vertex[n], g.source[n], g.phase[n], g.head[n] = w, u, q, n
                    g.tail[x], g.tip[x] = first_part[u] + q, n
                    g.tail[x + 1], g.tip[x + 1] = n, -1 - q
                    n, x = n + 1, x + 2
            elif same_gpus(b, u, w):
                g.tail[x], g.tip[x] = last_part[u], -1
                x += 1
            else:
                g.vertex[n], g.source[n], g.head[n] = w, u, n
                g.time_s[n] = comm_s(t, b, t.volume[e], u, w)
                g.tail[x], g.tip[x] = last_part[u], n
                g.tail[x + 1], g.tip[x + 1] = n, -1
                n, x = n + 1, x + 2
        for p in range(len(t.pairs)):
            u, w = t.pairs[p, 0], t.pairs[p, 1]
            same = same_gpus(b, u, w)
            shadow = t.tau[w] > 0 and b.share[u, w] == 0
            if w not in (one, two) or shadow or (same and t.layout[b.at[u]] == t.layout[b.at[w]]):
                continue
            if not same:
                g.tail[x], g.tip[x] = last_part[u], -1
                x += 1
                continue
            g.vertex[n], g.source[n], g.head[n] = w, u, n
            g.time_s[n] = reshard_s(t, b, w)
            g.tail[x], g.tip[x] = last_part[u], n
            g.tail[x + 1], g.tip[x + 1] = n, -1
            if not t.trains[w]:
                _install(t, b, installed, w, n)
                installed_rank[w] = t.rank[w]
            n, x = n + 1, x + 2
        for p in range(len(t.publications)):
            u, w = t.publications[p, 0], t.publications[p, 1]
            if w not in (one, two):
                continue
            same, since = same_gpus(b, u, w), t.tau[w] + 1
            g.tail[x], g.back[x] = -1 - u, since
            if same and t.layout[b.at[u]] == t.layout[b.at[w]]:
                g.tip[x] = -1
                x += 1
                continue
            g.vertex[n], g.source[n], g.head[n], g.least_step[n] = w, u, n, since
            if same:
                g.time_s[n] = reshard_s(t, b, w)
            else:
                larger = max(b.share[u, u], b.share[w, w])
                payload = t.weight_bytes[w] * (larger - b.share[u, w]) / larger
                g.time_s[n] = comm_s(t, b, payload, u, w)
            g.tip[x] = n
            g.tail[x + 1], g.tip[x + 1], g.since[x + 1] = n, -1, since
            published[p], published_edge[p] = n, x + 1
            n, x = n + 1, x + 2
        parts = phases if split[one] else 1
        first_part[one], last_part[one] = n, n + parts - 1
        if two >= 0:
            first_part[two], last_part[two] = n, n + parts - 1
        for e in range(begin, x):
            if g.tip[e] < 0:
                g.tip[e] = n - 1 - g.tip[e]
        for q in range(parts):
            g.vertex[n], g.phase[n], g.is_op[n] = one, q, 1
            g.head[n] = n - q if generates[one] else n
            if parts > 1:
                g.time_s[n] = t.phase_s[b.at[one], q]
            else:
                g.time_s[n] = t.time_s[b.at[one]]
            if two >= 0:
                bubble_s = min(t.bubble_s[b.at[one]], t.bubble_s[b.at[two]])
                g.time_s[n] = t.time_s[b.at[one]] + t.time_s[b.at[two]] - bubble_s
            if q:
                g.tail[x], g.tip[x] = n - 1, n
                x += 1
            n += 1
        if t.trains[one]:
            g.tail[x], g.tip[x], g.back[x] = n - 1, first_part[one], 1
            x += 1
    for e in range(x):
        if g.tail[e] < 0:
            g.tail[e] = last_part[-1 - g.tail[e]]
    # publications whose version is in place by another node wait for that one, and their own is never there
    for p in range(len(t.publications)):
        node, w = published[p], t.publications[p, 1]
        if node < 0:
            continue
        other = -1
        for y in range(count):
            here = t.model[y] == t.model[w] and t.layout[b.at[y]] == t.layout[b.at[w]] and same_gpus(b, y, w)
            if here and installed[y] >= 0 and t.rank[w] >= installed_rank[y]:
                other = installed[y]
        if other >= 0:
            g.least_step[node] = t.steps
            g.tail[published_edge[p]] = other
        else:
            _install(t, b, installed, w, node)
            installed_rank[w] = -1
    return StepGraph(
        n,
        x,
        g.vertex,
        g.source,
        g.phase,
        g.is_op,
        g.head,
        g.least_step,
        g.time_s,
        g.tail,
        g.tip,
        g.back,
        g.since,
    )
