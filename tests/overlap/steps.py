"""Transformations with random arguments: likely ones mostly, so that many are legal."""

from __future__ import annotations

import random
from collections.abc import Callable

from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.transforms import interleave, split_spatial

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


#: By the name under which they are counted.
STEPS: dict[str, Step] = {"split by samples": cut_batches, "interleave": take_turns}
