"""The memory that the arrays of one recorded run lie in: arrays that share some are told to be one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlprof.overlap.known import FRESH, Known, MemoryTrack
from rlprof.overlap.values import MemoryKey, is_array, is_borrowed, memory_key, memory_range


class MemoryTracks:
    """Pieces of memory by what tells them apart.

    Parameters
    ----------
    table : mapping of int to Known
        Objects of the run by their identity.
    owned : list of (tuple of (str, int), array)
        Arrays of registered state, by their key.

    Attributes
    ----------
    tracks : dict of (str, int) to MemoryTrack
        What is followed.
    fresh : list of Known
        Arrays of memory of their own that nobody has used yet: most are never asked for.
    borrowed : bool
        Some tensor was seen whose memory is another's, so that equal keys alone do not tell.
    """

    def __init__(self, table: Mapping[int, Known], owned: list[tuple[MemoryKey, Any]]) -> None:
        self.tracks: dict[MemoryKey, MemoryTrack] = {}
        self.fresh: list[Known] = []
        self.borrowed = False
        self._table, self._owned = table, owned
        #: Keys of memory that is another's.
        self._same: dict[MemoryKey, MemoryKey] = {}

    def __iter__(self) -> Iterator[MemoryTrack]:
        """Yield all memory in which an array of the run lies."""
        self._place_all()
        return iter(self.tracks.values())

    def track(self, key: MemoryKey) -> MemoryTrack | None:
        """Memory by its key; None if no array is known to lie there."""
        track = self.tracks.get(key)
        if track is None and key[0] == "numpy":
            known = self._table.get(key[1])
            if known is not None and known.memory is FRESH:
                return self.place_fresh(known)
        return track

    def place_fresh(self, known: Known) -> MemoryTrack:
        """Follow the memory of an array that is used for the first time."""
        key = ("numpy", id(known.obj))
        track = known.memory = self.tracks[key] = MemoryTrack(key, known.obj, known.record)
        track.wholes.append(known)
        return track

    def _place_all(self) -> None:
        for known in self.fresh:
            if known.memory is FRESH:
                self.place_fresh(known)
        self.fresh.clear()

    def key_of(self, array: Any) -> MemoryKey:
        """Return the key of an array's memory; tensors on numpy's memory have that of numpy's array."""
        key = memory_key(array)
        known = self._same.get(key)
        if known is not None or self.track(key) is not None:
            return known or key
        borrowed = key[0] == "memory" and is_borrowed(array)
        if borrowed:
            self.borrowed = True
            self._place_all()
        if borrowed or (self.borrowed and key[0] == "numpy"):
            known = self._same[key] = self._overlapping(array) or key
        return known or key

    def _overlapping(self, array: Any) -> MemoryKey | None:
        """Key of host memory that is known already and that an array lies in."""
        low, high = memory_range(array)
        held = [(track.key, track.array) for track in self.tracks.values() if track.array is not None]
        for key, other in [*held, *self._owned]:
            if key[0] in ("numpy", "memory"):
                first, last = memory_range(other)
                if first < high and low < last:
                    return key
        return None

    def place(self, known: Known, key: MemoryKey) -> None:
        """Note that what is known lies in this memory."""
        track = self.track(key)
        if track is None:
            track = self.tracks[key] = MemoryTrack(key, known.obj if is_array(known.obj) else None)
        if known.view is None and (known.record is not None or known.external):
            track.wholes.append(known)
        known.memory = track
