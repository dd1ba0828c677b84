"""What objects hold, looked at shallowly and often: did something change since the last look?

Attributes, items of containers, write counters of tensors, contents of small arrays and states of random
generators. Values are compared by identity (numbers and text by value) and kept alive, so that no other
object takes their place. What lies deeper than a few levels, and large arrays, is not looked at.
"""

from __future__ import annotations

import collections
import pickle
import random
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlprof.overlap.structures import is_tensor
from rlprof.overlap.values import SMALL_BYTES, torch_module

#: Items of a container that are looked at; of a larger one its length, and the first and last.
_ITEMS = 256
#: Objects and containers inside of a root that are looked at.
_PARTS = 200
#: Levels of objects, and of containers in each.
_OBJECTS, _CONTAINERS = 2, 3
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_SEQUENCES = (list, collections.deque, set)
#: Packages whose objects are handles, locks, threads, or rlprof's own.
_FOREIGN = frozenset(
    {
        "_asyncio", "_io", "_queue", "_thread", "asyncio", "concurrent", "functools", "grpc", "io",
        "multiprocessing", "queue", "ray", "rlprof", "selectors", "socket", "subprocess", "threading",
        "weakref", "zmq",
    }
)  # fmt: skip

#: Of one part: what it is called, the thing, how to read it, and what was there.
_Reader = Callable[[Any], tuple[Any, ...]]


def _attributes(value: Any) -> tuple[Any, ...]:
    held = value.__dict__
    return (*held, *held.values())


def _mapping(value: dict[Any, Any]) -> tuple[Any, ...]:
    return (*value, *value.values()) if len(value) <= _ITEMS else (len(value), *islice(value.values(), 1))


def _sequence(value: Any) -> tuple[Any, ...]:
    if len(value) <= _ITEMS:
        return tuple(value)
    return (
        (len(value), value[0], value[-1]) if isinstance(value, (list, collections.deque)) else (len(value),)
    )


def _bytes(value: Any) -> tuple[Any, ...]:
    return (bytes(value) if isinstance(value, bytearray) else value.tobytes(),)


def _version(value: Any) -> tuple[Any, ...]:
    try:
        return (value._version,)
    except (RuntimeError, AttributeError):  # inference tensors keep no count
        return ()


def _generator(value: Any) -> tuple[Any, ...]:
    if isinstance(value, random.Random):
        return (value.getstate(),)
    if isinstance(value, np.random.Generator):
        return (pickle.dumps(value.bit_generator.state),)
    if isinstance(value, np.random.RandomState):
        return (pickle.dumps(value.get_state()),)
    return (value.get_state().numpy().tobytes(),)


def reader_of(value: Any) -> _Reader | None:
    """Return what reads the parts of an object; None if none could change, or none can be seen."""
    if isinstance(value, (*_PLAIN, np.generic, type)):
        return None
    if isinstance(value, dict):
        return _mapping
    if isinstance(value, _SEQUENCES):
        return _sequence
    if isinstance(value, np.ndarray):
        return _bytes if value.nbytes <= SMALL_BYTES and not value.dtype.hasobject else None
    if isinstance(value, bytearray):
        return _bytes if len(value) <= SMALL_BYTES else None
    if is_tensor(value):
        return _version
    if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
        return _generator
    torch = torch_module()
    if torch is not None and isinstance(value, torch.Generator):
        return _generator
    module = type(value).__module__
    if callable(value) and module in ("builtins", "functools"):
        return None  # functions, methods
    if module.partition(".")[0] in _FOREIGN:
        return None
    if module in ("builtins", "types") and not isinstance(value, SimpleNamespace):
        return None
    return _attributes if isinstance(getattr(value, "__dict__", None), dict) else None


def has_attributes(value: Any) -> bool:
    """Whether an object is one of a class of the program, rather than a container, an array or a handle."""
    return reader_of(value) is _attributes


class _Part:
    __slots__ = ("name", "reader", "root", "seen", "thing")

    def __init__(self, name: str, thing: Any, reader: _Reader, root: str) -> None:
        self.name, self.thing, self.reader, self.root = name, thing, reader, root
        self.seen = _read(reader, thing)


def _read(reader: _Reader, thing: Any) -> tuple[Any, ...]:
    try:
        return reader(thing)
    except RuntimeError:  # another thread changed its size in between
        return ()


def _differ(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    try:  # quick where the items are the same objects
        if before == now:
            return False
    except Exception:  # arrays, and whatever else cannot be compared so
        pass
    return len(before) != len(now) or not all(map(_equal, before, now))


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    return isinstance(a, (*_PLAIN, tuple)) and bool(a == b or (a != a and b != b))  # noqa: PLR0124 (NaN)


class Snapshot:
    """What some objects hold at one time.

    Parameters
    ----------
    roots : dict of str to object
        By the name that messages use.
    skip : set of int
        Ids of objects that are not looked into.
    objects : int
        Levels of objects.
    """

    def __init__(
        self, roots: dict[str, Any], skip: frozenset[int] = frozenset(), objects: int = _OBJECTS
    ) -> None:
        self.roots, self.skip, self.objects = roots, skip, objects
        self.parts: list[_Part] = []
        self._take()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        mine, theirs = self.parts, other.parts
        return len(mine) == len(theirs) and not any(
            a.thing is not b.thing or _differ(a.seen, b.seen) for a, b in zip(mine, theirs, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def _take(self) -> None:
        self.parts = []
        seen: set[int] = set(self.skip)
        queue = collections.deque((name, root, 0, 0, name) for name, root in self.roots.items())
        while queue and len(self.parts) < _PARTS:
            name, thing, objects, containers, root = queue.popleft()
            try:
                reader = reader_of(thing)
                if reader is None or id(thing) in seen:
                    continue
                seen.add(id(thing))
                self.parts.append(_Part(name, thing, reader, root))
            except Exception:  # a proxy of what is gone, an object that lies about its class
                continue
            if reader is _attributes and objects < self.objects:
                items = [(f"{name}.{key}", item) for key, item in list(thing.__dict__.items())]
                queue.extend((*item, objects + 1, 0, root) for item in items)
            elif reader in (_mapping, _sequence) and containers < _CONTAINERS and len(thing) <= _ITEMS:
                found = list(thing.items()) if reader is _mapping else list(enumerate(list(thing)))
                queue.extend((f"{name}[{k!r}]", v, objects, containers + 1, root) for k, v in found)

    def changed(self) -> list[tuple[str, str]]:
        """Return root and name of what has changed since the last look; the snapshot is of now afterwards."""
        found = []
        for part in self.parts:
            now = _read(part.reader, part.thing)
            if _differ(part.seen, now):
                found += [(part.root, name) for name in _named(part, now)]
        if found:
            self._take()
        return found

    def renew(self) -> None:
        """Make it a snapshot of now."""
        for part in self.parts:
            now = _read(part.reader, part.thing)
            if _differ(part.seen, now):
                self._take()
                return


def _named(part: _Part, now: tuple[Any, ...]) -> list[str]:
    if part.reader is not _attributes and part.reader is not _mapping:
        return [part.name]
    before, after = _items(part.seen), _items(now)
    missing = object()
    names = [
        f"{part.name}.{key}" if part.reader is _attributes else f"{part.name}[{key!r}]"
        for key in dict.fromkeys([*after, *before])
        if not _equal(before.get(key, missing), after.get(key, missing))
    ]
    return names or [part.name]


def _items(seen: tuple[Any, ...]) -> dict[Any, Any]:
    half = len(seen) // 2
    return dict(zip(seen[:half], seen[half:], strict=False))
