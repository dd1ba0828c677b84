"""The common comparison graph: what a target's alternatives are tried on, the same work for all of them.

Internal graph of the lowest common ancestor of all nodes that any retained alternative affects (specification
A, section 7); of a loop, some of its iterations with fill and drain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rlprof.overlap.bindings import Binding, Const, External, Gather, Pack, Ref, Slice, sources, substitute
from rlprof.overlap.callgraph import INITIAL, Call, CallGraph
from rlprof.overlap.dependencies import dependencies
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.optimize.steps import Step
from rlprof.overlap.parts import as_pack
from rlprof.overlap.specs import Cell
from rlprof.overlap.transforms.common import ancestor, execution

#: Consecutive iterations of a loop in a comparison (as Fig 15 of the paper).
ITERATIONS = 4


class RestrictionError(OverlapError):
    """A part of a graph cannot be run by itself."""


@dataclass(frozen=True)
class Comparison:
    """Which native calls alternatives are compared on.

    Parameters
    ----------
    path : str
        The common ancestor.
    origins : frozenset of str
        Native calls.
    iterations : int or None
        Of the loop `path`; None: it is no loop, one call of it is compared.
    windows : float
        How often this work comes in an iteration.
    """

    path: str
    origins: frozenset[str]
    iterations: int | None
    windows: float

    def __str__(self) -> str:
        what = "one call" if self.iterations is None else f"{self.iterations} iterations"
        return f"{what} of {self.path}, {self.windows:g} in a training iteration"


def affected(steps: Iterable[Step]) -> tuple[str, ...]:
    """Nodes that steps move, split or merge, or whose edges they change."""
    found: dict[str, None] = {}
    for one in steps:
        found[one.target] = None
        for name, value in one.options:
            if name in ("before", "after", "training") or (name == "stream" and value != "own"):
                found[str(value)] = None
            elif name == "downstream" and isinstance(value, tuple):
                found.update(dict.fromkeys(map(str, value)))
    return tuple(found)


def common_ancestor(paths: Iterable[str], region: str) -> str:
    """The innermost node around all of them, one of them included."""
    split = [path.split("/") for path in paths]
    shared = []
    for steps in zip(*split, strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    found = "/".join(shared)
    return found if (found + "/").startswith(region + "/") else region


def comparison(
    native: CallGraph,
    graphs: Sequence[CallGraph],
    paths: Iterable[str],
    *,
    iterations: int = ITERATIONS,
    outer_iterations: int | None = None,
) -> Comparison:
    """Choose the work on which graphs are compared.

    Parameters
    ----------
    native : CallGraph
        The native graph.
    graphs : sequence of CallGraph
        The present graph and all alternatives.
    paths : iterable of str
        Nodes that any of them affects.
    iterations : int
        Most iterations of a loop.
    outer_iterations : int or None
        Most iterations of a loop that has a loop of several component workers inside; at least one of each
        group. None: as `iterations`.

    Returns
    -------
    Comparison
        The smallest that every graph can be restricted to: where groups that run beside each other lie in
        different executions of the ancestor, or state lies in several copies, it is a node further up.
    """
    path: str | None = common_ancestor(paths, native.region)
    while path is not None and path != native.region:
        most = iterations
        if outer_iterations is not None and _holds_interaction(native, path):
            most = outer_iterations
        for found in _choices(native, graphs, path, most):
            if _fits(graphs, found):
                return found
        above = native.nodes[path].parent
        path = above if above in native.nodes else None
    return Comparison(native.region, frozenset(c.origin for c in native.calls), None, 1.0)


def _holds_interaction(native: CallGraph, path: str) -> bool:
    """Whether a loop of several component workers, which fills and drains, lies inside of a node."""
    workers: dict[str, set[str]] = {}
    for call in native.below(path):
        for loop, _ in call.indices:
            if loop.startswith(path + "/"):
                workers.setdefault(loop, set()).add(native.nodes[call.node].component)
    return any(len(found) > 1 for found in workers.values())


def _choices(native: CallGraph, graphs: Sequence[CallGraph], path: str, most: int) -> Iterable[Comparison]:
    calls = native.below(path)
    if not calls:
        return
    if native.nodes[path].kind != "loop" or path not in calls[0].iteration:
        instances: dict[str, list[Call]] = {}
        for call in calls:
            instances.setdefault(ancestor(call, path), []).append(call)
        first = next(iter(instances.values()))
        yield Comparison(path, frozenset(c.origin for c in first), None, float(len(instances)))
        return
    runs: dict[str, dict[int, list[Call]]] = {}
    for call in calls:
        runs.setdefault(execution(call, path), {}).setdefault(call.iteration[path], []).append(call)
    total = sum(len(run) for run in runs.values())
    run = next(iter(runs.values()))
    chosen = sorted(run) if len(run) <= most else _iterations(run, graphs, most)
    origins = frozenset(call.origin for i in chosen for call in run[i])
    yield Comparison(path, origins, len(chosen), total / len(chosen))


def _iterations(run: Mapping[int, list[Call]], graphs: Sequence[CallGraph], most: int) -> list[int]:
    """Consecutive ones; where iterations are divided into groups, the first ones of every group."""
    for graph in graphs:
        groups: dict[int, list[int]] = {}
        for i in sorted(run):
            group = next((p.group for c in run[i] for p in graph.parts[c.origin] if p.samples is None), 0)
            groups.setdefault(group, []).append(i)
        if len(groups) > 1:
            each = max(1, most // len(groups))
            return sorted(i for members in groups.values() for i in members[:each])
    return sorted(run)[:most]


def _fits(graphs: Sequence[CallGraph], found: Comparison) -> bool:
    for graph in graphs:
        groups = {c.group for c in graph.below(found.path) if c.samples is None}
        inside = {c.group for c in graph.below(found.path) if c.samples is None and c.origin in found.origins}
        if len(groups) > 1 and groups != inside:
            return False
        try:
            restrict(graph, found.origins)
        except RestrictionError:
            return False
    return True


@dataclass(frozen=True)
class Restricted:
    """A part of a graph that can be run by itself.

    Parameters
    ----------
    graph : CallGraph
        What comes from outside is ``External((0, 0, ...))`` and ``((0, 1, ...))`` for positional and named
        arguments of the region, and ``External((0, 2, id, ...))`` for outputs of calls outside.
    outside : tuple of str
        Ids of those calls, in the graph that was restricted.
    """

    graph: CallGraph
    outside: tuple[str, ...]


def restrict(graph: CallGraph, origins: frozenset[str]) -> Restricted:
    """Cut a graph down to some native calls.

    Parameters
    ----------
    graph : CallGraph
        Native or transformed.
    origins : frozenset of str
        Native calls that are kept, with all their parts.

    Returns
    -------
    Restricted
        What it returns is what calls outside take of it, put together as they take it: so that the time to
        gather parts counts.

    Raises
    ------
    RestrictionError
        If versions that lie in several copies of a state object are needed at the start.
    """
    kept = [call for call in graph.calls if call.origin in origins]
    inside = {call.id for call in kept}
    outside: dict[str, None] = {}

    def leaf(item: Ref | External | Const) -> Binding:
        if isinstance(item, External):
            return External((0, *item.path), item.view)
        if isinstance(item, Ref) and item.call not in inside:
            outside[item.call] = None
            return External((0, 2, item.call, *item.path), item.view)
        return item

    initial: dict[str, set[int]] = {}
    made = {(a.cell, call.origin) for call in kept for a in call.accesses if a.mode != "read"}
    for call in kept:
        for access in call.accesses:
            if access.sees is not None and (access.cell, access.sees) not in made:
                initial.setdefault(access.cell.state, set()).add(access.copy)
    swap: dict[str, int] = {}
    for state, copies in initial.items():
        if len(copies) > 1:
            raise RestrictionError(f"{state} is needed as it lies in {len(copies)} copies")
        swap[state] = copies.pop()

    def at(state: str, copy: int) -> int:
        other = swap.get(state, 0)
        return 0 if copy == other else other if copy == 0 else copy

    calls = []
    for call in kept:
        accesses = tuple(
            a._replace(
                sees=a.sees if a.sees is None or (a.cell, a.sees) in made else INITIAL,
                copy=at(a.cell.state, a.copy),
            )
            for a in call.accesses
        )
        calls.append(replace(call, arguments=as_pack(substitute(call.arguments, leaf)), accesses=accesses))
    wanted: dict[Binding, None] = {}
    for binding in (*(c.arguments for c in graph.calls if c.id not in inside), graph.output):
        wanted.update(dict.fromkeys(_inside(binding, inside)))
    output = Pack("tuple", tuple(range(len(wanted))), tuple(wanted))
    cut = replace(
        graph,
        calls=tuple(calls),
        streams=tuple(tuple(c for c in stream if c in inside) for stream in graph.streams),
        output=output,
        order_edges=tuple(p for p in graph.order_edges if p[0] in inside and p[1] in inside),
    )
    return Restricted(cut, tuple(outside))


def _inside(binding: Binding, inside: set[str]) -> Iterable[Binding]:
    """The largest parts of a binding that come from inside alone."""
    named = sources(binding)
    if not named or inside.isdisjoint(named):
        return
    if not isinstance(binding, Pack) and inside.issuperset(named):
        yield binding
    elif isinstance(binding, Pack):
        for item in binding.items:
            yield from _inside(item, inside)
    elif isinstance(binding, Gather):
        for part in binding.parts:
            yield from _inside(part, inside)
    elif isinstance(binding, Slice):
        yield from _inside(binding.of, inside)


def before(native: CallGraph, origins: frozenset[str], needed: Iterable[str]) -> frozenset[str]:
    """Native calls that have to run before a comparison: whose values lead to it, or to the calls `needed`.

    Raises
    ------
    RestrictionError
        If one of them leaves a version of a state cell that the comparison does not start with.
    """
    wanted = {*needed, *(c.id for c in native.calls if c.origin in origins)}
    values: dict[str, list[str]] = {}
    for dependency in dependencies(native):
        if dependency.kind != "storage":
            values.setdefault(dependency.target, []).append(dependency.source)
    queue = list(wanted)
    for name in queue:
        for source in values.get(name, ()):
            if source not in wanted:
                wanted.add(source)
                queue.append(source)
    found = frozenset(native.by_id[name].origin for name in wanted) - origins
    left: dict[Cell, str] = {}
    for call in native.calls:
        if call.origin in found:
            left.update((a.cell, call.origin) for a in call.accesses if a.mode != "read")
    seen: set[Cell] = set()
    for call in native.calls:
        for access in call.accesses if call.origin in origins else ():
            starts = access.cell not in seen and access.sees is not None
            seen.add(access.cell)
            if starts and left.get(access.cell, INITIAL) != access.sees:
                raise RestrictionError(
                    f"{call.id} needs {access.cell} as {access.sees or 'the region'} leaves it, and"
                    f" {left.get(access.cell) or 'nobody'} writes it before"
                )
    return found
