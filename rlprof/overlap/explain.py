"""Why a loop is free or dependent, what a node waits for, why it is one unit: a few lines for a person."""

from __future__ import annotations

from dataclasses import dataclass

from rlprof.expect import expect
from rlprof.overlap.bindings import Ref
from rlprof.overlap.build import call_graph
from rlprof.overlap.callgraph import Call, CallGraph, expect_graph
from rlprof.overlap.dependencies import DependencyKind, dependencies
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.loops import Flow, LoopIndependence, loop_independence
from rlprof.overlap.recording import Recording
from rlprof.overlap.specs import NodeSpec
from rlprof.overlap.units import leaves_at

_COMPONENT = "component:"


@dataclass(frozen=True)
class Explanation:
    """An answer in words; `str` gives its lines.

    Parameters
    ----------
    path : str
        Node or call that was asked about.
    answer : str
        The first line: ``free``, ``dependent``, or what the node is.
    reasons : tuple of str
        One line each.
    loop : LoopIndependence or None
        Of a loop node, what the words are made from.
    """

    path: str
    answer: str
    reasons: tuple[str, ...]
    loop: LoopIndependence | None = None

    def __str__(self) -> str:
        return "\n".join((f"{self.path}: {self.answer}", *(f"  {reason}" for reason in self.reasons)))


def explain(source: CallGraph | Recording, path: str) -> Explanation:
    """Explain a loop node, another node, or one call.

    Parameters
    ----------
    source : CallGraph or Recording
        The native graph, or what it is made from.
    path : str
        Path of a node (``"iteration/rollout/epoch"``) or id of a call (``"iteration/rollout/epoch[0]"``).

    Returns
    -------
    Explanation
        For a loop whether it is free or dependent, and why (Rose, section 4.2.2); for any other node or call
        what it waits for and what waits for it.

    Raises
    ------
    OverlapError
        If there is no such node or call, or it was not called in the region.
    RecordingError
        If the recording cannot stand for the program.
    """
    graph = call_graph(source) if isinstance(source, Recording) else source
    expect_graph(graph)
    expect(path, str, "the node", "give its path as text", OverlapError)
    if path in graph.by_id:
        return _units(graph, path, {path})
    if path not in graph.nodes:
        shown = ", ".join(sorted(graph.nodes)[:8])
        raise OverlapError(f"{path!r} is no node and no call", hint=f"nodes are: {shown}")
    calls = graph.of_node(path)
    if graph.nodes[path].kind == "loop":
        return _loop(graph, path)
    if calls:
        return _units(graph, path, {call.id for call in calls})
    if path == graph.region or graph.region.startswith(path + "/"):
        return _routes(graph, path)
    around = next((node for node in graph.opaque if path.startswith(node + "/")), None)
    if around is not None:
        return Explanation(path, f"part of {around}, which runs as one unit", (graph.opaque[around],))
    if graph.below(path):
        return _routes(graph, path)
    raise OverlapError(f"{path} was not called in {graph.region}", hint="record a run that calls it")


def _routes(graph: CallGraph, path: str) -> Explanation:
    inner = list(dict.fromkeys(_short(call.node) for call in graph.below(path) or graph.calls))
    return Explanation(path, "only routes values", (f"its work is that of {listed(inner, 12)}",))


def _loop(graph: CallGraph, path: str) -> Explanation:
    found = loop_independence(graph, path)
    reasons = [found.reason] if found.reason else []
    if found.free:
        reasons += [f"{_refresher(graph, path, state)} before its first use in each iteration"
                    for state in found.refreshed]  # fmt: skip
        reasons += [f"{state} is only read" for state in found.read_only]
        apart = [
            s for s in _used(graph, path) if s not in {*found.refreshed, *found.read_only, *found.written}
        ]
        reasons += [f"each iteration uses partitions of its own of {state}" for state in apart]
        reasons += ["no call takes an output of an earlier iteration"]
    else:
        reasons += [_flow(graph, flow) for flow in found.flows]
        moved = {flow.cell.state for flow in found.flows if flow.cell is not None}
        reasons += [f"not because of {state}: {_refresher(graph, path, state)} in each iteration, before its"
                    " first use" for state in found.refreshed if state not in moved]  # fmt: skip
    for state in found.written:
        if found.free or state not in {flow.cell.state for flow in found.flows if flow.cell is not None}:
            copies = graph.states[state].copies
            reasons.append(f"storage: one copy of {state} for each iteration alive; there {_copies(copies)}")
    return Explanation(path, found.kind, tuple(reasons), found)


