"""How much tasks and branches may be delayed, in a graph or in a schedule.

Slack is a property of a set of constraints. Without a schedule these are the graph's edges and the earliest
end they allow; with one they are also the resources handed from task to task, and its makespan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlprof.taskgraph.graph import Links, TaskGraph, expect_tasks, topological_order
from rlprof.taskgraph.schedule import Schedule, expect_schedule


@dataclass(frozen=True, eq=False)
class Slack:
    """Slack of every task, in seconds, shape (tasks,), in the order of ``graph.tasks``.

    Parameters
    ----------
    start_s : numpy.ndarray
        Earliest start; that of the schedule if one was given.
    total_s : numpy.ndarray
        Longest delay of the task alone that leaves the last finish where it is.
    free_s : numpy.ndarray
        Longest delay of the task alone that delays no other task; at most `total_s`.
    """

    start_s: npt.NDArray[np.float64]
    total_s: npt.NDArray[np.float64]
    free_s: npt.NDArray[np.float64]


def slack(graph: TaskGraph, scheduled: Schedule | None = None) -> Slack:
    """Total and free slack of every task (critical path method; Kelley and Walker 1959).

    Parameters
    ----------
    graph : TaskGraph
        Tasks with durations.
    scheduled : Schedule, optional
        Count resources handed over as constraints (`Schedule.constraints`) and start from its times.

    Raises
    ------
    UnknownDurationError
        If a task has no duration.
    """
    expect_tasks(graph)
    expect_schedule(scheduled)
    durations: list[float] = graph.durations_s.tolist()
    links = graph.successors if scheduled is None else scheduled.constraints
    order = graph.topological_order if scheduled is None else topological_order(graph, links)
    start = [0.0] * len(durations)
    for i in order:
        for j in links.of(i):
            start[j] = max(start[j], start[i] + durations[i])
    finish = [s + d for s, d in zip(start, durations, strict=True)]
    end = max(finish, default=0.0)
    latest_finish = [end] * len(durations)
    free = [0.0] * len(durations)
    for i in reversed(order):
        after = links.of(i)
        if after:
            latest_finish[i] = min(latest_finish[j] - durations[j] for j in after)
        free[i] = min((start[j] for j in after), default=end) - finish[i]
    # sums in another order differ in the last bits: slack is never negative, free never above total
    free_s = np.maximum(free, 0.0)
    total_s = np.maximum(np.array(latest_finish) - np.array(finish), free_s)
    return Slack(np.array(start), total_s, free_s)


@dataclass(frozen=True)
class Branch:
    """Tasks between a fork and the join where all that follows the fork meets again.

    Parameters
    ----------
    fork, join : str or None
        Ids; None for the common start or end of the graph.
    tasks : tuple of str
        Tasks of this branch, in canonical order. No edge connects them to another branch of the fork.
    ready_s : float
        When the last of them that the join waits for finishes.
    slack_s : float
        Time from then until the slowest branch is ready: how much later the branch may end before it delays
        the join.
    total_s : float
        Least total slack of the tasks that the join waits for: how much later the branch may end before it
        delays the last finish.
    """

    fork: str | None
    join: str | None
    tasks: tuple[str, ...]
    ready_s: float
    slack_s: float
    total_s: float


def branches(
    graph: TaskGraph, scheduled: Schedule | None = None, *, forks: Iterable[str | None] | None = None
) -> tuple[Branch, ...]:
    """Branches of every fork that has at least two, with their slack.

    The join of a fork is its immediate post-dominator over the graph's edges. Nested forks are found as
    well, so a task may be in several branches.

    Parameters
    ----------
    graph : TaskGraph
        Tasks with durations.
    scheduled : Schedule, optional
        Take times and slack from it, resources included.
    forks : iterable of (str or None), optional
        Only these; None is the common start. All by default, which costs the sum of the sizes of all
        regions between forks and joins: quadratic where every task is a fork without a near join.

    Returns
    -------
    tuple of Branch
        By fork, then by first task. Branches of no task (an edge from fork to join) are not listed.

    Raises
    ------
    UnknownTaskError
        If one of `forks` is not in the graph.
    """
    values = slack(graph, scheduled)
    finish_s = values.start_s + graph.durations_s
    count = len(graph)
    after, before = graph.successors, graph.predecessors
    sources = [i for i in range(count) if not before.of(i)]
    join_of = _post_dominators(graph.topological_order, after)
    chosen = (
        [-1, *range(count)]
        if forks is None
        else [-1 if fork is None else graph.position_of(fork) for fork in forks]
    )
    found: list[Branch] = []
    for fork in chosen:
        heads = sources if fork < 0 else after.of(fork)
        if len(heads) < 2:
            continue
        join = _common(heads, join_of) if fork < 0 else join_of[fork]
        parts = _components(heads, join, after)
        if len(parts) + (join in heads) < 2:
            continue
        exits = [[i for i in part if not after.of(i) or join in after.of(i)] for part in parts]
        ready = [max(float(finish_s[i]) for i in ends) for ends in exits]
        latest = max(ready)
        for part, ends, ready_s in zip(parts, exits, ready, strict=True):
            found.append(
                Branch(
                    fork=None if fork < 0 else graph.tasks[fork].id,
                    join=None if join == count else graph.tasks[join].id,
                    tasks=tuple(graph.tasks[i].id for i in part),
                    ready_s=ready_s,
                    slack_s=latest - ready_s,
                    total_s=min(float(values.total_s[i]) for i in ends),
                )
            )
    return tuple(found)


def _post_dominators(order: list[int], after: Links) -> list[int]:
    """Immediate post-dominator of every task; the number of tasks stands for the common end.

    One pass in reverse topological order suffices without cycles (Cooper, Harvey and Kennedy 2001).
    """
    end = len(order)
    depth = [0] * end + [0]
    join_of = [end] * end + [end]
    for i in reversed(order):
        heads = after.of(i)
        common = heads[0] if heads else end
        for j in heads[1:]:
            common = _meet(common, j, join_of, depth)
        join_of[i] = common
        depth[i] = depth[common] + 1
    return join_of


def _meet(a: int, b: int, join_of: list[int], depth: list[int]) -> int:
    while a != b:
        if depth[a] < depth[b]:
            a, b = b, a
        a = join_of[a]
    return a


def _common(heads: list[int], join_of: list[int]) -> int:
    """First task that all paths from all `heads` go through, or the end."""
    end = len(join_of) - 1

    def chain(i: int) -> list[int]:
        path = [i]
        while path[-1] != end:
            path.append(join_of[path[-1]])
        return path

    shared = chain(heads[0])
    for head in heads[1:]:
        on_path = set(chain(head))
        shared = [i for i in shared if i in on_path]
    return shared[0]


def _components(heads: list[int], join: int, after: Links) -> list[list[int]]:
    """Parts of what follows `heads` before `join` that no edge connects, each ascending."""
    parent: dict[int, int] = {}

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    stack = [i for i in heads if i != join]
    for i in stack:
        parent[i] = i
    while stack:
        i = stack.pop()
        for j in after.of(i):
            if j == join:
                continue
            if j not in parent:
                parent[j] = j
                stack.append(j)
            parent[root(j)] = root(i)
    parts: dict[int, list[int]] = {}
    for i in sorted(parent):
        parts.setdefault(root(i), []).append(i)
    return sorted(parts.values())
