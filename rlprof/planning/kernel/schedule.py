"""List scheduling of all steps, compiled: the same order and times as `rlprof.planning.timeline`."""

from __future__ import annotations

import numba as nb
import numpy as np

from rlprof.planning.kernel.tables import Boxes, Floats, Ints, StepGraph, Tables


@nb.njit(cache=True)
def _by_node(g: StepGraph, ends: Ints) -> tuple[Ints, Ints]:
    """Edges grouped by the node at one of their ends: offsets (N + 1,), and edges (X,)."""
    offsets = np.zeros(g.nodes + 1, np.int64)
    for e in range(g.edges):
        offsets[ends[e] + 1] += 1
    for i in range(g.nodes):
        offsets[i + 1] += offsets[i]
    fill, grouped = offsets[:-1].copy(), np.empty(g.edges, np.int64)
    for e in range(g.edges):
        grouped[fill[ends[e]]] = e
        fill[ends[e]] += 1
    return offsets, grouped


@nb.njit(cache=True)
def _goes_first(g: StepGraph, rank: Floats, here: int, there: int) -> bool:
    """Tie rule: transfers, larger rank, invocation, step, phase, order of making."""
    i, j = here % g.nodes, there % g.nodes
    if g.is_op[i] != g.is_op[j]:
        return bool(g.is_op[i] < g.is_op[j])
    a, b = rank[here - i + g.head[i]], rank[there - j + g.head[j]]
    if a != b:
        return bool(a > b)
    if g.vertex[i] != g.vertex[j]:
        return bool(g.vertex[i] < g.vertex[j])
    if here - i != there - j:
        return here < there
    if g.phase[i] != g.phase[j]:
        return bool(g.phase[i] < g.phase[j])
    return bool(i < j)


@nb.njit(cache=True)
def schedule_steps(t: Tables, b: Boxes, g: StepGraph, critical_s: Floats) -> tuple[float, float]:
    """Return makespan and GPU-seconds held; fill in time on the critical path by invocation, float64 (V,).

    A node is numbered step * N + position in the step.
    """
    count, steps, nodes = len(t.first), t.steps, g.nodes
    into, by_tip = _by_node(g, g.tip)
    out_of, by_tail = _by_node(g, g.tail)
    total = steps * nodes
    # ranks backwards: every edge leads to a later node of the same step or to a later step
    rank, waiting = np.zeros(total), np.zeros(total, np.int64)
    for k in range(steps - 1, -1, -1):
        for i in range(nodes - 1, -1, -1):
            if k < g.least_step[i]:
                continue
            here = k * nodes + i
            rank[here] += g.time_s[i]
            for y in range(into[i], into[i + 1]):
                e = by_tip[y]
                j = k - g.back[e]
                if k >= g.since[e] and j >= g.least_step[g.tail[e]] and j >= 0:
                    before = j * nodes + g.tail[e]
                    rank[before] = max(rank[before], rank[here])
                    waiting[here] += 1
    ready_s, finish_s = np.zeros(total), np.zeros(total)
    fixed_by = np.full(total, -1, np.int64)
    free_s, holder = np.zeros(count), np.full(count, -1, np.int64)
    ready = np.empty(total, np.int64)
    readies = 0
    for k in range(steps):
        for i in range(nodes):
            if k >= g.least_step[i] and waiting[k * nodes + i] == 0:
                ready[readies] = k * nodes + i
                readies += 1
    makespan_s = busy_s = 0.0
    last = -1
    while readies:
        pick, start_s = -1, 0.0
        for y in range(readies):
            i = ready[y] % nodes
            now = max(ready_s[ready[y]], free_s[g.vertex[i]])
            if t.reserve_source and g.source[i] >= 0:
                now = max(now, free_s[g.source[i]])
            if pick < 0 or now < start_s or (now == start_s and _goes_first(g, rank, ready[y], ready[pick])):
                pick, start_s = y, now
        here = ready[pick]
        readies -= 1
        ready[pick] = ready[readies]
        k, i = here // nodes, here % nodes
        v = g.vertex[i]
        u = g.source[i] if t.reserve_source and g.source[i] >= 0 else v
        finish_s[here] = start_s + g.time_s[i]
        if ready_s[here] < start_s:
            for w in range(count):
                held = b.share[v, w] > 0 or b.share[u, w] > 0
                if held and holder[w] >= 0 and finish_s[holder[w]] == start_s:
                    fixed_by[here] = holder[w]
        for w in range(count):
            if b.share[v, w] > 0 or b.share[u, w] > 0:
                free_s[w] = max(free_s[w], finish_s[here])
        holder[v] = holder[u] = here
        busy_s += g.time_s[i] * (b.share[v, v] + (b.share[u, u] - b.share[u, v]))
        if finish_s[here] > makespan_s or last < 0:
            makespan_s, last = finish_s[here], here
        for y in range(out_of[i], out_of[i + 1]):
            e = by_tail[y]
            j = k + g.back[e]
            if j >= steps or j < g.least_step[g.tip[e]] or j < g.since[e]:
                continue
            after = j * nodes + g.tip[e]
            if finish_s[here] > ready_s[after] or fixed_by[after] < 0:
                ready_s[after], fixed_by[after] = finish_s[here], here
            waiting[after] -= 1
            if waiting[after] == 0:
                ready[readies] = after
                readies += 1
    critical_s[:] = 0.0
    while last >= 0:
        i = last % nodes
        if g.is_op[i]:
            critical_s[g.vertex[i]] += g.time_s[i]
        last = fixed_by[last]
    return makespan_s, busy_s
