"""Are the iterations of a loop independent of each other, and how many may be alive at once (Rose, 4.2.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rlprof.overlap.bindings import Binding, External, leaves, sources
from rlprof.overlap.callgraph import INITIAL, Call, CallGraph, expect_graph
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.specs import Cell


@dataclass(frozen=True, slots=True)
class Flow:
    """A value that one iteration of a loop takes from an earlier one.

    Parameters
    ----------
    source, target : str
        Ids of the calls that make and take it.
    source_iteration, target_iteration : int
        Of the loop. For the loop whose one iteration is the region they are 0 and 1: this one and the next.
    cells : tuple of Cell
        The cells of one state object that are taken; empty: an output that is an argument.
    """

    source: str
    target: str
    source_iteration: int
    target_iteration: int
    cells: tuple[Cell, ...] = ()

    @property
    def cell(self) -> Cell | None:
        """The first of the cells; None for an output."""
        return self.cells[0] if self.cells else None

    def __str__(self) -> str:
        what = ", ".join(str(cell) for cell in self.cells) or "an output"
        return (
            f"{what} of {self.source} (iteration {self.source_iteration})"
            f" is taken by {self.target} (iteration {self.target_iteration})"
        )


@dataclass(frozen=True, slots=True)
class LoopIndependence:
    """Whether a loop is free.

    Parameters
    ----------
    loop : str
        Path of the loop node.
    kind : {"free", "dependent"}
        Free: the count is fixed and no value flows from one iteration into a later one.
    count : int or None
        Declared iterations.
    flows : tuple of Flow
        One for each pair of nodes and state object (or output): the first calls, and all cells.
    reason : str
        Why it is dependent, where that is no flow: no fixed count, or iterations inside an opaque call.
    written : tuple of str
        State objects of which iterations write cells that others use too: each iteration alive needs a copy.
    read_only : tuple of str
        State objects that the body reads and never writes.
    refreshed : tuple of str
        State objects of which every iteration refreshes what it uses before the first use.
    alive : int or None
        Most iterations that may be alive at once, by the declared copies of `written`; None: no limit.
    """

    loop: str
    kind: Literal["free", "dependent"]
    count: int | None
    flows: tuple[Flow, ...] = ()
    reason: str = ""
    written: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    refreshed: tuple[str, ...] = ()
    alive: int | None = None

    @property
    def free(self) -> bool:
        """Whether `kind` is free."""
        return self.kind == "free"


def loop_independence(graph: CallGraph, loop: str) -> LoopIndependence:
    """Classify a loop as free or dependent.

    Parameters
    ----------
    graph : CallGraph
        The native graph. It may be of one iteration of the loop itself (its region is the loop node).
    loop : str
        Path of the loop node.

    Returns
    -------
    LoopIndependence
        Of all calls of the loop in the graph together: one flow anywhere makes it dependent.

    Raises
    ------
    OverlapError
        If `loop` is no loop node, or was not called in the region.

    Notes
    -----
    Rose, section 4.2.2: free iff the count is fixed, no input of an iteration was produced in an earlier one,
    and no cell that an earlier one writes is first read or updated. Since every access of a native graph says
    which version it sees, the last condition is that none sees one of an earlier iteration. Storing over
    a value that is still read does not make a loop dependent: it limits how many iterations may be alive.
    """
    expect_graph(graph)
    node = graph.nodes.get(loop) if isinstance(loop, str) else None
    if node is None or node.kind != "loop":
        known = ", ".join(sorted(p for p, n in graph.nodes.items() if n.kind == "loop"))
        raise OverlapError(f"{loop!r} is no loop node", hint=f"loop nodes are: {known or 'none'}")
    if loop == graph.region:
        return _region_loop(graph, loop)
    instances = loop_instances(graph, loop)
    if not instances:
        around = next((path for path in graph.opaque if loop.startswith(path + "/")), None)
        if around is None:
            raise OverlapError(
                f"loop {loop} was not called in {graph.region}", hint="record a run that calls it"
            )
        reason = f"its iterations are inside {around}, which runs as one unit: {graph.opaque[around]}"
        return LoopIndependence(loop, "dependent", node.count, reason=reason)
    flows = _first(graph, (flow for calls in instances.values() for flow in _flows(loop, calls)))
    reason = "its number of iterations is not fixed" if node.count is None else ""
    kind: Literal["free", "dependent"] = "dependent" if flows or reason else "free"
    return LoopIndependence(
        loop,
        kind,
        node.count,
        flows,
        reason,
        *_storage(graph, {name: _by_iteration(calls, loop) for name, calls in instances.items()}),
    )


def loop_instances(graph: CallGraph, loop: str) -> dict[str, tuple[Call, ...]]:
    """Return the calls in each execution of a loop, by what their origins have in common.

    Parameters
    ----------
    graph : CallGraph
        Native or transformed.
    loop : str
        Path of the loop node.
    """
    found: dict[str, list[Call]] = defaultdict(list)
    for call in graph.calls:
        for position, (name, _) in enumerate(call.indices):
            if name == loop:
                found[_execution(call.origin, position)].append(call)
                break
    return {name: tuple(calls) for name, calls in found.items()}


def _execution(origin: str, position: int) -> str:
    """Cut an origin at its index number `position`, without the index; ``#k`` behind it stays."""
    parts = origin.split("/")
    level = -1
    for number, part in enumerate(parts):
        name, bracket, rest = part.partition("[")
        level += bool(bracket)
        if level == position:
            return "/".join((*parts[:number], name + rest.partition("]")[2]))
    return origin


