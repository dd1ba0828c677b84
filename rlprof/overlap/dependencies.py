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
    ids = [call.id for call in graph.calls]
    return tuple(
        Dependency(ids[source], target, kind, item)
        for target, waits in zip(ids, waits_of(graph), strict=True)
        for source, kind, item in waits
    )


#: Place of the source in `CallGraph.calls`, kind, item.
Wait = tuple[int, DependencyKind, str]


def waits_of(graph: CallGraph) -> Iterator[list[Wait]]:
    """Yield for each call in turn what it waits for: `dependencies` without names, sorted by source.

    Raises
    ------
    OverlapError
        As `dependencies`.
    """
    place = {call.id: i for i, call in enumerate(graph.calls)}
    writers: dict[tuple[Cell, str], list[int]] = {}
    names: dict[Cell, str] = {}
    for here, call in enumerate(graph.calls):
        for access in call.accesses:
            if access.cell not in names:
                names[access.cell] = str(access.cell)
            if access.mode != "read":
                writers.setdefault((access.cell, call.origin), []).append(here)
    storages: dict[tuple[Cell, int], _Storage] = {}
    for here, call in enumerate(graph.calls):
        found: set[Wait] = set()
        for source in sources(call.arguments):
            if source not in place:
                raise OverlapError(f"{call.id} needs an output of {source}, which is no call of the graph")
            found.add((place[source], "data", ""))
        for access in call.accesses:
            cell, _, sees, copy = access
            name = names[cell]
            if sees:
                if (cell, sees) not in writers:
                    raise OverlapError(
                        f"{call.id} needs {cell} as {sees} writes it, and no call of the graph does"
                    )
                for writer in writers[cell, sees]:
                    found.add((writer, "state", name))
            storage = storages.get((cell, copy))
            if storage is None:
                storage = storages[cell, copy] = _Storage(cell, copy)
            for other in storage.use(here, call, access):
                found.add((other, "storage", name))
        yield sorted(found)


class _Storage:
    """One storage copy of a cell, as calls use it in native order."""

    __slots__ = ("cell", "copy", "present", "version")

    def __init__(self, cell: Cell, copy: int) -> None:
        self.cell, self.copy = cell, copy
        #: A spare object holds no version when the region starts.
        self.version = None if copy else INITIAL
        #: Who wrote or read the version that lies there now.
        self.present: list[int] = []

    def use(self, here: int, call: Call, access: Access) -> list[int]:
        """Note a use; return whom it waits for because it writes over what they use."""
        version = self.version
        if access.sees != version and access.sees is not None:
            seen = "the initial version" if access.sees == INITIAL else f"what {access.sees} writes"
            there = {None: "nothing", INITIAL: "the initial version"}.get(version, f"what {version} writes")
            raise OverlapError(
                f"{call.id} needs {seen} in copy {self.copy} of {self.cell}, where {there} lies by then"
            )
        if access.mode == "read":
            self.present.append(here)
            return []
        before, self.present, self.version = self.present, [here], call.origin
        return before
