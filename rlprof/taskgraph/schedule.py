"""When tasks run: list scheduling, and what it says about resources. Pure functions of a `TaskGraph`."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rlprof.errors import UsageError
from rlprof.expect import expect
from rlprof.taskgraph.errors import GraphTypeError
from rlprof.taskgraph.graph import Links, TaskGraph, expect_tasks, topological_order
from rlprof.taskgraph.ready import ReadySet
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class Schedule:
    """Start and finish of every task.

    Parameters
    ----------
    graph : TaskGraph
        What is scheduled.
    start_s, finish_s : numpy.ndarray
        Seconds from the start of the schedule, shape (tasks,), in the order of ``graph.tasks``.
    order : tuple of int
        Positions of the tasks in the order in which they start.
    """

    graph: TaskGraph
    start_s: npt.NDArray[np.float64]
    finish_s: npt.NDArray[np.float64]
    order: tuple[int, ...]

    @property
    def makespan_s(self) -> float:
        """Time from the first start to the last finish, in seconds; 0 for a graph without tasks."""
        return float(self.finish_s.max(initial=0.0))

    @property
    def parallelism(self) -> float | Unavailable:
        """Mean number of tasks running: sum of durations by makespan."""
        if not self.makespan_s:
            return Unavailable("the schedule takes no time; give tasks durations")
        return float(self.graph.durations_s.sum()) / self.makespan_s

    @cached_property
    def utilisation_frac(self) -> dict[str, float] | Unavailable:
        """Share of each resource's capacity that is held over the makespan, 0..1."""
        if not self.makespan_s:
            return Unavailable("the schedule takes no time; give tasks durations")
        held = work_s(self.graph)
        return {name: held[name] / self.makespan_s for name in self.graph.resources}

    @cached_property
    def constraints(self) -> Links:
        """Successors of every task by edges and by resources handed over.

        A resource goes, unit by unit, to the next task that starts; first what has been free for longest.
        With these constraints alone every task starts as early as it does in the schedule, and any delays
        that respect them keep within the capacities.
        """
        return with_handovers(self)

    def to_frame(self) -> pl.DataFrame:
        """Return one row for each task and resource, ready for `rlprof.plots.gantt`.

        Returns
        -------
        polars.DataFrame
            ``task``, ``name``, ``lane`` (the resource; "no resource" for a task that needs none),
            ``start_s``, ``end_s``; in the order of starts.
        """
        import polars as pl

        rows = [
            (task.id, task.name, lane, float(self.start_s[i]), float(self.finish_s[i]))
            for i in self.order
            for task in (self.graph.tasks[i],)
            for lane in ([use.resource for use in task.uses] or ["no resource"])
        ]
        schema = {"task": pl.String, "name": pl.String, "lane": pl.String}
        times = {"start_s": pl.Float64, "end_s": pl.Float64}
        return pl.DataFrame(rows, schema={**schema, **times}, orient="row")


def upward_rank(graph: TaskGraph) -> npt.NDArray[np.float64]:
    """Longest time from the start of each task to the end of the graph, over its edges.

    Returns
    -------
    numpy.ndarray
        Seconds, shape (tasks,): rank(v) = duration(v) + max over successors of rank (Topcuoglu et al.
        2002, eq. 9, without communication: transfers are tasks here).

    Raises
    ------
    UnknownDurationError
        If a task has no duration.
    """
    expect_tasks(graph)
    return np.array(_tails(graph.durations_s.tolist(), graph.topological_order, graph.successors))


def _tails(durations: list[float], order: list[int], successors: Links) -> list[float]:
    tail = [0.0] * len(durations)
    offsets, neighbours = successors.offsets, successors.neighbours
    for i in reversed(order):
        longest = 0.0
        for j in neighbours[offsets[i] : offsets[i + 1]]:
            longest = max(longest, tail[j])
        tail[i] = durations[i] + longest
    return tail


def checked_priority(graph: TaskGraph, priority: npt.NDArray[np.float64] | None) -> npt.NDArray[np.float64]:
    """`priority`, or `upward_rank` if None.

    Raises
    ------
    UsageError
        If there is not one number for each task.
    """
    if priority is None:
        return upward_rank(graph)
    if priority.shape != (len(graph),) or np.isnan(priority).any():
        raise UsageError(
            f"{len(graph)} priorities are needed, one number for each task; got shape {priority.shape}"
        )
    return priority