def _first(graph: CallGraph, flows: Iterable[Flow]) -> tuple[Flow, ...]:
    """One flow for each pair of nodes and state object, with all its cells."""
    found: dict[tuple[str, str, str], Flow] = {}
    cells: dict[tuple[str, str, str], dict[Cell, None]] = defaultdict(dict)
    for flow in flows:
        state = flow.cell.state if flow.cell else ""
        key = (graph.by_id[flow.source].node, graph.by_id[flow.target].node, state)
        found.setdefault(key, flow)
        cells[key].update(dict.fromkeys(flow.cells))
    return tuple(replace(flow, cells=tuple(cells[key])) for key, flow in found.items())


def _flows(loop: str, calls: tuple[Call, ...]) -> Iterator[Flow]:
    iteration = {call.id: call.iteration[loop] for call in calls}
    writers: dict[tuple[Cell, str], str] = {}
    for call in calls:
        for access in call.accesses:
            if access.mode != "read":
                writers[access.cell, call.origin] = call.id
    for call in calls:
        here = iteration[call.id]
        for source in sources(call.arguments):
            if iteration.get(source, here) != here:
                yield Flow(source, call.id, iteration[source], here)
        for access in call.accesses:
            writer = writers.get((access.cell, access.sees)) if access.sees else None
            if writer is not None and iteration[writer] != here:
                yield Flow(writer, call.id, iteration[writer], here, (access.cell,))


class _Sharing(NamedTuple):
    """What iterations share: the last fields of `LoopIndependence`."""

    written: tuple[str, ...]
    read_only: tuple[str, ...]
    refreshed: tuple[str, ...]
    alive: int | None


def _by_iteration(calls: tuple[Call, ...], loop: str) -> dict[int, list[Call]]:
    found: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.iteration[loop]].append(call)
    return found


def _storage(graph: CallGraph, executions: Mapping[str, Mapping[int, Sequence[Call]]]) -> _Sharing:
    """`executions`: of the loop, each with its iterations' calls in order."""
    uses: dict[str, None] = {}
    changed: set[str] = set()
    inherited: set[str] = set()
    shared: set[str] = set()
    for iterations in executions.values():
        users: dict[Cell, set[int]] = defaultdict(set)
        written: set[Cell] = set()
        for number, calls in iterations.items():
            for call in calls:
                for access in call.accesses:
                    uses[access.cell.state] = None
                    if number not in users[access.cell] and access.mode != "refresh":
                        inherited.add(access.cell.state)
                    users[access.cell].add(number)
                    if access.mode != "read":
                        written.add(access.cell)
        changed.update(cell.state for cell in written)
        shared.update(cell.state for cell in written if len(users[cell]) > 1)
    return _Sharing(
        written=tuple(state for state in uses if state in shared),
        read_only=tuple(state for state in uses if state not in changed),
        refreshed=tuple(state for state in uses if state in changed and state not in inherited),
        alive=min((graph.states[state].copies for state in shared), default=None),
    )


def _region_loop(graph: CallGraph, loop: str) -> LoopIndependence:
    """Classify the loop of which the region is one iteration, from what it takes and leaves."""
    last: dict[Cell, Call] = {}
    for call in graph.calls:
        for access in call.accesses:
            if access.mode != "read":
                last[access.cell] = call
    flows = _first(
        graph,
        (
            Flow(last[access.cell].id, call.id, 0, 1, (access.cell,))
            for call in graph.calls
            for access in call.accesses
            if access.sees == INITIAL and access.cell in last
        ),
    )
    reasons = []
    if graph.nodes[loop].count is None:
        reasons.append("its number of iterations is not fixed")
    taken = [call.id for call in graph.calls if _takes_argument(call.arguments)]
    if taken:
        reasons.append(f"{taken[0]} takes an argument of the iteration, which may come from an earlier one")
    # two iterations alike, one after the other
    sharing = _storage(graph, {loop: {0: graph.calls, 1: graph.calls}})
    return LoopIndependence(
        loop,
        "dependent" if flows or reasons else "free",
        graph.nodes[loop].count,
        flows,
        "; ".join(reasons),
        *sharing,
    )


def _takes_argument(binding: Binding) -> bool:
    return any(isinstance(leaf, External) for leaf in leaves(binding))
