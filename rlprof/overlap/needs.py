"""What has to come before what in a graph, by native versions and boundaries, however it was made."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from rlprof.overlap.bindings import sources
from rlprof.overlap.callgraph import Access, Call, CallGraph
from rlprof.overlap.specs import Cell

#: What must come first, what after it, by which rule, about which cell.
Need = tuple[int, int, str, Cell | None]


def needs(calls: Mapping[str, Call], graph: CallGraph) -> list[Need]:
    """Everything that has to be ordered for values and storage, from native versions.

    Parameters
    ----------
    calls : mapping of str to Call
        Native calls by origin.
    graph : CallGraph
        Whose calls are numbered by their place in `CallGraph.calls`.
    """
    place = {origin: n for n, origin in enumerate(calls)}
    index = {call.id: i for i, call in enumerate(graph.calls)}
    ordered = sorted(range(len(graph.calls)), key=lambda i: place[graph.calls[i].origin])
    found: dict[Need, None] = {}
    users: dict[tuple[Cell, int], list[tuple[int, Access]]] = {}
    writer: dict[tuple[Cell, str], int] = {}
    for i in ordered:
        call = graph.calls[i]
        for source in sources(call.arguments):
            if source in index:
                found[index[source], i, "L2", None] = None
        sees = {a.cell: a.sees for a in calls[call.origin].accesses}
        for access in call.accesses:
            native = sees.get(access.cell, access.sees)
            if native:
                for part in graph.parts.get(native, ()):
                    at = index[part.id]
                    if (access.cell, part.id) in writer and at != i:
                        found[at, i, "L2", access.cell] = None
            users.setdefault((access.cell, access.copy), []).append((i, access))
            if access.mode != "read":
                writer[access.cell, call.id] = i
    for (cell, _), uses in users.items():
        present: list[tuple[int, Access]] = []
        for i, access in uses:
            if access.mode != "read":
                for other, was in present:
                    if other != i:
                        found[other, i, "L4" if was.mode == "read" else "L3", cell] = None
                present = []
            present.append((i, access))
    return list(found)


def boundaries(calls: Mapping[str, Call], graph: CallGraph) -> list[Need]:
    """Order around weight synchronisations, optimiser steps and ends of root iterations (rule L6).

    Only neighbours are named: what follows from them in turn is left away.
    """
    place = {origin: n for n, origin in enumerate(calls)}
    ordered = sorted(range(len(graph.calls)), key=lambda i: place[graph.calls[i].origin])
    weights = {name for name, state in graph.states.items() if state.rollout_weights}
    roots = {path for path, node in graph.nodes.items() if node.kind == "loop" and node.loop_level == 0}
    found: list[Need] = []
    sync: int | None = None
    update: int | None = None
    since: list[int] = []  # readers and updates since the last synchronisation
    iterations: list[list[int]] = []  # boundary calls of every root iteration
    last: tuple[tuple[str, int], ...] | None = None
    for i in ordered:
        call = graph.calls[i]
        role = graph.nodes[call.node].role
        reads = any(a.cell.state in weights and a.mode != "refresh" for a in call.accesses)
        if not role and not reads:
            continue
        root = tuple(pair for pair in call.indices if pair[0] in roots)
        if root != last:
            iterations.append([])
            last = root
        iterations[-1].append(i)
        if role == "sync":
            before = since or ([] if sync is None else [sync])
            found += [(other, i, "L6", None) for other in before]
            sync, since = i, []
            continue
        if sync is not None:
            found.append((sync, i, "L6", None))
        if role == "update":
            if update is not None:
                found.append((update, i, "L6", None))
            update = i
        since.append(i)
    return found + _iteration_ends(iterations, graph)


def _iteration_ends(iterations: list[list[int]], graph: CallGraph) -> list[Need]:
    """All boundary calls of a root iteration before all of the next: the last and first of every stream."""
    if len(iterations) < 2:
        return []
    at = {name: (s, p) for s, stream in enumerate(graph.streams) for p, name in enumerate(stream)}
    found: list[Need] = []
    for earlier, later in pairwise(iterations):
        last: dict[int, tuple[int, int]] = {}
        first: dict[int, tuple[int, int]] = {}
        for i in earlier:
            stream, place = at[graph.calls[i].id]
            last[stream] = max(last.get(stream, (-1, i)), (place, i))
        for i in later:
            stream, place = at[graph.calls[i].id]
            first[stream] = min(first.get(stream, (place, i)), (place, i))
        found += [(a, b, "L6", None) for _, a in last.values() for _, b in first.values()]
    return found
