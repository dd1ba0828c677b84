"""Contents of state changed on purpose: other numbers in the same places."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from rlprof.overlap.contents import Place
from rlprof.overlap.generators import bit_generator


def perturb(place: Place, draw: np.random.Generator, row: int | None = None) -> bool:
    """Change every number at a place (or in one row of its array); False if there is none that can be.

    Parameters
    ----------
    place : Place
        An array, a number or a random generator; contents of other kinds are left as they are.
    draw : numpy.random.Generator
        What they become.
    row : int, optional
        The only row of an array to change.
    """
    if place.kind == "number":
        if place.change is None:
            return False
        place.change(_other_number(place.value, draw))
        return True
    if place.kind == "random":
        _reseed(place.value, int(draw.integers(1, 2**31)))
        return True
    if place.kind != "array":
        return False
    array = place.value
    if isinstance(array, np.ndarray):
        if not array.flags.writeable or array.dtype.kind not in "biufc":
            return False
        target = array if row is None else array[row : row + 1]
        target[...] = _other_numbers(target, draw)
        return bool(target.size)
    torch = sys.modules["torch"]
    target = array.data if row is None else array.data[row : row + 1]
    wide = torch.float32 if target.dtype in (torch.bfloat16, torch.float16) else target.dtype
    numbers = target.to(device="cpu", dtype=wide).numpy()
    target.copy_(torch.from_numpy(np.array(_other_numbers(numbers, draw), order="C")))
    return bool(target.numel())


def _other_numbers(array: np.ndarray[Any, Any], draw: np.random.Generator) -> np.ndarray[Any, Any]:
    kind = array.dtype.kind
    if kind == "b":
        return ~array
    if kind in "iu":
        step = draw.integers(1, 4, size=array.shape).astype(array.dtype)
        with np.errstate(over="ignore"):
            return np.asarray(array + step)
    real = np.where(np.isfinite(array), array, 0)
    step = draw.uniform(0.5, 1.5, size=array.shape) * draw.choice((-1.0, 1.0), size=array.shape)
    return np.asarray(real + step * (1 + np.abs(real)), dtype=array.dtype)


def _other_number(value: Any, draw: np.random.Generator) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + int(draw.integers(1, 4))
    return type(value)(_other_numbers(np.asarray(value), draw)[()])


def _reseed(value: Any, seed: int) -> None:
    if isinstance(value, random.Random | np.random.RandomState):
        value.seed(seed)
    elif isinstance(value, np.random.Generator | np.random.BitGenerator):
        bits = bit_generator(value)
        bits.state = type(bits)(seed).state
    else:
        value.manual_seed(seed)
