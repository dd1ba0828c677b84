"""Calls on some samples: their arguments and accesses, and the whole call of which they are parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from rlprof.overlap.bindings import Binding, Pack, Slice
from rlprof.overlap.callgraph import Access, Call, CallGraph
from rlprof.overlap.errors import NotBySampleError
from rlprof.overlap.samples import joined, native_form, take
from rlprof.overlap.specs import Cell, NodeSpec, Samples


def part_arguments(arguments: Pack, node: NodeSpec, samples: Samples) -> Pack:
    """Native form of the arguments of a call on some samples.

    Parameters
    ----------
    arguments : Pack
        Of the whole call, in native form.
    node : NodeSpec
        With a batch.
    samples : tuple of int
        Positions.

    Raises
    ------
    NotBySampleError
        If it is not known which arguments have samples.
    """

    def one(kind: _Kind, item: Binding) -> Binding:
        return item if isinstance(kind, str) else take(item, samples, kind)

    return _over(arguments, node, one)


_Kind = int | None | Literal["whole"]


def _over(arguments: Pack, node: NodeSpec, change: Callable[[_Kind, Binding], Binding]) -> Pack:
    """Change every argument: by the axis of its samples, None for a sequence, ``"whole"`` without samples."""
    batch = node.batch
    if batch is None:
        raise NotBySampleError(f"node {node.path} declares no batch axis: it may mix samples")

    def kind(name: str) -> _Kind:
        if name in batch.sequences:
            return None
        return batch.axis if batch.parameters is None or name in batch.parameters else "whole"

    positional, named = arguments.items
    if not isinstance(positional, Pack) or not isinstance(named, Pack):
        raise NotBySampleError(f"the arguments of {node.path} are no pair of positional and named ones")
    by_name = batch.parameters is not None or batch.sequences
    if positional.items and by_name and not node.parameters:
        raise NotBySampleError(f"the names of the positional parameters of {node.path} are not known")
    names = []
    for place in range(len(positional.items)):
        last = node.parameters[-1] if node.parameters else ""
        name = node.parameters[place] if place < len(node.parameters) else last if last[:1] == "*" else ""
        names.append(name.lstrip("*"))
    args = tuple(change(kind(n), item) for n, item in zip(names, positional.items, strict=True))
    kwargs = tuple(change(kind(str(k)), v) for k, v in zip(named.keys, named.items, strict=True))
    return replace(arguments, items=(replace(positional, items=args), replace(named, items=kwargs)))


def part_accesses(call: Call, graph: CallGraph, samples: Samples) -> tuple[Access, ...]:
    """Accesses of a call on some samples: the cells of those samples, and what is only read.

    Raises
    ------
    NotBySampleError
        If it writes a cell that belongs to no sample.
    """
    chosen = set(samples)
    found = []
    for access in call.accesses:
        cell = access.cell
        if not graph.states[cell.state].by_sample:
            if access.mode != "read":
                generator = cell.state.removeprefix("random:")
                if generator != cell.state:
                    raise NotBySampleError(
                        f"{call.id} draws from the generator of {generator}, which serves all samples;"
                        " numbers of Draws are keyed by sample"
                    )
                raise NotBySampleError(f"{call.id} writes {cell}, which is not partitioned by sample")
            found.append(access)
        elif not isinstance(cell.key, int) or not 0 <= cell.key < (call.batch_size or 0):
            raise NotBySampleError(f"{call.id} uses {cell}, which is none of its {call.batch_size} samples")
        elif cell.key in chosen:
            found.append(access)
    return tuple(found)


def whole_call(parts: tuple[Call, ...], graph: CallGraph) -> Call:
    """Native call of which these are the parts, or the only one; arguments in native form, storage as it is.

    Raises
    ------
    NotBySampleError
        If the parts do not fit together.
    """
    first = parts[0]
    if len(parts) == 1 and first.samples is None:
        arguments = native_form(first.arguments, graph)
        if first.id == first.origin and arguments is first.arguments:
            return first
        return replace(first, id=first.origin, arguments=as_pack(arguments))
    node = graph.nodes[first.node]
    samples = [part.samples or () for part in parts]
    forms = [as_pack(native_form(part.arguments, graph)) for part in parts]
    # arguments are joined one by one: walk over the first part's and take the others' from lists beside it
    flat: list[list[Binding]] = [
        [item for group in form.items for item in as_pack(group).items] for form in forms
    ]
    at = iter(range(len(flat[0])))
    if any(len(items) != len(flat[0]) for items in flat):
        raise NotBySampleError(f"parts of {first.origin} have different arguments")

    def one(kind: _Kind, item: Binding) -> Binding:
        place = next(at)
        column = [items[place] for items in flat]
        if isinstance(kind, str):
            return item
        if kind is None:
            return _joined_sequences(column, samples, first.origin)
        return joined(column, samples, kind, (), graph, first.batch_size)

    arguments = _over(forms[0], node, one)
    cells: dict[Cell, Access] = {a.cell: a for part in parts for a in part.accesses}
    durations = [part.duration_s for part in parts]
    total = None if None in durations else sum(d for d in durations if d is not None)
    return replace(
        first,
        id=first.origin,
        arguments=arguments,
        accesses=tuple(sorted(cells.values(), key=by_cell)),
        samples=None,
        duration_s=total,
    )


def natives(graph: CallGraph) -> dict[str, Call]:
    """Native calls by origin, as far as the graph tells: arguments in native form; made once for each graph.

    Raises
    ------
    NotBySampleError
        If the parts of a call do not fit together.
    """
    known: dict[str, Call] | None = graph.__dict__.get("_natives")
    if known is None:
        known = {origin: whole_call(parts, graph) for origin, parts in graph.parts.items()}
        graph.__dict__["_natives"] = known
    return known


def _joined_sequences(column: list[Binding], samples: list[Samples], call: str) -> Binding:
    if all(isinstance(item, Pack) for item in column):
        placed = {
            position: entry
            for item, positions in zip(column, samples, strict=True)
            for position, entry in zip(positions, as_pack(item).items, strict=True)
        }
        return Pack(
            as_pack(column[0]).kind, tuple(range(len(placed))), tuple(placed[i] for i in sorted(placed))
        )
    leaf = column[0].of if isinstance(column[0], Slice) else None
    if leaf is None or not all(isinstance(item, Slice) and item.of == leaf for item in column):
        raise NotBySampleError(f"parts of {call} are given different sequences")
    return leaf


def as_pack(binding: Binding) -> Pack:
    """Return a binding that has to be of several things.

    Raises
    ------
    NotBySampleError
        If it is none.
    """
    if not isinstance(binding, Pack):
        raise NotBySampleError("arguments are no pair of positional and named ones")
    return binding


def by_cell(access: Access) -> tuple[str, bool, int, str]:
    """Order of the accesses of a call: by state, then by partition."""
    key = access.cell.key
    return access.cell.state, isinstance(key, str), key if isinstance(key, int) else 0, str(key)
