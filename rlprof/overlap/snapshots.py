"""The contents of objects of this process: saved, put back in place, looked at.

Identity is kept: the same arrays and containers hold the old contents again.
"""

from __future__ import annotations

import random
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlprof.overlap.errors import OverlapError
from rlprof.overlap.structures import is_tensor

#: Python's flag of classes that are written in Python, or could be.
_HEAP_TYPE = 1 << 9
_CONSTANT = (
    bool, int, float, complex, str, bytes, type(None), type(...), range, slice, frozenset, type, np.generic,
    np.dtype, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
    types.CodeType, types.MethodDescriptorType, np.ufunc,
)  # fmt: skip
#: Modules whose objects hold nothing that a program computes with.
_NO_CONTENTS = frozenset({"_thread", "threading", "queue", "_queue", "_weakref", "weakref", "logging"})


@dataclass(frozen=True)
class Saved:
    """Contents of an object at one time.

    Parameters
    ----------
    values : dict of str to object
        Numbers, texts and copies of arrays by where they lie, such as ``.weights`` or ``["obs"][0]``.
    undo : tuple of callable
        Each puts one object's contents back.
    """

    values: dict[str, Any]
    undo: tuple[Callable[[], None], ...]


class ObjectState:
    """State of an object: attributes, arrays, tensors, containers, random generators, all the way down.

    Objects of rlprof, functions, locks and threads are left alone.

    Parameters
    ----------
    obj : object
        The object.
    strict : bool
        Refuse an object whose contents cannot be seen, such as that of a compiled simulator; otherwise it is
        left alone.
    """

    def __init__(self, obj: Any, *, strict: bool = True) -> None:
        self.obj = obj
        self._strict = strict

    def snapshot(self) -> Saved:
        """Return the present contents.

        Raises
        ------
        OverlapError
            If there is an object inside whose contents cannot be seen.
        """
        walk = _Walk(self._strict)
        walk.visit(self.obj, "")
        return Saved(walk.values, tuple(walk.undo))

    def restore(self, snapshot: Saved) -> None:
        """Put contents back, in place."""
        for undo in snapshot.undo:
            undo()


