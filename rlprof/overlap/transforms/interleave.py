"""Interleave: groups of a split in streams of their own, staggered, so that they overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rlprof.errors import UsageError
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.lower import component_worker
from rlprof.overlap.transforms.common import (
    GroupKey,
    Reach,
    calls_below,
    enforced,
    exclusive,
    execution,
    group_key,
    verified,
    with_boundaries,
)

RULE = "interleave"


def interleave(graph: CallGraph, target: str, in_turn: Sequence[str] = ()) -> CallGraph:
    """Put the groups of a split into streams of their own, each in its native order, one behind the other.

    Parameters
    ----------
    graph : CallGraph
        After a split of nodes below `target`.
    target : str
        Path of a loop or another node, or the region.
    in_turn : sequence of str
        Components (a text is one) whose spare copies take turns too, though they could work side by side:
        where one keeps all cores busy, two at once only slow each other.

    Returns
    -------
    CallGraph
        The groups share no order but the turns: of every component worker (or other thing that serves one
        call at a time) the n-th block of calls of a group goes before the n-th block of the next group, for
        each stream that they came from, and the last group's before the first group's next block. So the
        second group starts when the first leaves the worker that both begin with, and they take turns from
        there on, block by block: calls of two groups that took turns within their blocks would end theirs
        together, and then want the next worker at the same time. Where that would make calls wait for each
        other, as in a pipeline of segments, or for a boundary of training, only the first of these orders
        holds. What was not split stays in its stream.

    Raises
    ------
    IllegalTransformationError
        If nothing was split there, or a dependency path leads from one group to another: none may between
        parts of a batch; between groups of iterations none back, nor may it order them entirely.
    UsageError
        If `in_turn` names no component.
    """
    calls = calls_below(graph, target)
    parts = [call for call in calls if call.samples is not None]
    in_time = any(call.samples is None and call.group for call in calls)
    members = [*calls] if in_time else parts
    components = {node.component for node in graph.nodes.values()} - {""}
    in_turn = (in_turn,) if isinstance(in_turn, str) else in_turn
    if unknown := [name for name in in_turn if name not in components]:
        known = f"in_turn takes {', '.join(sorted(components))}"
        raise UsageError(
            f"no component is called {unknown[0]!r}",
            hint=known if components else "no node of this graph has a component: leave in_turn away",
        )
    if len({group_key(call) for call in members}) < 2:
        raise IllegalTransformationError(
            f"no two groups below {target}", rule=RULE, calls=(target,), hint="split it first"
        )
    _check_paths(graph, target, members)
    chosen = {call.id for call in members}
    rest = [[name for name in stream if name not in chosen] for stream in graph.streams]
    streams: list[list[str]] = [*rest]
    stagger, turns = [*graph.order_edges], list[tuple[str, str]]()
    for stream in graph.streams:
        own: dict[GroupKey, list[str]] = {}
        for name in stream:
            if name in chosen:
                own.setdefault(group_key(graph.by_id[name]), []).append(name)
        streams += [own[key] for key in sorted(own)]
        for blocks in _blocks(graph, target, own, in_turn):
            stagger += _between(pairwise(blocks))
            turns += _between([(blocks[-1], blocks[0][1:])])
    note = f"interleave {len({group_key(call) for call in members})} groups of {target}"

    def made(edges: list[tuple[str, str]]) -> CallGraph:
        changed = graph.changed(note, streams=tuple(tuple(s) for s in streams), order_edges=tuple(edges))
        return with_boundaries(changed)

    after = made([*stagger, *turns])
    if enforced(after).cycle:
        after = made(stagger)
    return verified(graph, after)


def _blocks(
    graph: CallGraph, target: str, own: dict[GroupKey, list[str]], in_turn: Sequence[str]
) -> Iterable[list[list[list[str]]]]:
    """For everything exclusive that several groups hold: of each group the blocks of calls that hold it."""
    things = exclusive(graph)
    blocks: dict[tuple[str, str], dict[GroupKey, list[list[str]]]] = {}
    for key in sorted(own):
        before: dict[str, tuple[str, ...]] = {}
        for name in own[key]:
            call = graph.by_id[name]
            instance = execution(call, target)
            component = graph.nodes[call.node].component
            worker = component if component in in_turn else component_worker(graph, call)
            held = tuple(worker if thing == component else thing for thing in things[call.node])
            for thing in held:
                found = blocks.setdefault((instance, thing), {}).setdefault(key, [])
                if not found or thing not in before.get(instance, ()):
                    found.append([])
                found[-1].append(name)
            before[instance] = held
    return [list(groups.values()) for groups in blocks.values() if len(groups) > 1]


def _between(pairs: Iterable[tuple[list[list[str]], list[list[str]]]]) -> Iterable[tuple[str, str]]:
    """Order edges from each block of a group to the block in the same place of another's."""
    for first, then in pairs:
        for a, b in zip(first, then, strict=False):
            yield a[-1], b[0]


def _check_paths(graph: CallGraph, target: str, members: list[Call]) -> None:
    """Refuse dependency paths that make groups wait for each other."""
    reach = Reach(graph)
    instances: dict[str, dict[GroupKey, list[Call]]] = {}
    for call in members:
        instances.setdefault(execution(call, target), {}).setdefault(group_key(call), []).append(call)
    for groups in instances.values():
        origins = {key: {call.origin for call in calls} for key, calls in groups.items()}
        bits = {key: reach.bits(calls) for key, calls in groups.items()}
        for key, calls in groups.items():
            for other in groups:
                if other == key:
                    continue
                waits = [c for c in calls if reach.before[reach.index[c.id]] & bits[other]]
                if not waits:
                    continue
                if other > key or not origins[key].isdisjoint(origins[other]):
                    names, way = reach.path(bits[other], waits[0].id)
                    raise IllegalTransformationError(
                        f"a dependency leads from one group to another: {way}", rule=RULE, calls=names
                    )
                if all(reach.before[reach.index[c.id]] & bits[other] == bits[other] for c in calls):
                    names, way = reach.path(bits[other], waits[0].id)
                    raise IllegalTransformationError(
                        f"a group starts when another is over: {way}", rule=RULE, calls=names
                    )
