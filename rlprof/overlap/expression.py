"""Values in terms of the parts of a batch that there are: from native form to what a graph can evaluate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlprof.overlap.bindings import Binding, Gather, Pack, Ref, Slice
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import NotBySampleError
from rlprof.overlap.sample_views import of_whole, row_size, rows_in, rows_of
from rlprof.overlap.samples import batch_of, check_cut, spoken
from rlprof.overlap.specs import BatchSpec
from rlprof.text import counted


def express(binding: Binding, graph: CallGraph, parts: dict[str, tuple[Call, ...]] | None = None) -> Binding:
    """Say a binding in native form in terms of a graph's calls.

    Parameters
    ----------
    binding : Binding
        In native form.
    graph : CallGraph
        For its nodes, and its calls unless `parts` are given.
    parts : dict of str to tuple of Call, optional
        Calls by origin.

    Returns
    -------
    Binding
        A part with the very samples that are wanted is used as it is; else what is needed is gathered, from
        those parts alone that hold it.

    Raises
    ------
    NotBySampleError
        If a value of a split call cannot be told sample by sample.
    """
    parts = graph.parts if parts is None else parts
    if isinstance(binding, Pack):
        items = tuple(express(item, graph, parts) for item in binding.items)
        same = all(a is b for a, b in zip(items, binding.items, strict=True))
        return binding if same else replace(binding, items=items)
    leaf = binding.of if isinstance(binding, Slice) else binding
    if isinstance(leaf, Slice):
        raise NotBySampleError(f"{spoken(leaf)} is cut along two axes")
    if not isinstance(leaf, Ref):
        return binding
    calls = parts[leaf.call]
    if calls[0].samples is None:
        if isinstance(binding, Slice):
            check_cut(leaf, graph)
        same_name = calls[0].id == leaf.call
        named = leaf if same_name else replace(leaf, call=calls[0].id)
        return replace(binding, of=named) if isinstance(binding, Slice) else named
    batch = batch_of(graph, calls[0])
    if leaf.path and leaf.path[0] in batch.shared_outputs:
        named = replace(leaf, call=calls[0].id)
        return replace(binding, of=named) if isinstance(binding, Slice) else named
    if leaf.view is not None:
        return _expressed_view(binding, leaf, calls, batch)
    if isinstance(binding, Slice):
        return _expressed_slice(binding, leaf, calls, batch, graph)
    shared = batch.shared_outputs if not leaf.path else ()
    return Gather(
        tuple(Ref(call.id, leaf.path) for call in calls),
        tuple(call.samples or () for call in calls),
        batch.axis,
        shared,
    )


def _located(calls: tuple[Call, ...]) -> dict[int, tuple[int, int]]:
    """Part and place in it of every sample."""
    return {s: (i, j) for i, call in enumerate(calls) for j, s in enumerate(call.samples or ())}


def _gathered(found: dict[int, list[tuple[int, int]]], piece: Callable[[int, list[int]], Binding]) -> Binding:
    """Put together (position, place) pairs by part."""
    if len(found) == 1:
        ((part, pairs),) = found.items()
        return piece(part, [place for _, place in sorted(pairs)])
    chosen = sorted(found)
    return Gather(
        tuple(piece(part, [place for _, place in found[part]]) for part in chosen),
        tuple(tuple(position for position, _ in found[part]) for part in chosen),
    )


def _expressed_slice(
    binding: Slice, leaf: Ref, calls: tuple[Call, ...], batch: BatchSpec, graph: CallGraph
) -> Binding:
    for call in calls:
        if call.samples == binding.samples and binding.axis == batch.axis:
            return Ref(call.id, leaf.path)
    if binding.axis != batch.axis:
        raise NotBySampleError(
            f"{calls[0].node} has its samples along axis {batch.axis}, a consumer along {binding.axis}"
        )
    check_cut(leaf, graph)
    where = _located(calls)
    if any(s not in where for s in binding.samples):
        raise NotBySampleError(f"{leaf.call} has {counted(len(where), 'sample')}, fewer than its consumer")
    found: dict[int, list[tuple[int, int]]] = {}
    for position, sample in enumerate(binding.samples):
        part, place = where[sample]
        found.setdefault(part, []).append((position, place))

    def piece(part: int, places: list[int]) -> Binding:
        ref = Ref(calls[part].id, leaf.path)
        if places == list(range(len(calls[part].samples or ()))):
            return ref
        return Slice(ref, tuple(places), batch.axis)

    gathered = _gathered(found, piece)
    return replace(gathered, axis=batch.axis) if isinstance(gathered, Gather) else gathered


def _expressed_view(binding: Binding, leaf: Ref, calls: tuple[Call, ...], batch: BatchSpec) -> Binding:
    view = leaf.view
    assert view is not None
    row = row_size(view, batch.axis, calls[0].batch_size or 0, leaf.call)
    rows = rows_in(view, row, leaf.call)
    if isinstance(binding, Slice):
        if binding.axis != 0:
            raise NotBySampleError(f"a view of {leaf.call} is cut along axis {binding.axis}")
        rows = [rows[i] for i in binding.samples]
    where = _located(calls)
    found: dict[int, list[tuple[int, int]]] = {}
    for position, (offset, sample) in enumerate(rows):
        part, place = where[sample]
        found.setdefault(part, []).append((position, offset + (place - sample) * row))

    def piece(part: int, offsets: list[int]) -> Binding:
        call = calls[part]
        return rows_of(call.id, leaf.path, of_whole(view, len(call.samples or ())), offsets)

    return _gathered(found, piece)
