"""Legal graphs broken on purpose, one small thing at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlprof.overlap.bindings import Binding, External, Gather, Pack, Ref, Slice
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph

#: Returns None where a graph has nothing of the kind to break.
Mutation = Callable[[CallGraph, random.Random], CallGraph | None]


def _pick(draw: random.Random, items: Any) -> Any:
    found = list(items)
    return draw.choice(found) if found else None


def _with(graph: CallGraph, call: Call) -> CallGraph:
    return replace(graph, calls=tuple(call if c.id == call.id else c for c in graph.calls))


def _rewritten(
    binding: Binding, kind: type, draw: random.Random, change: Callable[[Any], Binding]
) -> Binding:
    """Change one of the bindings of a kind inside `binding`."""
    places: list[int] = [0]

    def walk(item: Binding, at: int | None) -> Binding:
        if isinstance(item, kind):
            places[0] += 1
            if at == places[0]:
                return change(item)
        if isinstance(item, Pack):
            return replace(item, items=tuple(walk(i, at) for i in item.items))
        if isinstance(item, Gather):
            return replace(item, parts=tuple(walk(i, at) for i in item.parts))
        if isinstance(item, Slice):
            return replace(item, of=walk(item.of, at))
        return item

    walk(binding, None)
    count = places[0]
    if not count:
        return binding
    places[0] = 0
    return walk(binding, draw.randint(1, count))


def _argument(
    graph: CallGraph, draw: random.Random, kind: type, change: Callable[[Any], Binding]
) -> CallGraph | None:
    """Change one binding of some kind in the arguments of one call, or in what the region returns."""
    calls = list(graph.calls)
    draw.shuffle(calls)
    for call in calls:
        arguments = _rewritten(call.arguments, kind, draw, change)
        if arguments != call.arguments:
            return _with(graph, replace(call, arguments=arguments))
    output = _rewritten(graph.output, kind, draw, change)
    return None if output == graph.output else replace(graph, output=output)


def rebind(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """An argument comes from another call of the same node, or another place of the output."""

    def other(ref: Ref) -> Ref:
        node = graph.by_id[ref.call].node
        calls = [c.id for c in graph.calls if c.node == node and c.id != ref.call]
        if calls and draw.random() < 0.8:
            return replace(ref, call=draw.choice(calls))
        return replace(ref, path=(*ref.path, 0) if not ref.path else (1,) if ref.path == (0,) else (0,))

    return _argument(graph, draw, Ref, other)


def rebind_external(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """A call gets an output in place of the region's argument."""
    made = [c.id for c in graph.calls]
    return _argument(graph, draw, External, lambda _: Ref(draw.choice(made)))


