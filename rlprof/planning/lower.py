"""Lowering: unrolled graph and plan to operators, transfers and reshards (specification B, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

from rlprof.planning.cluster import Cluster
from rlprof.planning.executable import ExecutableGraph, Node, NodeKind, WaitKind
from rlprof.planning.fusion import fused_pairs
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Pipeline
from rlprof.planning.plan import Assignment, Parallelism, Plan
from rlprof.planning.unroll import Step, UnrolledEdge, UnrolledGraph, served_version, unroll
from rlprof.planning.workload import Workload


def split_invocations(
    pipeline: Pipeline, masks: Sequence[int], workload: Workload, *, enabled: bool = True
) -> tuple[set[int], set[tuple[int, int]]]:
    """Return which invocations are split into response-length phases, and the edges that run phase by phase.

    A generation is split if an inference that it feeds runs on other GPUs altogether, and so is each such
    inference.

    Parameters
    ----------
    pipeline, workload
        The graph, and the quantiles.
    masks : sequence of int
        GPUs of each invocation, as bits.
    enabled : bool
        False: nothing is split.

    Returns
    -------
    split : set of int
        Positions of invocations.
    by_phase : set of (int, int)
        Pairs (generation, inference).
    """
    by_phase = set()
    if enabled and len(workload.quantiles) > 1:
        for link in pipeline.data:
            u, v = pipeline.index[link.source], pipeline.index[link.target]
            roles = (pipeline.invocations[u].role, pipeline.invocations[v].role)
            if roles == ("generation", "inference") and not masks[u] & masks[v]:
                by_phase.add((u, v))
    return {i for pair in by_phase for i in pair}, by_phase


def lower(
    pipeline: Pipeline, plan: Plan, workload: Workload, cluster: Cluster, options: ModelOptions | None = None
) -> ExecutableGraph:
    """Lower a pipeline under a plan (Algorithm 4).

    Parameters
    ----------
    pipeline : Pipeline
        Unrolled over ``options.steps`` steps.
    plan : Plan
        Of every invocation.
    workload : Workload
        Sizes of containers, and the quantiles by which generation is split.
    cluster : Cluster
        Where the plan's boxes lie.
    options : ModelOptions, optional
        Steps, splitting, fusion.

    Raises
    ------
    PlanError
        If the plan does not fit.
    """
    options = options or ModelOptions()
    plan.check(pipeline, workload, cluster)
    assignments = [plan[v.name] for v in pipeline.invocations]
    builder = _Builder(unroll(pipeline, options.steps), assignments, workload, cluster, options)
    builder.operators()
    builder.data_edges()
    builder.weights_within_a_step()
    builder.publications()
    builder.updates()
    return ExecutableGraph(pipeline, tuple(builder.nodes), builder.edges, tuple(builder.chain_head))


class _Builder:
    """Nodes and edges as they are made, stage by stage."""

    def __init__(
        self,
        unrolled: UnrolledGraph,
        assignments: list[Assignment],
        workload: Workload,
        cluster: Cluster,
        options: ModelOptions,
    ) -> None:
        self.unrolled, self.pipeline = unrolled, unrolled.pipeline
        self.at, self.workload = assignments, workload
        self.masks = [a.box.mask(cluster) for a in assignments]
        self.split, self.by_phase = split_invocations(
            self.pipeline, self.masks, workload, enabled=options.split_generation
        )
        self.fused = fused_pairs(self.pipeline, assignments) if options.fuse_training else {}
        self.nodes: list[Node] = []
        self.edges: dict[tuple[int, int], WaitKind] = {}
        self.chain_head: list[int] = []
        self.parts: dict[Step, list[int]] = {}
        # after which node a version of a model is in place (model, version, GPUs, layout), and from which
        # place in topological order on it may be waited for
        self.installed: dict[tuple[str, int, int, Parallelism], tuple[int, int]] = {}
        self.rank = {v: n for n, v in enumerate(self.pipeline.topological_order)}

    def add(self, node: Node, head: int | None = None) -> int:
        self.nodes.append(node)
        self.chain_head.append(len(self.nodes) - 1 if head is None else head)
        return len(self.nodes) - 1

    def edge(self, source: int, target: int, kind: WaitKind) -> None:
        if source != target:  # the two halves of a fused node
            self.edges.setdefault((source, target), kind)

    def operators(self) -> None:
        """Stage 1: operators, phases of them, and the transfers between phases."""
        phases = len(self.workload.quantiles)
        second = {j: i for i, j in self.fused.items()}
        for step in range(self.unrolled.steps):
            for v, a in enumerate(self.at):
                if v in second:
                    self.parts[Step(v, step)] = self.parts[Step(second[v], step)]
                    continue
                count = phases if v in self.split else 1
                made: list[int] = []
                for phase in range(count):
                    node = Node(
                        "op", v, step, phase, count, a.box, a.box, a.parallelism, a.parallelism,
                        fused_with=self.fused.get(v, -1),
                    )  # fmt: skip
                    generates = self.pipeline.invocations[v].role == "generation"
                    made.append(self.add(node, made[0] if made and generates else None))
                    if phase:
                        self.edge(made[-2], made[-1], "order")
                self.parts[Step(v, step)] = made

    def data_edges(self) -> None:
        """Stage 2: transfers where the GPUs differ, bare precedence where they do not."""
        fractions = [q.completed_frac for q in self.workload.quantiles]
        for edge in self.unrolled.data:
            u, v = edge.source.vertex, edge.target.vertex
            volume = float(self.pipeline.volume_bytes(edge.container, self.workload))
            if (u, v) in self.by_phase:
                before = 0.0
                for phase, fraction in enumerate(fractions):
                    share = volume * (fraction - before)
                    self.move("comm", edge, share, "data", phase=phase)
                    before = fraction
            elif self.masks[u] == self.masks[v]:
                self.edge(self.parts[edge.source][-1], self.parts[edge.target][0], "data")
            else:
                self.move("comm", edge, volume, "data")

    def move(
        self, kind: NodeKind, edge: UnrolledEdge, payload: float, why: WaitKind, phase: int | None = None
    ) -> int:
        """Add a transfer or reshard between two operators, or between a phase of each."""
        source, target = self.at[edge.source.vertex], self.at[edge.target.vertex]
        node = self.add(
            Node(
                kind,
                edge.target.vertex,
                edge.target.step,
                phase or 0,
                1 if phase is None else len(self.workload.quantiles),
                source.box,
                target.box,
                source.parallelism,
                target.parallelism,
                payload,
                edge.container,
                publishes=why == "publication",
            )
        )
        self.edge(self.parts[edge.source][-1 if phase is None else phase], node, why)
        self.edge(node, self.parts[edge.target][0 if phase is None else phase], why)
        return node

    def weight_bytes(self, model: str) -> float:
        return float(self.pipeline.model_by_name[model].parameters * self.workload.scalar_bytes)

    def weights_within_a_step(self) -> None:
        """Stage 3: the layouts of one trainable model within a step; copies that are kept need nothing."""
        for u, v, model in self.pipeline.weight_pairs:
            same = self.masks[u] == self.masks[v]
            if self.pipeline.tau[model] > 0 and not self.masks[u] & self.masks[v]:
                continue  # a shadow pair
            if same and self.at[u].parallelism == self.at[v].parallelism:
                continue
            for step in range(self.unrolled.steps):
                edge = UnrolledEdge(Step(u, step), Step(v, step), f"weights of {model}")
                if not same:
                    self.edge(self.parts[edge.source][-1], self.parts[edge.target][0], "state")
                    continue
                node = self.move("reshard", edge, self.weight_bytes(model), "state")
                if self.pipeline.invocations[v].role != "training":
                    self.installed[self.place(edge.target)] = node, self.rank[v]

    def place(self, at: Step) -> tuple[str, int, int, Parallelism]:
        """Which version of its model serves an invocation, and where."""
        model = self.pipeline.invocations[at.vertex].model
        version = served_version(at.step, self.pipeline.tau[model])
        return model, version, self.masks[at.vertex], self.at[at.vertex].parallelism

    def publications(self) -> None:
        """Stage 4: updated weights to where they serve; what is already in place is used again."""
        for edge in self.unrolled.publications:
            u, v = edge.source.vertex, edge.target.vertex
            key, first = self.place(edge.target), self.parts[edge.target][0]
            if self.masks[u] == self.masks[v] and self.at[u].parallelism == self.at[v].parallelism:
                self.edge(self.parts[edge.source][-1], first, "publication")
            elif key in self.installed and self.rank[v] >= self.installed[key][1]:
                self.edge(self.installed[key][0], first, "publication")
            elif self.masks[u] == self.masks[v]:
                node = self.move("reshard", edge, self.weight_bytes(key[0]), "publication")
                self.installed[key] = node, -1
            else:
                larger = max(self.masks[u].bit_count(), self.masks[v].bit_count())
                overlap = (self.masks[u] & self.masks[v]).bit_count()
                payload = self.weight_bytes(key[0]) * (larger - overlap) / larger
                self.installed[key] = self.move("comm", edge, payload, "publication"), -1

    def updates(self) -> None:
        """Updates of one model stay in order."""
        for edge in self.unrolled.updates:
            self.edge(self.parts[edge.source][-1], self.parts[edge.target][0], "state")
