"""Random native graphs and random sequences of transformations, drawn from a seeded generator."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from rlprof.overlap.bindings import Binding, Gather, Pack, Ref, Slice
from rlprof.overlap.callgraph import INITIAL, CallGraph
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.transforms import interleave, merge, rewire, split_chained, split_spatial, split_temporal
from tests.overlap.graphs import Block, Loop, Node, graph_of, state

MODES = ("read", "update", "refresh")
COMPONENTS = ("policy", "simulator", "learner", "")


class Author:
    """Writes a program of nested loops."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.number = draw, 0
        self.variables = ["x"]
        #: most nodes of a friendly program can be split
        self.friendly = draw.random() < 0.6

    def node(self) -> Node:
        draw = self.draw
        self.number += 1
        odd = 0.3 if self.friendly else 1.0
        mixes, pair = draw.random() < 0.2 * odd, draw.random() < 0.2
        kinds = ("", "", "", "", ":col", ":row", ":flat") if draw.random() < 0.3 else ("",)
        reads = []
        for _ in range(draw.randint(0, 2)):
            name = draw.choice(self.variables[-5:])
            reads.append(
                name + draw.choice(kinds) if draw.random() < 0.85 else f"{name}+{draw.choice(self.variables)}"
            )
        used: dict[str, str] = {}
        if draw.random() < 0.7:
            used[draw.choice(("ENV", "BUF"))] = draw.choice(MODES)
        if draw.random() < 0.4:
            used["W"] = "read" if draw.random() > 0.2 * odd else draw.choice(MODES)
        if draw.random() < 0.15 * odd:
            used["OPT"] = draw.choice(MODES)
        role = draw.choice(("sync", "update")) if mixes and draw.random() < 0.4 else ""
        out = draw.choice(self.variables[1:]) if len(self.variables) > 1 and draw.random() < 0.4 else ""
        node = Node(
            f"n{self.number}",
            draw.choice(COMPONENTS),
            tuple(reads),
            used,  # type: ignore[arg-type]
            mixes=mixes,
            unit=draw.choice((1, 1, 1, 2)),
            role=role,  # type: ignore[arg-type]
            movable=draw.random() < 0.95,
            pair=pair and not mixes,
            duration_s=draw.choice((0.5, 1.0, 2.0)),
            samples=draw.random() < 0.98,
            out=out,
        )
        if not out:
            self.variables.append(node.name)
        return node

    def body(self, depth: int) -> tuple[Node | Loop | Block, ...]:
        items: list[Node | Loop | Block] = []
        for _ in range(self.draw.randint(1, 4 - depth)):
            kind = self.draw.random()
            self.number += 1
            if depth < 2 and kind < 0.45:
                count = self.draw.randint(2, 4)
                items.append(Loop(f"l{self.number}", count, self.body(depth + 1), self.draw.random() < 0.9))
            elif depth < 2 and kind < 0.5:
                items.append(Block(f"b{self.number}", self.body(depth + 1)))
            else:
                items.append(self.node())
        return tuple(items)


def program(draw: random.Random) -> CallGraph:
    """A native graph."""
    batch = draw.choice((2, 4, 6))
    states = (
        state("ENV", batch=batch, copies=draw.choice((1, 2, 3))),
        state("BUF", batch=batch),
        state("W", weights=True),
        state("OPT", copies=draw.choice((1, 2))),
    )
    return graph_of(Author(draw).body(0), states, batch)