def schedule(graph: TaskGraph, *, priority: npt.NDArray[np.float64] | None = None) -> Schedule:
    """List scheduling: whenever a task completes, start what fits, highest priority first.

    Parameters
    ----------
    graph : TaskGraph
        Tasks with durations.
    priority : numpy.ndarray, optional
        Larger first, shape (tasks,); `upward_rank` by default. Ties go by the canonical order of tasks, so
        equal graphs have equal schedules.

    Returns
    -------
    Schedule
        O((tasks + edges) log tasks), times the number of different needs that share a resource.

    Raises
    ------
    UnknownDurationError
        If a task has no duration.
    UsageError
        If `priority` does not fit the graph.
    """
    expect_tasks(graph)
    durations: list[float] = graph.durations_s.tolist()
    ready = ReadySet(graph, checked_priority(graph, priority))
    start, finish = [0.0] * len(durations), [0.0] * len(durations)
    order: list[int] = []
    running: list[tuple[float, int]] = []
    now = 0.0
    while True:
        while (i := ready.start_next()) is not None:
            start[i] = now
            finish[i] = now + durations[i]
            order.append(i)
            heapq.heappush(running, (finish[i], i))
        if not running:
            break
        now = running[0][0]
        while running and running[0][0] == now:
            ready.complete(heapq.heappop(running)[1])
    return Schedule(graph, np.array(start), np.array(finish), tuple(order))


def expect_schedule(scheduled: object) -> None:
    """Raise GraphTypeError unless something is a schedule, or None."""
    expect(
        scheduled, (Schedule, NoneType), "the schedule", "give what schedule(graph) returns", GraphTypeError
    )


def work_s(graph: TaskGraph) -> dict[str, float]:
    """Seconds for which each resource would be wholly held: no schedule is shorter than any of them.

    Returns
    -------
    dict of str to float
        Sum of duration times units held, by capacity.

    Raises
    ------
    UnknownDurationError
        If a task has no duration.
    """
    expect_tasks(graph)
    work = dict.fromkeys(graph.resources, 0.0)
    for task, duration_s in zip(graph.tasks, graph.durations_s.tolist(), strict=True):
        for use in task.uses:
            work[use.resource] += duration_s * graph.held(use)
    return {name: held / graph.capacity(name) for name, held in work.items()}


@dataclass(frozen=True)
class CriticalPath:
    """A chain of tasks that fixes a time.

    Parameters
    ----------
    tasks : tuple of str
        Ids, each before the next.
    length_s : float
        Sum of their durations, in seconds.
    """

    tasks: tuple[str, ...]
    length_s: float


def critical_path(graph: TaskGraph, scheduled: Schedule | None = None) -> CriticalPath:
    """Find the longest chain of tasks.

    Parameters
    ----------
    graph : TaskGraph
        Tasks with durations.
    scheduled : Schedule, optional
        Then the chain goes over resources handed over as well, and is as long as the makespan.

    Returns
    -------
    CriticalPath
        Of equally long chains the one whose tasks come first in canonical order.
    """
    expect_tasks(graph)
    expect_schedule(scheduled)
    durations: list[float] = graph.durations_s.tolist()
    links = graph.successors if scheduled is None else scheduled.constraints
    order = graph.topological_order if scheduled is None else topological_order(graph, links)
    finish = durations.copy()
    before: list[int | None] = [None] * len(durations)
    start = [0.0] * len(durations)
    for i in order:
        finish[i] = start[i] + durations[i]
        for j in links.of(i):
            known = before[j]
            if finish[i] > start[j] or known is None or (finish[i] == start[j] and i < known):
                start[j], before[j] = finish[i], i
    if not order:
        return CriticalPath((), 0.0)
    at: int | None = max(range(len(finish)), key=lambda i: (finish[i], -i))
    length_s = finish[at] if at is not None else 0.0
    path = []
    while at is not None:
        path.append(graph.tasks[at].id)
        at = before[at]
    return CriticalPath(tuple(reversed(path)), length_s)


def with_handovers(scheduled: Schedule) -> Links:
    """Successors by edges and by resources handed over; see `Schedule.constraints`."""
    graph = scheduled.graph
    names = graph.resources
    # blocks of a resource by when they became free: (time, number, last holder, units)
    blocks: dict[str, list[tuple[float, int, int, int]]] = {
        name: [(0.0, -1, -1, graph.capacity(name))] for name in names
    }
    pairs: set[tuple[int, int]] = set()
    for number, i in enumerate(scheduled.order):
        finish_s = float(scheduled.finish_s[i])
        for use in graph.tasks[i].uses:
            heap, need = blocks[use.resource], graph.held(use)
            left = need
            while left:
                free_s, then, holder, units = heapq.heappop(heap)
                if units > left:
                    heapq.heappush(heap, (free_s, then, holder, units - left))
                left -= min(units, left)
                if holder >= 0:
                    pairs.add((holder, i))
            heapq.heappush(heap, (finish_s, number, i, need))
    return graph.links_with(pairs)
