"""What an object holds: told apart place by place, and put back.

Looks into arrays, tensors, containers, random generators and the attributes of Python objects, so into
modules and optimisers too. torch is never imported here.
"""

from __future__ import annotations

import collections
import copy
import enum
import functools
import hashlib
import logging
import pickle
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal

import numpy as np

from rlprof.overlap.generators import is_generator, set_state, state_of
from rlprof.overlap.structures import is_tensor
from rlprof.overlap.values import bytes_of, is_array, memory_key, torch_module

Kind = Literal["array", "number", "random", "other", "keys"]

_NUMBERS = (bool, int, float, complex, np.number, np.bool_)
_IMMUTABLE = (
    str, bytes, type(None), enum.Enum, np.generic, np.dtype, range, slice, re.Pattern, PurePath,
    type(Ellipsis), np.random.SeedSequence,
)  # fmt: skip
#: Code, and what keeps no content of its own.
_PASSED = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, np.ufunc,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType, functools.partial,
    weakref.ref, logging.Logger, type(threading.Lock()), type(threading.RLock()), threading.Condition,
    threading.Event, threading.local, property, staticmethod, classmethod,
)  # fmt: skip
#: Programs that come with rlprof.
_WORKLOADS = "rlprof.workloads."
#: What reaches out of this process, or runs beside: its attributes are not what it holds.
_OUTSIDE = frozenset(
    {
        "asyncio",
        "concurrent",
        "grpc",
        "io",
        "multiprocessing",
        "ray",
        "selectors",
        "socket",
        "subprocess",
        "zmq",
    }
)
_CONTAINERS = (dict, list, set, collections.deque, bytearray)


@dataclass(frozen=True, slots=True)
class Place:
    """One thing that an object holds.

    Parameters
    ----------
    path : str
        Root and way to it, as Python would write it.
    kind : {"array", "number", "random", "other", "keys"}
        ``keys``: which items a container has; ``other``: a text or another value without parts.
    value : object
        What lies there.
    root : str
        Name of the root that it was reached from.
    change : callable or None
        Puts another value there; None: the value itself can be changed, or nothing can.
    """

    path: str
    kind: Kind
    value: Any
    root: str
    change: Callable[[Any], None] | None = None

    def digest(self, row: int | None = None) -> bytes:
        """Hash of the contents, or of one row of an array; equal for equal bits."""
        value = self.value if row is None else self.value[row]
        if self.kind == "array":
            kind, shape, data = _bits(value)
            return _hash(kind, str(shape), data)
        if self.kind == "random":
            return _hash("random", pickle.dumps(state_of(value)))
        if self.kind == "number" or _is_immutable(value):
            return _hash(type(value).__name__, repr(value))
        return _hash("value", pickle.dumps(value))


def _hash(*parts: str | bytes) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.digest()


def _bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    if isinstance(array, np.ndarray | np.generic):
        if array.dtype.hasobject:
            return str(array.dtype), array.shape, pickle.dumps(array.tolist())
        return str(array.dtype), array.shape, array.tobytes()
    return str(array.dtype), tuple(array.shape), bytes_of(array).to("cpu", copy=True).numpy().tobytes()


def _identity(place: Place) -> object:
    """Equal for places that are one: the same memory, generator, attribute or item."""
    if place.kind == "array":
        return memory_key(place.value) if is_array(place.value) else id(place.value)
    if place.kind == "random":
        return id(place.value)
    setter = place.change
    if not isinstance(setter, functools.partial):
        return place.path
    if setter.func is _set_attribute:
        return id(setter.args[0]), setter.args[1]
    return id(getattr(setter.func, "__self__", None)), setter.args[0]


def _is_immutable(value: Any) -> bool:
    if isinstance(value, _IMMUTABLE):
        return True
    return type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device", "layout")


