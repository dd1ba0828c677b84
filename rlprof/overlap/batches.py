"""Batches are cut into samples and joined again, each sample in its native place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlprof.overlap.bindings import Path
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.specs import BatchSpec, Key
from rlprof.overlap.structures import is_tensor, put_together
from rlprof.overlap.values import Parts, describe, flatten, is_array, take_apart
from rlprof.text import counted, with_article

_AXIS_HINT = "declare the right axis in Batch(axis=...), or name what has none in shared_outputs"


def _regular(samples: tuple[int, ...]) -> slice | None:
    """Positions as a slice, if they ascend by one step: it shares memory."""
    if not samples:
        return slice(0, 0)
    by = samples[1] - samples[0] if len(samples) > 1 else 1
    if by < 1 or samples != tuple(range(samples[0], samples[-1] + 1, by)):
        return None
    return slice(samples[0], samples[-1] + 1, by)


def cut(value: Any, samples: tuple[int, ...], axis: int | None = 0, batch_size: int | None = None) -> Any:
    """Take samples of a batch.

    Parameters
    ----------
    value : object
        Nested structure; what is no array with axes holds for every sample and stays as it is.
    samples : tuple of int
        Positions.
    axis : int or None
        Axis of samples in every array; None: the value is a list or tuple with one item for each.
    batch_size : int, optional
        Samples that there must be.

    Returns
    -------
    object
        Shares the arrays' memory if the positions ascend by one step.

    Raises
    ------
    ReplayError
        If there are no such samples, or not `batch_size` of them: the others would be lost.
    """
    if axis is None and not is_array(value):
        return _cut_sequence(value, samples, batch_size)
    along = axis or 0
    regular = _regular(samples)

    def part(leaf: Any) -> Any:
        if not is_array(leaf) or not leaf.ndim:
            return leaf
        if leaf.ndim <= along or _wrong(leaf.shape[along], samples, batch_size):
            raise ReplayError(
                f"{describe(leaf)} has not {_wanted(samples, batch_size)} along axis {along}",
                hint="name the parameters that have a batch axis in Batch(parameters=...)",
            )
        if regular is not None:
            return leaf[(slice(None),) * along + (regular,)]
        if is_tensor(leaf):
            import torch

            return leaf.index_select(along, torch.tensor(samples, device=leaf.device))
        return leaf.take(samples, axis=along)

    return _mapped(value, part)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    parts = take_apart(value)
    if parts is None:
        return change(value)
    return put_together(parts.kind, parts.keys, tuple(_mapped(item, change) for item in parts.items))


def _wrong(found: int, samples: tuple[int, ...], batch_size: int | None) -> bool:
    return max(samples, default=-1) >= found if batch_size is None else found != batch_size


def _wanted(samples: tuple[int, ...], batch_size: int | None) -> str:
    return (
        f"{counted(max(samples, default=-1) + 1, 'sample')} or more"
        if batch_size is None
        else counted(batch_size, "sample")
    )


def _cut_sequence(value: Any, samples: tuple[int, ...], batch_size: int | None) -> Any:
    if not isinstance(value, tuple | list) or _wrong(len(value), samples, batch_size):
        raise ReplayError(
            f"{describe(value)} has not {_wanted(samples, batch_size)}",
            hint="only lists and tuples of samples belong in Batch(sequences=...)",
        )
    items = tuple(value[i] for i in samples)
    return put_together("list" if isinstance(value, list) else "tuple", tuple(range(len(items))), items)


def join(
    parts: list[Any], samples: tuple[tuple[int, ...], ...], axis: int = 0, shared: tuple[Key, ...] = ()
) -> Any:
    """Join parts of a batch so that every sample is where it was natively.

    Parameters
    ----------
    parts : list of object
        Structures of one form.
    samples : tuple of tuple of int
        Native positions of each part's samples.
    axis : int
        Axis of samples.
    shared : tuple of int or str
        First-level keys that are taken from the first part as they are.

    Returns
    -------
    object
        New arrays; bit for bit the samples of the parts.

    Raises
    ------
    ReplayError
        If the parts differ in form, or hold a leaf that cannot be joined: a number or a text, or another
        leaf that is neither an array nor one object in all of them.
    """
    order = np.array([position for part in samples for position in part], dtype=np.int64)
    inverse = None if (order == np.arange(len(order))).all() else np.argsort(order)
    joiner = _Joiner(tuple(len(part) for part in samples), inverse, axis)
    return joiner.join(parts, (), shared)


def not_joined(value: Any, batch: BatchSpec, batch_size: int) -> Iterator[Path]:
    """Yield where a call's output holds what `join` refuses: it shows before the batch is cut.

    Parameters
    ----------
    value : object
        What the call returned for the whole batch.
    batch : BatchSpec
        Of its node.
    batch_size : int
        Samples.
    """
    is_named = isinstance(value, tuple) and take_apart(value) is not None
    for path, leaf in flatten(value):
        place = next(iter(path), None)
        if place in batch.shared_outputs:
            continue
        if is_named and isinstance(place, str):
            keys = take_apart(value).keys  # type: ignore[union-attr]
            if keys.index(place) in batch.shared_outputs:
                continue
        if is_array(leaf):
            if leaf.ndim <= batch.axis or leaf.shape[batch.axis] != batch_size:
                yield path
        elif isinstance(leaf, _RESULTS):
            yield path


#: What a call makes anew for each part, so that the whole's is not known.
_RESULTS = (bool, int, float, complex, str, bytes, np.generic)


class _Joiner:
    """What all arrays of one batch have in common."""

    def __init__(self, sizes: tuple[int, ...], inverse: Any, axis: int) -> None:
        self.sizes, self.inverse, self.axis = sizes, inverse, axis

    def join(self, parts: list[Any], at: Path, shared: tuple[Key, ...] = ()) -> Any:
        first = parts[0]
        whole = take_apart(first)
        if whole is not None:
            rows = [_like(part, whole, first, at) for part in parts]
            named = isinstance(first, tuple)  # a named tuple's items have positions too
            items = tuple(
                whole.items[place]
                if key in shared or (named and place in shared)
                else self.join([row[place] for row in rows], (*at, key))
                for place, key in enumerate(whole.keys)
            )
            return put_together(whole.kind, whole.keys, items)
        if is_array(first) and first.ndim:
            return self.arrays(parts, at)
        result = is_array(first) or isinstance(first, _RESULTS)
        if not result and all(part is first for part in parts):
            return first  # None, or an object that every part hands through
        raise ReplayError(
            f"each part of a batch returned {describe(first)}{_at(at)}: the whole batch's is not known",
            hint="name it in Batch(shared_outputs=...) if it is the same for every part, or return an array",
        )

    def arrays(self, parts: list[Any], at: Path) -> Any:
        first, axis = parts[0], self.axis
        for part, size in zip(parts, self.sizes, strict=True):
            if not is_array(part) or part.ndim <= axis or part.shape[axis] != size:
                raise ReplayError(
                    f"a part with {counted(size, 'sample')} returned {describe(part)}{_at(at)}:"
                    f" axis {axis} is not that of samples",
                    hint=_AXIS_HINT,
                )
            if part.dtype != first.dtype:
                raise ReplayError(f"parts returned {first.dtype} and {part.dtype}{_at(at)}")
        if is_tensor(first):
            import torch

            whole = torch.cat(parts, dim=axis)
            if self.inverse is None:
                return whole
            return whole.index_select(axis, torch.from_numpy(self.inverse).to(whole.device))
        array = np.concatenate(parts, axis=axis)
        return array if self.inverse is None else array.take(self.inverse, axis=axis)


def _like(part: Any, whole: Parts, first: Any, at: Path) -> tuple[Any, ...]:
    """Items of a part, which must be of the form of the first."""
    found = take_apart(part)
    if found is None or (found.kind, found.keys) != (whole.kind, whole.keys):
        raise ReplayError(
            f"parts of a batch differ in form{_at(at)}: {_form(first)} and {_form(part)}",
            hint="a list with one item for each sample cannot be joined; return an array",
        )
    return found.items


def _form(value: Any) -> str:
    parts = take_apart(value)
    return describe(value) if parts is None else f"{with_article(type(value).__name__)} of {len(parts.keys)}"


def _at(path: Path) -> str:
    return f" at {''.join(f'[{key!r}]' for key in path)}" if path else ""
