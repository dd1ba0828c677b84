"""The executable graph: operators, transfers and reshards, each on its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rlprof.planning.pipeline import Pipeline
from rlprof.planning.plan import Box, Parallelism

NodeKind = Literal["op", "comm", "reshard"]
#: Why a node waits: as in `rlprof.taskgraph`.
WaitKind = Literal["data", "state", "publication", "order"]


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the executable graph.

    Parameters
    ----------
    kind : {"op", "comm", "reshard"}
        An invocation or a phase of one; a transfer between allocations; a change of layout within one.
    vertex : int
        Position of the invocation in the pipeline; for transfers and reshards that of the one they serve.
    step : int
        Number of the step; for transfers and reshards that of the one they serve.
    phase, phases : int
        Which of how many response-length phases; 0 of 1 if not split.
    source, target : Box
        GPUs it comes from and goes to; the same for an operator.
    source_layout, target_layout : Parallelism
        Layouts at both.
    payload_bytes : float
        What is moved; 0 for an operator.
    container : str
        What a transfer carries; empty for an operator.
    fused_with : int
        Position of the invocation that shares the node (stage fusion); -1 if none does.
    publishes : bool
        It carries weights to a later step.
    """

    kind: NodeKind
    vertex: int
    step: int
    phase: int
    phases: int
    source: Box
    target: Box
    source_layout: Parallelism
    target_layout: Parallelism
    payload_bytes: float = 0.0
    container: str = ""
    fused_with: int = -1
    publishes: bool = False


@dataclass(frozen=True)
class ExecutableGraph:
    """Nodes, and which waits for which.

    Parameters
    ----------
    pipeline : Pipeline
        Where the nodes come from.
    nodes : tuple of Node
        In the order in which they were made.
    edges : dict of (int, int) to WaitKind
        Pairs of positions (earlier, later), and why.
    chain_head : tuple of int
        For each node the first node of its generation chain, whose rank it takes; itself if it is in none.
    """

    pipeline: Pipeline
    nodes: tuple[Node, ...]
    edges: dict[tuple[int, int], WaitKind]
    chain_head: tuple[int, ...]

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the nodes that wait for each, ascending."""
        out: list[list[int]] = [[] for _ in self.nodes]
        for u, v in sorted(self.edges):
            out[u].append(v)
        return tuple(map(tuple, out))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the nodes that each waits for, ascending."""
        into: list[list[int]] = [[] for _ in self.nodes]
        for u, v in sorted(self.edges):
            into[v].append(u)
        return tuple(map(tuple, into))

    def label(self, position: int) -> str:
        """Return a name for people: "actor_generation 3 phase 2", "... 3 ◀ comm Y from ..."."""
        node = self.nodes[position]
        text = f"{self.pipeline.invocations[node.vertex].name}"
        if node.fused_with >= 0:
            text += f" + {self.pipeline.invocations[node.fused_with].name}"
        text += f" {node.step}"
        if node.phases > 1:
            text += f" phase {node.phase + 1}"
        if node.kind != "op":
            before = self.predecessors[position]
            origin = self.pipeline.invocations[self.nodes[before[0]].vertex].name if before else "?"
            text += f" ◀ {node.kind} {node.container} from {origin}"
        return text
