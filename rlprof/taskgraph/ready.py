"""Which task may start next: the one policy that the scheduler predicts with and the dispatcher follows.

A task is ready when its predecessors are done, and may start when all it needs is free. Among those that may
start, the one of highest priority does; one that does not fit is passed over, so a task that needs much of a
counted resource can be overtaken by smaller ones (list scheduling without reservations).
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from rlprof.taskgraph.graph import TaskGraph


class ReadySet:
    """State of a run: what is done, what is held, what may start.

    Tasks with equal needs share one queue, so that looking for the next task costs the number of different
    needs, not the number of waiting tasks.

    Parameters
    ----------
    graph : TaskGraph
        What is to run.
    priority : numpy.ndarray
        Larger first, shape (tasks,); ties by the canonical order of tasks.
    """

    def __init__(self, graph: TaskGraph, priority: npt.NDArray[np.float64]) -> None:
        count = len(graph.tasks)
        # tasks by rank, and ranks by task: queues hold plain integers
        self._by_rank: list[int] = np.argsort(-priority, kind="stable").tolist()
        self._rank = [0] * count
        for rank, i in enumerate(self._by_rank):
            self._rank[i] = rank
        self._successors = graph.successors
        self._waiting: list[int] = np.diff(graph.predecessors.offsets).tolist()
        names = {name: n for n, name in enumerate(graph.resources)}
        self._free = [graph.capacity(name) for name in graph.resources]
        kinds: dict[tuple[tuple[int, int], ...], int] = {}
        self._kind = [
            kinds.setdefault(
                tuple(sorted((names[use.resource], graph.held(use)) for use in task.uses)), len(kinds)
            )
            for task in graph.tasks
        ]
        self._needs = list(kinds)
        # (units, kind) of the needs that include a resource, small ones first
        self._touching: list[list[tuple[int, int]]] = [[] for _ in names]
        for kind, needs in enumerate(self._needs):
            for resource, amount in needs:
                self._touching[resource].append((amount, kind))
        for touching in self._touching:
            touching.sort()
        self._queues: list[list[int]] = [[] for _ in kinds]
        # heads of queues worth a look: (rank, kind); stale ones are skipped
        self._heads: list[tuple[int, int]] = []
        self.left = count
        for i, preds in enumerate(self._waiting):
            if not preds:
                self._add(i)

    def _add(self, i: int) -> None:
        rank, kind = self._rank[i], self._kind[i]
        queue = self._queues[kind]
        heapq.heappush(queue, rank)
        if queue[0] == rank:
            heapq.heappush(self._heads, (rank, kind))

    def start_next(self) -> int | None:
        """Position of the task that starts now, its resources taken; None if none may."""
        heads, free = self._heads, self._free
        while heads:
            rank, kind = heapq.heappop(heads)
            queue = self._queues[kind]
            if not queue or queue[0] != rank:
                continue
            needs = self._needs[kind]
            for resource, amount in needs:
                if free[resource] < amount:
                    break  # a release of this resource brings the queue back
            else:
                for resource, amount in needs:
                    free[resource] -= amount
                heapq.heappop(queue)
                if queue:
                    heapq.heappush(heads, (queue[0], kind))
                return self._by_rank[rank]
        return None

    def complete(self, i: int) -> None:
        """Give back what the task at position `i` held and make its successors ready."""
        self.left -= 1
        kind = self._kind[i]
        for resource, amount in self._needs[kind]:
            free = self._free[resource] = self._free[resource] + amount
            for least, other in self._touching[resource]:
                if least > free:
                    break
                queue = self._queues[other]
                if queue:
                    heapq.heappush(self._heads, (queue[0], other))
        waiting = self._waiting
        for j in self._successors.of(i):
            waiting[j] -= 1
            if not waiting[j]:
                self._add(j)