def shuffle_gather(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """Parts are put together at each other's places."""

    def shuffled(gather: Gather) -> Gather:
        flat = [s for part in gather.samples for s in part]
        draw.shuffle(flat)
        sizes = [len(part) for part in gather.samples]
        at = [sum(sizes[:i]) for i in range(len(sizes))]
        return replace(gather, samples=tuple(tuple(flat[a : a + n]) for a, n in zip(at, sizes, strict=True)))

    return _argument(graph, draw, Gather, shuffled)


def swap_gather_parts(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """Two parts of a gathered batch are exchanged."""
    return _argument(graph, draw, Gather, lambda g: replace(g, parts=(*g.parts[1:], g.parts[0])))


def shift_slice(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """A part gets the samples of another."""

    def shifted(cut: Slice) -> Slice:
        first = cut.samples[0]
        by = -first if first else len(cut.samples)
        return replace(cut, samples=tuple(s + by for s in cut.samples))

    return _argument(graph, draw, Slice, shifted)


def _access(
    graph: CallGraph, draw: random.Random, change: Callable[[Access], Access | None]
) -> CallGraph | None:
    calls = [call for call in graph.calls if call.accesses]
    draw.shuffle(calls)
    for call in calls:
        at = draw.randrange(len(call.accesses))
        new = change(call.accesses[at])
        accesses = (*call.accesses[:at], *((new,) if new is not None else ()), *call.accesses[at + 1 :])
        if accesses != call.accesses:
            return _with(graph, replace(call, accesses=accesses))
    return None


def see_another_version(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """A call is content with another version of a cell."""

    def other(access: Access) -> Access:
        versions = {
            c.origin for c in graph.calls for a in c.accesses if a.cell == access.cell and a.mode != "read"
        }
        rest = sorted({INITIAL, *versions} - {access.sees})
        return access if access.sees is None or not rest else access._replace(sees=draw.choice(rest))

    return _access(graph, draw, other)


def drop_access(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """A call no longer says that it uses a cell."""
    return _access(graph, draw, lambda access: None)


def weaken_access(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """An update passes for a read or a refresh, a refresh for a read."""

    def weaker(access: Access) -> Access:
        if access.mode == "update":
            mode = draw.choice(("read", "refresh"))
            return access._replace(mode=mode, sees=None if mode == "refresh" else access.sees)
        return access._replace(mode="read", sees=INITIAL) if access.mode == "refresh" else access

    return _access(graph, draw, weaker)


def other_copy(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """All that a call uses of a state lies in another storage copy, declared or not."""
    call = _pick(draw, [c for c in graph.calls if c.accesses])
    if call is None:
        return None
    state = draw.choice(call.accesses).cell.state
    by = draw.choice((1, 1, 2))
    accesses = tuple(
        a._replace(copy=(a.copy + by) % 3) if a.cell.state == state else a for a in call.accesses
    )
    return _with(graph, replace(call, accesses=accesses))


def too_few_copies(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """Groups that each had a storage copy share the native one."""
    if not any(a.copy for c in graph.calls for a in c.accesses):
        return None
    return replace(
        graph,
        calls=tuple(replace(c, accesses=tuple(a._replace(copy=0) for a in c.accesses)) for c in graph.calls),
    )


def swap_in_stream(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """Two calls of a stream change places."""
    streams = [list(s) for s in graph.streams]
    stream = _pick(draw, [s for s in streams if len(s) > 1])
    if stream is None:
        return None
    a = draw.randrange(len(stream) - 1)
    b = a + 1 if draw.random() < 0.5 else draw.randrange(len(stream))
    if a == b:
        return None
    stream[a], stream[b] = stream[b], stream[a]
    return replace(graph, streams=tuple(tuple(s) for s in streams))


def swap_writes(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """Two calls that write one cell change places in a stream."""
    writers: dict[Any, list[str]] = {}
    for call in graph.calls:
        for access in call.accesses:
            if access.mode != "read":
                writers.setdefault(access.cell, []).append(call.id)
    streams = [list(s) for s in graph.streams]
    where = {name: number for number, stream in enumerate(streams) for name in stream}
    pairs = [
        (a, b)
        for names in writers.values()
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if where[a] == where[b]
    ]
    pair = _pick(draw, pairs)
    if pair is None:
        return None
    stream = streams[where[pair[0]]]
    i, j = (stream.index(name) for name in pair)
    stream[i], stream[j] = stream[j], stream[i]
    return replace(graph, streams=tuple(tuple(s) for s in streams))


def cross_boundary(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """A reader of rollout weights, or an optimiser step, goes to the other side of a boundary."""
    marks = [c.id for c in graph.calls if graph.nodes[c.node].role]
    weights = {name for name, state in graph.states.items() if state.rollout_weights}
    movers = [
        c.id
        for c in graph.calls
        if graph.nodes[c.node].role == "update" or any(a.cell.state in weights for a in c.accesses)
    ]
    mark, mover = _pick(draw, marks), _pick(draw, movers)
    if mark is None or mover is None or mark == mover:
        return None
    streams = [[name for name in stream if name != mover] for stream in graph.streams]
    stream = next(s for s in streams if mark in s)
    order = {call.id: i for i, call in enumerate(graph.calls)}
    stream.insert(stream.index(mark) + (order[mover] < order[mark]), mover)
    return replace(graph, streams=tuple(tuple(s) for s in streams))


def free_stream(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """Calls leave their stream, and no order is chosen in its place."""
    moved = set(draw.sample([c.id for c in graph.calls], min(len(graph), draw.randint(1, 4))))
    rest = tuple(tuple(name for name in stream if name not in moved) for stream in graph.streams)
    return replace(graph, streams=(*rest, *((name,) for name in moved)))


def drop_order(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """Chosen order between streams is forgotten."""
    if not graph.order_edges:
        return None
    kept = tuple(edge for edge in graph.order_edges if draw.random() < 0.5)
    return replace(graph, order_edges=kept if kept != graph.order_edges else ())


def drop_call(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """A call, or a part of one, does not run."""
    parts = [c for c in graph.calls if c.samples is not None]
    gone = draw.choice(parts or graph.calls).id
    return replace(
        graph,
        calls=tuple(c for c in graph.calls if c.id != gone),
        streams=tuple(tuple(name for name in s if name != gone) for s in graph.streams),
        order_edges=tuple(edge for edge in graph.order_edges if gone not in edge),
    )


def repeat_call(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """A call, or a part of one, runs a second time."""
    parts = [c for c in graph.calls if c.samples is not None]
    call = draw.choice(parts or graph.calls)
    again = replace(call, id=f"{call.origin}@{97}", group=97)
    return replace(graph, calls=(*graph.calls, again), streams=(*graph.streams, (again.id,)))


def other_samples(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """A part works on the samples of another."""
    parts = [c for c in graph.calls if c.samples is not None and len(graph.parts[c.origin]) > 1]
    call = _pick(draw, parts)
    if call is None:
        return None
    other = _pick(draw, [c for c in graph.parts[call.origin] if c.samples != call.samples])
    if other is None:
        return None
    return _with(graph, replace(call, samples=other.samples, accesses=other.accesses))


def swap_samples(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """Two parts exchange samples and state, and keep their arguments."""
    origins = [parts for parts in graph.parts.values() if len(parts) > 1 and parts[0].samples is not None]
    parts = _pick(draw, origins)
    if parts is None:
        return None
    a, b = parts[0], parts[-1]
    graph = _with(graph, replace(a, samples=b.samples, accesses=b.accesses))
    return _with(graph, replace(b, samples=a.samples, accesses=a.accesses))


def other_result(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """The region returns something else."""
    return replace(
        graph, output=_rewritten(graph.output, Ref, draw, lambda _: Ref(draw.choice(graph.calls).id))
    )


def other_order(graph: CallGraph, draw: random.Random) -> CallGraph | None:
    """A call claims another place in native order: versions would be written in another one."""
    call = draw.choice(graph.calls)
    return _with(graph, replace(call, order=draw.choice(graph.calls).order))


MUTATIONS: tuple[Mutation, ...] = (
    rebind, rebind_external, shuffle_gather, swap_gather_parts, shift_slice, see_another_version, drop_access,
    weaken_access, other_copy, too_few_copies, swap_in_stream, swap_writes, cross_boundary, free_stream,
    drop_order, drop_call, repeat_call, other_samples, swap_samples, other_result, other_order,
)  # fmt: skip