def step(draw: random.Random, graph: CallGraph) -> Callable[[CallGraph], CallGraph]:
    """A random transformation, legal or not."""
    used = [call.node for call in graph.calls]
    paths = [p for p in graph.nodes if any(u == p or u.startswith(p + "/") for u in used)]
    loops = [p for p in paths if graph.nodes[p].kind == "loop"] or paths
    path, other, loop = draw.choice(paths), draw.choice(paths), draw.choice(loops)
    groups = draw.choice((2, 2, 3))
    choices: list[Callable[[CallGraph], CallGraph]] = [
        lambda g: split_spatial(g, path, groups),
        lambda g: split_spatial(g, loop, groups),
        lambda g: split_spatial(g, path, downstream=(other,)),
        lambda g: split_spatial(g, path, cuts=(draw.randint(1, 3),)),
        lambda g: split_temporal(g, loop, groups),
        lambda g: split_chained(g, loop, groups),
        lambda g: merge(g, path),
        lambda g: interleave(g, loop),
        lambda g: interleave(g, path),
        lambda g: interleave(g, g.region),
        lambda g: rewire(g, path, before=other),
        lambda g: rewire(g, path, after=other),
        lambda g: rewire(g, path, stream="own"),
        lambda g: rewire(g, path, stream=other),
        lambda g: rewire(g, path, shift=draw.choice((-2, -1, 1, 2))),
    ]
    if any(call.group for call in graph.calls) and draw.random() < 0.3:
        return choices[draw.choice((7, 8, 9))]
    return draw.choice(choices)


def sequence(draw: random.Random, graph: CallGraph, length: int) -> tuple[CallGraph, list[str]]:
    """Apply random transformations; what was refused, in words."""
    refused = []
    for _ in range(length):
        change = step(draw, graph)
        try:
            graph = change(graph)
        except IllegalTransformationError as error:
            refused.append(str(error))
    return graph, refused


def spoil(draw: random.Random, graph: CallGraph) -> CallGraph:
    """Change something by hand, mostly for the worse."""
    call = draw.choice(graph.calls)
    kind = draw.randrange(6)
    if kind == 0:  # another input
        return _with(graph, replace(call, arguments=_rebound(draw, graph, call.arguments)))
    if kind == 1 and call.accesses:  # another version, copy or mode
        access = draw.choice(call.accesses)
        sees = draw.choice((INITIAL, None, *(c.origin for c in graph.calls)))
        other = draw.choice(
            (access._replace(sees=sees), access._replace(copy=1), access._replace(mode="refresh", sees=None))
        )
        return _with(graph, replace(call, accesses=tuple(other if a == access else a for a in call.accesses)))
    if kind == 2 and call.samples:  # other samples
        samples = tuple(draw.sample(range(call.batch_size or 1), len(call.samples)))
        return _with(graph, replace(call, samples=samples))
    if kind == 3:  # another order
        stream = draw.randrange(len(graph.streams))
        names = list(graph.streams[stream])
        a, b = draw.randrange(len(names)), draw.randrange(len(names))
        names[a], names[b] = names[b], names[a]
        return replace(graph, streams=(*graph.streams[:stream], tuple(names), *graph.streams[stream + 1 :]))
    if kind == 4:  # no order
        return replace(graph, streams=tuple((c.id,) for c in graph.calls), order_edges=())
    return replace(graph, output=_rebound(draw, graph, graph.output))


def _with(graph: CallGraph, call: object) -> CallGraph:
    return replace(graph, calls=tuple(call if c.id == call.id else c for c in graph.calls))  # type: ignore


def _rebound(draw: random.Random, graph: CallGraph, binding: Binding) -> Binding:
    """Change one thing in a binding: whom it names, which samples, in which order."""
    if isinstance(binding, Pack):
        if not binding.items:
            return binding
        at = draw.randrange(len(binding.items))
        items = list(binding.items)
        items[at] = _rebound(draw, graph, items[at])
        return replace(binding, items=tuple(items))
    if isinstance(binding, Ref):
        return replace(binding, call=draw.choice(graph.calls).id)
    if isinstance(binding, Slice):
        return replace(binding, samples=tuple(draw.sample(binding.samples, len(binding.samples))))
    if isinstance(binding, Gather):
        if draw.random() < 0.5:
            return replace(binding, parts=tuple(reversed(binding.parts)))
        return replace(binding, samples=tuple(reversed(binding.samples)))
    return binding
