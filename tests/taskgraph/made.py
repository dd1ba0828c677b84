"""Random task graphs, and slow but obvious definitions to compare with."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import strategies as st

from rlprof.taskgraph import CellAccess, Edge, RunRecord, Schedule, Task, TaskGraph, TaskRun, Use, schedule
from rlprof.taskgraph.graph import Links
from rlprof.taskgraph.task import EDGE_KINDS

CAPACITIES = {"gpu": 1, "simulator": 1, "cores": 4}


@st.composite
def graphs(draw: st.DrawFn, *, most: int = 12, resources: bool = True) -> TaskGraph:
    """Graphs of up to `most` tasks with durations in quarters of a second, which floats add exactly."""
    count = draw(st.integers(0, most))
    program_order = draw(st.permutations(range(count)))
    tasks = []
    for i in range(count):
        uses = []
        for name in draw(st.sets(st.sampled_from(sorted(CAPACITIES)))) if resources else ():
            amount = draw(st.integers(1, CAPACITIES[name]))
            uses.append(Use(name, amount, exclusive=draw(st.booleans())))
        tasks.append(
            Task(
                f"t{i}",
                name=draw(st.sampled_from(["policy", "simulator", "training"])),
                duration_s=draw(st.integers(0, 12)) / 4,
                resources=tuple(uses),
                payload="call",
                program_order=program_order[i],
                provenance=(("iteration", draw(st.integers(0, 3))),),
                worker=draw(st.sampled_from([None, None, "left", "right"])) if resources else None,
            )
        )
    pairs = [(i, j) for j in range(count) for i in range(j)]
    edges = [
        Edge(f"t{i}", f"t{j}", draw(st.sampled_from(EDGE_KINDS)))  # type: ignore[arg-type]
        for i, j in (draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * most)) if pairs else ())
    ]
    return TaskGraph(tuple(tasks), tuple(edges), CAPACITIES)


@st.composite
def stateful_tasks(draw: st.DrawFn, *, most: int = 9) -> tuple[Task, ...]:
    """Tasks of a program that reads, updates and refreshes cells, some of which have two copies."""
    version: dict[tuple[str, int], str] = {}
    tasks = []
    for i in range(draw(st.integers(0, most))):
        accesses = []
        for key in sorted(draw(st.sets(st.sampled_from([("ENV", 0), ("ENV", 1), ("W", 0)]), max_size=2))):
            mode = draw(st.sampled_from(["read", "read", "update", "refresh"]))
            sees = None if mode == "refresh" else version.get(key, "")
            makes = None if mode == "read" else f"t{i}"
            accesses.append(CellAccess(key[0], sees, makes, key[1]))
            if makes is not None:
                version[key] = makes
        # ids do not sort as program order does
        tasks.append(
            Task(f"t{i}", duration_s=draw(st.integers(0, 8)) / 4, payload="call", program_order=i,
                 accesses=tuple(accesses))
        )  # fmt: skip
    return tuple(tasks)


def as_planned(graph: TaskGraph, scheduled: Schedule | None = None) -> RunRecord:
    """The record of a run that went exactly as scheduled, with the versions that the graph names."""
    s = scheduled or schedule(graph)
    runs = []
    for i in s.order:
        task = graph.tasks[i]
        start_ns, end_ns = int(s.start_s[i] * 1e9), int(s.finish_s[i] * 1e9)
        seen = tuple((a.cell, a.copy, a.sees) for a in task.accesses if a.sees is not None)
        made = tuple((a.cell, a.copy, a.makes) for a in task.accesses if a.makes is not None)
        worker = task.worker or "w"
        runs.append(TaskRun(task.id, worker, start_ns, end_ns, end_ns, False, seen, made))  # type: ignore[arg-type]
    return RunRecord(graph.hash, tuple(runs), 0, int(s.makespan_s * 1e9))


def longest_from(durations: list[float], links: Links) -> list[float]:
    """Longest path from the start of each task, by trying all paths."""

    @cache
    def longest(i: int) -> float:
        return durations[i] + max((longest(j) for j in links.of(i)), default=0.0)

    return [longest(i) for i in range(len(durations))]


def earliest_starts(durations: list[float], links: Links) -> list[float]:
    """Earliest start of every task under `links`, by repetition until nothing moves."""
    start = [0.0] * len(durations)
    while True:
        moved = False
        for i in range(len(durations)):
            for j in links.of(i):
                if start[j] < start[i] + durations[i]:
                    start[j], moved = start[i] + durations[i], True
        if not moved:
            return start


def delayed(durations: list[float], links: Links, task: int, by_s: float) -> list[float]:
    """Starts when one task is held back by `by_s` and all others go as early as they may."""
    start = earliest_starts(durations, links)
    release = start[task] + by_s
    longer = list(start)
    longer[task] = release
    while True:
        moved = False
        for i in range(len(durations)):
            for j in links.of(i):
                if longer[j] < longer[i] + durations[i]:
                    longer[j], moved = longer[i] + durations[i], True
        if not moved:
            return longer


def held_at(scheduled: Schedule, resource: str, at_s: float) -> int:
    """Units of a resource held at one moment."""
    graph = scheduled.graph
    return sum(
        graph.held(use)
        for i, task in enumerate(graph.tasks)
        for use in task.uses
        if use.resource == resource and scheduled.start_s[i] <= at_s < scheduled.finish_s[i]
    )


def random_graph(count: int, seed: int, *, reach: int = 50, lanes: int = 8) -> TaskGraph:
    """One larger graph: two predecessors among the last `reach` tasks, `lanes` exclusive resources."""
    rng = np.random.default_rng(seed)
    tasks = [
        Task(
            f"t{i}",
            duration_s=float(d),
            resources=(Use(f"lane {i % lanes}"),),
            payload="call",
            program_order=i,
        )
        for i, d in enumerate(rng.random(count))
    ]
    edges = [
        Edge(f"t{j}", f"t{i}")
        for i in range(1, count)
        for j in sorted({int(x) for x in rng.integers(max(0, i - reach), i, 2)})
    ]
    return TaskGraph(tuple(tasks), tuple(edges))
