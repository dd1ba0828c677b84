"""What runs of a region want to know more of, because an earlier one could not explain it."""

from __future__ import annotations

from typing import Any

from rlprof.overlap.bindings import Path
from rlprof.overlap.known import Known


class Watchlist:
    """What is looked at before and after every call, because an earlier run saw it change unexplained."""

    def __init__(self, ignored: tuple[object, ...] = ()) -> None:
        #: Paths in the output of a call; the id "" stands for the region's arguments.
        self.outputs: dict[str, set[Path]] = {}
        #: Arrays that are no call's.
        self.objects: dict[int, Any] = {}
        #: Arrays and objects that were there before the run, and that calls were given.
        self.kept: dict[int, Any] = {}
        #: Generators of random numbers that somebody drew from.
        self.random: set[str] = set()
        #: Objects, or names of things, that code between calls may change.
        self.ignored = ignored
        self.runs = 0

    def add(self, known: Known) -> bool:
        """Watch an array in later runs; say whether that is new."""
        if known.record is None and not known.external:
            new = id(known.obj) not in self.objects
            self.objects[id(known.obj)] = known.obj
            return new
        paths = self.outputs.setdefault("" if known.record is None else known.record.id, set())
        new = known.path not in paths
        paths.add(known.path)
        return new
