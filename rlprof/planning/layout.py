"""Where the nodes of a graph are drawn: compact, unrolled and executable graphs as boxes and arrows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlprof.planning.executable import ExecutableGraph
from rlprof.planning.pipeline import Pipeline
from rlprof.planning.plan import Plan
from rlprof.planning.unroll import Step, UnrolledGraph


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A box: column and row from the top left, label, second line, and what colours it."""

    column: float
    row: float
    label: str
    detail: str
    kind: str


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """An arrow between two boxes, by position: what it carries, and its kind."""

    source: int
    target: int
    label: str
    kind: str


@dataclass(frozen=True)
class Drawing:
    """A graph laid out.

    Parameters
    ----------
    nodes, edges : tuple
        What is drawn.
    title : str
        What it is.
    """

    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    title: str


def columns_of(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each node of an acyclic graph the length of the longest path to it."""
    column = [0] * count
    for _ in range(count):
        moved = False
        for u, v in edges:
            if column[v] <= column[u]:
                column[v], moved = column[u] + 1, True
        if not moved:
            break
    return column


def rows_of(columns: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[float]:
    """Return rows such that nodes lie near what they are connected to; columns are centred."""
    by_column = [[i for i, c in enumerate(columns) if c == n] for n in range(max(columns, default=0) + 1)]
    row = [0.0] * len(columns)
    for nodes in by_column:
        before = {i: [row[u] for u, v in edges if v == i] for i in nodes}
        nodes.sort(key=lambda i: (sum(before[i]) / len(before[i]) if before[i] else 0.0, i))
        for n, i in enumerate(nodes):
            row[i] = n - (len(nodes) - 1) / 2
    return row


def compact_drawing(pipeline: Pipeline) -> Drawing:
    """Lay out a pipeline: data edges lead right, publications back."""
    edges = [(pipeline.index[e.source], pipeline.index[e.target]) for e in pipeline.data]
    columns = columns_of(len(pipeline.invocations), edges)
    rows = rows_of(columns, edges)
    nodes = [
        DrawnNode(columns[i], rows[i], v.name, pipeline.model_of(i).shape.name, v.role)
        for i, v in enumerate(pipeline.invocations)
    ]
    drawn = [DrawnEdge(*ends, e.container, "data") for ends, e in zip(edges, pipeline.data, strict=True)]
    for e in pipeline.publications:
        tau = pipeline.tau[pipeline.invocations[pipeline.index[e.source]].model]
        label = f"{e.container}, staleness {tau}"
        drawn.append(DrawnEdge(pipeline.index[e.source], pipeline.index[e.target], label, "publication"))
    return Drawing(tuple(nodes), tuple(drawn), f"{pipeline.name}: one step")


def unrolled_drawing(graph: UnrolledGraph) -> Drawing:
    """Lay out an unrolled graph: the steps side by side."""
    pipeline = graph.pipeline
    one = compact_drawing(pipeline)
    width = max((node.column for node in one.nodes), default=0) + 1
    count = len(one.nodes)
    nodes = [
        DrawnNode(node.column + k * width, node.row, f"{node.label} {k}", node.detail, node.kind)
        for k in range(graph.steps)
        for node in one.nodes
    ]

    def at(step: Step) -> int:
        return step.step * count + step.vertex

    edges = [
        DrawnEdge(at(e.source), at(e.target), e.container, kind)
        for kind, found in (
            ("data", graph.data),
            ("publication", graph.publications),
            ("state", graph.updates),
        )
        for e in found
    ]
    return Drawing(
        tuple(nodes), tuple(edges), f"{pipeline.name}: {graph.steps} step{'s' * (graph.steps > 1)}"
    )


def executable_drawing(graph: ExecutableGraph, plan: Plan) -> Drawing:
    """Lay out an executable graph: operators with their boxes and parallelism, transfers with their bytes."""
    edges = sorted(graph.edges)
    columns = columns_of(len(graph.nodes), edges)
    rows = rows_of(columns, edges)
    nodes = []
    for i, node in enumerate(graph.nodes):
        v = graph.pipeline.invocations[node.vertex]
        if node.kind == "op":
            label = graph.label(i)
            a = plan[v.name]
            detail, kind = f"{a.box} {a.parallelism} mb {a.microbatches}", str(v.role)
        else:
            label, detail, kind = (
                f"{node.kind} {node.container}",
                f"{node.payload_bytes / 1e6:,.1f} MB",
                node.kind,
            )
        nodes.append(DrawnNode(columns[i], rows[i], label, detail, kind))
    drawn = [DrawnEdge(u, v, "", graph.edges[u, v]) for u, v in edges]
    steps = 1 + max((node.step for node in graph.nodes), default=0)
    return Drawing(
        tuple(nodes),
        tuple(drawn),
        f"{graph.pipeline.name}: executable graph, {steps} step{'s' * (steps > 1)}",
    )
