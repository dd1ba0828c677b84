"""Nested tuples, lists, dicts and dataclasses are put together; the reverse is in `rlprof.overlap.values`."""

from __future__ import annotations

import sys
from typing import Any

from rlprof.overlap.errors import OverlapError
from rlprof.overlap.specs import Key


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch; torch is not imported for it."""
    # while torch is being imported it has no Tensor yet
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def put_together(kind: str | type, keys: tuple[Key, ...], items: tuple[Any, ...]) -> Any:
    """Make a container of its items; no ``__init__`` of a dataclass is run.

    Parameters
    ----------
    kind : str or type
        ``"tuple"``, ``"list"``, ``"dict"``, or the class of a named tuple or dataclass.
    keys : tuple of int or str
        Positions, keys or field names.
    items : tuple
        One for each key.

    Raises
    ------
    OverlapError
        If `kind` is none of these.
    """
    if kind == "tuple":
        return tuple(items)
    if kind == "list":
        return list(items)
    if kind == "dict":
        return dict(zip(keys, items, strict=True))
    if not isinstance(kind, type):
        raise OverlapError(f"{kind!r} is no kind of container")
    if issubclass(kind, tuple):
        return tuple.__new__(kind, items)
    made = object.__new__(kind)
    for key, item in zip(keys, items, strict=True):
        object.__setattr__(made, str(key), item)
    return made
