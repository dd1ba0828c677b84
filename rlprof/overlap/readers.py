"""What objects of each kind hold, one level: attributes, items, small arrays, states of generators."""

from __future__ import annotations

import collections
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlprof.overlap.generators import is_generator, position_of
from rlprof.overlap.structures import is_tensor
from rlprof.overlap.values import SMALL_BYTES, copy_of

#: Items of a container that are looked at; of a larger one its length, and the first and last.
ITEMS = 256
PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None)})
_PARTLESS: tuple[Any, ...] = (*PLAIN, np.generic, type)
_SEQUENCES = (list, collections.deque, set)
#: Packages whose objects are handles, locks, threads, or rlprof's own.
_FOREIGN = frozenset(
    {
        "_asyncio", "_io", "_queue", "_thread", "asyncio", "concurrent", "functools", "grpc", "io",
        "multiprocessing", "queue", "ray", "rlprof", "selectors", "socket", "subprocess", "threading",
        "weakref", "zmq",
    }
)  # fmt: skip

#: Returns what an object holds.
Reader = Callable[[Any], tuple[Any, ...]]


def attributes(value: Any) -> tuple[Any, ...]:
    """Names and values of the attributes of an object."""
    held = value.__dict__
    return (*held, *held.values())


def mapping(value: dict[Any, Any]) -> tuple[Any, ...]:
    """Keys and values of a dict."""
    return (*value, *value.values()) if len(value) <= ITEMS else (len(value), *islice(value.values(), 1))


def sequence(value: Any) -> tuple[Any, ...]:
    """Items of a list, a deque or a set."""
    if len(value) <= ITEMS:
        return tuple(value)
    return (
        (len(value), value[0], value[-1]) if isinstance(value, (list, collections.deque)) else (len(value),)
    )


def contents(value: Any) -> tuple[Any, ...]:
    """A copy of a small array, to be compared with it."""
    return (copy_of(value),)


def _bytes(value: Any) -> tuple[Any, ...]:
    return (bytes(value) if isinstance(value, bytearray) else value.tobytes(),)


def version(value: Any) -> tuple[Any, ...]:
    """Counter of the writes to a tensor."""
    try:
        return (value._version,)
    except (RuntimeError, AttributeError):  # inference tensors keep no count
        return ()


def generator(value: Any) -> tuple[Any, ...]:
    """State of a generator of random numbers."""
    return (position_of(value),)


#: Readers of what holds other things.
HOLDERS = (attributes, mapping, sequence)


def reader_of(value: Any) -> Reader | None:
    """Return what reads the parts of an object; None if none could change, or none can be seen."""
    if type(value) is np.ndarray:
        if value.nbytes > SMALL_BYTES or value.dtype.hasobject:
            return None
        return contents if value.flags.c_contiguous and value.dtype.kind not in "mM" else _bytes
    if isinstance(value, _PARTLESS):
        return None
    if isinstance(value, dict):
        return mapping
    if isinstance(value, _SEQUENCES):
        return sequence
    if isinstance(value, np.ndarray):
        return _bytes if value.nbytes <= SMALL_BYTES and not value.dtype.hasobject else None
    if isinstance(value, bytearray):
        return _bytes if len(value) <= SMALL_BYTES else None
    if is_tensor(value):
        return version
    if is_generator(value):
        return generator
    module = type(value).__module__
    if callable(value) and module in ("builtins", "functools"):
        return None  # functions, methods
    if module.partition(".")[0] in _FOREIGN:
        return None
    if module in ("builtins", "types") and not isinstance(value, SimpleNamespace):
        return None
    return attributes if isinstance(getattr(value, "__dict__", None), dict) else None


def has_attributes(value: Any) -> bool:
    """Whether an object is one of a class of the program, rather than a container, an array or a handle."""
    return reader_of(value) is attributes
