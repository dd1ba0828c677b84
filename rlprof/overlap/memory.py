"""How much memory a graph may hold at once (rule L7), from estimates for its calls."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlprof.overlap.callgraph import Call, CallGraph, expect_graph
from rlprof.overlap.dependencies import dependencies
from rlprof.overlap.precedence import Precedence
from rlprof.unavailable import Unavailable


def peak_memory_bytes(graph: CallGraph, call_bytes: Mapping[str, float]) -> float | Unavailable:
    """Upper bound of what is held at once.

    Parameters
    ----------
    graph : CallGraph
        What runs.
    call_bytes : mapping of str to float
        Bytes that a call holds while it runs, by its id, or by its node for a whole batch: a part holds its
        share of the samples. Bytes of one copy of a state object as ``"state:NAME"``; copies that are used
        besides the native object count.

    Returns
    -------
    float or Unavailable
        Over all calls, the largest sum of a call and of the largest call of every other component that may
        run beside it; a call without a component runs beside all. Unavailable if an estimate is missing.
    """
    expect_graph(graph)
    held = np.empty(len(graph.calls))
    for i, call in enumerate(graph.calls):
        bytes_ = _bytes_of(call, call_bytes)
        if bytes_ is None:
            return Unavailable(f"there is no estimate of the bytes that {call.id} holds")
        held[i] = bytes_
    copies: dict[str, set[int]] = {}
    for call in graph.calls:
        for access in call.accesses:
            if access.copy:
                copies.setdefault(access.cell.state, set()).add(access.copy)
    spare = 0.0
    for state, used in copies.items():
        size = call_bytes.get(f"state:{state}")
        if size is None:
            return Unavailable(f"there is no estimate of the bytes of a copy of {state}")
        spare += size * len(used)
    index = {call.id: i for i, call in enumerate(graph.calls)}
    edges = [(index[d.source], index[d.target]) for d in dependencies(graph)]
    edges += [(index[a], index[b]) for a, b in graph.order_edges]
    order = Precedence([[index[c] for c in stream] for stream in graph.streams], edges)
    workers = [graph.nodes[call.node].component or f"call {i}" for i, call in enumerate(graph.calls)]
    names = {worker: n for n, worker in enumerate(dict.fromkeys(workers))}
    worker = np.array([names[w] for w in workers])
    stream, place = np.array(order.stream), np.array(order.place)
    peak = 0.0
    for i in range(len(graph.calls)):
        earlier = order.clock[i, stream] >= place
        later = order.clock[:, stream[i]] >= place[i]
        beside = ~(earlier | later) & (worker != worker[i])
        largest = np.zeros(len(names))
        np.maximum.at(largest, worker[beside], held[beside])
        peak = max(peak, held[i] + float(largest.sum()))
    return peak + spare


def _bytes_of(call: Call, call_bytes: Mapping[str, float]) -> float | None:
    if call.id in call_bytes:
        return call_bytes[call.id]
    whole = call_bytes.get(call.node)
    if whole is None or call.samples is None or not call.batch_size:
        return whole
    return whole * len(call.samples) / call.batch_size


def beyond_memory(
    graph: CallGraph, limit_bytes: float | None, known: Mapping[str, float] | None
) -> str | None:
    """Say why a graph holds more than a limit, or that this cannot be told (rule L7).

    Parameters
    ----------
    graph : CallGraph
        The graph.
    limit_bytes : float or None
        M; None: there is no limit.
    known : mapping of str to float or None
        As of `peak_memory_bytes`; None: memory is not looked at.
    """
    if limit_bytes is None or known is None:
        return None
    peak = peak_memory_bytes(graph, known)
    if isinstance(peak, Unavailable):
        return f"L7: whether {limit_bytes:.3g} bytes suffice is not known: {peak.reason}"
    return (
        f"L7: up to {peak:.3g} bytes are held at once, of {limit_bytes:.3g}" if peak > limit_bytes else None
    )
