"""What all transformations need: refusing, replacing calls, places in loops, boundaries kept, the check."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from numbers import Integral
from typing import Any

from rlprof.overlap.bindings import Binding, sources
from rlprof.overlap.callgraph import Call, CallGraph, expect_graph
from rlprof.overlap.errors import IllegalTransformationError, NotBySampleError
from rlprof.overlap.expression import express
from rlprof.overlap.legality import check
from rlprof.overlap.needs import Need, boundaries, needs
from rlprof.overlap.parts import as_pack, natives
from rlprof.overlap.precedence import Precedence
from rlprof.overlap.samples import native_form

_INDEX = re.compile(r"\[\d+\]")
#: Whether a call is a part of a batch, and the number of its group.
GroupKey = tuple[bool, int]


def group_key(call: Call) -> GroupKey:
    """Which group a call belongs to, apart from others of its graph."""
    return call.samples is not None, call.group


def calls_below(graph: CallGraph, path: str) -> tuple[Call, ...]:
    """Calls of a node and of everything inside it.

    Raises
    ------
    IllegalTransformationError
        If there is no such node, or it makes no call in this region.
    """
    expect_graph(graph)
    if not isinstance(path, str) or path not in graph.nodes:
        raise IllegalTransformationError(
            f"there is no node {path}",
            rule="node",
            calls=(str(path),),
            hint=f"give a path as text, one of {', '.join(sorted(graph.nodes))}",
        )
    calls = graph.below(path)
    if not calls:
        reason = f"node {path} makes no call in {graph.region}"
        hidden = next((p for p in graph.opaque if path.startswith(p + "/")), None)
        if hidden is not None:
            reason += f": {hidden} runs as one unit, because {graph.opaque[hidden]}"
        raise IllegalTransformationError(reason, rule="node", calls=(path,))
    return calls


def check_number(number: Any, what: str) -> None:
    """Refuse a number of groups or a position that is no whole number."""
    if isinstance(number, bool) or not isinstance(number, Integral):
        raise IllegalTransformationError(
            f"{number!r} is no number of {what}", rule="split", hint="give a whole number"
        )


def loop_calls(graph: CallGraph, loop: str) -> dict[str, dict[int, list[Call]]]:
    """Calls inside a loop by execution of the loop and iteration, in native order.

    Raises
    ------
    IllegalTransformationError
        If it is no loop of the graph.
    """
    calls = calls_below(graph, loop)
    if graph.nodes[loop].kind != "loop" or loop not in calls[0].iteration:
        raise IllegalTransformationError(f"{loop} is no loop in {graph.region}", rule="node", calls=(loop,))
    found: dict[str, dict[int, list[Call]]] = {}
    for call in calls:
        found.setdefault(execution(call, loop), {}).setdefault(call.iteration[loop], []).append(call)
    return found


def ancestor(call: Call, path: str) -> str:
    """Native call of the node `path` that a call is or lies inside."""
    steps = call.origin.split("/")
    return "/".join(steps[: len(steps) - (call.node.count("/") - path.count("/"))])


def execution(call: Call, path: str) -> str:
    """As `ancestor`; all iterations of a loop are one execution of it."""
    above, _, last = ancestor(call, path).rpartition("/")
    return f"{above}/{_INDEX.sub('', last, count=1)}"


def exclusive(graph: CallGraph) -> dict[str, tuple[str, ...]]:
    """What serves one call at a time and is held by the calls of each node: components and resources.

    A call of a node holds what everything inside it holds.
    """
    held: dict[str, dict[str, None]] = {path: {} for path in graph.nodes}
    for path, node in graph.nodes.items():
        own = [*([node.component] if node.component else []), *node.resources]
        above: str | None = path
        while above is not None and above in held:
            held[above].update(dict.fromkeys(own))
            above = graph.nodes[above].parent
    return {path: tuple(found) for path, found in held.items()}


def rebound(
    graph: CallGraph,
    made: Mapping[str, tuple[Call, ...]],
    note: str,
    streams: Sequence[Sequence[str]],
    order_edges: Sequence[tuple[str, str]],
) -> CallGraph:
    """Put other calls in place of those of some origins, and bind their consumers to them.

    Parameters
    ----------
    graph : CallGraph
        Before.
    made : mapping of str to tuple of Call
        By origin; their arguments in native form.
    note : str
        Line of history.
    streams, order_edges
        Of the new graph.

    Raises
    ------
    NotBySampleError
        If a consumer uses a value in a way that does not tell the samples.
    """
    gone = {call.id for origin in made for call in graph.parts[origin]}
    parts = {**graph.parts, **made}

    def bound(binding: Binding) -> Binding:
        if gone.isdisjoint(sources(binding)):
            return binding
        return express(native_form(binding, graph), graph, parts)

    calls = []
    for call in graph.calls:
        if call.origin not in made:
            arguments = bound(call.arguments)
            calls.append(call if arguments is call.arguments else replace(call, arguments=as_pack(arguments)))
    for new in made.values():
        calls += [replace(call, arguments=as_pack(express(call.arguments, graph, parts))) for call in new]
    return graph.changed(
        note,
        calls=tuple(calls),
        streams=tuple(tuple(s) for s in streams),
        output=bound(graph.output),
        order_edges=tuple(order_edges),
    )


class Reach:
    """Which calls lead to which by dependencies; streams and chosen order play no part.

    Parameters
    ----------
    graph : CallGraph
        A legal one: native order is an order of its dependencies.

    Attributes
    ----------
    index : dict of str to int
        Place of every call in `CallGraph.calls`.
    before : list of int
        For each call the set of calls that lead to it, as bits.
    """

    def __init__(self, graph: CallGraph) -> None:
        self.graph = graph
        self.index = {call.id: i for i, call in enumerate(graph.calls)}
        self.why: dict[int, dict[int, Need]] = {}
        for need in needs(natives(graph), graph):
            self.why.setdefault(need[1], {}).setdefault(need[0], need)
        self.before = [0] * len(graph.calls)
        for i in range(len(graph.calls)):
            for source in self.why.get(i, ()):
                self.before[i] |= self.before[source] | 1 << source

    def bits(self, calls: Iterable[Call]) -> int:
        """Return a set of calls as bits."""
        found = 0
        for call in calls:
            found |= 1 << self.index[call.id]
        return found

    def leads(self, earlier: str, later: str) -> bool:
        """Whether a dependency path leads from one call to another."""
        return bool(self.before[self.index[later]] >> self.index[earlier] & 1)

    def ordered(self, one: str, other: str) -> bool:
        """Whether a dependency path leads from one of two calls to the other one, or they are the same."""
        return one == other or self.leads(one, other) or self.leads(other, one)

    def path(self, sources: int, target: str) -> tuple[tuple[str, ...], str]:
        """Return a shortest path from one of `sources` (bits) to a call, and the path in words."""
        at = self.index[target]
        came: dict[int, int] = {}
        queue = [at]
        for i in queue:
            if i != at and sources >> i & 1:
                break
            for source in self.why.get(i, ()):
                if source not in came and (self.before[source] | 1 << source) & sources:
                    came[source] = i
                    queue.append(source)
        walk = [i]
        while walk[-1] != at:
            walk.append(came[walk[-1]])
        names = [self.graph.calls[i].id for i in walk]
        text = names[0]
        for a, b in pairwise(walk):
            cell = self.why[b][a][3]
            text += f" -> ({cell}) {self.graph.calls[b].id}" if cell else f" -> {self.graph.calls[b].id}"
        return tuple(names), text


def enforced(graph: CallGraph) -> Precedence:
    """What precedes what by dependencies, streams and chosen order, over places in `CallGraph.calls`."""
    index = {call.id: i for i, call in enumerate(graph.calls)}
    edges = [(index[a], index[b]) for a, b in graph.order_edges]
    edges += [(a, b) for a, b, _, _ in needs(natives(graph), graph)]
    return Precedence([[index[name] for name in stream] for stream in graph.streams], edges)


def beside(graph: CallGraph, some: Iterable[Call], others: Iterable[Call]) -> tuple[str, str] | None:
    """Return the first pair of calls, one of each, that may run at once: in no order, on other workers."""
    order, held = enforced(graph), exclusive(graph)
    index = {call.id: i for i, call in enumerate(graph.calls)}
    second = [(index[b.id], b) for b in others]
    for a in some:
        i = index[a.id]
        for j, b in second:
            apart = set(held[a.node]).isdisjoint(held[b.node])
            if i != j and apart and not order.before(i, j) and not order.before(j, i):
                return a.id, b.id
    return None


def with_boundaries(graph: CallGraph) -> CallGraph:
    """Add the order edges without which a boundary of training (rule L6) could be crossed."""
    roles = any(graph.nodes[call.node].role for call in graph.calls)
    if not roles and not any(n.kind == "loop" and n.loop_level == 0 for n in graph.nodes.values()):
        return graph
    order = enforced(graph)
    if order.cycle:
        return graph  # the check says why
    missing = tuple(
        (graph.calls[a].id, graph.calls[b].id)
        for a, b, _, _ in boundaries(natives(graph), graph)
        if not order.before(a, b)
    )
    return replace(graph, order_edges=(*graph.order_edges, *missing)) if missing else graph


def verified(before: CallGraph, after: CallGraph, *, hint: str = "") -> CallGraph:
    """Return `after` if it is legal; `before` is taken to be.

    Raises
    ------
    IllegalTransformationError
        With the first rule that it breaks.
    """
    refusals = check(before, after)
    if refusals:
        first = refusals[0]
        raise IllegalTransformationError(first.reason, rule=first.rule, calls=first.calls, hint=hint)
    return after


def refuse(error: NotBySampleError, rule: str, calls: tuple[str, ...] = ()) -> IllegalTransformationError:
    """Make a refusal of what cannot be told sample by sample."""
    return IllegalTransformationError(error.what, rule=rule, calls=calls)
