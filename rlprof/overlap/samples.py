"""Parts of a batch in bindings: in terms of the native calls, and back.

The *native form* of a binding speaks of native calls only: a part's output is a slice of the native output,
parts that are gathered are the native output again. Two bindings mean the same if their native forms are
equal. Transformations write bindings in terms of the parts that there are (`express`);
`rlprof.overlap.legality` reads them back (`native_form`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rlprof.overlap.bindings import Binding, Gather, Pack, Path, Ref, Slice, View, leaves, sources
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.specs import BatchSpec
from rlprof.text import counted, with_article

Samples = tuple[int, ...]


class NotBySampleError(OverlapError):
    """A value or a call that cannot be told sample by sample."""


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
                _check_cut(leaf, graph)
        return take(form, binding.samples, binding.axis)
    if isinstance(binding, Gather):
        pieces = [native_form(part, graph) for part in binding.parts]
        return joined(pieces, binding.samples, binding.axis, binding.shared, graph)
    return binding


def _check_cut(leaf: Ref, graph: CallGraph) -> None:
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
    row = _row(ref.view, batch.axis, len(samples), part.id)
    native = [offset + (samples[at] - at) * row for offset, at in _rows(ref.view, row, part.id)]
    return _rows_of(part.origin, ref.path, _of_whole(ref.view, part.batch_size or 0), native)


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
    if axis == 0 and _viewed(binding) is not None:
        ref, offsets = _viewed_rows(binding)
        if max(samples, default=0) >= len(offsets):
            raise NotBySampleError(
                f"a view of {ref.call} has {counted(len(offsets), 'item')}, fewer than samples"
            )
        return _rows_of(ref.call, ref.path, ref.view, [offsets[i] for i in samples])
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
    if axis == 0 and all(_viewed(p) is not None for p in pieces):
        return _joined_views(pieces, samples, count)
    if not all(isinstance(p, Slice) and p.axis == axis for p in pieces):
        raise NotBySampleError("something that is no part of a batch is gathered")
    leaf = first.of if isinstance(first, Slice) else first
    place_of = [-1] * count
    for piece, positions in zip(pieces, samples, strict=True):
        assert isinstance(piece, Slice)
        if piece.of != leaf:
            raise NotBySampleError(
                f"parts of different things are gathered: {_say(leaf)} and {_say(piece.of)}"
            )
        if len(piece.samples) != len(positions):
            raise NotBySampleError(
                f"{len(piece.samples)} samples of {_say(leaf)} go to {len(positions)} places"
            )
        for sample, position in zip(piece.samples, positions, strict=True):
            place_of[position] = sample
    if set(shared) != set(_shared_outputs(leaf, graph) if isinstance(leaf, Ref) else ()):
        raise NotBySampleError(f"what parts of {_say(leaf)} have in common is gathered in another way")
    of_leaf = graph.parts[leaf.call][0].batch_size if isinstance(leaf, Ref) else None
    if place_of == list(range(count)) and count in (of_leaf, whole):
        return leaf
    return Slice(leaf, tuple(place_of), axis)


def _say(binding: Binding) -> str:
    if isinstance(binding, Ref):
        return f"the output of {binding.call}"
    named = sources(binding)
    return f"outputs of {named[0]}" if named else "an argument or constant"


# -- views: each item along their first axis lies in one sample


def _viewed(binding: Binding) -> View | None:
    if isinstance(binding, Slice) and binding.axis == 0:
        binding = binding.of
    return binding.view if isinstance(binding, Ref) else None


def _viewed_rows(binding: Binding) -> tuple[Ref, list[int]]:
    """The leaf, and the offset of every item along the first axis."""
    ref = binding.of if isinstance(binding, Slice) else binding
    assert isinstance(ref, Ref)
    assert ref.view is not None
    view = ref.view
    if not view.shape:
        raise NotBySampleError(f"a view of one element of {ref.call} has no samples")
    every = range(view.shape[0]) if not isinstance(binding, Slice) else binding.samples
    return ref, [view.offset + i * view.strides[0] for i in every]


def _rows_of(call: str, path: Path, view: View | None, offsets: list[int]) -> Binding:
    """The items at `offsets` of a view, in the one form in which they are written."""
    assert view is not None
    if not view.shape:
        return Ref(call, path, replace(view, offset=offsets[0]))
    step = view.strides[0]
    if all(offset == offsets[0] + i * step for i, offset in enumerate(offsets)):
        shape = (len(offsets), *view.shape[1:])
        return Ref(call, path, replace(view, offset=offsets[0] if offsets else view.offset, shape=shape))
    first = min(offsets) if step > 0 else max(offsets)
    places = [divmod(offset - first, step) if step else (0, 1) for offset in offsets]
    if any(rest for _, rest in places):
        raise NotBySampleError(f"a view of {call} does not show samples at equal distances")
    whole = replace(view, offset=first, shape=(max(i for i, _ in places) + 1, *view.shape[1:]))
    return Slice(Ref(call, path, whole), tuple(i for i, _ in places), 0)


def _joined_views(pieces: Sequence[Binding], samples: Sequence[Samples], count: int) -> Binding:
    at = [0] * count
    first, _ = _viewed_rows(pieces[0])
    for piece, positions in zip(pieces, samples, strict=True):
        ref, offsets = _viewed_rows(piece)
        same = (ref.call, ref.path) == (first.call, first.path)
        if not same or ref.view is None or first.view is None or len(offsets) != len(positions):
            raise NotBySampleError("views of different things are gathered")
        if replace(ref.view, offset=0, shape=ref.view.shape[1:]) != replace(
            first.view, offset=0, shape=first.view.shape[1:]
        ):
            raise NotBySampleError(f"different views of {ref.call} are gathered")
        for offset, position in zip(offsets, positions, strict=True):
            at[position] = offset
    return _rows_of(first.call, first.path, first.view, at)


def _row(view: View, axis: int, size: int, call: str) -> int:
    """Elements that each sample takes in the whole array that a view is of."""
    shape, strides = view.whole_shape, view.whole_strides
    if shape is None or strides is None or axis != 0:
        raise NotBySampleError(f"a view of the output of {call} is used, which does not tell the samples")
    if not shape or shape[0] != size:
        raise NotBySampleError(f"a view of an output of {call} without an axis of {size} samples is used")
    row = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != row:
            raise NotBySampleError(f"a view of an output of {call} is used that is not contiguous")
        row *= length
    if row == 0:
        raise NotBySampleError(f"a view of an empty output of {call} is used")
    return row // size


def _rows(view: View, row: int, call: str) -> list[tuple[int, int]]:
    """Offset of every item along the first axis of a view, and the sample that it lies in."""
    inner = list(zip(view.shape[1:], view.strides[1:], strict=True))
    if not all(view.shape):
        raise NotBySampleError(f"an empty view of the output of {call} is used")
    low = sum(min(0, stride * (n - 1)) for n, stride in inner)
    high = sum(max(0, stride * (n - 1)) for n, stride in inner)
    found = []
    for i in range(view.shape[0] if view.shape else 1):
        offset = view.offset + (i * view.strides[0] if view.shape else 0)
        if (offset + low) // row != (offset + high) // row:
            raise NotBySampleError(f"a view of the output of {call} mixes samples along its first axis")
        found.append((offset, (offset + low) // row))
    return found


def _of_whole(view: View, size: int) -> View:
    assert view.whole_shape is not None
    return replace(view, whole_shape=(size, *view.whole_shape[1:]))


# -- the other way: in terms of the parts that there are


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
        raise NotBySampleError(f"{_say(leaf)} is cut along two axes")
    if not isinstance(leaf, Ref):
        return binding
    calls = parts[leaf.call]
    if calls[0].samples is None:
        if isinstance(binding, Slice):
            _check_cut(leaf, graph)
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
    _check_cut(leaf, graph)
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
    row = _row(view, batch.axis, calls[0].batch_size or 0, leaf.call)
    rows = _rows(view, row, leaf.call)
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
        return _rows_of(call.id, leaf.path, _of_whole(view, len(call.samples or ())), offsets)

    return _gathered(found, piece)
