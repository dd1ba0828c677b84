"""Whether a graph computes what the native one does: rules L1 to L7, checked on the graph as it is.

How a graph was made plays no part. Every call is compared with the native call of its origin, every version
with the native one, and whatever has to come before something else is looked up in what the graph enforces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise

from rlprof.overlap.bindings import Binding, Pack, sources
from rlprof.overlap.callgraph import INITIAL, Call, CallGraph, expect_graph
from rlprof.overlap.errors import NotBySampleError
from rlprof.overlap.memory import peak_memory_bytes
from rlprof.overlap.needs import Need, boundaries, needs
from rlprof.overlap.parts import natives, part_accesses, part_arguments
from rlprof.overlap.precedence import Precedence
from rlprof.overlap.samples import native_form
from rlprof.overlap.specs import Cell, NodeSpec
from rlprof.unavailable import Unavailable


@dataclass(frozen=True, slots=True)
class Refusal:
    """One way in which a graph breaks a rule.

    Parameters
    ----------
    rule : str
        ``"L1"`` to ``"L7"``; ``"order"`` if chosen order alone goes round in a circle.
    reason : str
        One line.
    calls : tuple of str
        Ids of the calls involved.
    cell : Cell or None
        State that it is about.
    """

    rule: str
    reason: str
    calls: tuple[str, ...] = ()
    cell: Cell | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}"


def check(
    native: CallGraph,
    graph: CallGraph,
    *,
    memory_bytes: float | None = None,
    call_bytes: Mapping[str, float] | None = None,
) -> tuple[Refusal, ...]:
    """Re-check a whole graph against the native one.

    Parameters
    ----------
    native : CallGraph
        As it was recorded; or a legal graph, which stands for the native one that it came from.
    graph : CallGraph
        What is to run.
    memory_bytes : float, optional
        Limit for rule L7, which is looked at if it is given and no other rule is broken.
    call_bytes : mapping of str to float, optional
        Estimates as for `rlprof.overlap.memory.peak_memory_bytes`.

    Returns
    -------
    tuple of Refusal
        Empty if the graph is legal.

    Notes
    -----
    L1: every call and sample runs once. L2: every argument and access has its native value, and objects end
    with it, in copy 0. L3: writes to a storage copy of a cell keep their order. L4: nothing writes over a
    version that is still to be read; copies are those declared. L5: nodes hold the components and resources
    that serve one call at a time. L6: readers of rollout weights and parameter updates cross no weight
    synchronisation and no end of an iteration of the root loop; updates keep order and contents. L7: peak
    memory (specification A, section 5).
    """
    expect_graph(native, "the native graph")
    expect_graph(graph)
    refusals = _same_program(native, graph)
    if any(r.rule == "" for r in refusals):
        return tuple(Refusal("L1", r.reason) for r in refusals if r.rule == "")
    try:
        calls = natives(native)
        output = native_form(native.output, native)
    except NotBySampleError as error:
        return (Refusal("L2", f"the graph to compare with is not legal itself: {error.what}"),)
    refusals += _units(calls, graph)
    if any(call.origin not in calls for call in graph.calls):
        return tuple(refusals)  # nothing can be said about calls that natively are none
    for call in graph.calls:
        refusals += _values(calls[call.origin], call, graph)
    refusals += _output(output, graph)
    refusals += _storage(calls, graph)
    refusals += _order(calls, graph)
    if memory_bytes is not None and not refusals:
        peak = peak_memory_bytes(graph, call_bytes or {})
        if isinstance(peak, Unavailable):
            refusals.append(
                Refusal("L7", f"whether {memory_bytes:.3g} bytes suffice is not known: {peak.reason}")
            )
        elif peak > memory_bytes:
            refusals.append(Refusal("L7", f"up to {peak:.3g} bytes are held at once, of {memory_bytes:.3g}"))
    return tuple(refusals)


_RULE_OF_FIELD = {"component": "L5", "resources": "L5", "role": "L6", "batch": "L1", "parameters": "L1"}


def _same_program(native: CallGraph, graph: CallGraph) -> list[Refusal]:
    """Nodes and states are facts that no transformation changes."""
    found = []
    if native.region != graph.region:
        found.append(Refusal("", f"it is a graph of {graph.region}, not of {native.region}"))
    if native.nodes is not graph.nodes:
        if native.nodes.keys() != graph.nodes.keys():
            found.append(Refusal("", "it has not the nodes of the program"))
        for path in native.nodes.keys() & graph.nodes.keys():
            a, b = native.nodes[path], graph.nodes[path]
            for name in [f.name for f in fields(NodeSpec) if getattr(a, f.name) != getattr(b, f.name)]:
                rule = _RULE_OF_FIELD.get(name, "L2")
                found.append(Refusal(rule, f"node {path} has another {name} than natively"))
    if native.states is not graph.states and native.states != graph.states:
        for name in native.states.keys() | graph.states.keys():
            if native.states.get(name) != graph.states.get(name):
                found.append(Refusal("L4", f"state {name} is not declared as natively"))
    return found


def _units(calls: Mapping[str, Call], graph: CallGraph) -> list[Refusal]:
    """L1: every call and sample once, cuts between units."""
    found = []
    for origin in calls:
        if origin not in graph.parts:
            found.append(Refusal("L1", f"{origin} does not run", (origin,)))
    for origin, parts in graph.parts.items():
        ids = tuple(part.id for part in parts)
        native = calls.get(origin)
        if native is None:
            found.append(Refusal("L1", f"{ids[0]} runs, which natively does not", ids))
            continue
        for part in parts:
            for name in ("node", "indices", "batch_size"):
                if getattr(part, name) != getattr(native, name):
                    found.append(Refusal("L1", f"{part.id} has another {name} than {origin}", (part.id,)))
        if len(parts) == 1 and parts[0].samples is None:
            continue
        if any(part.samples is None for part in parts):
            found.append(Refusal("L1", f"{origin} runs whole, and again as {len(parts) - 1} more", ids))
            continue
        spec = graph.nodes[native.node]
        if spec.role:
            found.append(Refusal("L6", f"{origin} has the role {spec.role!r} and is cut", ids))
        if spec.batch is None or native.batch_size is None:
            found.append(Refusal("L1", f"{origin} is cut, and may mix samples", ids))
            continue
        counted = sorted(s for part in parts for s in part.samples or ())
        if counted != list(range(native.batch_size)):
            wrong = next(
                (s for s in range(native.batch_size) if counted.count(s) != 1), counted[-1] if counted else 0
            )
            times = counted.count(wrong)
            found.append(Refusal("L1", f"sample {wrong} of {origin} runs {times} times", ids))
        unit = spec.batch.unit
        for part in parts:
            blocks = part.samples or ()
            for at in range(0, len(blocks), unit):
                block = blocks[at : at + unit]
                if block[0] % unit or block != tuple(range(block[0], block[0] + unit)):
                    found.append(
                        Refusal("L1", f"{part.id} is cut inside a unit of {unit} samples", (part.id,))
                    )
                    break
    return found


def _values(native: Call, call: Call, graph: CallGraph) -> list[Refusal]:
    """L2: arguments and accesses of a call are the native ones, restricted to its samples."""
    try:
        expected: Pack = native.arguments
        accesses = native.accesses
        if call.samples is not None:
            expected = part_arguments(expected, graph.nodes[call.node], call.samples)
            accesses = part_accesses(native, graph, call.samples)
        actual = native_form(call.arguments, graph)
    except (NotBySampleError, IndexError) as error:
        why = error.what if isinstance(error, NotBySampleError) else "it takes samples that are none"
        return [Refusal("L2", f"{call.id} cannot be told to get its native arguments: {why}", (call.id,))]
    found = []
    if actual is not expected and actual != expected:
        where = _difference(expected, actual)
        found.append(Refusal("L2", f"{call.id} does not get its native argument{where}", (call.id,)))
    if call.accesses == accesses:
        return found
    wanted = {a.cell: a for a in accesses}
    given = {a.cell: a for a in call.accesses}
    if len(given) < len(call.accesses):
        found.append(Refusal("L2", f"{call.id} uses a cell twice", (call.id,)))
    for cell in wanted.keys() | given.keys():
        a, b = wanted.get(cell), given.get(cell)
        if a is None or b is None:
            what = "does not use" if b is None else "uses"
            found.append(Refusal("L2", f"{call.id} {what} {cell}, other than natively", (call.id,), cell))
        elif a.mode != b.mode:
            reason = f"{call.id} uses {cell} by {b.mode}, natively by {a.mode}"
            found.append(Refusal("L2", reason, (call.id,), cell))
        elif a.sees != b.sees:
            reason = f"{call.id} sees {cell} as {_version(b.sees)} left it, natively {_version(a.sees)}"
            found.append(Refusal("L2", reason, (call.id,), cell))
    return found


def _version(origin: str | None) -> str:
    return "nobody" if origin is None else origin or "the region's start"


def _difference(expected: Binding, actual: Binding, path: str = "") -> str:
    """Where two bindings differ, and how, for people."""
    if isinstance(expected, Pack) and isinstance(actual, Pack) and expected.keys == actual.keys:
        for key, a, b in zip(expected.keys, expected.items, actual.items, strict=True):
            if a != b:
                return _difference(a, b, f"{path}[{key!r}]")
    return f" at {path or 'the top'}: {_short(actual)} in place of {_short(expected)}"


def _short(binding: Binding) -> str:
    named = sources(binding)
    text = type(binding).__name__.lower()
    return f"{text} of {named[0]}" if named else text


def _output(expected: Binding, graph: CallGraph) -> list[Refusal]:
    try:
        actual = native_form(graph.output, graph)
    except NotBySampleError as error:
        return [Refusal("L2", f"what the region returns cannot be told: {error.what}")]
    if actual == expected:
        return []
    return [Refusal("L2", f"the region does not return its native result{_difference(expected, actual)}")]


def _storage(calls: Mapping[str, Call], graph: CallGraph) -> list[Refusal]:
    """L2, L4: which copy holds which version, and what is left in copy 0."""
    found = []
    lies: dict[tuple[Cell, str], int] = {}
    last: dict[Cell, str] = {}
    for native in sorted(calls.values(), key=lambda c: c.order):
        for access in native.accesses:
            if access.mode != "read":
                last[access.cell] = native.origin
    for call in graph.calls:
        objects: dict[str, int] = {}
        for access in call.accesses:
            cell, copies = access.cell, graph.states[access.cell.state].copies
            if not 0 <= access.copy < copies:
                reason = f"{call.id} uses copy {access.copy} of {cell}, of which {copies} are declared"
                found.append(Refusal("L4", reason, (call.id,), cell))
            if objects.setdefault(cell.state, access.copy) != access.copy:
                found.append(Refusal("L4", f"{call.id} uses two copies of {cell.state}", (call.id,), cell))
            if access.mode != "read":
                lies[cell, call.origin] = access.copy
    for call in graph.calls:
        for access in call.accesses:
            if access.sees is None:
                continue
            cell = access.cell
            there = 0 if access.sees == INITIAL else lies.get((cell, access.sees))
            if there != access.copy:
                reason = (
                    f"{call.id} looks for {cell} of {_version(access.sees)} in copy {access.copy};"
                    f" it lies in copy {there}"
                )
                found.append(Refusal("L2", reason, (call.id,), cell))
    for cell, origin in last.items():
        copy = lies.get((cell, origin), 0)
        if copy:
            reason = f"{cell} ends in copy {copy}: {origin} writes its last version there"
            found.append(Refusal("L2", reason, (origin,), cell))
    return found


def _order(calls: Mapping[str, Call], graph: CallGraph) -> list[Refusal]:
    """L2, L3, L4, L6: what has to come first does."""
    ids = [call.id for call in graph.calls]
    index = {name: i for i, name in enumerate(ids)}
    found = []
    for call in graph.calls:
        if call.order != calls[call.origin].order:
            found.append(Refusal("L3", f"{call.id} has another place in native order", (call.id,)))
    streams = [[index[name] for name in stream] for stream in graph.streams]
    edges = [(index[a], index[b]) for a, b in graph.order_edges]
    chosen = Precedence(streams, edges)
    if chosen.cycle:
        ring = tuple(ids[i] for i in chosen.cycle)
        return [*found, Refusal("order", f"chosen order goes round: {_ring(ring)}", ring)]
    needed = needs(calls, graph)
    limits = boundaries(calls, graph)
    wrong = [need for need in (*needed, *limits) if chosen.before(need[1], need[0])]
    found += [_inverted(need, ids) for need in dict.fromkeys(wrong)]
    if wrong:
        return found
    enforced = Precedence(streams, [*edges, *((a, b) for a, b, _, _ in needed)])
    if enforced.cycle:
        return [*found, _circle(enforced.cycle, needed, ids)]
    for need in limits:
        if not enforced.before(need[0], need[1]):
            a, b = ids[need[0]], ids[need[1]]
            found.append(Refusal("L6", f"nothing makes {b} wait for {a}, a boundary between them", (a, b)))
    return found


def _inverted(need: Need, ids: list[str]) -> Refusal:
    first, then = ids[need[0]], ids[need[1]]
    rule, cell = need[2], need[3]
    reason = {
        "L2": f"{then} comes before {first}, "
        + (f"whose {cell} it sees" if cell is not None else "whose output it needs"),
        "L3": f"{then} writes {cell} before {first}, natively after it",
        "L4": f"{then} writes over the version of {cell} that {first} has still to read",
        "L6": f"{then} comes before {first}: it crosses a weight synchronisation, update or iteration's end",
    }[rule]
    return Refusal(rule, reason, (first, then), cell)


def _circle(cycle: tuple[int, ...], needed: Iterable[Need], ids: list[str]) -> Refusal:
    """Dependencies and chosen order that wait for each other: the rule is that of a dependency among them."""
    steps = {*pairwise(cycle), (cycle[-1], cycle[0])}
    inside = next((need for need in needed if (need[0], need[1]) in steps), None)
    ring = tuple(ids[i] for i in cycle)
    if inside is None:
        return Refusal("order", f"chosen order goes round: {_ring(ring)}", ring)
    return Refusal(inside[2], f"calls wait for each other: {_ring(ring)}", ring, inside[3])


def _ring(ring: tuple[str, ...]) -> str:
    shown = ring if len(ring) <= 6 else (*ring[:5], f"… {len(ring) - 6} more …", ring[-1])
    return " -> ".join((*shown, ring[0]))