def _copies(number: int) -> str:
    return "is 1" if number == 1 else f"are {number}"


def _used(graph: CallGraph, path: str) -> list[str]:
    return list(dict.fromkeys(a.cell.state for call in graph.below(path) for a in call.accesses))


def _refresher(graph: CallGraph, loop: str, state: str) -> str:
    for call in graph.below(loop):
        for access in call.accesses:
            if access.cell.state == state and access.mode == "refresh":
                return f"{_short(call.node)} refreshes {state}"
    return f"{state} is refreshed"


def _flow(graph: CallGraph, flow: Flow) -> str:
    source, target = graph.by_id[flow.source], graph.by_id[flow.target]
    distance = flow.target_iteration - flow.source_iteration
    before = "the iteration before" if distance == 1 else f"{distance} iterations before"
    if flow.cell is None:
        what = _parameter(graph, target, flow.source)
        return f"{_short(target.node)} takes {what} from {_short(source.node)} of {before}"
    mode = next(access.mode for access in target.accesses if access.cell == flow.cell)
    verb = "reads" if mode == "read" else "updates"
    if flow.cell.state.startswith(_COMPONENT):
        component = flow.cell.state.removeprefix(_COMPONENT)
        return (
            f"{_short(target.node)} declares nothing, so it counts as an update of all state of component"
            f" {component}, and so does {_short(source.node)} of {before}"
        )
    used = {access.cell for access in target.accesses if access.cell.state == flow.cell.state}
    what = flow.cell.state if used == set(flow.cells) else listed([str(cell) for cell in flow.cells])
    return f"{_short(target.node)} {verb} {what} as {_short(source.node)} of {before} left it"


def _parameter(graph: CallGraph, call: Call, source: str) -> str:
    """The parameter of a call that takes an output of another."""
    for path, leaf in leaves_at(call.arguments):
        if isinstance(leaf, Ref) and leaf.call == source and len(path) > 1:
            names = graph.nodes[call.node].parameters
            key = path[1]
            if path[0] == 0 and isinstance(key, int):
                return names[key] if key < len(names) else f"argument {key}"
            return str(key)
    return "an argument"


def _units(graph: CallGraph, path: str, ids: set[str]) -> Explanation:
    """What calls wait for, and who waits for them, by node."""
    waits: dict[tuple[str, DependencyKind, str], None] = {}
    awaited: dict[tuple[str, DependencyKind, str], None] = {}
    for found in dependencies(graph):
        state = found.item.partition("[")[0]
        if found.target in ids:
            waits[graph.by_id[found.source].node, found.kind, state] = None
        elif found.source in ids:
            awaited[graph.by_id[found.target].node, found.kind, state] = None
    for side in (waits, awaited):  # who needs the value to make a new one of it waits anyway
        for node, kind, state in [*side]:
            if kind == "storage" and (node, "state", state) in side:
                del side[node, kind, state]
    reasons = [f"waits for {_what(*key)}" for key in waits] or ["waits for nothing in the region"]
    reasons += [f"{_short(node)} waits for {_its(kind, state)}" for node, kind, state in awaited]
    spec = graph.nodes[graph.by_id[next(iter(ids))].node]
    if spec.path in graph.opaque:
        reasons.insert(0, f"one unit with the calls inside it: {graph.opaque[spec.path]}")
    reasons += _declared(spec)
    count = len(ids)
    return Explanation(path, f"{count} call{'s' * (count != 1)}", tuple(reasons))


def _declared(node: NodeSpec) -> list[str]:
    if node.declared or not node.component:
        return []
    return [f"declares nothing: counts as an update of all state of component {node.component}"]


def _what(node: str, kind: DependencyKind, state: str) -> str:
    name = _short(node)
    return {
        "data": f"an output of {name}",
        "state": f"{state} as {name} leaves it",
        "storage": f"{name} to be done with {state}, which it overwrites",
    }[kind]


def _its(kind: DependencyKind, state: str) -> str:
    return {
        "data": "its output",
        "state": f"{state} as it leaves it",
        "storage": f"it to be done with {state}, to overwrite it",
    }[kind]


def _short(node: str) -> str:
    return node.rpartition("/")[2]


def listed(names: list[str], most: int = 4) -> str:
    """Names as a sentence lists them, the first `most`."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
