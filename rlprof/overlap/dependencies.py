"""Which call waits for which, and why: data, versions of state cells, their storage (Rose, section 4.2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rlprof.overlap.bindings import sources
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph, expect_graph
from rlprof.overlap.errors import OverlapError
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

    Raises
    ------
    OverlapError
        If no order of the calls could give each what it needs: an argument or a version comes from a call
        that is not in the graph, or a version is looked for in a copy in which another one lies by then.

    Notes
    -----
    Rose, section 4.2.2, and our rule for storage: the versions that lie in one copy of a cell are written in
    native order, and a write waits for the writer and all readers of the version that it overwrites. A
    refresh waits for no value, only for storage. The parts of a split call are writers of one version: who
    needs it waits for every part that has the cell.
    """
    expect_graph(graph)
    place = {call.id: i for i, call in enumerate(graph.calls)}
    found: set[_Found] = set()
    writers: dict[tuple[Cell, str], list[int]] = {}
    users: dict[tuple[Cell, int], list[tuple[int, Call, Access]]] = {}
    for here, call in enumerate(graph.calls):
        for source in sources(call.arguments):
            if source not in place:
                raise OverlapError(f"{call.id} needs an output of {source}, which is no call of the graph")
            found.add((here, place[source], "data", ""))
        for access in call.accesses:
            users.setdefault((access.cell, access.copy), []).append((here, call, access))
            if access.mode != "read":
                writers.setdefault((access.cell, call.origin), []).append(here)
    names = {cell: str(cell) for cell, _ in users}
    for here, call in enumerate(graph.calls):
        for access in call.accesses:
            if access.sees is None or access.sees == INITIAL:
                continue
            if (access.cell, access.sees) not in writers:
                raise OverlapError(
                    f"{call.id} needs {access.cell} as {access.sees} writes it, and no call of the graph does"
                )
            for writer in writers[access.cell, access.sees]:
                found.add((here, writer, "state", names[access.cell]))
    for (cell, copy), uses in users.items():
        found.update(_storage(cell, copy, uses))
    ids = [call.id for call in graph.calls]
    return tuple(
        Dependency(ids[source], ids[target], kind, item) for target, source, kind, item in sorted(found)
    )


#: Place of the target, place of the source, kind, item.
_Found = tuple[int, int, DependencyKind, str]


def _storage(cell: Cell, copy: int, uses: list[tuple[int, Call, Access]]) -> Iterator[_Found]:
    """Order between users of one storage copy: `uses` are in native order."""
    version = None if copy else INITIAL  # a spare object holds no version when the region starts
    present: list[int] = []  # who wrote or read the version that lies there now
    name = str(cell)
    for here, call, access in uses:
        if access.sees != version and access.sees is not None:
            seen = "the initial version" if access.sees == INITIAL else f"what {access.sees} writes"
            there = {None: "nothing", INITIAL: "the initial version"}.get(version, f"what {version} writes")
            raise OverlapError(f"{call.id} needs {seen} in copy {copy} of {cell}, where {there} lies by then")
        if access.mode != "read":
            for other in present:
                yield here, other, "storage", name
            version, present = call.origin, []
        present.append(here)
