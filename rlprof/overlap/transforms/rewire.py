"""Rewire: calls of a node elsewhere in order, within their stream, in another one, or in one of their own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.transforms.common import (
    GroupKey,
    ancestor,
    calls_below,
    execution,
    group_key,
    verified,
    with_boundaries,
)
from rlprof.text import counted

RULE = "rewire"


def rewire(
    graph: CallGraph,
    target: str,
    *,
    before: str | None = None,
    after: str | None = None,
    stream: str | None = None,
    shift: int = 0,
) -> CallGraph:
    """Move the calls of a node, with everything inside it.

    Parameters
    ----------
    graph : CallGraph
        Before.
    target : str
        Path of the node.
    before, after : str, optional
        Path of another node: each call is put right before or after the calls of that node in the same
        iteration of all loops around both, and in their stream.
    stream : str, optional
        ``"own"``: a stream for these calls alone (one for each group). Otherwise the path of a node whose
        stream they join, at their native place.
    shift : int
        Iterations of the innermost loop around the node by which its calls are moved in their stream: call i
        takes the place of call i + shift. What falls off runs before the loop's first or after its last call
        there (prologue, epilogue).

    Returns
    -------
    CallGraph
        With the same calls.

    Raises
    ------
    IllegalTransformationError
        If the node may not be moved, is a boundary of training, or a call would pass one that it needs, that
        needs it, or whose storage it shares.
    """
    chosen = [before is not None, after is not None, stream is not None, shift != 0]
    if sum(chosen) != 1:
        raise IllegalTransformationError(
            "one of before, after, stream and shift says where to", rule=RULE, calls=(target,)
        )
    calls = calls_below(graph, target)
    _check_movable(graph, target, calls)
    if shift:
        streams = _shifted(graph, target, calls, shift)
        note = f"shift {target} by {counted(shift, 'iteration')}"
    elif stream is not None:
        streams = _own(graph, calls) if stream == "own" else _joined(graph, calls, stream)
        note = f"move {target} to {'a stream of its own' if stream == 'own' else f'the stream of {stream}'}"
    else:
        other = before or after or ""
        streams = _beside(graph, target, calls, other, before is not None)
        note = f"move {target} {'before' if before else 'after'} {other}"
    moved = graph.changed(note, streams=tuple(tuple(s) for s in streams))
    return verified(graph, with_boundaries(moved))


def _check_movable(graph: CallGraph, target: str, calls: tuple[Call, ...]) -> None:
    for path in dict.fromkeys((target, *(call.node for call in calls))):
        node = graph.nodes[path]
        if not node.movable:
            raise IllegalTransformationError(
                f"node {path} says that it is not movable", rule=RULE, calls=(path,)
            )
        if node.role:
            raise IllegalTransformationError(
                f"node {path} has the role {node.role!r}, a boundary of training that is not moved",
                rule="L6",
                calls=(path,),
            )


def _without(graph: CallGraph, calls: tuple[Call, ...]) -> list[list[str]]:
    gone = {call.id for call in calls}
    return [[name for name in stream if name not in gone] for stream in graph.streams]


def _own(graph: CallGraph, calls: tuple[Call, ...]) -> list[list[str]]:
    groups: dict[GroupKey, list[str]] = {}
    for call in calls:
        groups.setdefault(group_key(call), []).append(call.id)
    return [*_without(graph, calls), *groups.values()]


def _joined(graph: CallGraph, calls: tuple[Call, ...], other: str) -> list[list[str]]:
    streams = _without(graph, calls)
    where = {name: number for number, stream in enumerate(streams) for name in stream}
    for key, group in groupby(sorted(calls, key=group_key), key=group_key):
        hosts = [call for call in calls_below(graph, other) if call.id in where]
        hosts = [call for call in hosts if group_key(call) == key] or hosts
        numbers = {where[call.id] for call in hosts}
        if len(numbers) != 1:
            raise IllegalTransformationError(
                f"the calls of {other} are in {len(numbers)} streams", rule=RULE, calls=(other,)
            )
        number = numbers.pop()
        place = {call.id: i for i, call in enumerate(graph.calls)}
        names = [call.id for call in group]
        kept = streams[number]
        for name in names:
            at = next((i for i, there in enumerate(kept) if place[there] > place[name]), len(kept))
            kept.insert(at, name)
    return streams


def _blocks(calls: tuple[Call, ...], key: Callable[[Call], str]) -> dict[tuple[str, GroupKey], list[Call]]:
    found: dict[tuple[str, GroupKey], list[Call]] = {}
    for call in calls:
        found.setdefault((key(call), group_key(call)), []).append(call)
    return found


def _common(a: str, b: str) -> str:
    """Path of the innermost node around both."""
    shared = []
    for x, y in zip(a.split("/")[:-1], b.split("/")[:-1], strict=False):
        if x != y:
            break
        shared.append(x)
    return "/".join(shared)


def _beside(
    graph: CallGraph, target: str, calls: tuple[Call, ...], other: str, first: bool
) -> list[list[str]]:
    anchors = calls_below(graph, other)
    if other == target or other.startswith(target + "/") or target.startswith(other + "/"):
        raise IllegalTransformationError(
            f"{target} and {other} are parts of each other", rule=RULE, calls=(target, other)
        )
    around = _common(target, other)
    crossed = [
        path
        for path, node in graph.nodes.items()
        if node.kind == "loop" and target.startswith(path + "/") and path.startswith(around + "/")
    ]
    if crossed:
        raise IllegalTransformationError(
            f"{target} would leave the iterations of loop {crossed[0]}, which {other} is not in",
            rule=RULE,
            calls=(target, other),
            hint="shift moves calls across iterations",
        )
    order = {name: i for stream in graph.streams for i, name in enumerate(stream)}
    streams = _without(graph, calls)
    where = {name: number for number, stream in enumerate(streams) for name in stream}
    by_parent: dict[str, list[Call]] = {}
    for call in anchors:
        by_parent.setdefault(ancestor(call, around), []).append(call)
    for (_, key), block in _blocks(calls, lambda call: execution(call, target)).items():
        there = by_parent.get(ancestor(block[0], around), [])
        there = [call for call in there if group_key(call) == key] or there
        if not there:
            raise IllegalTransformationError(
                f"{other} makes no call beside {block[0].id}", rule=RULE, calls=(block[0].id,)
            )
        anchor = there[0] if first else there[-1]
        kept = streams[where[anchor.id]]
        same = [kept.index(call.id) for call in there if where[call.id] == where[anchor.id]]
        at = min(same) if first else max(same) + 1
        kept[at:at] = sorted((call.id for call in block), key=order.__getitem__)
    return streams


def _shifted(graph: CallGraph, target: str, calls: tuple[Call, ...], shift: int) -> list[list[str]]:
    around = [p for p, n in graph.nodes.items() if n.kind == "loop" and target.startswith(p + "/")]
    loop = max((p for p in around if p in calls[0].iteration), key=len, default=None)
    if loop is None:
        raise IllegalTransformationError(
            f"{target} is in no loop of {graph.region}", rule=RULE, calls=(target,)
        )
    streams = [list(stream) for stream in graph.streams]
    where = {name: number for number, stream in enumerate(graph.streams) for name in stream}
    for (name, key), members in _blocks(calls, lambda call: execution(call, loop)).items():
        blocks: dict[int, list[str]] = {}
        for call in members:
            blocks.setdefault(call.iteration[loop], []).append(call.id)
        numbers = {where[call.id] for call in members}
        if len(numbers) > 1:
            raise IllegalTransformationError(
                f"the calls of {target} in {name} are in {len(numbers)} streams", rule=RULE, calls=(target,)
            )
        blocks = {n: blocks[i] for n, i in enumerate(sorted(blocks))}  # a segment starts with its own first
        count = len(blocks)
        if abs(shift) >= count:
            raise IllegalTransformationError(
                f"a shift by {shift} leaves the {count} iterations of {name}", rule=RULE, calls=(target,)
            )
        number = numbers.pop()
        inside = {
            call.id for call in graph.below(loop) if execution(call, loop) == name and group_key(call) == key
        }
        streams[number] = _moved(streams[number], inside, blocks, shift)
    return streams


def _moved(stream: list[str], inside: set[str], blocks: dict[int, list[str]], shift: int) -> list[str]:
    """Put every block where the one `shift` iterations on starts; what falls off, around the loop's calls."""
    starts = {block[0]: i for i, block in blocks.items()}
    moving = {name for block in blocks.values() for name in block}
    ends = [i for i, name in enumerate(stream) if name in inside]
    found: list[str] = []
    for i, name in enumerate(stream):
        if i == ends[0] and shift < 0:
            for fallen in range(-shift):
                found += blocks.get(fallen, [])
        if name in starts:
            found += blocks.get(starts[name] - shift, [])
        if name not in moving:
            found.append(name)
        if i == ends[-1] and shift > 0:
            for fallen in range(len(blocks) - shift, len(blocks)):
                found += blocks.get(fallen, [])
    return found
