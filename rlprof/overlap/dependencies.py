"""Which call waits for which, and why: data, versions of state cells, their storage (Rose, section 4.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlprof.overlap.bindings import sources
from rlprof.overlap.callgraph import INITIAL, Call, CallGraph
from rlprof.overlap.specs import Cell

#: `data`: an output is an input; `state`: a version is read that the source wrote; `storage`: the target
#: writes over a version that the source reads or wrote.
DependencyKind = Literal["data", "state", "storage"]


@dataclass(frozen=True, slots=True)
class Dependency:
    """Call `target` waits until call `source` is complete.

    Parameters
    ----------
    source, target : str
        Ids of calls.
    kind : {"data", "state", "storage"}
        Why.
    item : str
        The cell, for state and storage.
    """

    source: str
    target: str
    kind: DependencyKind
    item: str = ""

    def __str__(self) -> str:
        what = {"data": "its output", "state": f"its {self.item}", "storage": f"the storage of {self.item}"}
        return f"{self.target} needs {what[self.kind]} from {self.source}"


def dependencies(graph: CallGraph) -> tuple[Dependency, ...]:
    """All dependencies of a graph; streams and chosen order are none.

    Parameters
    ----------
    graph : CallGraph
        Native or transformed: what a call needs is part of the call.

    Returns
    -------
    tuple of Dependency
        Without repetitions, sorted by target's place, then source's.

    Notes
    -----
    Versions of one storage copy of a cell are written in native order. A write waits for the writer and all
    readers of the version before it in the same copy.
    """
    found: dict[Dependency, None] = {}
    for call in graph.calls:
        for source in sources(call.arguments):
            found[Dependency(source, call.id, "data")] = None
    writers: dict[tuple[Cell, str], list[Call]] = {}
    users: dict[tuple[Cell, int], list[Call]] = {}
    for call in graph.calls:
        for access in call.accesses:
            users.setdefault((access.cell, access.copy), []).append(call)
            if access.mode != "read":
                writers.setdefault((access.cell, call.origin), []).append(call)
    for call in graph.calls:
        for access in call.accesses:
            if access.sees not in (None, INITIAL):
                for writer in writers.get((access.cell, access.sees), ()):
                    if writer.id != call.id:
                        found[Dependency(writer.id, call.id, "state", str(access.cell))] = None
    for (cell, _), calls in users.items():
        for dependency in _storage(cell, calls):
            found[dependency] = None
    place = {call.id: i for i, call in enumerate(graph.calls)}
    return tuple(sorted(found, key=lambda d: (place[d.target], place[d.source], d.kind, d.item)))


def _storage(cell: Cell, calls: list[Call]) -> list[Dependency]:
    """Order between users of one storage copy: `calls` are in native order."""
    found = []
    present: list[Call] = []  # who wrote or read the version that lies there now
    for call in calls:
        access = next(a for a in call.accesses if a.cell == cell)
        if access.mode != "read":
            found += [Dependency(other.id, call.id, "storage", str(cell)) for other in present]
            present = []
        present.append(call)
    return found
