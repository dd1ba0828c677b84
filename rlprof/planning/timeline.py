"""When the nodes of a graph run: list scheduling without backfilling (specification B, section 6)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlprof.planning.cluster import Cluster
from rlprof.planning.cost_memory import same_gpus
from rlprof.planning.executable import ExecutableGraph

if TYPE_CHECKING:
    import polars as pl

    from rlprof.taskgraph import TaskGraph


@dataclass(frozen=True, eq=False)
class Timeline:
    """Start and finish of every node.

    Parameters
    ----------
    graph : ExecutableGraph
        What is scheduled.
    cluster : Cluster
        On what.
    start_s, finish_s : tuple of float
        Of each node.
    order : tuple of int
        Positions of the nodes as the scheduler placed them.
    held_by : tuple of int
        For each node the one that fixed its start: a predecessor, or the last holder of its GPUs; -1 if it
        starts at once.
    groups : tuple of (int, tuple of int)
        GPUs that are always held together, as bits, and the nodes that hold them, in order.
    """

    graph: ExecutableGraph
    cluster: Cluster
    start_s: tuple[float, ...]
    finish_s: tuple[float, ...]
    order: tuple[int, ...]
    held_by: tuple[int, ...]
    groups: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def makespan_s(self) -> float:
        """Finish of the last node."""
        return max(self.finish_s, default=0.0)

    @property
    def busy_gpu_s(self) -> float:
        """Time for which GPUs are held, summed over GPUs."""
        return sum(
            mask.bit_count() * sum(self.finish_s[i] - self.start_s[i] for i in held)
            for mask, held in self.groups
        )

    @property
    def utilisation_frac(self) -> float:
        """Mean over all GPUs of the cluster of the share of the makespan for which they are held."""
        span = self.makespan_s * self.cluster.size
        return self.busy_gpu_s / span if span else 0.0

    @property
    def parallelism(self) -> float:
        """P_eff: sum of the times of operators by makespan."""
        nodes = zip(self.graph.nodes, self.start_s, self.finish_s, strict=True)
        operators_s = sum(finish - start for node, start, finish in nodes if node.kind == "op")
        return operators_s / self.makespan_s if self.makespan_s else 0.0

    def critical_path(self) -> tuple[int, ...]:
        """Nodes from the last finisher back through whatever fixed each start, first one first."""
        if not self.order:
            return ()
        at = max(range(len(self.finish_s)), key=lambda i: (self.finish_s[i], -i))
        path = []
        while at >= 0:
            path.append(at)
            at = self.held_by[at]
        return tuple(reversed(path))

    def to_frame(self) -> pl.DataFrame:
        """Return one row for each node and group of GPUs, ready for `rlprof.plots.gantt.lay_out`.

        Returns
        -------
        polars.DataFrame
            ``task``, ``name`` (invocation, or kind of transfer), ``lane`` (GPUs), ``start_s``, ``end_s``.
        """
        import polars as pl

        rows = []
        for mask, held in self.groups:
            lane = gpu_ranges(mask)
            for i in held:
                node = self.graph.nodes[i]
                name = node.kind if node.kind != "op" else self.graph.pipeline.invocations[node.vertex].name
                rows.append((self.graph.label(i), name, lane, self.start_s[i], self.finish_s[i]))
        text = {"task": pl.String, "name": pl.String, "lane": pl.String}
        return pl.DataFrame(rows, schema={**text, "start_s": pl.Float64, "end_s": pl.Float64}, orient="row")

    def to_task_graph(self) -> TaskGraph:
        """Lower to the graph that is run and verified: groups of GPUs are its resources.

        Program order is the order of this schedule; provenance names invocation, step and phase.
        """
        from rlprof.taskgraph import Edge, Task, TaskGraph, Use

        uses: list[list[Use]] = [[] for _ in self.graph.nodes]
        for mask, held in self.groups:
            for i in held:
                uses[i].append(Use(f"GPU {gpu_ranges(mask)}"))
        place = {i: n for n, i in enumerate(self.order)}
        labels = [self.graph.label(i) for i in range(len(self.graph.nodes))]
        if len(set(labels)) < len(labels):  # two containers between the same two operators
            labels = [f"{label} #{i}" for i, label in enumerate(labels)]
        tasks = []
        for i, node in enumerate(self.graph.nodes):
            name = self.graph.pipeline.invocations[node.vertex].name
            tasks.append(
                Task(
                    labels[i],
                    name if node.kind == "op" else f"{node.kind} to {name}",
                    self.finish_s[i] - self.start_s[i],
                    tuple(uses[i]),
                    payload=name if node.kind == "op" else node.kind,
                    program_order=place[i],
                    provenance=(
                        ("invocation", name),
                        ("kind", node.kind),
                        ("phase", node.phase),
                        ("step", node.step),
                    ),
                )
            )
        edges = [Edge(labels[u], labels[v], kind) for (u, v), kind in self.graph.edges.items()]
        return TaskGraph(tuple(tasks), tuple(edges))


def gpu_ranges(mask: int) -> str:
    """Write a set of GPUs as "0-3,8"."""
    numbers = [i for i in range(mask.bit_length()) if mask >> i & 1]
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def downstream_rank(graph: ExecutableGraph, times_s: Sequence[float]) -> list[float]:
    """Longest time from the start of each node to the end of the graph, over its edges."""
    waiting = [len(s) for s in graph.successors]
    rank = [0.0] * len(graph.nodes)
    done = [i for i, n in enumerate(waiting) if not n]
    for i in done:  # grows while it is read
        rank[i] = times_s[i] + max((rank[j] for j in graph.successors[i]), default=0.0)
        for j in graph.predecessors[i]:
            waiting[j] -= 1
            if not waiting[j]:
                done.append(j)
    return rank


def schedule(
    graph: ExecutableGraph, times_s: Sequence[float], cluster: Cluster, *, reserve_source: bool = False
) -> Timeline:
    """Place every node at its earliest start, the node with the smallest one first (Algorithm 5).

    Ties go to transfers and reshards, then to the larger downstream rank (nodes of a generation chain take
    that of its first), then by invocation, step and phase. Nothing is filled in behind.

    Parameters
    ----------
    graph : ExecutableGraph
        From `lower`.
    times_s : sequence of float
        Time of each node.
    cluster : Cluster
        Where the boxes lie.
    reserve_source : bool
        Transfers hold the GPUs that they come from as well.
    """
    rank = downstream_rank(graph, times_s)
    masks: dict[object, int] = {}
    held: list[int] = []
    for node in graph.nodes:
        boxes = {node.target, node.source} if reserve_source else {node.target}
        for box in boxes - masks.keys():
            masks[box] = box.mask(cluster)
        held.append(0)
        for box in boxes:
            held[-1] |= masks[box]
    kinds = sorted(set(held))
    groups = same_gpus(kinds)
    groups_of = {
        mask: [g for g, (_, inside) in enumerate(groups) if k in inside] for k, mask in enumerate(kinds)
    }
    free_s, holder = [0.0] * len(groups), [-1] * len(groups)
    held_in: list[list[int]] = [[] for _ in groups]

    waiting = [len(p) for p in graph.predecessors]
    ready_s, fixed_by = [0.0] * len(waiting), [-1] * len(waiting)
    start, finish = [0.0] * len(waiting), [0.0] * len(waiting)
    order: list[int] = []

    def tie(i: int) -> tuple[int, float, int, int, int, int]:
        node = graph.nodes[i]
        return (node.kind == "op", -rank[graph.chain_head[i]], node.vertex, node.step, node.phase, i)

    def earliest(i: int) -> float:
        return max(ready_s[i], *(free_s[g] for g in groups_of[held[i]]))

    heap = [(0.0, tie(i)) for i, n in enumerate(waiting) if not n]
    heapq.heapify(heap)
    while heap:
        then, key = heapq.heappop(heap)
        i = key[-1]
        now = earliest(i)
        if now > then:  # its GPUs were taken meanwhile: starts only move later
            heapq.heappush(heap, (now, key))
            continue
        start[i], finish[i] = now, now + times_s[i]
        if ready_s[i] < now:
            fixed_by[i] = next(holder[g] for g in groups_of[held[i]] if free_s[g] == now)
        order.append(i)
        for g in groups_of[held[i]]:
            free_s[g], holder[g] = finish[i], i
            held_in[g].append(i)
        for j in graph.successors[i]:
            if finish[i] > ready_s[j] or fixed_by[j] < 0:
                ready_s[j], fixed_by[j] = finish[i], i
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(heap, (earliest(j), tie(j)))
    used = tuple((mask, tuple(nodes)) for (mask, _), nodes in zip(groups, held_in, strict=True))
    return Timeline(graph, cluster, tuple(start), tuple(finish), tuple(order), tuple(fixed_by), used)
