"""Times of the nodes of an executable graph: from the cost model, or given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rlprof.planning.cluster import Cluster
from rlprof.planning.cost_time import OperatorTime, operator_time, reshard_s, transfer_s
from rlprof.planning.errors import PlanError
from rlprof.planning.executable import ExecutableGraph, Node
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Pipeline
from rlprof.planning.plan import Plan
from rlprof.planning.workload import Workload


class NodeTimes(Protocol):
    """Anything that knows how long a node takes."""

    def node_s(self, node: Node) -> float:
        """Return the time of one node, in seconds."""
        ...


def times_of(graph: ExecutableGraph, source: NodeTimes) -> list[float]:
    """Return the time of each node, in seconds."""
    return [source.node_s(node) for node in graph.nodes]


def phase_shares(workload: Workload, phase: int) -> tuple[float, float]:
    """Return the share of the decode steps, and of the sequences, that one response-length phase has."""
    here = workload.quantiles[phase]
    before_frac = workload.quantiles[phase - 1].completed_frac if phase else 0.0
    before_tokens = workload.quantiles[phase - 1].tokens if phase else 1.0
    steps = max(workload.response_tokens - 1, 1)
    return (here.tokens - before_tokens) / steps, here.completed_frac - before_frac


@dataclass
class ModelTimes:
    """Times from the cost model.

    Parameters
    ----------
    pipeline, plan, workload, cluster, options
        What is costed.
    """

    pipeline: Pipeline
    plan: Plan
    workload: Workload
    cluster: Cluster
    options: ModelOptions
    operators: list[OperatorTime] = field(init=False)

    def __post_init__(self) -> None:
        self.operators = [
            operator_time(
                v.role,
                self.pipeline.model_of(i),
                self.workload,
                self.plan[v.name],
                self.cluster,
                self.options,
            )
            for i, v in enumerate(self.pipeline.invocations)
        ]
        self._phases: dict[tuple[int, int], float] = {}

    def node_s(self, node: Node) -> float:
        """Return the time of one node, in seconds."""
        if node.kind == "comm":
            return transfer_s(node.payload_bytes, node.source, node.target, self.cluster)
        if node.kind == "reshard":
            return reshard_s(node.payload_bytes, node.target, self.cluster)
        whole = self.operators[node.vertex]
        if node.fused_with >= 0:
            return fused_s(whole, self.operators[node.fused_with])
        if node.phases == 1:
            return whole.total_s
        return self.phase_s(node.vertex, node.phase)

    def phase_s(self, vertex: int, phase: int) -> float:
        """Return the time of one response-length phase.

        Generation: its share of the decode steps, the first one with the prefill; they sum to the whole.
        Inference: that of its share of the sequences.
        """
        if (vertex, phase) in self._phases:
            return self._phases[vertex, phase]
        v = self.pipeline.invocations[vertex]
        decode_frac, sequence_frac = phase_shares(self.workload, phase)
        whole = self.operators[vertex]
        if v.role == "generation":
            time = decode_frac * whole.decode_s + (whole.prefill_s if phase == 0 else 0.0)
        else:
            time = operator_time(
                v.role, self.pipeline.model_of(vertex), self.workload, self.plan[v.name], self.cluster,
                self.options, sequence_frac=sequence_frac,
            ).total_s  # fmt: skip
        self._phases[vertex, phase] = time
        return time


def fused_s(a: OperatorTime, b: OperatorTime) -> float:
    """Time of two interleaved training invocations: times add, of the bubbles only the larger one."""
    return a.total_s + b.total_s - min(a.bubble_s, b.bubble_s)


@dataclass(frozen=True)
class GivenTimes:
    """Times that are known, in seconds; for profiles, and for graphs whose models have no formula.

    Parameters
    ----------
    operators_s : mapping of str to (float or sequence of float)
        By name of the invocation: its time, or that of each phase. Of a single time each phase has an
        equal part.
    comm_s, reshard_s : callable
        Time by payload in bytes; 0 by default.
    """

    operators_s: Mapping[str, float | Sequence[float]]
    names: Sequence[str]
    comm_s: Callable[[float], float] = lambda _: 0.0
    reshard_s: Callable[[float], float] = lambda _: 0.0

    def node_s(self, node: Node) -> float:
        """Return the time of one node, in seconds.

        Raises
        ------
        PlanError
            If an invocation has no time, or not as many as it has phases.
        """
        if node.kind != "op":
            return (self.comm_s if node.kind == "comm" else self.reshard_s)(node.payload_bytes)
        both = (node.vertex, node.fused_with) if node.fused_with >= 0 else (node.vertex,)
        return sum(self._operator_s(self.names[v], node) for v in both)

    def _operator_s(self, name: str, node: Node) -> float:
        if name not in self.operators_s:
            raise PlanError(f"no time is given for {name!r}")
        given = self.operators_s[name]
        if isinstance(given, int | float):
            return given / node.phases
        if node.phases == 1:
            return sum(given)
        if len(given) != node.phases:
            raise PlanError(f"{len(given)} times are given for the {node.phases} phases of {name!r}")
        return given[node.phase]
