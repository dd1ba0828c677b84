"""Transformations with random arguments: likely ones mostly, so that many are legal."""

from __future__ import annotations

import random
from collections.abc import Callable

from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.transforms import (
    interleave,
    merge,
    rewire,
    split_chained,
    split_spatial,
    split_temporal,
)

Step = Callable[[CallGraph, random.Random], CallGraph]


def _above(path: str) -> list[str]:
    """A node and everything around it."""
    parts = path.split("/")
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def _around(graph: CallGraph, wanted: Callable[[Call], bool]) -> list[str]:
    """Nodes in the region below which there is a call that is wanted."""
    found = {path for call in graph.calls if wanted(call) for path in _above(call.node)}
    return sorted(path for path in found if len(path) >= len(graph.region))


def _any(paths: list[str], draw: random.Random, why: str) -> str:
    if not paths:
        raise IllegalTransformationError(why, rule="none")
    return draw.choice(paths)


def _can_be_cut(graph: CallGraph, call: Call) -> bool:
    return graph.nodes[call.node].batch is not None and call.samples is None


def cut_batches(graph: CallGraph, draw: random.Random) -> CallGraph:
    """Spatial split of something below which there are only batches, if there is such a thing."""
    paths = _around(graph, lambda call: _can_be_cut(graph, call))
    whole = [path for path in paths if all(_can_be_cut(graph, call) for call in graph.below(path))]
    target = _any(whole if whole and draw.random() < 0.9 else paths, draw, "no batches")
    size = next(c.batch_size or 2 for c in graph.calls if c.node == target or c.node.startswith(target + "/"))
    more = [draw.choice(whole)] if whole and draw.random() < 0.3 else []
    if draw.random() < 0.3 and size > 2:
        cuts = sorted(draw.sample(range(1, size), draw.randint(1, min(3, size - 1))))
        return split_spatial(graph, target, cuts=cuts, downstream=more)
    return split_spatial(graph, target, draw.choice((2, 2, 2, 3)), downstream=more)


def take_turns(graph: CallGraph, draw: random.Random) -> CallGraph:
    """Interleave what was split."""
    paths = _around(graph, lambda call: call.samples is not None or call.group > 0)
    return interleave(graph, _any(paths, draw, "nothing was split"))


def _loops(graph: CallGraph) -> list[str]:
    found = {path for call in graph.calls for path, _ in call.indices}
    return sorted(path for path in found if graph.nodes[path].count != 1 and path != graph.region)


def divide_iterations(graph: CallGraph, draw: random.Random) -> CallGraph:
    """Temporal split of some loop."""
    loops = _loops(graph)
    outer = [path for path in loops if not any(path.startswith(other + "/") for other in loops)]
    return split_temporal(
        graph, _any(outer if draw.random() < 0.7 else loops, draw, "no loops"), draw.choice((2, 2, 3))
    )


def chain_segments(graph: CallGraph, draw: random.Random) -> CallGraph:
    """Cut some loop into segments one after another."""
    return split_chained(graph, _any(_loops(graph), draw, "no loops"), draw.choice((2, 2, 3)))


def join_parts(graph: CallGraph, draw: random.Random) -> CallGraph:
    """Merge something that was split."""
    return merge(
        graph, _any(_around(graph, lambda call: call.samples is not None), draw, "nothing was split")
    )


def move(graph: CallGraph, draw: random.Random) -> CallGraph:
    """Rewire: beside another node, into a stream of its own or of another node, to other iterations."""
    nodes = sorted({call.node for call in graph.calls})
    target = draw.choice(nodes if draw.random() < 0.8 else _around(graph, lambda call: True))
    other = draw.choice(nodes)
    how = draw.random()
    if how < 0.3:
        return rewire(graph, target, before=other)
    if how < 0.6:
        return rewire(graph, target, after=other)
    if how < 0.8:
        return rewire(graph, target, stream="own")
    if how < 0.9:
        return rewire(graph, target, stream=other)
    return rewire(graph, target, shift=draw.choice((-1, 1)))


#: By the name under which they are counted.
STEPS: dict[str, Step] = {
    "split by samples": cut_batches,
    "split by iterations": divide_iterations,
    "split into segments": chain_segments,
    "interleave": take_turns,
    "merge": join_parts,
    "rewire": move,
}


def choose(graph: CallGraph, draw: random.Random) -> str:
    """Name of a step that the graph gives a chance to."""
    parts = any(call.samples is not None for call in graph.calls)
    groups = parts or any(call.group for call in graph.calls)
    weights = {
        "split by samples": 1 if parts else 4,
        "split by iterations": 0 if groups or not _loops(graph) else 3,
        "split into segments": 1 if _loops(graph) and not groups else 0,
        "interleave": 5 if groups else 0,
        "merge": 1 if parts else 0,
        "rewire": 2,
    }
    return draw.choices([*weights], [*weights.values()])[0]
