"""An execution plan: where each invocation runs, how it is parallelised, in how many microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rlprof.planning.cluster import Cluster, Tier
from rlprof.planning.errors import PlanError

if TYPE_CHECKING:
    from rlprof.planning.pipeline import Pipeline
    from rlprof.planning.workload import Workload


@dataclass(frozen=True, slots=True)
class Box:
    """A contiguous block of GPUs: origin and extent in racks, nodes and GPUs."""

    origin: tuple[int, int, int]
    extent: tuple[int, int, int]

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return self.extent[0] * self.extent[1] * self.extent[2]

    @property
    def tier(self) -> Tier:
        """Slowest level of the network that it spans."""
        if self.extent[0] > 1:
            return "inter_rack"
        return "inter_node" if self.extent[1] > 1 else "intra_node"

    def gpus(self, cluster: Cluster) -> tuple[int, ...]:
        """Numbers of its GPUs, ascending."""
        (r0, n0, g0), (dr, dn, dg) = self.origin, self.extent
        return tuple(
            (r * cluster.nodes_per_rack + n) * cluster.gpus_per_node + g
            for r in range(r0, r0 + dr)
            for n in range(n0, n0 + dn)
            for g in range(g0, g0 + dg)
        )

    def mask(self, cluster: Cluster) -> int:
        """Its GPUs as bits of an integer."""
        return sum(1 << gpu for gpu in self.gpus(cluster))

    def within(self, cluster: Cluster) -> bool:
        """Whether it lies in the cluster."""
        limits = (cluster.racks, cluster.nodes_per_rack, cluster.gpus_per_node)
        return all(
            o >= 0 and e >= 1 and o + e <= n for o, e, n in zip(self.origin, self.extent, limits, strict=True)
        )

    def __str__(self) -> str:
        return "@".join("x".join(map(str, part)) for part in (self.extent, self.origin))


def tier_between(a: Box, b: Box) -> Tier:
    """Return the slowest level of the network that two boxes span together."""
    spans = []
    for axis in (0, 1):
        first = min(a.origin[axis], b.origin[axis])
        last = max(a.origin[axis] + a.extent[axis], b.origin[axis] + b.extent[axis])
        spans.append(last - first > 1)
    if spans[0]:
        return "inter_rack"
    return "inter_node" if spans[1] else "intra_node"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Degrees of data, pipeline and tensor parallelism: P_d, P_p, P_t."""

    data: int = 1
    pipeline: int = 1
    tensor: int = 1

    @property
    def gpus(self) -> int:
        """P = P_d P_p P_t."""
        return self.data * self.pipeline * self.tensor

    def __str__(self) -> str:
        return f"({self.data},{self.pipeline},{self.tensor})"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a plan says about one invocation: sigma(v), Pi(v), mb(v)."""

    box: Box
    parallelism: Parallelism
    microbatches: int = 1


@dataclass(frozen=True)
class Plan:
    """P = (sigma, Pi, mb).

    Parameters
    ----------
    assignments : mapping of str to Assignment
        By name of the invocation.
    """

    assignments: Mapping[str, Assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "assignments", dict(sorted(self.assignments.items())))

    def __getitem__(self, invocation: str) -> Assignment:
        return self.assignments[invocation]

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def key(self) -> tuple[tuple[str, Assignment], ...]:
        """Canonical content, hashable."""
        return tuple(self.assignments.items())

    def check(self, pipeline: Pipeline, workload: Workload, cluster: Cluster) -> None:
        """Check that the plan can run: every invocation placed, in the cluster, and evenly divided.

        Raises
        ------
        PlanError
            If it cannot; names the invocation.
        """
        names = {v.name for v in pipeline.invocations}
        if lost := sorted(names - set(self.assignments)):
            raise PlanError(f"the plan says nothing about {', '.join(lost)}")
        if foreign := sorted(set(self.assignments) - names):
            raise PlanError(
                f"the plan names {', '.join(foreign)}, no invocation of pipeline {pipeline.name!r}"
            )
        for i, invocation in enumerate(pipeline.invocations):
            _check(
                invocation.name, self[invocation.name], pipeline.model_of(i).shape.layers, workload, cluster
            )


def _check(name: str, a: Assignment, layers: int, workload: Workload, cluster: Cluster) -> None:
    pi, where = a.parallelism, f"plan of {name!r}"
    if min(pi.data, pi.pipeline, pi.tensor, a.microbatches) < 1:
        raise PlanError(
            f"{where}: parallelism {pi} and {a.microbatches} microbatches", hint="each is at least 1"
        )
    if not a.box.within(cluster):
        raise PlanError(f"{where}: the box {a.box} is not within {cluster}")
    if a.box.size != pi.gpus:
        raise PlanError(f"{where}: parallelism {pi} needs {pi.gpus} GPUs, the box {a.box} has {a.box.size}")
    if a.box.extent[2] % pi.tensor:
        raise PlanError(
            f"{where}: groups of {pi.tensor} tensor ranks do not fill the {a.box.extent[2]} GPUs of a node",
            hint="a tensor-parallel group stays within a node",
        )
    if layers % pi.pipeline:
        raise PlanError(f"{where}: {layers} layers do not divide into {pi.pipeline} pipeline stages")
    if workload.sequences % (pi.data * a.microbatches):
        raise PlanError(
            f"{where}: {workload.sequences} sequences do not divide into {pi.data} replicas "
            f"of {a.microbatches} microbatches"
        )
