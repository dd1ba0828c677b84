"""Views of batches in bindings: each item along the first axis of such a view lies in one sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlprof.overlap.bindings import Binding, Path, Ref, Slice, View
from rlprof.overlap.errors import NotBySampleError
from rlprof.overlap.specs import Samples


def viewed(binding: Binding) -> View | None:
    """The view of an output that a binding is, or shows items of; None if it is none."""
    if isinstance(binding, Slice) and binding.axis == 0:
        binding = binding.of
    return binding.view if isinstance(binding, Ref) else None


def viewed_rows(binding: Binding) -> tuple[Ref, list[int]]:
    """The leaf, and the offset of every item along the first axis."""
    ref = binding.of if isinstance(binding, Slice) else binding
    assert isinstance(ref, Ref)
    assert ref.view is not None
    view = ref.view
    if not view.shape:
        raise NotBySampleError(f"a view of one element of {ref.call} has no samples")
    every = range(view.shape[0]) if not isinstance(binding, Slice) else binding.samples
    return ref, [view.offset + i * view.strides[0] for i in every]


def rows_of(call: str, path: Path, view: View | None, offsets: list[int]) -> Binding:
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


def joined_views(pieces: Sequence[Binding], samples: Sequence[Samples], count: int) -> Binding:
    """Native form of views put together; as `rlprof.overlap.samples.joined`."""
    at = [0] * count
    first, _ = viewed_rows(pieces[0])
    for piece, positions in zip(pieces, samples, strict=True):
        ref, offsets = viewed_rows(piece)
        same = (ref.call, ref.path) == (first.call, first.path)
        if not same or ref.view is None or first.view is None or len(offsets) != len(positions):
            raise NotBySampleError("views of different things are gathered")
        if replace(ref.view, offset=0, shape=ref.view.shape[1:]) != replace(
            first.view, offset=0, shape=first.view.shape[1:]
        ):
            raise NotBySampleError(f"different views of {ref.call} are gathered")
        for offset, position in zip(offsets, positions, strict=True):
            at[position] = offset
    return rows_of(first.call, first.path, first.view, at)


def row_size(view: View, axis: int, size: int, call: str) -> int:
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


def rows_in(view: View, row: int, call: str) -> list[tuple[int, int]]:
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


def of_whole(view: View, size: int) -> View:
    """The same view of an array with another number of samples."""
    assert view.whole_shape is not None
    return replace(view, whole_shape=(size, *view.whole_shape[1:]))
