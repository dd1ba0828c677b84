"""Nested tuples, lists, dicts and dataclasses: their items, and making one like another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from rlprof.overlap.specs import Key


def is_array(value: Any) -> bool:
    """Whether a value is an array of numpy or a tensor of torch."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def children(value: Any) -> tuple[tuple[Key, ...], list[Any]] | None:
    """Keys and items of a nested structure; None for a leaf.

    Keys are positions, dict keys, or names of fields (dataclasses and named tuples).
    """
    if isinstance(value, tuple):
        return getattr(value, "_fields", None) or tuple(range(len(value))), list(value)
    if isinstance(value, list):
        return tuple(range(len(value))), list(value)
    if isinstance(value, dict):
        return tuple(value), list(value.values())
    if is_dataclass(value) and not isinstance(value, type):
        names = tuple(f.name for f in fields(value) if hasattr(value, f.name))
        return names, [getattr(value, name) for name in names]
    return None


def step(value: Any, key: Key) -> Any:
    """Item or field `key`; LookupError, TypeError or AttributeError if there is none."""
    if isinstance(value, Mapping) or isinstance(key, int):
        return value[key]
    return getattr(value, key)


def rebuilt(made: type, keys: Sequence[Key], items: list[Any]) -> Any:
    """Make a named tuple, a dataclass, or another kind of tuple, list or dict from its items."""
    if made is tuple:
        return tuple(items)
    if made is list:
        return list(items)
    if issubclass(made, tuple):
        make: Callable[[list[Any]], Any] = getattr(made, "_make", made)
        return make(items)
    if issubclass(made, Mapping):
        return made(zip(keys, items, strict=True))  # type: ignore[call-arg]
    if is_dataclass(made):
        values = dict(zip(map(str, keys), items, strict=True))
        given = {f.name: values.pop(f.name) for f in fields(made) if f.init and f.name in values}
        thing = made(**given)
        for name, value in values.items():
            object.__setattr__(thing, name, value)
        return thing
    return made(items)  # type: ignore[call-arg]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same structure with every leaf replaced by what `change` returns for it."""
    found = children(value)
    if found is None:
        return change(value)
    keys, items = found
    return rebuilt(type(value), keys, [mapped(item, change) for item in items])


def kind_of(value: Any) -> str:
    """What a value is, in a few words for a message."""
    if is_array(value):
        return f"an array of shape {tuple(value.shape)}"
    size = f" of {len(value)}" if isinstance(value, tuple | list | dict) else ""
    text = f" {value!r:.40}" if isinstance(value, bool | int | float | str) else ""
    return f"{type(value).__name__}{size}{text}"