class _Walk:
    def __init__(self, strict: bool) -> None:
        self.values: dict[str, Any] = {}
        self.undo: list[Callable[[], None]] = []
        self._strict = strict
        self._seen: dict[int, Any] = {}  # keeps what was seen alive, so that ids stay unique

    def visit(self, obj: Any, at: str) -> None:
        if isinstance(obj, bool | int | float | complex | str | bytes | np.generic):
            self.values[at] = obj
            return
        if isinstance(obj, _CONSTANT) or id(obj) in self._seen or _is_left_alone(obj):
            return
        self._seen[id(obj)] = obj
        if isinstance(obj, tuple):
            for place, item in enumerate(obj):
                self.visit(item, f"{at}[{place}]")
        elif isinstance(obj, np.ndarray):
            self._array(obj, at)
        elif is_tensor(obj):
            self._tensor(obj, at)
        elif not (self._container(obj, at) or self._generator(obj, at) or self._attributes(obj, at)):
            self._opaque(obj, at)

    def _array(self, array: Any, at: str) -> None:
        saved = self.values[at] = array.copy()
        if array.flags.writeable:
            self.undo.append(lambda: np.copyto(array, saved))
        if array.dtype.hasobject and array.dtype.names is None:
            self.visit(tuple(array.ravel().tolist()), at)

    def _tensor(self, tensor: Any, at: str) -> None:
        saved = self.values[at] = tensor.detach().clone()
        grad = tensor.grad if tensor.is_leaf else None

        def undo() -> None:
            # not counted as a write of the program; a tensor that was not written is left alone
            if not _equal(tensor, saved):
                tensor.data.copy_(saved)
            if tensor.is_leaf and tensor.grad is not grad:
                tensor.grad = grad

        self.undo.append(undo)
        if grad is not None:
            self.visit(grad, f"{at}.grad")

    def _container(self, obj: Any, at: str) -> bool:
        saved: Any
        if isinstance(obj, dict):
            saved = list(obj.items())
            self.undo.append(lambda: _refill_dict(obj, saved))
            for key, value in saved:
                self.visit(value, f"{at}[{key!r}]")
        elif isinstance(obj, list | deque):
            saved = list(obj)
            self.undo.append(lambda: _refill_sequence(obj, saved))
            for place, item in enumerate(saved):
                self.visit(item, f"{at}[{place}]")
        elif isinstance(obj, set | bytearray):
            saved = obj.copy()
            self.values[at] = repr(sorted(saved, key=repr)) if isinstance(obj, set) else bytes(saved)
            self.undo.append(lambda: _refill_flat(obj, saved))
        else:
            return False
        # a subclass may have attributes besides
        if getattr(obj, "__dict__", None):
            self._attributes(obj, at)
        return True

    def _generator(self, obj: Any, at: str) -> bool:
        """Random generators with a hidden position."""
        state: Any
        put: Callable[[Any], None]
        if isinstance(obj, np.random.Generator):
            state, put = obj.bit_generator.state, lambda s: setattr(obj.bit_generator, "state", s)
        elif isinstance(obj, np.random.RandomState):
            state, put = obj.get_state(), obj.set_state
        elif isinstance(obj, random.Random):
            state, put = obj.getstate(), obj.setstate
        elif type(obj).__name__ == "Generator" and type(obj).__module__.startswith("torch"):
            state, put = obj.get_state(), obj.set_state
        else:
            return False
        self.values[at] = repr(state)
        self.undo.append(lambda: put(state))
        return True

    def _attributes(self, obj: Any, at: str) -> bool:
        compiled = [c for c in type(obj).__mro__ if not c.__flags__ & _HEAP_TYPE]
        if any(c not in (object, dict, list, set, deque, bytearray, tuple) for c in compiled):
            return False
        names = [
            name
            for c in type(obj).__mro__
            for name in _slots(c)
            if name not in ("__dict__", "__weakref__") and hasattr(obj, name)
        ]
        for name in names:
            value = getattr(obj, name)
            self.undo.append(lambda name=name, value=value: object.__setattr__(obj, name, value))  # type: ignore[misc]
            self.visit(value, f"{at}.{name}")
        held = getattr(obj, "__dict__", None)
        if isinstance(held, dict):
            saved = list(held.items())
            self.undo.append(lambda: _refill_dict(held, saved))
            for name, value in saved:
                self.visit(value, f"{at}.{name}")
        return bool(names) or held is not None

    def _opaque(self, obj: Any, at: str) -> None:
        if type(obj) is object or not self._strict:
            return
        raise OverlapError(
            f"the contents of a {type(obj).__qualname__} at {at or 'the top'} cannot be seen",
            hint="give the state object methods snapshot() and restore(snapshot)",
        )


def _slots(cls: type) -> tuple[str, ...]:
    found = cls.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)


def _is_left_alone(obj: Any) -> bool:
    module = type(obj).__module__
    return module.split(".")[0] == "rlprof" or module in _NO_CONTENTS


def _equal(tensor: Any, saved: Any) -> bool:
    import torch

    if tensor.shape != saved.shape:
        return False
    bits = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (tensor, saved)]
    return bool(torch.equal(*bits))


def _refill_dict(held: dict[Any, Any], saved: list[tuple[Any, Any]]) -> None:
    now = list(held.items())
    if len(now) == len(saved) and all(a == b and x is y for (a, x), (b, y) in zip(now, saved, strict=True)):
        return
    held.clear()
    held.update(saved)


def _refill_sequence(held: Any, saved: list[Any]) -> None:
    if len(held) != len(saved) or any(a is not b for a, b in zip(held, saved, strict=True)):
        held.clear()
        held.extend(saved)


def _refill_flat(held: Any, saved: Any) -> None:
    if held != saved:
        held.clear()
        held.update(saved) if isinstance(held, set) else held.extend(saved)
