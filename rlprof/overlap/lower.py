"""From a graph of calls to the graph that is scheduled and run: one task a call, one edge a reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rlprof.garbage import collection_paused
from rlprof.overlap.callgraph import Access, Call, CallGraph, expect_graph
from rlprof.overlap.dependencies import waits_of
from rlprof.overlap.specs import Cell, NodeSpec
from rlprof.taskgraph import Edge, EdgeKind, Task, TaskGraph, Use
from rlprof.taskgraph.task import CellAccess, Scalar, worker_resource

#: Cells named on one edge; further ones are counted.
_CELLS_SHOWN = 3


def lower(graph: CallGraph) -> TaskGraph:
    """Turn calls into tasks.

    Parameters
    ----------
    graph : CallGraph
        Native or transformed.

    Returns
    -------
    TaskGraph
        A task for each call, with its id, its node as name and payload, its duration (None if not known), its
        component as worker (see `component_worker`), the resources of the node, those and the component
        workers of everything below it, and the versions that it sees and makes, named by the native call that
        writes them. Edges of kind
        ``data`` (an output is an input), ``publication`` (state to or from a weight synchronisation),
        ``state`` (a version that is read, or storage that is written again) and ``order`` (calls of one
        stream, chosen order). An order between two calls that another edge states already is left away.
        Canonical order is native program order.
    """
    expect_graph(graph)
    with collection_paused():  # half of the time
        return _lowered(graph)


def _lowered(graph: CallGraph) -> TaskGraph:
    held = _held(graph.nodes)
    cells = {access.cell: str(access.cell) for call in graph.calls for access in call.accesses}
    tasks = tuple(
        Task(
            id=call.id,
            name=call.node,
            duration_s=call.duration_s,
            resources=held.get(call.node, ()),
            payload=call.node,
            program_order=place,
            provenance=_provenance(call),
            accesses=tuple(_access(call, access, cells) for access in call.accesses),
            worker=component_worker(graph, call) or None,
        )
        for place, call in enumerate(graph.calls)
    )
    return TaskGraph(tasks, tuple(_edges(graph)))


def component_worker(graph: CallGraph, call: Call) -> str:
    """Return the component worker that serves a call; empty if its node has none.

    A spare copy of a state whose copies are `separate` is a worker of its own: ``env#1`` beside ``env``.
    """
    spec = graph.nodes.get(call.node)
    if spec is None or not spec.component:
        return ""
    for access in call.accesses:
        if not access.copy:
            continue
        state = graph.states[access.cell.state]
        if state.separate and state.component == spec.component:
            return f"{spec.component}#{access.copy}"
    return spec.component


def _held(nodes: Mapping[str, NodeSpec]) -> dict[str, tuple[Use, ...]]:
    """What a call of each node holds: a call of a parent runs whatever is below it."""
    names: dict[str, set[str]] = defaultdict(set)
    for path, spec in nodes.items():
        own = set(spec.resources)
        if spec.component:
            own.add(worker_resource(spec.component))
        above: str | None = path
        while above is not None and above in nodes:
            names[above] |= own
            above = nodes[above].parent
    for path, spec in nodes.items():
        names[path].discard(worker_resource(spec.component))  # that of the task's own worker
    return {path: tuple(Use(name) for name in sorted(found)) for path, found in names.items()}


def _access(call: Call, access: Access, names: dict[Cell, str]) -> CellAccess:
    makes = None if access.mode == "read" else call.origin
    return CellAccess(names[access.cell], access.sees, makes, access.copy)


def _provenance(call: Call) -> tuple[tuple[str, Scalar], ...]:
    pairs: list[tuple[str, Scalar]] = [("node", call.node), ("origin", call.origin)]
    pairs += [(f"iteration of {loop}", index) for loop, index in call.indices]
    if call.group:
        pairs.append(("group", call.group))
    if call.samples is not None:
        pairs.append(("samples", ranges(call.samples)))
    return tuple(pairs)


@lru_cache(maxsize=1024)
def ranges(samples: tuple[int, ...]) -> str:
    """Return positions as text, neighbours joined: ``0-7,12``."""
    found: list[list[int]] = []
    for sample in samples:
        if found and sample == found[-1][1] + 1:
            found[-1][1] = sample
        else:
            found.append([sample, sample])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _edges(graph: CallGraph) -> list[Edge]:
    sync = {path for path, spec in graph.nodes.items() if spec.role == "sync"}
    ids, nodes = [call.id for call in graph.calls], [call.node for call in graph.calls]
    found: list[Edge] = []
    known: set[tuple[str, str]] = set()
    for target, node, waits in zip(ids, nodes, waits_of(graph), strict=True):
        cells: dict[int, list[str]] = {}
        for source, kind, item in waits:
            if kind == "data":
                known.add((ids[source], target))
                found.append(Edge(ids[source], target, "data"))
            else:
                cells.setdefault(source, []).append(item)
        for source, items in cells.items():
            why: EdgeKind = "publication" if sync and {nodes[source], node} & sync else "state"
            known.add((ids[source], target))
            found.append(Edge(ids[source], target, why, _cells(items)))
    chosen = [pair for stream in graph.streams for pair in pairwise(stream)]
    found += [
        Edge(*pair, "order") for pair in dict.fromkeys([*chosen, *graph.order_edges]) if pair not in known
    ]
    return found


def _cells(items: list[str]) -> str:
    unique = list(dict.fromkeys(items))
    more = len(unique) - _CELLS_SHOWN
    return ", ".join(unique[:_CELLS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def priorities(tasks: TaskGraph) -> npt.NDArray[np.float64]:
    """Order of dispatch that makes the groups of an interleaved graph take turns.

    Parameters
    ----------
    tasks : TaskGraph
        As of `lower`.

    Returns
    -------
    numpy.ndarray
        Larger first, shape (tasks,): the upward rank (Topcuoglu et al. 2002, eq. 9), in which a duration that
        is not known counts as the mean of the node's known ones, else as the mean of all, else as 1. Of two
        groups that want a component worker the one with more left to do gets it, so that none falls behind.
    """
    known: dict[str, list[float]] = defaultdict(list)
    for task in tasks.tasks:
        if task.duration_s is not None:
            known[task.name].append(task.duration_s)
    mean = {name: float(np.mean(values)) for name, values in known.items()}
    default = float(np.mean(list(mean.values()))) if mean else 1.0
    duration = [
        mean.get(task.name, default) if task.duration_s is None else task.duration_s for task in tasks.tasks
    ]
    tail = [0.0] * len(duration)
    links = tasks.successors
    for i in reversed(tasks.topological_order):
        tail[i] = duration[i] + max((tail[j] for j in links.of(i)), default=0.0)
    return np.array(tail, dtype=np.float64)
