"""Native form of bindings: parts of a batch in terms of the native calls.

The *native form* of a binding speaks of native calls only: a part's output is a slice of the native output,
parts that are gathered are the native output again. Two bindings mean the same if their native forms are
equal. Transformations write bindings in terms of the parts that there are (`rlprof.overlap.expression`);
`rlprof.overlap.legality` reads them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlprof.overlap.bindings import Binding, Gather, Pack, Ref, Slice, leaves, sources
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import NotBySampleError
from rlprof.overlap.sample_views import (
    joined_views,
    of_whole,
    row_size,
    rows_in,
    rows_of,
    viewed,
    viewed_rows,
)
from rlprof.overlap.specs import BatchSpec, Samples
from rlprof.text import counted, with_article


def native_form(binding: Binding, graph: CallGraph) -> Binding:
    """Say a binding of a graph in terms of native calls.

    Parameters
    ----------
    binding : Binding
        Of an argument of a call of `graph`, or of its output.
    graph : CallGraph
        Its calls give the names meaning.

    Returns
    -------
    Binding
        References name native calls; slices lie directly around leaves; what is left of `Gather` joins things
        that no native value is.

    Raises
    ------
    NotBySampleError
        If it names no call of the graph, or shows a part of a batch in a way that does not tell the samples.
    """
    if isinstance(binding, Ref):
        call = graph.by_id.get(binding.call)
        if call is None:
            raise NotBySampleError(f"it names {binding.call!r}, no call of the graph")
        if call.samples is None:
            return binding if binding.call == call.origin else replace(binding, call=call.origin)
        return _native_ref(binding, call, batch_of(graph, call))
    if isinstance(binding, Pack):
        items = tuple(native_form(item, graph) for item in binding.items)
        same = all(a is b for a, b in zip(items, binding.items, strict=True))
        return binding if same else replace(binding, items=items)
    if isinstance(binding, Slice):
        form = native_form(binding.of, graph)
        for leaf in leaves(form):
            if isinstance(leaf, Ref):
                check_cut(leaf, graph)
        return take(form, binding.samples, binding.axis)
    if isinstance(binding, Gather):
        pieces = [native_form(part, graph) for part in binding.parts]
        return joined(pieces, binding.samples, binding.axis, binding.shared, graph)
    return binding


def check_cut(leaf: Ref, graph: CallGraph) -> None:
    """A whole output that is partly the same for all samples cannot be cut as one value."""
    if _shared_outputs(leaf, graph):
        raise NotBySampleError(f"the output of {leaf.call} is partly by sample; it is used as one value")


def _shared_outputs(leaf: Ref, graph: CallGraph) -> tuple[int | str, ...]:
    batch = graph.nodes[graph.parts[leaf.call][0].node].batch if leaf.call in graph.parts else None
    return batch.shared_outputs if batch is not None and not leaf.path else ()


def batch_of(graph: CallGraph, call: Call) -> BatchSpec:
    """How the batch of a call may be cut.

    Raises
    ------
    NotBySampleError
        If its node may mix samples.
    """
    batch = graph.nodes[call.node].batch
    if batch is None:
        raise NotBySampleError(f"node {call.node} declares no batch axis: it may mix samples")
    return batch


def _native_ref(ref: Ref, part: Call, batch: BatchSpec) -> Binding:
    samples = part.samples or ()
    if ref.path and ref.path[0] in batch.shared_outputs:
        return replace(ref, call=part.origin)
    if ref.view is None:
        return Slice(Ref(part.origin, ref.path), samples, batch.axis)
    row = row_size(ref.view, batch.axis, len(samples), part.id)
    native = [offset + (samples[at] - at) * row for offset, at in rows_in(ref.view, row, part.id)]
    return rows_of(part.origin, ref.path, of_whole(ref.view, part.batch_size or 0), native)


def take(binding: Binding, samples: Samples, axis: int | None) -> Binding:
    """Native form of some samples of a binding in native form.

    Parameters
    ----------
    binding : Binding
        A batch.
    samples : tuple of int
        Positions.
    axis : int or None
        Of samples in every array; None: the binding is a list or tuple of one item for each sample.

    Raises
    ------
    NotBySampleError
        If a sequence is none, or too short.
    """
    if isinstance(binding, Pack):
        if axis is not None:
            return replace(binding, items=tuple(take(item, samples, axis) for item in binding.items))
        if binding.kind not in ("tuple", "list") or max(samples, default=0) >= len(binding.items):
            raise NotBySampleError(
                f"{with_article(binding.kind)} of {len(binding.items)} is no sequence of samples"
            )
        chosen = tuple(binding.items[i] for i in samples)
        return Pack(binding.kind, tuple(range(len(samples))), chosen)
    if axis == 0 and viewed(binding) is not None:
        ref, offsets = viewed_rows(binding)
        if max(samples, default=0) >= len(offsets):
            raise NotBySampleError(
                f"a view of {ref.call} has {counted(len(offsets), 'item')}, fewer than samples"
            )
        return rows_of(ref.call, ref.path, ref.view, [offsets[i] for i in samples])
    if isinstance(binding, Slice) and binding.axis == axis:
        return replace(binding, samples=tuple(binding.samples[i] for i in samples))
    return Slice(binding, samples, axis)


def joined(
    pieces: Sequence[Binding],
    samples: Sequence[Samples],
    axis: int | None,
    shared: tuple[int | str, ...],
    graph: CallGraph,
    whole: int | None = None,
) -> Binding:
    """Native form of pieces put together.

    Parameters
    ----------
    pieces : sequence of Binding
        In native form.
    samples : sequence of tuple of int
        Positions of the samples of each piece.
    axis, shared
        As of `Gather`.
    graph : CallGraph
        For sizes of batches.
    whole : int, optional
        Samples that a leaf is known to have, where the graph does not say.

    Raises
    ------
    NotBySampleError
        If they are no parts of one thing.
    """
    first = pieces[0]
    if isinstance(first, Pack):
        if not all(isinstance(p, Pack) and (p.kind, p.keys) == (first.kind, first.keys) for p in pieces):
            raise NotBySampleError("parts of different form are put together")
        items = []
        for place, key in enumerate(first.keys):
            column = [p.items[place] for p in pieces if isinstance(p, Pack)]
            items.append(column[0] if key in shared else joined(column, samples, axis, (), graph, whole))
        return replace(first, items=tuple(items))
    count = sum(len(s) for s in samples)
    if sorted(i for s in samples for i in s) != list(range(count)):
        raise NotBySampleError("positions of gathered samples are not 0 .. n - 1, each once")
    if axis == 0 and all(viewed(p) is not None for p in pieces):
        return joined_views(pieces, samples, count)
    if not all(isinstance(p, Slice) and p.axis == axis for p in pieces):
        raise NotBySampleError("something that is no part of a batch is gathered")
    leaf = first.of if isinstance(first, Slice) else first
    place_of = [-1] * count
    for piece, positions in zip(pieces, samples, strict=True):
        assert isinstance(piece, Slice)
        if piece.of != leaf:
            raise NotBySampleError(
                f"parts of different things are gathered: {spoken(leaf)} and {spoken(piece.of)}"
            )
        if len(piece.samples) != len(positions):
            raise NotBySampleError(
                f"{len(piece.samples)} samples of {spoken(leaf)} go to {len(positions)} places"
            )
        for sample, position in zip(piece.samples, positions, strict=True):
            place_of[position] = sample
    if set(shared) != set(_shared_outputs(leaf, graph) if isinstance(leaf, Ref) else ()):
        raise NotBySampleError(f"what parts of {spoken(leaf)} have in common is gathered in another way")
    of_leaf = graph.parts[leaf.call][0].batch_size if isinstance(leaf, Ref) else None
    if place_of == list(range(count)) and count in (of_leaf, whole):
        return leaf
    return Slice(leaf, tuple(place_of), axis)


def spoken(binding: Binding) -> str:
    """What a value is called in messages."""
    if isinstance(binding, Ref):
        return f"the output of {binding.call}"
    named = sources(binding)
    return f"outputs of {named[0]}" if named else "an argument or constant"
