"""Split: a batch into parts, a free loop into groups of iterations, a dependent one into segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import lcm

from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import IllegalTransformationError, NotBySampleError
from rlprof.overlap.flags import gathered
from rlprof.overlap.loops import loop_independence
from rlprof.overlap.parts import as_pack, part_accesses, part_arguments
from rlprof.overlap.samples import native_form
from rlprof.overlap.specs import Cell
from rlprof.overlap.transforms.common import (
    calls_below,
    check_number,
    loop_calls,
    rebound,
    refuse,
    verified,
    with_boundaries,
)
from rlprof.text import counted

RULE = "split"


def split_spatial(
    graph: CallGraph,
    target: str,
    groups: int = 2,
    *,
    cuts: Sequence[int] | None = None,
    downstream: Sequence[str] = (),
) -> CallGraph:
    """Cut the batch of every call below a node into parts: K becomes K/2 and K/2.

    Parameters
    ----------
    graph : CallGraph
        Before.
    target : str
        Path of a node or a loop; all calls below it are cut.
    groups : int
        Parts of each call, as equal as whole units allow.
    cuts : sequence of int, optional
        First samples of the second part and of those after it, in place of equal parts.
    downstream : sequence of str
        Further nodes that are cut in the same way.

    Returns
    -------
    CallGraph
        Parts stand in the stream where their call stood. Consumers that stay whole read the parts gathered.
        A part's duration is the call's, in proportion to its samples.

    Raises
    ------
    IllegalTransformationError
        If a node may mix samples or is a boundary, its batch size is not known or another one, a cut falls
        inside a unit, or a cell is written that belongs to no sample.
    """
    chosen: dict[str, Call] = {}
    for path in (target, *downstream):
        for call in calls_below(graph, path):
            chosen[call.id] = call
    calls = tuple(chosen.values())
    size = _batch_size(graph, calls)
    bounds = _bounds(graph, calls, size, groups, cuts)
    made: dict[str, tuple[Call, ...]] = {}
    for call in calls:
        made[call.origin] = _parts(graph, call, bounds)
    names = {call.id: tuple(part.id for part in made[call.origin]) for call in calls}
    streams = [[new for old in stream for new in names.get(old, (old,))] for stream in graph.streams]
    edges = [
        (a, b)
        for first, then in graph.order_edges
        for a in names.get(first, (first,))
        for b in names.get(then, (then,))
    ]
    what = ", ".join((target, *downstream))
    note = f"split {what} by samples into {' + '.join(str(b - a) for a, b in bounds)}"
    try:
        after = rebound(graph, made, note, streams, edges)
    except NotBySampleError as error:
        raise refuse(error, RULE, (target,)) from error
    _check_joins(after)
    return verified(graph, after)


def _check_joins(graph: CallGraph) -> None:
    """Refuse to join what the recorded outputs show that it cannot be joined."""
    users = [(call.id, call.arguments) for call in graph.calls]
    for user, binding in (*users, (graph.region, graph.output)):
        for part in gathered(binding):
            origin = graph.by_id[part.call].origin
            for path in graph.not_joined.get(origin, ()):
                if path[: len(part.path)] == part.path and part.view is None:
                    at = "".join(f"[{key!r}]" for key in path)
                    raise IllegalTransformationError(
                        f"what {origin} returns{f' at {at}' if at else ''} has no axis of samples, and {user}"
                        " would be given it joined of parts",
                        rule=RULE,
                        calls=(origin, user),
                        hint="return an array, name it in Batch(shared_outputs=...) if it is the same for"
                        " every part, or split what uses it alike",
                    )


def _batch_size(graph: CallGraph, calls: tuple[Call, ...]) -> int:
    first = calls[0]
    for call in calls:
        node = graph.nodes[call.node]
        if call.samples is not None:
            raise IllegalTransformationError(
                f"{call.origin} is split already",
                rule=RULE,
                calls=(call.id,),
                hint="split the native graph into more groups at once, or merge first",
            )
        if node.role:
            raise IllegalTransformationError(
                f"node {node.path} has the role {node.role!r}, a boundary that is never cut",
                rule="L6",
                calls=(call.id,),
            )
        if node.batch is None:
            raise IllegalTransformationError(
                f"node {node.path} declares no batch axis: it may mix samples",
                rule=RULE,
                calls=(call.id,),
                hint="declare batch=Batch(...) if it works on each sample by itself",
            )
        if call.batch_size is None:
            raise IllegalTransformationError(
                f"the batch size of {call.origin} is not known", rule=RULE, calls=(call.id,)
            )
        if call.batch_size != first.batch_size:
            size = counted(first.batch_size or 0, "sample")
            raise IllegalTransformationError(
                f"{first.origin} has {size}, {call.origin} {call.batch_size}",
                rule=RULE,
                calls=(first.id, call.id),
            )
        by_sample = [a.cell for a in call.accesses if graph.states[a.cell.state].by_sample]
        if by_sample and node.batch.samples is None:
            raise IllegalTransformationError(
                f"node {node.path} uses {by_sample[0].state} by sample and has no parameter that is given the"
                " samples",
                rule=RULE,
                calls=(call.id,),
                hint="name it in Batch(samples=...)",
            )
    return first.batch_size or 0


def _bounds(
    graph: CallGraph, calls: tuple[Call, ...], size: int, groups: int, cuts: Sequence[int] | None
) -> list[tuple[int, int]]:
    """First sample and the one after the last, for every part."""
    units: dict[int, str] = {}
    for call in calls:
        batch = graph.nodes[call.node].batch
        assert batch is not None
        units.setdefault(batch.unit, call.node)
    for unit, node in units.items():
        if size % unit:
            raise IllegalTransformationError(
                f"the {size} samples of {node} are no whole units of {unit}", rule=RULE, calls=(node,)
            )
    if cuts is None:
        check_number(groups, "groups")
        together = lcm(*units)
        count = size // together
        if not 2 <= groups <= count:
            raise IllegalTransformationError(
                f"{size} samples in units of {together} cannot be cut into {groups} groups",
                rule=RULE,
                calls=(calls[0].node,),
                hint=f"between 2 and {count} groups are possible" if count > 1 else "",
            )
        edges = [together * (count * g // groups) for g in range(groups + 1)]
    else:
        for cut in cuts:
            check_number(cut, "a sample")
        edges = [0, *cuts, size]
        if len(edges) < 3 or any(a >= b for a, b in pairwise(edges)):
            raise IllegalTransformationError(
                f"cuts {tuple(cuts)} do not ascend between 0 and {size}", rule=RULE, calls=(calls[0].node,)
            )
        for cut in cuts:
            for unit, node in units.items():
                if cut % unit:
                    raise IllegalTransformationError(
                        f"a cut at {cut} falls inside a unit of {unit} samples of {node}",
                        rule=RULE,
                        calls=(node,),
                    )
    return list(pairwise(edges))


def _parts(graph: CallGraph, call: Call, bounds: list[tuple[int, int]]) -> tuple[Call, ...]:
    """Parts of a call, arguments in native form."""
    size = call.batch_size or 1
    found = []
    try:
        arguments = as_pack(native_form(call.arguments, graph))
        for number, (start, end) in enumerate(bounds):
            samples = tuple(range(start, end))
            group = call.group * len(bounds) + number
            share = (end - start) / size
            found.append(
                replace(
                    call,
                    id=f"{call.origin}@{group}",
                    arguments=part_arguments(arguments, graph.nodes[call.node], samples),
                    accesses=part_accesses(call, graph, samples),
                    samples=samples,
                    group=group,
                    duration_s=None if call.duration_s is None else call.duration_s * share,
                )
            )
    except NotBySampleError as error:
        raise refuse(error, RULE, (call.id,)) from error
    return tuple(found)


def split_temporal(graph: CallGraph, loop: str, groups: int = 2) -> CallGraph:
    """Divide the iterations of a free loop into groups: N becomes N/2 and N/2, batches as they are.

    Parameters
    ----------
    graph : CallGraph
        Before.
    loop : str
        Path of a loop whose iterations take nothing from each other.
    groups : int
        Each of consecutive iterations.

    Returns
    -------
    CallGraph
        Calls keep their stream; each group has a storage copy of its own of every state object that several
        groups write. The last group has copy 0, so that state ends where it ends natively.

    Raises
    ------
    IllegalTransformationError
        If the loop is dependent, has fewer iterations than groups, or a state object has fewer copies than
        groups that are alive at once.
    """
    executions = _undivided(graph, loop)
    answer = loop_independence(graph, loop)
    if not answer.free:
        flow = next((f for f in answer.flows if f.cells), answer.flows[0] if answer.flows else None)
        why = answer.reason
        named: tuple[str, ...] = (loop,)
        if flow is not None:
            more = f" and {len(flow.cells) - 2} more" if len(flow.cells) > 2 else ""
            what = ", ".join(str(cell) for cell in flow.cells[:2]) + more or "an output"
            why, named = f"{flow.target} takes {what} of {flow.source}", (flow.source, flow.target)
        raise IllegalTransformationError(
            f"loop {loop} is dependent: {why}",
            rule=RULE,
            calls=named,
            hint="a dependent loop can be cut into segments that run one after another",
        )
    group = _iteration_groups(loop, executions, groups, None)
    copies: dict[tuple[str, str], int] = {}  # call and state
    for iterations in executions.values():
        users: dict[str, set[int]] = {}
        for state in _shared_states(iterations.items(), group):
            for i, calls in iterations.items():
                if any(a.cell.state == state for call in calls for a in call.accesses):
                    users.setdefault(state, set()).add(group[i])
        for state, using in users.items():
            if len(using) > graph.states[state].copies:
                declared = graph.states[state].copies
                raise IllegalTransformationError(
                    f"{len(using)} groups of {loop} write {state} at once, of which there"
                    f" {'is 1 copy' if declared == 1 else f'are {declared} copies'}",
                    rule=RULE,
                    calls=(loop, state),
                    hint="declare spare objects in State(..., copies=[...]), or split into fewer groups",
                )
            rank = {g: n for n, g in enumerate(sorted(using, reverse=True))}
            for i, calls in iterations.items():
                for call in calls:
                    copies[call.id, state] = rank.get(group[i], 0)
    changed = []
    for call in graph.calls:
        if loop in call.iteration:
            accesses = tuple(
                a._replace(copy=copies.get((call.id, a.cell.state), a.copy)) for a in call.accesses
            )
            changed.append(replace(call, group=group[call.iteration[loop]], accesses=accesses))
        else:
            changed.append(call)
    note = f"split the iterations of {loop} into {groups} groups"
    return verified(graph, graph.changed(note, calls=tuple(changed)))


def split_chained(
    graph: CallGraph, loop: str, segments: int = 2, *, cuts: Sequence[int] | None = None
) -> CallGraph:
    """Cut a loop into consecutive segments that can start each when its own inputs are ready.

    Parameters
    ----------
    graph : CallGraph
        Before.
    loop : str
        Path of a loop, which may be dependent.
    segments : int
        As equal as possible.
    cuts : sequence of int, optional
        First iterations of the second segment and of those after it, in place of equal segments.

    Returns
    -------
    CallGraph
        Each segment has a stream of its own, and its number as the group of its calls. What one segment
        takes from another still orders them.

    Raises
    ------
    IllegalTransformationError
        If the loop has fewer iterations than segments.
    """
    executions = _undivided(graph, loop)
    group = _iteration_groups(loop, executions, segments, cuts)
    segment = {call.id: group[call.iteration[loop]] for call in graph.calls if loop in call.iteration}
    calls = [replace(call, group=segment[call.id]) if call.id in segment else call for call in graph.calls]
    streams: list[list[str]] = []
    for stream in graph.streams:
        streams.append([name for name in stream if name not in segment])
        streams += [[name for name in stream if segment.get(name) == g] for g in sorted(set(group.values()))]
    note = f"cut {loop} into {len(set(group.values()))} segments"
    after = graph.changed(note, calls=tuple(calls), streams=tuple(tuple(s) for s in streams))
    return verified(graph, with_boundaries(after))


_Executions = dict[str, dict[int, list[Call]]]


def _undivided(graph: CallGraph, loop: str) -> _Executions:
    executions = loop_calls(graph, loop)
    for iterations in executions.values():
        for calls in iterations.values():
            for call in calls:
                if call.samples is not None or call.group or any(a.copy for a in call.accesses):
                    raise IllegalTransformationError(
                        f"{call.origin} is split already",
                        rule=RULE,
                        calls=(call.id,),
                        hint="divide iterations first, then batches",
                    )
    return executions


def _iteration_groups(
    loop: str, executions: _Executions, groups: int, cuts: Sequence[int] | None
) -> dict[int, int]:
    """Group of every iteration."""
    counts = {max(iterations) + 1 for iterations in executions.values()}
    count = max(counts)
    for number in (groups,) if cuts is None else cuts:
        check_number(number, "groups" if cuts is None else "an iteration")
    if cuts is None:
        if not 2 <= groups <= min(counts):
            raise IllegalTransformationError(
                f"the {min(counts)} iterations of {loop} cannot be divided into {groups} groups",
                rule=RULE,
                calls=(loop,),
            )
        edges = [count * g // groups for g in range(groups + 1)]
    else:
        edges = [0, *cuts, count]
        if len(edges) < 3 or any(a >= b for a, b in pairwise(edges)):
            raise IllegalTransformationError(
                f"cuts {tuple(cuts)} do not ascend between 0 and {count}", rule=RULE, calls=(loop,)
            )
    return {i: g for g, (a, b) in enumerate(pairwise(edges)) for i in range(a, b)}


def _shared_states(iterations: Iterable[tuple[int, list[Call]]], group: dict[int, int]) -> list[str]:
    """State objects with a cell that is written and that several groups use."""
    users: dict[Cell, set[int]] = {}
    written: set[Cell] = set()
    for i, calls in iterations:
        for call in calls:
            for access in call.accesses:
                users.setdefault(access.cell, set()).add(group[i])
                if access.mode != "read":
                    written.add(access.cell)
    return list(dict.fromkeys(cell.state for cell in users if cell in written and len(users[cell]) > 1))
