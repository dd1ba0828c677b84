"""Merge: the parts of a node's calls become whole calls again, fed in native order."""

from __future__ import annotations

from dataclasses import replace

from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import IllegalTransformationError, NotBySampleError
from rlprof.overlap.parts import whole_call
from rlprof.overlap.transforms.common import calls_below, rebound, refuse, verified, with_boundaries

RULE = "merge"


def merge(graph: CallGraph, target: str) -> CallGraph:
    """Undo the split of the calls below a node: it is given all parts of its inputs, gathered.

    Parameters
    ----------
    graph : CallGraph
        After a spatial split of `target`.
    target : str
        Path of a node; all split calls below it are merged.

    Returns
    -------
    CallGraph
        A whole call stands where its first part stood, if all its parts are in one stream; otherwise the
        merged calls have a stream of their own. Order that was chosen between the parts and other groups is
        given up. Its duration is the sum of the parts'.

    Raises
    ------
    IllegalTransformationError
        If nothing is split there, or a whole call would have to wait for something that waits for it.
    """
    merged: dict[str, Call] = {}
    try:
        for call in calls_below(graph, target):
            if call.samples is not None and call.origin not in merged:
                parts = graph.parts[call.origin]
                whole = whole_call(parts, graph)
                merged[call.origin] = replace(whole, group=min(part.group for part in parts))
    except NotBySampleError as error:
        raise refuse(error, RULE, (target,)) from error
    if not merged:
        raise IllegalTransformationError(f"nothing is split below {target}", rule=RULE, calls=(target,))
    names = {part.id: origin for origin in merged for part in graph.parts[origin]}
    where = {name: number for number, stream in enumerate(graph.streams) for name in stream}
    apart = [o for o in merged if len({where[part.id] for part in graph.parts[o]}) > 1]
    seen = set(apart)
    streams: list[list[str]] = []
    for stream in graph.streams:
        kept = []
        for name in stream:
            origin = names.get(name)
            if origin is None:
                kept.append(name)
            elif origin not in seen:
                seen.add(origin)
                kept.append(origin)
        streams.append(kept)
    streams.append(apart)
    edges = []
    for a, b in graph.order_edges:
        between = graph.by_id[a].samples is not None and graph.by_id[b].samples is not None
        first, then = names.get(a, a), names.get(b, b)
        if first != then and not (between and (a in names or b in names)):
            edges.append((first, then))
    note = f"merge {target}"
    try:
        after = rebound(graph, {o: (call,) for o, call in merged.items()}, note, streams, edges)
    except NotBySampleError as error:
        raise refuse(error, RULE, (target,)) from error
    return verified(graph, with_boundaries(after))
