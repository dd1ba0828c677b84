"""Where the values of one recorded run come from: identity of objects, views of memory, writes in place.

Every object that a call of the run returned, or that the region was given, is known by its identity; it is
kept alive while the run is recorded, so that no other object can take its place. What reaches a call and is
not known is settled when all runs are there: the same in each is a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlprof.overlap.bindings import Path, View
from rlprof.overlap.snapshots import Snapshot, reader_of
from rlprof.overlap.specs import Key
from rlprof.overlap.values import (
    DEEPEST,
    MemoryKey,
    Stamp,
    is_array,
    is_borrowed,
    memory_key,
    memory_range,
    stamp,
    take_apart,
    view_of,
)

if TYPE_CHECKING:
    from rlprof.overlap.trace import CallRecord

_CONTAINERS = frozenset({tuple, list, dict})
_SCALARS = frozenset({int, float, bool, str, bytes, complex, type(None)})


#: There is one object of each value, wherever it comes from.
_SINGLE = (bool, str, bytes, type(None), np.bool_, Enum, type, FunctionType, BuiltinFunctionType, ModuleType)


def is_shared(value: Any) -> bool:
    """Whether Python may use one object for all equal values: then identity says nothing of origin."""
    if type(value) is int:
        return -6 < value < 257
    return isinstance(value, _SINGLE) or value is Ellipsis or value is NotImplemented


def is_followed(value: Any) -> bool:
    """Whether it shows if a leaf is changed in place: arrays, and objects with attributes or items."""
    return is_array(value) or (not is_shared(value) and reader_of(value) is not None)


def stamp_of(value: Any) -> Stamp | Snapshot | None:
    """Return what changes when a leaf is changed in place; None: it cannot be told."""
    return stamp(value) if is_array(value) else Snapshot({"": value}, objects=1)


class MemoryTrack:
    """One piece of memory in which arrays of a run lie, or an object that can be changed in place.

    Parameters
    ----------
    key : tuple of (str, int)
        As of `memory_key`.
    """

    __slots__ = ("array", "creator", "key", "uses", "wholes", "writers", "written_at")

    def __init__(self, key: tuple[str, int], array: Any = None) -> None:
        self.key = key
        #: The first that was seen there.
        self.array = array if is_array(array) else None
        self.wholes: list[Known] = []
        self.creator: CallRecord | None = None
        self.uses: list[CallRecord] = []
        self.writers: list[CallRecord] = []
        self.written_at = -1

    def write(self, record: CallRecord, event: int) -> None:
        """Note that the code of a call wrote here."""
        self.writers.append(record)
        self.written_at = event


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
        "arrays", "external", "items", "maker", "memory", "obj", "path", "places", "record", "stamp",
        "stamped_at", "view",
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
        #: Identities of the items when it was returned, for a container.
        self.items: tuple[int, ...] | None = None
        #: The call around other calls whose own code made it, and where in its output, if anybody asks.
        self.maker: tuple[CallRecord, Path] | None = None
        #: Arrays inside a container.
        self.arrays: tuple[Known, ...] = ()
        self.memory: MemoryTrack | None = None
        self.stamp: Stamp | Snapshot | None = None
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


class Lineage:
    """The objects of one run.

    Parameters
    ----------
    writes : bool
        Look for writes in place.
    components : set of int
        Ids of objects whose use is declared, or counts as that of a component: they are not followed.
    owned : list of (tuple of (str, int), array)
        Arrays of registered state, by their key.
    """

    def __init__(
        self,
        writes: bool = True,
        components: set[int] | None = None,
        owned: list[tuple[MemoryKey, Any]] | None = None,
    ) -> None:
        self.components = set() if components is None else components
        self._table: dict[int, Known] = {}
        self._memories: dict[tuple[str, int], MemoryTrack] = {}
        self._given: list[Known] = []
        #: Keys of memory that is another's, and arrays of registered state, which may be that other.
        self._same: dict[MemoryKey, MemoryKey] = {}
        self._owned: list[tuple[MemoryKey, Any]] = [] if owned is None else owned
        self._borrowed = False
        #: Values that Python shares, where calls returned them.
        self.shared: list[tuple[CallRecord, Path, Any]] = []
        #: Containers, where calls returned them, and the keys of their items.
        self.layouts: list[tuple[CallRecord, Path, tuple[Key, ...]]] = []
        self._writes = writes

    @property
    def memories(self) -> Iterable[MemoryTrack]:
        """All memory in which an array of the run lies."""
        return self._memories.values()

    def memory(self, key: tuple[str, int]) -> MemoryTrack | None:
        """Memory by its key."""
        return self._memories.get(key)

    # containers that are changed in place ------------------------------------------------------------------

    def containers(self, raw: Raw, depth: int = 0) -> Iterator[tuple[Raw, tuple[int, ...]]]:
        """Yield the containers in a value that can be changed, with the identities of their items."""
        if isinstance(raw, RawPack):
            if can_change(raw.whole):
                parts = take_apart(raw.whole)
                yield raw, () if parts is None else tuple(map(id, parts.items))
            for item in raw.items:
                yield from self.containers(item, depth + 1)
        elif raw.items is not None:
            if can_change(raw.obj):
                yield raw, raw.items
            parts = take_apart(raw.obj)
            for item in () if parts is None else parts.items:
                inner = self._table.get(id(item))
                if inner is not None and inner.items is not None and depth < DEEPEST:
                    yield from self.containers(inner, depth + 1)

    def container_track(self, known: Known) -> MemoryTrack:
        """Return what follows the uses of a container that a call returned, or that was given."""
        if known.memory is not None:
            return known.memory
        key = ("container", id(known.obj))
        track = self._memories.get(key)
        if track is None:
            track = self._memories[key] = MemoryTrack(key)
            track.creator = known.record
            track.wholes.append(known)
        return track

    def changed_arguments(self) -> Iterator[Known]:
        """Yield containers in the region's arguments that are not as they were, and no call did it."""
        for known in self._given:
            parts = take_apart(known.obj)
            if parts is None or tuple(map(id, parts.items)) != known.items:
                yield known

    # values that reach a call ------------------------------------------------------------------------------

    def resolve(self, value: Any, arrays: list[Known], depth: int = 0) -> Raw:
        """Return where a value comes from, and add the arrays in it to `arrays`."""
        known = self._table.get(id(value))
        if known is not None:
            if known.memory is not None:
                arrays.append(known)
                return known
            if known.items is None:
                return known
            parts = take_apart(value)
            if parts is not None and known.items == tuple(map(id, parts.items)):
                arrays.extend(known.arrays)
                return known
        elif type(value) in _SCALARS:
            known = self._table[id(value)] = Known(value, None)
            return known
        elif is_array(value):
            known = self._array(value)
            arrays.append(known)
            return known
        else:
            parts = take_apart(value)
        if parts is None or depth > DEEPEST:
            known = self._table[id(value)] = Known(value, None)
            if self._writes and self._follows(value):
                self._place(known, ("object", id(value)))
                arrays.append(known)
            return known
        items = [self.resolve(item, arrays, depth + 1) for item in parts.items]
        return RawPack(parts.kind, parts.keys, items, value)

    def _follows(self, value: Any) -> bool:
        return id(value) not in self.components and is_followed(value)

    def unexplained(self) -> Iterator[Known]:
        """Yield arrays and objects that no call returned and no argument held: there before the run."""
        for known in self._table.values():
            if known.record is None and not known.external and known.memory is not None and not known.view:
                yield known

    def _key(self, array: Any) -> MemoryKey:
        """Return the key of an array's memory; tensors on numpy's memory have that of numpy's array."""
        key = memory_key(array)
        known = self._same.get(key)
        if known is not None or key in self._memories:
            return known or key
        borrowed = is_borrowed(array)
        self._borrowed = self._borrowed or borrowed
        if borrowed or (self._borrowed and key[0] == "numpy"):
            known = self._same[key] = self._overlapping(array) or key
        return known or key

    def _overlapping(self, array: Any) -> MemoryKey | None:
        """Key of host memory that is known already and that an array lies in."""
        low, high = memory_range(array)
        held = [(track.key, track.array) for track in self._memories.values() if track.array is not None]
        for key, other in [*held, *self._owned]:
            if key[0] in ("numpy", "memory"):
                first, last = memory_range(other)
                if first < high and low < last:
                    return key
        return None

    def _array(self, value: Any) -> Known:
        """Make an unknown array known, as a view of a known one if it is."""
        key = self._key(value)
        track = self._memories.get(key)
        made = None
        if track is not None:
            for whole in reversed(track.wholes):
                view = view_of(value, whole.obj)
                if view is not None:
                    made = Known(value, whole.record, whole.path, whole.external)
                    made.view, made.maker = view, whole.maker
                    break
        if made is None:
            made = Known(value, None)
        self._place(made, key)
        self._table[id(value)] = made
        return made

    def _place(self, known: Known, key: MemoryKey) -> None:
        track = self._memories.get(key)
        if track is None:
            track = self._memories[key] = MemoryTrack(key, known.obj)
        if known.view is None and (known.record is not None or known.external):
            track.wholes.append(known)
        known.memory = track

    # values that come into being ---------------------------------------------------------------------------

    def give(self, value: Any, event: int) -> None:
        """Make the region's arguments ``(args, kwargs)`` known, with all that is in them."""
        self._enter(value, None, (), event, True)

    def returned(self, value: Any, record: CallRecord, event: int) -> Raw:
        """Make what an innermost call returned known.

        Parameters
        ----------
        value : object
            What it returned.
        record : CallRecord
            The call. Objects among its arguments it passes on.
        event : int
            Number of the event, for the order of writes.
        """
        return self._enter(value, record, (), event)

    def note_output(self, value: Any, record: CallRecord, path: Path = ()) -> None:
        """Note flags and containers in what a call around other calls returned."""
        parts = take_apart(value) if len(path) < DEEPEST else None
        if parts is None:
            if is_shared(value):
                self.shared.append((record, path, value))
            return
        if parts.keys:
            self.layouts.append((record, path, parts.keys))
        for key, item in zip(parts.keys, parts.items, strict=True):
            self.note_output(item, record, (*path, key))

    def stands_for(self, reference: Any, record: CallRecord) -> None:
        """Make a reference known that remote calls take in place of what a call returned."""
        self._table[id(reference)] = Known(reference, record)

    def _enter(
        self, value: Any, record: CallRecord | None, path: Path, event: int, external: bool = False
    ) -> Raw:
        cls = type(value)
        known = self._table.get(id(value))
        if cls in _SCALARS or is_shared(value):
            if record is not None and cls is not float and is_shared(value):
                self.shared.append((record, path, value))
            made = Known(value, record, path, external)
            # a call's values that Python shares are not kept: equal ones from elsewhere are the same object
            if cls is float or not is_shared(value) or (external and known is None):
                self._table[id(value)] = made
            elif external and known is not None and known.external:
                known.places += (path,)
            return made
        if known is not None and known.items is None and record is not None and record.was_given(value):
            return known
        made = Known(value, record, path, external)
        if cls not in _CONTAINERS and is_array(value):
            self._enter_array(made, known, event)
            self._table[id(value)] = made
            return made
        parts = take_apart(value) if len(path) < DEEPEST else None
        if parts is None:
            if self._writes and self._follows(value):
                self._enter_array(made, known, event)
            self._table[id(value)] = made
            return made
        if record is not None and parts.keys:
            self.layouts.append((record, path, parts.keys))
        items: list[Raw] = []
        arrays: list[Known] = []
        is_whole = True
        for key, item in zip(*parts[1:]):  # noqa: B905  (as many keys as items)
            if type(item) is float:  # as below, without a call
                number = Known(item, record, (*path, key), external)
                self._table[id(item)] = number
                items.append(number)
                continue
            raw = self._enter(item, record, (*path, key), event, external)
            items.append(raw)
            if isinstance(raw, RawPack) or raw.record is not record or raw.external != external:
                is_whole = False
            elif raw.memory is not None:
                arrays.append(raw)
            elif raw.arrays:
                arrays += raw.arrays
        if not is_whole:
            return RawPack(parts.kind, parts.keys, items, value)
        made.items = tuple(map(id, parts.items))
        if arrays:
            made.arrays = tuple(arrays)
        if items or cls is not tuple:  # all empty tuples are one object
            self._table[id(value)] = made
        if external and can_change(value):
            self._given.append(made)
        return made

    def _enter_array(self, made: Known, known: Known | None, event: int) -> None:
        """An array or object that a call returned, or that came with the region's arguments."""
        key = self._key(made.obj) if is_array(made.obj) else ("object", id(made.obj))
        record = made.record
        track = self._memories.get(key)
        if self._writes:
            made.stamp, made.stamped_at = stamp_of(made.obj), event
        if track is None:
            track = self._memories[key] = MemoryTrack(key, made.obj)
            track.creator = record
        elif record is not None:
            before = known or (track.wholes[-1] if track.wholes else None)
            if self._writes and before is not None:
                again = made.stamp if before.obj is made.obj else stamp_of(before.obj)
                if before.stamp is not None and again != before.stamp and track.written_at < event:
                    track.write(record, event)
                before.stamp, before.stamped_at = again, event
            track.uses.append(record)
        track.wholes.append(made)
        made.memory = track


def can_change(container: Any) -> bool:
    """Whether a container can be changed in place."""
    return not isinstance(container, tuple)


def leaves_of(raw: Raw) -> Iterator[Known]:
    """Yield what a value is made of, and the arrays in containers that a call returned."""
    if isinstance(raw, RawPack):
        for item in raw.items:
            yield from leaves_of(item)
    else:
        yield raw
        yield from raw.arrays
