"""The executable graph: tasks with durations and resources, edges that say why one waits for another.

A `TaskGraph` is a value. It is checked when it is made, holds its tasks in one canonical order, and two
graphs with the same tasks, edges and capacities are equal whatever the order in which they were given.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from rlprof.expect import expect
from rlprof.taskgraph import document as documents
from rlprof.taskgraph.errors import (
    CycleError,
    DuplicateError,
    GraphError,
    GraphFormatError,
    GraphTypeError,
    ResourceError,
    UnknownDurationError,
    UnknownTaskError,
)
from rlprof.taskgraph.state import check_accesses
from rlprof.taskgraph.task import (
    EDGE_KINDS,
    INITIAL,
    CellAccess,
    Edge,
    EdgeKind,
    Scalar,
    Task,
    Use,
    check_types,
    tuple_of,
)

__all__ = [
    "EDGE_KINDS",
    "INITIAL",
    "CellAccess",
    "Edge",
    "EdgeKind",
    "Links",
    "Scalar",
    "Task",
    "TaskGraph",
    "Use",
    "topological_order",
]


@dataclass(frozen=True, slots=True)
class Links:
    """Neighbours of every task by position, without repetition: those of task i are
    ``neighbours[offsets[i]:offsets[i + 1]]``, ascending.
    """

    offsets: list[int]
    neighbours: list[int]

    def of(self, i: int) -> list[int]:
        """Positions of the neighbours of the task at position `i`."""
        return self.neighbours[self.offsets[i] : self.offsets[i + 1]]


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """A directed acyclic graph of tasks.

    Parameters
    ----------
    tasks : iterable of Task
        Kept sorted by (program_order, id).
    edges : iterable of Edge
        Kept sorted by source, target, kind, item.
    capacities : mapping of str to int
        Units that there are of a resource; 1 for one that is not named.

    Raises
    ------
    DuplicateError
        If two tasks have one id, or two edges are equal.
    UnknownTaskError
        If an edge names a task that is not in the graph.
    ResourceError
        If a task can never get what it needs.
    CycleError
        If tasks wait for each other.
    AccessError
        If no order of the tasks could satisfy their accesses (`rlprof.taskgraph.state.check_accesses`).
    GraphTypeError
        If a part is of another type than it has to be.
    GraphError
        If a duration is negative or not finite, or an edge's kind is none of the four.
    """

    tasks: tuple[Task, ...]
    edges: tuple[Edge, ...] = ()
    capacities: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks, edges = tuple_of(Task, self.tasks, "tasks"), tuple_of(Edge, self.edges, "edges")
        check_types(tasks, self.capacities)
        tasks = tuple(sorted(tasks, key=lambda t: (t.program_order, t.id)))
        object.__setattr__(self, "tasks", tasks)
        object.__setattr__(self, "capacities", dict(sorted(self.capacities.items())))
        if len(self.index) != len(tasks):
            twice = next(i for i, n in Counter(t.id for t in tasks).items() if n > 1)
            raise DuplicateError(f"two tasks have the id {twice!r}", hint="give every task its own id")
        object.__setattr__(self, "edges", self._checked_edges(edges))
        self._check_resources()
        check_accesses(tasks)
        for task in tasks:
            if task.duration_s is not None and not 0 <= task.duration_s < math.inf:
                raise GraphError(f"task {task.id!r} has the duration {task.duration_s} s")
        _ = self.topological_order  # raises on a cycle

    def _checked_edges(self, edges: Iterable[Edge]) -> tuple[Edge, ...]:
        index = self.index
        keyed = []
        for edge in edges:
            source, target = index.get(edge.source), index.get(edge.target)
            if source is None or target is None:
                lost = edge.source if source is None else edge.target
                raise UnknownTaskError(
                    f"the {edge.kind} edge {edge.source!r} -> {edge.target!r} names {lost!r}, no task of it"
                )
            if edge.kind not in EDGE_KINDS:
                raise GraphError(
                    f"the edge {edge.source!r} -> {edge.target!r} is of kind {edge.kind!r}",
                    hint=f"use one of {', '.join(EDGE_KINDS)}",
                )
            keyed.append((source, target, edge.kind, edge.item, edge))
        keyed.sort(key=lambda k: k[:4])
        for a, b in pairwise(keyed):
            if a[:4] == b[:4]:
                edge = a[4]
                raise DuplicateError(
                    f"the {edge.kind} edge {edge.source!r} -> {edge.target!r} is there twice",
                    hint="tell edges between the same tasks apart by kind or item",
                )
        return tuple(k[4] for k in keyed)

    def _check_resources(self) -> None:
        for name, capacity in self.capacities.items():
            if capacity < 1:
                raise ResourceError(f"resource {name!r} has the capacity {capacity}", hint="give at least 1")
        for task in self.tasks:
            uses = task.uses
            if len({use.resource for use in uses}) < len(uses):
                raise ResourceError(f"task {task.id!r} names a resource twice", hint="add up its amounts")
            for use in task.resources:
                if not 1 <= use.amount <= self.capacity(use.resource):
                    raise ResourceError(
                        f"task {task.id!r} needs {use.amount} of {use.resource!r},"
                        f" of which there are {self.capacity(use.resource)}"
                    )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskGraph):
            return NotImplemented
        return (self.tasks, self.edges, self.capacities) == (other.tasks, other.edges, other.capacities)

    def __hash__(self) -> int:
        return hash(self.hash)

    def __len__(self) -> int:
        return len(self.tasks)

    def capacity(self, resource: str) -> int:
        """Units that there are of `resource`."""
        return self.capacities.get(resource, 1)

    def held(self, use: Use) -> int:
        """Units that `use` takes away from others."""
        return self.capacity(use.resource) if use.exclusive else use.amount

    def position_of(self, task: str) -> int:
        """Position of the task with this id in `tasks`.

        Raises
        ------
        UnknownTaskError
            If there is none.
        """
        if task not in self.index:
            raise UnknownTaskError(f"the graph has no task {task!r}")
        return self.index[task]

    @cached_property
    def index(self) -> dict[str, int]:
        """Position in `tasks` by id."""
        return {task.id: i for i, task in enumerate(self.tasks)}

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """Resources that tasks use or that have a capacity, sorted."""
        return tuple(sorted({u.resource for t in self.tasks for u in t.uses} | set(self.capacities)))

    @cached_property
    def durations_s(self) -> npt.NDArray[np.float64]:
        """Durations in seconds, shape (tasks,).

        Raises
        ------
        UnknownDurationError
            If a task has none.
        """
        for task in self.tasks:
            if task.duration_s is None:
                raise UnknownDurationError(
                    f"task {task.id!r} has no duration", hint="measure it or set duration_s"
                )
        return np.array([task.duration_s for task in self.tasks], dtype=np.float64)

    @cached_property
    def successors(self) -> Links:
        """Tasks that wait for each task."""
        return _links(len(self.tasks), self._pairs)

    @cached_property
    def predecessors(self) -> Links:
        """Tasks that each task waits for."""
        return _links(len(self.tasks), [(b, a) for a, b in self._pairs])

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        index = self.index
        return [(index[e.source], index[e.target]) for e in self.edges]

    def links_with(self, pairs: Iterable[tuple[int, int]]) -> Links:
        """`successors`, and further pairs of positions (earlier, later)."""
        return _links(len(self.tasks), [*self._pairs, *pairs])

    @cached_property
    def topological_order(self) -> list[int]:
        """Positions of all tasks, each after its predecessors; stable.

        Raises
        ------
        CycleError
            If there is no such order.
        """
        return topological_order(self, self.successors)

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as a JSON document, in canonical order."""
        return documents.to_document(self.tasks, self.edges, self.capacities)

    def to_json(self) -> str:
        """Return `to_dict` as text; equal graphs give equal text."""
        return documents.to_text(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> TaskGraph:
        """Read what `to_json` wrote, of this version of the format or an earlier one.

        Raises
        ------
        GraphFormatError
            If the text is something else, or of a later version.
        GraphError
            If the graph is not valid, as when it is made.
        """
        return cls.from_dict(documents.from_text(text))

    @classmethod
    def from_dict(cls, document: Any) -> TaskGraph:
        """Read what `to_dict` made; errors as of `from_json`."""
        known = documents.check_format(document)
        try:
            return cls(*documents.parts_of(known))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GraphFormatError(
                f"a task graph with a field missing or of a wrong type: {error}"
            ) from error

    @cached_property
    def hash(self) -> str:
        """SHA-256 of `to_json` in hexadecimal: the same for equal graphs, on every machine."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def expect_tasks(graph: object) -> None:
    """Raise GraphTypeError unless something is a task graph."""
    hint = "give a TaskGraph; rlprof.overlap.lower.lower makes one of a graph of calls"
    expect(graph, TaskGraph, "the graph", hint, GraphTypeError)


def _links(count: int, pairs: Iterable[tuple[int, int]]) -> Links:
    """Neighbour lists; several edges between two tasks are one link."""
    array = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    codes = np.unique(array[:, 0] * count + array[:, 1]) if count else np.empty(0, np.int64)
    offsets = np.searchsorted(codes, np.arange(count + 1, dtype=np.int64) * count)
    return Links(offsets.tolist(), (codes % max(count, 1)).tolist())


def topological_order(graph: TaskGraph, successors: Links) -> list[int]:
    """Order tasks so that each comes after those it follows in `successors`.

    Parameters
    ----------
    graph : TaskGraph
        For the names of the tasks.
    successors : Links
        Of the graph, or of the graph with more constraints.

    Raises
    ------
    CycleError
        If there is no such order; names the tasks of one cycle.
    """
    count = len(graph.tasks)
    offsets, neighbours = successors.offsets, successors.neighbours
    waiting: list[int] = np.bincount(np.array(neighbours, dtype=np.int64), minlength=count).tolist()
    order = [i for i in range(count) if not waiting[i]]
    for i in order:  # grows while it is read
        for j in neighbours[offsets[i] : offsets[i + 1]]:
            waiting[j] -= 1
            if not waiting[j]:
                order.append(j)
    if len(order) < count:
        raise CycleError(tuple(graph.tasks[i].id for i in _cycle(successors, waiting)))
    return order


def _cycle(successors: Links, waiting: list[int]) -> list[int]:
    """Find a cycle among the tasks that still wait: each has a predecessor that waits as well."""
    before: dict[int, int] = {}
    for i, count in enumerate(waiting):
        if count:
            for j in successors.of(i):
                before.setdefault(j, i)
    at, seen = next(i for i, count in enumerate(waiting) if count), dict[int, int]()
    path: list[int] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = before[at]
    return path[seen[at] :][::-1]
