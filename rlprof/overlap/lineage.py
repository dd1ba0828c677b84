"""Where the values of one recorded run come from: identity of objects, views of arrays, writes in place.

Every object that a call of the run returned, or that the region was given, is known by its identity; it is
kept alive while the run is recorded, so that no other object can take its place. What reaches a call and is
not known is settled when all runs are there: the same in each is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from rlprof.overlap.bindings import Path
from rlprof.overlap.known import FRESH, Known, MemoryTrack, Raw, RawPack, can_change, is_shared
from rlprof.overlap.memory_tracks import MemoryTracks
from rlprof.overlap.readers import reader_of
from rlprof.overlap.specs import Key
from rlprof.overlap.stamps import Stamps
from rlprof.overlap.values import (
    DEEPEST,
    MemoryKey,
    Parts,
    is_array,
    take_apart,
    torch_module,
    view_of,
)

if TYPE_CHECKING:
    from rlprof.overlap.call_record import CallRecord

_CONTAINERS = frozenset({tuple, list, dict})
_SCALARS = frozenset({int, float, bool, str, bytes, complex, type(None)})


def is_followed(value: Any) -> bool:
    """Whether it shows if a leaf is changed in place: arrays, and objects with attributes or items."""
    return is_array(value) or (not is_shared(value) and reader_of(value) is not None)


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
        #: Objects of the run by their identity.
        self.table: dict[int, Known] = {}
        #: The memory that they lie in.
        self.memories = memories = MemoryTracks(self.table, [] if owned is None else owned)
        self._tracks, self._fresh = memories.tracks, memories.fresh
        self._place_fresh, self._track = memories.place_fresh, memories.track
        self._given: list[Known] = []
        # three items for each, one after another: a row of its own for each would be one more object that
        # the garbage collector goes through again and again
        self._shared: list[Any] = []
        self._layouts: list[Any] = []
        self._writes = writes
        self.stamps = Stamps()
        torch = torch_module()
        self._tensors = frozenset() if torch is None else frozenset({torch.Tensor, torch.nn.Parameter})
        self._strided = None if torch is None else torch.strided

    @property
    def shared(self) -> Iterator[tuple[CallRecord, Path, Any]]:
        """Values that Python shares, where calls returned them."""
        return _threes(self._shared)

    @property
    def layouts(self) -> Iterator[tuple[CallRecord, Path, tuple[Key, ...]]]:
        """Containers, where calls returned them, and the keys of their items."""
        return _threes(self._layouts)

    # containers that are changed in place ------------------------------------------------------------------

    def containers(self, raw: Raw, depth: int = 0) -> Iterator[tuple[Raw, tuple[Any, ...]]]:
        """Yield the containers in a value that can be changed, with their items."""
        if isinstance(raw, RawPack):
            if can_change(raw.whole):
                yield raw, items_of(raw.whole) or ()
            for item in raw.items:
                yield from self.containers(item, depth + 1)
        elif raw.items is not None:
            if can_change(raw.obj):
                yield raw, raw.items
            parts = take_apart(raw.obj) if raw.has_inner else None
            for item in () if parts is None else parts.items:
                inner = self.table.get(id(item))
                is_known = inner is not None and inner.obj is item and inner.items is not None
                if inner is not None and is_known and depth < DEEPEST:
                    yield from self.containers(inner, depth + 1)

    def container_track(self, known: Known) -> MemoryTrack:
        """Return what follows the uses of a container that a call returned, or that was given."""
        if known.memory is not None:
            return known.memory
        key = ("container", id(known.obj))
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = MemoryTrack(key)
            track.creator = known.record
            track.wholes.append(known)
        return track

    def changed_arguments(self) -> Iterator[Known]:
        """Yield containers in the region's arguments that are not as they were, and no call did it."""
        for known in self._given:
            if not are_same(items_of(known.obj), known.items):
                yield known

    # values that reach a call ------------------------------------------------------------------------------

    def resolve(self, value: Any, arrays: list[Known], depth: int = 0) -> Raw:
        """Return where a value comes from, and add the arrays in it to `arrays`."""
        known = self.table.get(id(value))
        if known is not None:
            if known.obj is not value:
                return self._leaf(known, value)
            if known.memory is not None:
                if known.memory is FRESH:
                    self._place_fresh(known)
                arrays.append(known)
                return known
            if known.items is None:
                return known
            if are_same(known.items, items_of(value)):
                for array in known.arrays:
                    if array.memory is FRESH:
                        self._place_fresh(array)
                    arrays.append(array)
                return known
            parts = take_apart(value)
        elif type(value) in _SCALARS:
            known = self.table[id(value)] = Known(value, None)
            return known
        elif is_array(value):
            known = self._array(value)
            arrays.append(known)
            return known
        else:
            parts = take_apart(value)
        if parts is None or depth > DEEPEST:
            known = self.table[id(value)] = Known(value, None)
            if self._writes and self._follows(value):
                self.memories.place(known, ("object", id(value)))
                arrays.append(known)
            return known
        items = [self.resolve(item, arrays, depth + 1) for item in parts.items]
        return RawPack(parts.kind, parts.keys, items, value)

    def _leaf(self, container: Known, number: float) -> Known:
        """Make a number known that lies in a known container, when somebody is given it."""
        for place in range(len(container.held) - 1, -1, -1):
            if container.held[place] is number:
                path = (*container.path, container.keys[place])
                break
        made = self.table[id(number)] = Known(number, container.record, path, container.external)
        return made

    def _follows(self, value: Any) -> bool:
        return id(value) not in self.components and is_followed(value)

    def unexplained(self) -> Iterator[Known]:
        """Yield arrays and objects that no call returned and no argument held: there before the run."""
        for known in self.table.values():
            if known.record is None and not known.external and known.memory is not None and not known.view:
                yield known

    def _array(self, value: Any) -> Known:
        """Make an unknown array known, as a view of a known one if it is."""
        key = self.memories.key_of(value)
        track = self._track(key)
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
        self.memories.place(made, key)
        self.table[id(value)] = made
        return made

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
        if type(value) in _CONTAINERS and id(value) not in self.table:  # the usual case, in fewer steps
            parts = take_apart(value)
            if parts is not None:
                return self._enter_container(value, parts, record, (), event, False)
        return self._enter(value, record, (), event)

    def note_output(self, value: Any, record: CallRecord, path: Path = ()) -> None:
        """Note flags and containers in what a call around other calls returned."""
        parts = take_apart(value) if len(path) < DEEPEST else None
        if parts is None:
            if is_shared(value):
                self._shared += (record, path, value)
            return
        if parts.keys:
            self._layouts += (record, path, parts.keys)
        for key, item in zip(parts.keys, parts.items, strict=True):
            self.note_output(item, record, (*path, key))

    def stands_for(self, reference: Any, record: CallRecord) -> None:
        """Make a reference known that remote calls take in place of what a call returned."""
        self.table[id(reference)] = Known(reference, record)

    def _enter(
        self, value: Any, record: CallRecord | None, path: Path, event: int, external: bool = False
    ) -> Raw:
        cls = type(value)
        known = self.table.get(id(value))
        if cls is np.ndarray:
            if known is None:
                if value.base is None and not self.memories.borrowed and record is not None:
                    return self._enter_fresh(value, record, path, event)
            elif record is not None and record.was_given(value):
                return known
            return self._enter_array(value, known, record, path, event, external)
        if cls not in _CONTAINERS and cls not in self._tensors and (cls in _SCALARS or is_shared(value)):
            return self._enter_value(value, known, record, path, external)
        if known is not None and known.items is None and record is not None and record.was_given(value):
            return known
        if cls in self._tensors and value.layout is self._strided:
            return self._enter_array(value, known, record, path, event, external)
        parts = take_apart(value) if len(path) < DEEPEST else None
        if parts is not None:
            return self._enter_container(value, parts, record, path, event, external)
        if is_array(value) or (self._writes and self._follows(value)):
            return self._enter_array(value, known, record, path, event, external)
        made = self.table[id(value)] = Known(value, record, path, external)
        return made

    def _enter_value(
        self, value: Any, known: Known | None, record: CallRecord | None, path: Path, external: bool
    ) -> Known:
        """A number, a text, or another value that Python may share."""
        made = Known(value, record, path, external)
        if not is_shared(value):
            self.table[id(value)] = made
            return made
        if record is not None:
            self._shared += (record, path, value)
        # a call's values that Python shares are not kept: equal ones from elsewhere are the same object
        if external and known is None:
            self.table[id(value)] = made
        elif external and known is not None and known.external:
            known.places += (path,)
        return made

    def _enter_container(
        self,
        value: Any,
        parts: Parts,
        record: CallRecord | None,
        path: Path,
        event: int,
        external: bool,
    ) -> Raw:
        """A container that a call returned, or that came with the region's arguments."""
        kind, keys, held = parts
        if record is not None and keys:
            self._layouts += (record, path, keys)
        items: list[Raw | None] = []
        arrays: list[Known] = []
        table = self.table
        is_whole, has_inner, has_numbers = True, False, False
        for key, item in zip(keys, held):  # noqa: B905  (as many keys as items)
            # numbers and new arrays, as `_enter` does it, in fewer steps
            if type(item) is float:
                items.append(None)
                has_numbers = True
                continue
            if (
                type(item) is np.ndarray
                and item.base is None
                and id(item) not in table
                and record is not None
                and not self.memories.borrowed
            ):
                array = self._enter_fresh(item, record, (*path, key), event)
                items.append(array)
                arrays.append(array)
                continue
            raw = self._enter(item, record, (*path, key), event, external)
            items.append(raw)
            if isinstance(raw, RawPack) or raw.record is not record or raw.external != external:
                is_whole = False
            elif raw.memory is not None:
                arrays.append(raw)
            elif raw.items is not None:
                has_inner = True
                arrays += raw.arrays
        if not is_whole:
            for place, known in enumerate(items):
                if known is None:
                    number = Known(held[place], record, (*path, keys[place]), external)
                    items[place] = table[id(held[place])] = number
            return RawPack(kind, keys, items, value)  # type: ignore[arg-type]
        made = Known(value, record, path, external)
        made.items = made.held = held
        made.keys = keys
        if has_numbers:
            for item in held:
                if type(item) is float:
                    table[id(item)] = made  # whoever is given it asks `_leaf` where it lies
        made.has_inner = has_inner
        if arrays:
            made.arrays = tuple(arrays)
        if items or type(value) is not tuple:  # all empty tuples are one object
            table[id(value)] = made
        if external and can_change(value):
            self._given.append(made)
        return made

    def _enter_fresh(self, value: Any, record: CallRecord, path: Path, event: int) -> Known:
        """An array of numpy that owns its memory and was never seen: usually a result made just now."""
        if ("numpy", id(value)) in self._tracks:  # but views of it were
            return self._enter_array(value, None, record, path, event, False)
        made = self.table[id(value)] = Known(value, record, path)
        made.memory = FRESH
        self._fresh.append(made)
        if self._writes:
            made.stamp, made.stamped_at = self.stamps.take(value), event
        return made

    def _enter_array(
        self,
        value: Any,
        known: Known | None,
        record: CallRecord | None,
        path: Path,
        event: int,
        external: bool,
    ) -> Known:
        """An array or object that a call returned, or that came with the region's arguments."""
        made = Known(value, record, path, external)
        is_followed_tensor = type(value) in self._tensors and value.layout is self._strided
        if type(value) is np.ndarray and value.base is None and not self.memories.borrowed:
            key: MemoryKey = ("numpy", id(value))
        elif is_followed_tensor or is_array(value):
            key = self.memories.key_of(value)
        else:
            key = ("object", id(value))
        track = self._track(key)
        if self._writes:
            made.stamp = self.stamps.of_tensor(value) if is_followed_tensor else self.stamps.take(value)
            made.stamped_at = event
        if track is None:
            array = value if key[0] != "object" else None
            track = self._tracks[key] = MemoryTrack(key, array, record)
        elif record is not None:
            before = known or (track.wholes[-1] if track.wholes else None)
            if self._writes and before is not None:
                changed, before.stamp = self.stamps.renewed(before.obj, before.stamp)
                if changed and track.written_at < event:
                    track.write(record, event)
                before.stamped_at = event
            track.use(record)
        track.wholes.append(made)
        made.memory = track
        self.table[id(value)] = made
        return made


def _threes(row: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    items = iter(row)
    return zip(items, items, items, strict=True)


def items_of(container: Any) -> tuple[Any, ...] | None:
    """Return the items of a container; None if it is none any more."""
    if type(container) is list or type(container) is tuple:
        return tuple(container)
    parts = take_apart(container)
    return None if parts is None else parts.items


def are_same(some: tuple[Any, ...] | None, others: tuple[Any, ...] | None) -> bool:
    """Whether these are the same objects."""
    if some is None or others is None:
        return some is others
    return len(some) == len(others) and all(map(is_, some, others))