class Contents:
    """Everything that some objects hold now.

    Parameters
    ----------
    roots : mapping of str to object
        By name. What is reached from one root and is itself another root belongs to that one alone.

    Attributes
    ----------
    places : dict of str to Place
        By path.
    sealed : dict of str to str
        Paths of objects that cannot be put back, and their types. Those that can be pickled have a place all
        the same: their changes are seen.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.places: dict[str, Place] = {}
        self.sealed: dict[str, str] = {}
        self._back: dict[tuple[int, str], tuple[Any, Callable[[], None]]] = {}
        owners = {id(obj): name for name, obj in roots.items()}
        self._root = ""
        for name, obj in roots.items():
            self._root = name
            self._walk(name, obj, owners)

        self._leave_parameters(roots)

    @cached_property
    def shared(self) -> dict[str, frozenset[str]]:
        """For paths at which several roots hold one thing, those roots."""
        holders: dict[object, list[Place]] = {}
        for place in self.places.values():
            holders.setdefault(_identity(place), []).append(place)
        found = {}
        for places in holders.values():
            roots = frozenset(place.root for place in places)
            if len(roots) > 1:
                found.update(dict.fromkeys((place.path for place in places), roots))
        return found

    def _leave_parameters(self, roots: Mapping[str, Any]) -> None:
        """What an optimiser is to optimise is not its own where another root holds it."""
        torch = torch_module()
        optimisers = {
            name
            for name, obj in roots.items()
            if torch is not None and isinstance(obj, torch.optim.Optimizer)
        }
        if optimisers:
            for path, holders in self.shared.items():
                if holders - optimisers and self.places[path].root in optimisers:
                    del self.places[path]
            del self.shared

    def restore(self) -> None:
        """Put everything back as it was, into the same objects."""
        for _, back in self._back.values():
            back()

    def _walk(self, name: str, root: Any, owners: Mapping[int, str]) -> None:
        seen: set[int] = set()
        stack: list[tuple[str, Any, Callable[[Any], None] | None]] = [(name, root, None)]
        while stack:
            path, value, change = stack.pop()
            if isinstance(value, _NUMBERS) and not isinstance(value, enum.Enum):
                self._note(path, "number", value, change)
                continue
            if _is_immutable(value):
                self._note(path, "other", value, change)
                continue
            module = type(value).__module__
            package = module.partition(".")[0]
            # rlprof's own objects are none of the program's, but those of its workloads are programs
            if isinstance(value, _PASSED) or (package == "rlprof" and not module.startswith(_WORKLOADS)):
                continue
            if package in _OUTSIDE or isinstance(value, threading.Thread):
                self.sealed[path] = type(value).__qualname__
                continue
            if id(value) in seen or owners.get(id(value), name) != name:
                continue
            seen.add(id(value))
            if isinstance(value, np.ndarray) or is_tensor(value):
                self._array(path, value)
                if is_tensor(value) and value.is_leaf and value.grad is not None:
                    stack.append((f"{path}.grad", value.grad, None))
            elif is_generator(value):
                self._note(path, "random", value)
                self._keep(value, functools.partial(set_state, value, state_of(value)))
            else:
                stack.extend(self._inside(path, value))

    def _note(self, path: str, kind: Kind, value: Any, change: Callable[[Any], None] | None = None) -> None:
        self.places[path] = Place(path, kind, value, self._root, change)

    def _keep(self, value: Any, back: Callable[[], None], what: str = "") -> None:
        self._back.setdefault((id(value), what), (value, back))  # held, so that its id stays its own

    def _array(self, path: str, value: Any) -> None:
        self._note(path, "array", value)
        if isinstance(value, np.ndarray):
            if value.flags.writeable:
                self._keep(value, functools.partial(np.copyto, value, value.copy()))
            return
        grad = value.grad if value.is_leaf else None
        saved = value.detach().clone()

        def back() -> None:
            value.data.copy_(saved)  # past the version counter: as if nobody had written
            if value.is_leaf:
                value.grad = grad

        self._keep(value, back)

    def _inside(self, path: str, value: Any) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
        """Note what a container or object is, and yield what it holds."""
        attributes = _attributes(value)
        if isinstance(value, tuple | frozenset):
            items = enumerate(value) if isinstance(value, tuple) else ()
            if isinstance(value, frozenset):
                self._note(path, "other", value)
            for number, item in items:
                yield f"{path}[{number}]", item, None
        elif isinstance(value, _CONTAINERS):
            yield from self._container(path, value)
        elif attributes is None:
            self.sealed[path] = type(value).__qualname__
            if _can_pickle(value):
                self._note(path, "other", value)
            return
        if attributes:
            keys = tuple(sorted(attributes))
            self._note(f"{path}.__dict__", "keys", keys)
            self._keep(value, functools.partial(_set_attributes, value, dict(attributes)), "attributes")
            for key, item in attributes.items():
                yield f"{path}.{key}", item, functools.partial(_set_attribute, value, key)

    def _container(self, path: str, value: Any) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
        saved = copy.copy(value) if isinstance(value, bytearray) else type(value).copy(value)
        self._keep(value, functools.partial(_refill, value, saved))
        if isinstance(value, bytearray | set):
            content = bytes(value) if isinstance(value, bytearray) else tuple(sorted(map(repr, value)))
            self._note(path, "keys", content)
            return
        if isinstance(value, dict):
            names = [_key(key, place) for place, key in enumerate(value)]
            self._note(f"{path}.keys()", "keys", tuple(names))
            for name, (key, item) in zip(names, list(value.items()), strict=True):
                yield f"{path}[{name}]", item, functools.partial(value.__setitem__, key)
            return
        self._note(f"len({path})", "keys", len(value))
        for number, item in enumerate(list(value)):
            yield f"{path}[{number}]", item, functools.partial(value.__setitem__, number)


def _can_pickle(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # whatever a foreign type raises
        return False
    return True


def _key(key: Any, place: int) -> str:
    """How a key is written; objects, whose text may be the same, by their place."""
    simple = isinstance(key, str | int | float | bytes | type(None))
    return repr(key) if simple else f"{type(key).__name__} {place}"


def _refill(value: Any, saved: Any) -> None:
    if isinstance(value, dict | set):
        value.clear()
        value.update(saved)
    elif isinstance(value, collections.deque):
        value.clear()
        value.extend(saved)
    else:
        value[:] = saved


_HIDDEN = object.__basicsize__ + 16  # with the slots for attributes and weak references


def _attributes(value: Any) -> dict[str, Any] | None:
    """Attributes of an object; None if it may hold more than them."""
    cls = type(value)
    names = [name for base in cls.__mro__ for name in _slots(base)]
    base_size = max(
        (
            b.__basicsize__
            for b in (*_CONTAINERS, tuple, frozenset, collections.OrderedDict)
            if issubclass(cls, b)
        ),
        default=object.__basicsize__,
    )
    if isinstance(value, collections.defaultdict):
        base_size = max(base_size, collections.defaultdict.__basicsize__)
    if cls.__basicsize__ > base_size - object.__basicsize__ + _HIDDEN + 8 * len(names):
        return None
    own = getattr(value, "__dict__", None)
    if own is None and not names and not isinstance(value, (*_CONTAINERS, tuple, frozenset)):
        return {} if cls is object else None
    found = dict(own) if isinstance(own, dict) else {}
    found.update({name: getattr(value, name) for name in names if hasattr(value, name)})
    return found


def _slots(cls: type) -> tuple[str, ...]:
    declared = cls.__dict__.get("__slots__", ())
    names = (declared,) if isinstance(declared, str) else tuple(declared)
    own = (n for n in names if n not in ("__dict__", "__weakref__"))
    return tuple(f"_{cls.__name__.lstrip('_')}{n}" if n[:2] == "__" != n[-2:] else n for n in own)


def _set_attribute(value: Any, name: str, item: Any) -> None:
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and name in own:
        own[name] = item  # past what a class does when an attribute is set
    else:
        object.__setattr__(value, name, item)


def _set_attributes(value: Any, saved: dict[str, Any]) -> None:
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        for name in [name for name in own if name not in saved]:
            del own[name]
    slots = {name for base in type(value).__mro__ for name in _slots(base)}
    for name in slots:
        if name not in saved and hasattr(value, name):
            object.__delattr__(value, name)
    for name, item in saved.items():
        if name in slots:
            object.__setattr__(value, name, item)
        elif isinstance(own, dict):
            own[name] = item
