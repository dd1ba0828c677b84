"""Split: a batch into parts, a free loop into groups of iterations, a dependent one into segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import lcm

from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.samples import NotBySampleError, as_pack, native_form, part_accesses, part_arguments
from rlprof.overlap.transforms.common import calls_below, rebound, refuse, verified

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
    return verified(graph, after)


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
                f"node {node.path} is a {node.role}, a boundary that is never cut",
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
            raise IllegalTransformationError(
                f"{first.origin} has {first.batch_size} samples, {call.origin} {call.batch_size}",
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
