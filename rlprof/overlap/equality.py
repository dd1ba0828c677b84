"""Two values compared: in bits, or by how far numbers differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlprof.overlap.structures import is_tensor
from rlprof.overlap.values import describe, flatten, is_array, same_bits, take_apart


def equal_bits(a: Any, b: Any) -> bool:
    """Whether two nested values have the same structure, types, shapes and bits; NaN equals the same NaN.

    Leaves that are neither arrays nor numbers must be one object, or equal.
    """
    mine, theirs = take_apart(a), take_apart(b)
    if mine is None or theirs is None:
        return mine is theirs and _same_leaf(a, b)
    return (mine.kind, mine.keys) == (theirs.kind, theirs.keys) and all(
        equal_bits(x, y) for x, y in zip(mine.items, theirs.items, strict=True)
    )


def _same_leaf(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if is_array(a):
        if isinstance(a, np.ndarray) and a.dtype.hasobject:
            return a.shape == b.shape and all(map(_same_leaf, a.ravel().tolist(), b.ravel().tolist()))
        return same_bits(a, b)
    if isinstance(a, float | complex):
        return np.array(a).tobytes() == np.array(b).tobytes()
    return bool(a == b)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a value is from another.

    Parameters
    ----------
    max_abs, max_rel : float
        Largest absolute difference, and largest relative to the other's magnitude where that is not zero;
        infinite where numbers cannot be compared: whole numbers that differ, NaN in one, another form.
    within : bool
        ``|a - b| <= atol + rtol |b|`` for all floating-point numbers, and everything else is equal.
    bitwise : bool
        Equal in bits.
    where : str
        Path of the largest absolute difference; or what differs in form.
    """

    max_abs: float
    max_rel: float
    within: bool
    bitwise: bool
    where: str = ""


def distance(a: Any, b: Any, *, rtol: float, atol: float) -> Distance:
    """Compare nested values leaf by leaf; `b` is the one that counts.

    Parameters
    ----------
    a, b : object
        Of the same form.
    rtol, atol : float
        Relative and absolute tolerance.
    """
    if equal_bits(a, b):
        return Distance(0.0, 0.0, True, True)
    mine, theirs = list(flatten(a)), list(flatten(b))
    if [p for p, _ in mine] != [p for p, _ in theirs] or type(a) is not type(b):
        return Distance(math.inf, math.inf, False, False, "another structure")
    worst = Distance(0.0, 0.0, True, False)
    for (path, x), (_, y) in zip(mine, theirs, strict=True):
        where = "".join(f"[{key!r}]" for key in path)
        far = _leaf_distance(x, y, rtol, atol, where)
        worst = Distance(
            max(worst.max_abs, far.max_abs),
            max(worst.max_rel, far.max_rel),
            worst.within and far.within,
            False,
            far.where if far.max_abs > worst.max_abs else worst.where,
        )
    return worst


def _leaf_distance(a: Any, b: Any, rtol: float, atol: float, where: str) -> Distance:
    if _same_leaf(a, b):
        return Distance(0.0, 0.0, True, True)
    x, y = _numbers(a), _numbers(b)
    if x is None or y is None or x.shape != y.shape or type(a) is not type(b):
        return Distance(math.inf, math.inf, False, False, f"{where}: {describe(a)}, {describe(b)}")
    with np.errstate(all="ignore"):
        off = np.abs(x - y)
        off = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, off)  # equal infinities, equal NaN
        off = np.where(np.isnan(off), math.inf, off)
        size = np.abs(y)
        relative = np.where((size > 0) & np.isfinite(size), off / size, 0.0)
        within = bool((off <= atol + rtol * np.where(np.isfinite(size), size, 0.0)).all())
    return Distance(float(off.max(initial=0)), float(relative.max(initial=0)), within, False, where)


def _numbers(value: Any) -> npt.NDArray[Any] | None:
    """Floating-point numbers as float64 or complex128; None for anything else."""
    if is_tensor(value):
        if not (value.is_floating_point() or value.is_complex()):
            return None
        import torch

        wide = torch.complex128 if value.is_complex() else torch.float64
        array: npt.NDArray[Any] = value.detach().cpu().to(wide).numpy()
        return array
    if isinstance(value, float | complex) or (is_array(value) and value.dtype.kind in "fc"):
        return np.asarray(value, dtype=np.complex128 if np.iscomplexobj(value) else np.float64)
    return None
