"""What objects hold, looked at shallowly and often: did something change since the last look?

Attributes, items of containers, write counters of tensors, contents of small arrays and states of random
generators. Values are compared by identity (numbers and text by value) and kept alive, so that no other
object takes their place. What lies deeper than a few levels, and large arrays, is not looked at.

A look comes before and after every recorded call, so it is made of few steps: what has not changed yet is
compared with copies in one step; what has, piece by piece.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from itertools import compress, count, repeat, zip_longest
from operator import attrgetter, is_, is_not
from typing import Any

import numpy as np

from rlprof.overlap.readers import (
    HOLDERS,
    ITEMS,
    PLAIN,
    Reader,
    attributes,
    contents,
    generator,
    mapping,
    reader_of,
    sequence,
    version,
)
from rlprof.overlap.values import is_array

#: Objects and containers inside of a root that are looked at.
_PARTS = 200
#: Levels of objects, and of containers in each.
_OBJECTS, _CONTAINERS = 2, 3
#: Classes that compare what they hold, item by item.
_COMPARED = frozenset({dict, collections.OrderedDict, collections.defaultdict, list, collections.deque, set})
_dict_of = attrgetter("__dict__")

#: What waits to be looked into: name, thing, levels of objects and of containers above it, root.
_Waiting = tuple[str, Any, int, int, str]


class _Part:
    """One thing that is looked at.

    Attributes
    ----------
    objects, containers : int
        Levels above it.
    holders : int
        How often other parts, or roots, hold it.
    opens : bool
        What it holds is looked at too.
    seen : tuple
        What its reader returned at the last look.
    """

    __slots__ = ("containers", "holders", "name", "objects", "opens", "reader", "root", "seen", "thing")

    def __init__(
        self, name: str, thing: Any, reader: Reader, root: str, objects: int, containers: int
    ) -> None:
        self.name, self.thing, self.reader, self.root = name, thing, reader, root
        self.objects, self.containers = objects, containers
        self.holders, self.opens = 1, False
        self.seen = self.read()

    def read(self) -> tuple[Any, ...]:
        """Return what it holds now."""
        try:
            return self.reader(self.thing)
        except RuntimeError:  # another thread changed its size in between
            return ()

    def items(self, seen: tuple[Any, ...]) -> tuple[Any, ...]:
        """Of what its reader returned, what may be parts themselves."""
        return seen if self.reader is sequence else seen[len(seen) // 2 :]

    def keys(self, seen: tuple[Any, ...]) -> Iterable[Any]:
        """Attributes, keys or places of `items`."""
        return range(len(seen)) if self.reader is sequence else seen[: len(seen) // 2]

    def inside(self, key: Any, item: Any) -> _Waiting:
        """Return what is to be looked into for one of its items."""
        if self.reader is attributes:
            return f"{self.name}.{key}", item, self.objects + 1, 0, self.root
        return f"{self.name}[{key!r}]", item, self.objects, self.containers + 1, self.root


#: A part that holds other objects than before, perhaps equal ones, and what it held before.
Change = tuple[_Part, tuple[Any, ...]]


def _differ(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    return len(before) != len(now) or not all(map(_equal, before, now))


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b) or is_array(a):
        return False
    try:
        return bool(a == b or (a != a and b != b))  # noqa: PLR0124 (NaN)
    except Exception:  # whatever cannot be compared so
        return False


class Snapshot:
    """What some objects held at the last look.

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
        #: Ids of objects and containers that have changed before: they are looked at one by one.
        self._lively: set[int] = set()
        self._take()

    def renew(self) -> bool:
        """Make it a snapshot of now; say whether something has changed since the last look."""
        moved = self.look()
        return bool(moved) and any(_differ(before, part.seen) for part, before in moved)

    def changed(self, moved: Iterable[Change] | None = None) -> list[tuple[str, str]]:
        """Return root and name of what has changed since the last look; the snapshot is of now afterwards.

        Parameters
        ----------
        moved : iterable of Change, optional
            What `look` has just returned; by default it looks now.
        """
        return [
            (part.root, name)
            for part, before in (self.look() if moved is None else moved)
            if _differ(before, part.seen)
            for name in _named(part, before)
        ]

    # finding what there is to look at ----------------------------------------------------------------------

    def _take(self) -> None:
        """Find all parts anew."""
        self.parts: dict[int, _Part] = {}
        #: There are more than are looked at.
        self._is_full = False
        #: Only finding them anew tells which there are; only sorting them anew, how they are looked at.
        self._is_stale = self._is_unsorted = False
        self._single: dict[int, _Part] = {}
        self._arrays: dict[int, _Part] = {}
        self._generators: dict[int, _Part] = {}
        self._calm: dict[int, _Part] = {}
        self._tensors: dict[int, _Part] = {}
        self._open(collections.deque((name, root, 0, 0, name) for name, root in self.roots.items()), _PARTS)
        self._lively &= self.parts.keys()
        self._sort()

    def _open(self, queue: collections.deque[_Waiting], limit: int) -> None:
        """Look into what waits, nearest first."""
        parts = self.parts
        while queue:
            name, thing, objects, containers, root = queue.popleft()
            key = id(thing)
            known = parts.get(key)
            if known is not None:
                known.holders += 1
                if known.reader in HOLDERS and (objects, containers) < (known.objects, known.containers):
                    self._is_stale = True  # there is more of it to look at
                continue
            if key in self.skip:
                continue
            if len(parts) >= limit:
                self._is_full = True
                return
            try:
                reader = reader_of(thing)
                if reader is None:
                    continue
                part = parts[key] = _Part(name, thing, reader, root, objects, containers)
            except Exception:  # a proxy of what is gone, an object that lies about its class
                continue
            if reader is contents:
                self._arrays[key] = part
            elif reader is generator:
                self._generators[key] = part
            else:
                self._single[key] = part
            part.opens = self._opens(part)
            if part.opens:
                queue.extend(
                    part.inside(key, item)
                    for key, item in zip(part.keys(part.seen), part.items(part.seen), strict=True)
                    if type(item) not in PLAIN
                )

    def _opens(self, part: _Part) -> bool:
        if part.reader is attributes:
            return part.objects < self.objects
        return part.reader in HOLDERS and part.containers < _CONTAINERS and len(part.thing) <= ITEMS

    def _sort(self) -> None:
        """Sort the parts by how they are looked at: what has not changed yet as one row."""
        self._is_unsorted = False
        self._calm, self._single, self._tensors = {}, {}, {}
        self._owners: list[Any] = []
        self._things: list[Any] = []
        self._copies: list[Any] = []
        for key, part in self.parts.items():
            if key in self._arrays or key in self._generators:
                continue
            if part.reader is version and part.seen:
                self._tensors[key] = part
                continue
            is_object = part.reader is attributes
            held = part.thing.__dict__ if is_object else part.thing
            # classes that compare in ways of their own are left out
            compared = part.reader in HOLDERS and type(held) in _COMPARED
            if key in self._lively or not compared or (not is_object and len(held) > ITEMS):
                self._single[key] = part
                continue
            self._calm[key] = part
            if is_object:
                self._owners.append(part.thing)
            self._things.append(held)
            self._copies.append(dict(held) if isinstance(held, dict) else held.copy())
        self._dicts = [_dict_of(owner) for owner in self._owners]
        self._versions = [part.seen[0] for part in self._tensors.values()]

    # looking -----------------------------------------------------------------------------------------------

    def look(self) -> list[Change]:
        """Return what may have changed since the last look; the snapshot is of now afterwards."""
        moved = _moved(self._single.values()) if self._single else []
        for part in self._generators.values():
            before, part.seen = part.seen, part.read()
            if part.seen != before:
                moved.append((part, before))
        for part in self._arrays.values():
            if (part.seen[0] == part.thing) is not True:
                moved.append((part, part.seen))
                part.seen = part.read()
        if not self._is_calm():
            found = _moved(self._calm.values())
            self._lively.update(id(part.thing) for part, _ in found)
            self._is_unsorted = True
            moved += found
        if self._tensors and self._have_versions_changed():
            moved += _moved(self._tensors.values())
            self._versions = [part.seen[0] for part in self._tensors.values() if part.seen]
        for part, before in moved:
            if part.reader in HOLDERS:
                self._exchange(part, before)
        if self._is_stale:
            self._take()
        elif self._is_unsorted:
            self._sort()
        return moved

    def _is_calm(self) -> bool:
        """Whether what has not changed yet has not now either."""
        try:
            # what is the same object is equal without being looked at
            return self._things == self._copies and all(map(is_, map(_dict_of, self._owners), self._dicts))
        except Exception:  # arrays that cannot be compared so, a size that another thread changes
            return False

    def _have_versions_changed(self) -> bool:
        try:
            return [part.thing._version for part in self._tensors.values()] != self._versions
        except (RuntimeError, AttributeError):
            return True

    def _exchange(self, part: _Part, before: tuple[Any, ...]) -> None:
        """Look at what a part holds now instead of what it held before."""
        if part.opens != self._opens(part):
            self._is_stale = True
        if self._is_stale or not part.opens:
            return
        now, gone = part.seen, []
        come: collections.deque[_Waiting] = collections.deque()
        moved: set[int] | None = None
        if len(now) == len(before):
            places = compress(count(), map(is_not, now, before))
            moved = {place for place in places if not self._swap(before[place], now[place], now)}
            if not moved:
                return
        first = len(now) - len(part.items(now))
        every = zip_longest(part.keys(now), part.items(now), part.items(before))
        for place, (key, item, was) in enumerate(every, first):
            if item is not was and (moved is None or place in moved):
                if type(item) not in PLAIN:
                    come.append(part.inside(key, item))
                if type(was) not in PLAIN:
                    gone.append(was)
        if not come and not gone:
            return
        held = [(found, found.holders) for was in gone if (found := self.parts.get(id(was))) is not None]
        self._open(come, 2 * _PARTS)
        for was in gone:
            self._drop(was)
        for found, holders in held:
            # others hold it: perhaps only what it holds itself
            if 0 < found.holders < holders and found.reader in HOLDERS:
                self._is_stale = True
        if self._is_full and len(self.parts) < _PARTS:
            self._is_stale = True

    def _swap(self, was: Any, item: Any, now: tuple[Any, ...]) -> bool:
        """Look at an array in place of another that one part held; say whether nothing else is to be done.

        The usual case, in fewer steps: numbers are counted up, and results are kept in attributes.
        """
        if type(was) in PLAIN and type(item) in PLAIN:
            return True
        part, key = self._arrays.get(id(was)), id(item)
        if part is None or part.holders > 1 or key in self.parts or key in self.skip:
            return False
        if type(item) is not np.ndarray or reader_of(item) is not contents:
            return False
        if any(map(is_, now, repeat(was))):  # it has only moved
            return False
        del self.parts[id(was)], self._arrays[id(was)]
        part.thing = item
        part.seen = part.read()
        self.parts[key] = self._arrays[key] = part
        return True

    def _drop(self, thing: Any) -> None:
        key = id(thing)
        part = self.parts.get(key)
        if part is None:
            return
        part.holders -= 1
        if part.holders:
            return
        del self.parts[key]
        self._arrays.pop(key, None)
        self._generators.pop(key, None)
        self._single.pop(key, None)
        self._lively.discard(key)
        if key in self._calm or key in self._tensors:
            self._is_unsorted = True
        if part.opens:
            for item in part.items(part.seen):
                if type(item) not in PLAIN:
                    self._drop(item)
                    inner = self.parts.get(id(item))
                    if inner is not None and inner.reader in HOLDERS:
                        self._is_stale = True


def _moved(parts: Iterable[_Part]) -> list[Change]:
    """Look at parts one by one; return those that hold other objects than before."""
    found = []
    for part in parts:
        before = part.seen
        try:
            now = part.reader(part.thing)
        except RuntimeError:  # as in `_Part.read`
            now = ()
        if len(before) != len(now) or not all(map(is_, before, now)):
            found.append((part, before))
            part.seen = now
    return found


def _named(part: _Part, before: tuple[Any, ...]) -> list[str]:
    if part.reader is not attributes and part.reader is not mapping:
        return [part.name]
    was, now = _items(before), _items(part.seen)
    missing = object()
    names = [
        f"{part.name}.{key}" if part.reader is attributes else f"{part.name}[{key!r}]"
        for key in dict.fromkeys([*now, *was])
        if not _equal(was.get(key, missing), now.get(key, missing))
    ]
    return names or [part.name]


def _items(seen: tuple[Any, ...]) -> dict[Any, Any]:
    half = len(seen) // 2
    return dict(zip(seen[:half], seen[half:], strict=False))
