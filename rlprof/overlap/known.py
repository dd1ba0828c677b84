"""What is noted of values while a run is recorded: objects, containers, and the memory that arrays lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlprof.overlap.bindings import Path, View
from rlprof.overlap.specs import Key

if TYPE_CHECKING:
    from rlprof.overlap.call_record import CallRecord
    from rlprof.overlap.stamps import Look

#: There is one object of each value, wherever it comes from.
_SINGLE = (bool, str, bytes, type(None), np.bool_, Enum, type, FunctionType, BuiltinFunctionType, ModuleType)


def is_shared(value: Any) -> bool:
    """Whether Python may use one object for all equal values: then identity says nothing of origin."""
    if value is None:
        return True
    if type(value) is int:
        return -6 < value < 257
    return isinstance(value, _SINGLE) or value is Ellipsis or value is NotImplemented


class MemoryTrack:
    """One piece of memory in which arrays of a run lie, or an object that can be changed in place.

    Parameters
    ----------
    key : tuple of (str, int)
        As of `memory_key`.
    """

    __slots__ = ("array", "creator", "key", "uses", "wholes", "writers", "written_at")

    def __init__(self, key: tuple[str, int], array: Any = None, creator: CallRecord | None = None) -> None:
        self.key = key
        #: The first array that was seen there.
        self.array = array
        self.creator = creator
        self.wholes: list[Known] = []
        # most are never written, and many never used: they need no lists of their own
        self.uses: Sequence[CallRecord] = ()
        self.writers: Sequence[CallRecord] = ()
        self.written_at = -1

    def use(self, record: CallRecord) -> None:
        """Note that a call was given what lies here."""
        if type(self.uses) is list:
            self.uses.append(record)
        else:
            self.uses = [record]

    def write(self, record: CallRecord, event: int) -> None:
        """Note that the code of a call wrote here."""
        if type(self.writers) is list:
            self.writers.append(record)
        else:
            self.writers = [record]
        self.written_at = event


#: Stands for the memory of an array that owns it and that nobody has used yet.
FRESH = MemoryTrack(("fresh", 0))


class Known:
    """An object seen in a run.

    Parameters
    ----------
    obj : object
        Itself, kept alive.
    record : CallRecord or None
        The call that returned it; None if it is not known.
    path : tuple
        Where it lay in the output, or in the region's arguments if `external`.
    external : bool
        It came with the region's arguments.
    """

    # slots: one that had a dict of its own would cost twice as much to make
    __slots__ = (
        "arrays", "external", "has_inner", "held", "items", "keys", "maker", "memory", "obj", "path",
        "places", "record", "stamp", "stamped_at", "view",
    )  # fmt: skip

    def __init__(self, obj: Any, record: CallRecord | None, path: Path = (), external: bool = False) -> None:
        self.obj = obj
        self.record = record
        self.path = path
        self.external = external
        #: Other places in the region's arguments that hold an equal value that Python shares.
        self.places: tuple[Path, ...] = ()
        #: Part of the array that the other fields describe.
        self.view: View | None = None
        #: Items of a container, as they were when it was returned, kept alive; and their keys.
        self.held: tuple[Any, ...] = ()
        self.keys: tuple[Key, ...] = ()
        #: The same, or what the last call made of them that changed the container in place.
        self.items: tuple[Any, ...] | None = None
        #: Other containers are among them.
        self.has_inner = False
        #: The call around other calls whose own code made it, and where in its output, if anybody asks.
        self.maker: tuple[CallRecord, Path] | None = None
        #: Arrays inside a container.
        self.arrays: tuple[Known, ...] = ()
        self.memory: MemoryTrack | None = None
        #: What the last look at it found.
        self.stamp: Look = None
        self.stamped_at = -1


class RawPack:
    """A container put together by code between calls.

    Parameters
    ----------
    kind, keys : str or type, tuple
        As in `Parts`.
    items : list
        Where they come from.
    whole : object
        The container itself, kept alive.
    """

    __slots__ = ("is_changed", "items", "keys", "kind", "whole")

    def __init__(self, kind: str | type, keys: tuple[Key, ...], items: list[Raw], whole: Any) -> None:
        self.kind, self.keys, self.items, self.whole = kind, keys, items, whole
        #: A call that was given it changed it in place.
        self.is_changed = False


#: What is noted of a value while the run goes on.
Raw: TypeAlias = Known | RawPack


def can_change(container: Any) -> bool:
    """Whether a container can be changed in place."""
    return not isinstance(container, tuple)


def whole_of(raw: Raw) -> Any:
    """Return the value itself."""
    return raw.whole if isinstance(raw, RawPack) else raw.obj


def leaves_of(raw: Raw) -> Iterator[Known]:
    """Yield what a value is made of, and the arrays in containers that a call returned."""
    if isinstance(raw, RawPack):
        for item in raw.items:
            yield from leaves_of(item)
    else:
        yield raw
        yield from raw.arrays
