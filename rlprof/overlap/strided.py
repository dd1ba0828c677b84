"""Views of an array's memory, as the code between calls took them, in checked bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlprof.overlap.bindings import View
from rlprof.overlap.structures import is_tensor


def take_view(array: Any, wanted: View) -> Any:
    """Take a view of an array.

    Parameters
    ----------
    array : numpy.ndarray or torch.Tensor
        The whole; it may itself be a view.
    wanted : View
        Offset from the array's first element, and strides, in elements of the view's type.

    Returns
    -------
    numpy.ndarray or torch.Tensor
        Shares the array's memory.

    Raises
    ------
    ValueError
        If the array has not the shape and strides of the one that was recorded, or the view reaches beyond
        the memory between its first and last element.
    """
    shape, strides = tuple(array.shape), _strides(array)
    if wanted.whole_shape is not None and shape != wanted.whole_shape:
        raise ValueError(f"it had the shape {wanted.whole_shape} when it was recorded")
    if wanted.whole_strides is not None and _other(shape, strides, wanted.whole_strides):
        raise ValueError(f"it had the strides {wanted.whole_strides} when it was recorded, and has {strides}")
    return _torch_view(array, wanted) if is_tensor(array) else _numpy_view(array, wanted)


def _strides(array: Any) -> tuple[int, ...]:
    if is_tensor(array):
        return tuple(array.stride())
    return tuple(s // array.itemsize if array.itemsize else s for s in array.strides)


def _other(shape: tuple[int, ...], strides: tuple[int, ...], recorded: tuple[int, ...]) -> bool:
    """Whether strides differ where they matter."""
    if 0 in shape:
        return False
    return any(n > 1 and a != b for n, a, b in zip(shape, strides, recorded, strict=True))


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """First and last position, relative to the first element; (0, -1) without elements."""
    if 0 in shape:
        return 0, -1
    steps = [s * (n - 1) for n, s in zip(shape, strides, strict=True)]
    return sum(min(0, s) for s in steps), sum(max(0, s) for s in steps)


def _check(wanted: View, wide: int, first_byte: int, end_byte: int) -> None:
    low, high = _extent(wanted.shape, wanted.strides)
    if high >= low and not (
        first_byte <= (wanted.offset + low) * wide and (wanted.offset + high + 1) * wide <= end_byte
    ):
        raise ValueError(f"a view of shape {wanted.shape} at {wanted.offset} reaches beyond the array")


def _numpy_view(array: npt.NDArray[Any], wanted: View) -> npt.NDArray[Any]:
    dtype = array.dtype if array.dtype.hasobject or array.dtype.names else np.dtype(wanted.dtype)
    size = array.itemsize
    first, last = _extent(array.shape, array.strides) if array.size else (0, -size)
    _check(wanted, dtype.itemsize, first, last + size)
    if 0 in wanted.shape:
        return np.empty(wanted.shape, dtype)
    as_strided = np.lib.stride_tricks.as_strided
    # the memory from the lowest address on, as a row of elements
    lowest = array[tuple(slice(None, None, -1 if s < 0 else None) for s in array.strides)]
    row = as_strided(lowest, ((last - first) // size + 1,), (size,))
    if dtype != array.dtype:
        row = row.view(dtype)
    start = wanted.offset - first // dtype.itemsize
    strides = tuple(s * dtype.itemsize for s in wanted.strides)
    made: npt.NDArray[Any] = as_strided(row[start:], wanted.shape, strides)
    if not array.flags.writeable:
        made.flags.writeable = False
    return made


def _torch_view(tensor: Any, wanted: View) -> Any:
    import torch

    dtype = getattr(torch, wanted.dtype.removeprefix("torch."))
    size, wide = tensor.element_size(), dtype.itemsize
    first, last = _extent(tuple(tensor.shape), tensor.stride())
    _check(wanted, wide, first * size, (last + 1) * size)
    if dtype == tensor.dtype:
        return torch.as_strided(tensor, wanted.shape, wanted.strides, tensor.storage_offset() + wanted.offset)
    start = tensor.storage_offset() * size // wide + wanted.offset
    empty = torch.empty(0, dtype=dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), start, wanted.shape, wanted.strides)
