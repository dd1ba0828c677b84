"""Values that are the same in every run of a region, and the names that a recording gives them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np

from rlprof.overlap.bindings import Const
from rlprof.overlap.recording import Unknown
from rlprof.overlap.values import describe, is_array, same_bits, stamp

#: What cannot change and cannot have come out of an array: equal ones count as one.
_VALUES = (int, str, bytes, bool, type(None), slice, range, np.dtype, Enum, PurePath)


_TORCH_VALUES = ("Size", "device")


class Constants:
    """The table of constants of a recording, filled as bindings are made."""

    def __init__(self) -> None:
        self.table: dict[str, Any] = {}
        self._objects: dict[int, str] = {}
        self._unknown = 0

    def const(self, value: Any) -> Const:
        """Return a constant of this value."""
        if is_scalar(value):
            return self._named(repr(value), value)
        name = self._objects.get(id(value))
        if name is None:
            if is_array(value):
                first = f"{describe(value)} {_digest(value)}"
            else:
                first = f"object {type(value).__name__}"
            name = self._free(first)
            self._objects[id(value)] = name
        return self._named(name, value)

    def kind(self, kind: str | type) -> str:
        """Return what a `Pack` calls this kind of container."""
        if isinstance(kind, str):
            return kind
        name = f"type {kind.__module__}.{kind.__qualname__}"
        if self.table.setdefault(name, kind) is not kind:
            name = self._objects.setdefault(id(kind), self._free(name))
            self.table[name] = kind
        return name

    def unknown(self, value: Any, how: str = "", equal: bool = False) -> Const:
        """Return what stands for a value without a known origin; `how` says more of it."""
        self._unknown += 1
        return self._named(f"?{self._unknown}", Unknown(f"{describe(value)} {how}".rstrip(), equal))

    def _named(self, name: str, value: Any) -> Const:
        self.table[name] = value
        return Const(name)

    def _free(self, name: str) -> str:
        number, found = 1, name
        while found in self.table:
            number += 1
            found = f"{name} {number}"
        return found


def _digest(array: Any) -> str:
    """Name contents; of torch tensors only that they are some."""
    found = stamp(array) if isinstance(array, np.ndarray) else None
    return f"{zlib.crc32(found) if isinstance(found, bytes) else found or 0:08x}"


def is_scalar(value: Any) -> bool:
    """Whether a value is a plain number, text or None, which its repr tells."""
    return type(value) in {int, float, bool, str, bytes, complex, type(None)}


def is_same(values: Sequence[Any]) -> bool:
    """Whether what was seen in several runs is the same: one object, or equal plain values.

    Arrays, numpy's numbers and other objects of equal contents are not: a mask that was made anew in every
    run, and happened to be empty in each, is no constant.
    """
    first = values[0]
    for other in values[1:]:
        if other is first:
            continue
        if type(other) is not type(first) or isinstance(first, np.generic):
            return False
        if isinstance(first, float):
            if struct.pack("d", first) != struct.pack("d", other):
                return False
        elif isinstance(first, complex):
            if repr(first) != repr(other):
                return False
        elif type(first).__module__ == "torch" and type(first).__name__ in _TORCH_VALUES:
            if first != other:
                return False
        elif not isinstance(first, _VALUES) or first != other:
            return False
    return True


def equal_bits(values: Sequence[Any]) -> bool:
    """Whether arrays, or numbers of numpy, were equal in every run."""
    first = values[0]
    if isinstance(first, np.generic):
        return all(type(o) is type(first) and o.tobytes() == first.tobytes() for o in values[1:])
    return is_array(first) and all(is_array(o) and same_bits(first, o) for o in values[1:])
