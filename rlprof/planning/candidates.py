"""What a plan may say about one invocation: the candidates of rules P1 to P8 (specification B, section 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from rlprof.planning.cost_memory import operator_memory
from rlprof.planning.cost_time import operator_time
from rlprof.planning.errors import InfeasibleError
from rlprof.planning.evaluate import Problem
from rlprof.planning.pipeline import Role
from rlprof.planning.plan import Assignment, Box, Parallelism

#: Fewest sequences of a microbatch, so that the products of each stay large (P5).
LEAST_SEQUENCES = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """One strategy for an invocation, wherever it is placed.

    Parameters
    ----------
    extent : tuple of int
        Racks, nodes and GPUs per node of its box.
    parallelism, microbatches
        Pi(v) and mb(v).
    time_s : float
        T_op, the same at every aligned origin.
    """

    extent: tuple[int, int, int]
    parallelism: Parallelism
    microbatches: int
    time_s: float

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.parallelism.gpus

    def at(self, origin: tuple[int, int, int]) -> Assignment:
        """Return the assignment with this origin."""
        return Assignment(Box(origin, self.extent), self.parallelism, self.microbatches)


@dataclass(frozen=True)
class Directory:
    """All candidates of an invocation, fastest first, and where each may be placed.

    Parameters
    ----------
    invocation : str
        Name of the invocation.
    candidates : tuple of Candidate
        By T_op; ties by fewer GPUs, extent, parallelism, microbatches.
    limits : tuple of int
        Racks, nodes per rack and GPUs per node of the cluster.
    """

    invocation: str
    candidates: tuple[Candidate, ...]
    limits: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.candidates)

    def origins(self, candidate: Candidate) -> int:
        """Number of aligned origins of a candidate."""
        r, n, g = (limit // extent for limit, extent in zip(self.limits, candidate.extent, strict=True))
        return r * n * g

    def origin(self, candidate: Candidate, number: int) -> tuple[int, int, int]:
        """Return one aligned origin: a multiple of the extent in each dimension (P7)."""
        _, nodes, gpus = (
            limit // extent for limit, extent in zip(self.limits, candidate.extent, strict=True)
        )
        rest, g = divmod(number, gpus)
        r, n = divmod(rest, nodes)
        return r * candidate.extent[0], n * candidate.extent[1], g * candidate.extent[2]

    def number_of(self, candidate: Candidate, origin: tuple[int, int, int]) -> int | None:
        """Return the number of an origin; None if it is not aligned or not within the cluster."""
        place = 0
        for o, extent, limit in zip(origin, candidate.extent, self.limits, strict=True):
            at, rest = divmod(o, extent)
            if rest or at >= limit // extent:
                return None
            place = place * (limit // extent) + at
        return place

    @cached_property
    def index(self) -> dict[tuple[tuple[int, int, int], Parallelism, int], int]:
        """Position of each candidate."""
        return {(c.extent, c.parallelism, c.microbatches): i for i, c in enumerate(self.candidates)}

    def find(self, assignment: Assignment) -> tuple[int, int] | None:
        """Return candidate and origin of an assignment; None if it is none of this directory."""
        i = self.index.get((assignment.box.extent, assignment.parallelism, assignment.microbatches))
        if i is None:
            return None
        number = self.number_of(self.candidates[i], assignment.box.origin)
        return None if number is None else (i, number)


def divisors(n: int) -> list[int]:
    """Return all divisors, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def extents(parallelism: Parallelism, limits: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Return the extents of boxes that hold exactly this many shards (P5 to P8).

    A node holds as many pipeline stages of a replica as fit. A replica that fits on one node may share it
    with others; one that does not has its nodes for itself. Boxes lie in one rack, or fill racks.
    """
    racks, nodes_per_rack, gpus_per_node = limits
    data, stages, tensor = parallelism.data, parallelism.pipeline, parallelism.tensor
    on_node = min(stages, gpus_per_node // tensor)
    if on_node < 1 or stages % on_node:
        return []
    nodes_of_replica = stages // on_node
    sharing = [1]
    if nodes_of_replica == 1:
        sharing = [r for r in divisors(data) if r * on_node * tensor <= gpus_per_node]
    found = []
    for r in sharing:
        nodes = data * nodes_of_replica // r
        width = r * on_node * tensor
        if nodes <= nodes_per_rack:
            found.append((1, nodes, width))
        elif nodes % nodes_per_rack == 0 and nodes // nodes_per_rack <= racks:
            found.append((nodes // nodes_per_rack, nodes_per_rack, width))
    return found


def microbatch_counts(sequences: int, stages: int) -> list[int]:
    """Return mb(v) for a replica of so many sequences: 1 without a pipeline, else what fills it (P4, P5)."""
    if stages == 1:
        return [1]
    return [m for m in divisors(sequences) if m >= stages and sequences // m >= LEAST_SEQUENCES]


def plain_microbatches(role: Role, stages: int) -> int:
    """Return the usual mb(v): as many as stages, twice as many for training; 1 without a pipeline."""
    if stages == 1:
        return 1
    return 2 * stages if role == "training" else stages


def directory(problem: Problem, vertex: int, *, search_microbatches: bool = True) -> Directory:
    """Return all candidates of one invocation that fit into memory alone.

    Parameters
    ----------
    problem : Problem
        Pipeline, workload, cluster.
    vertex : int
        Position of the invocation.
    search_microbatches : bool
        False: only `plain_microbatches`, where they are allowed.

    Raises
    ------
    InfeasibleError
        If nothing fits; says by how much the best misses.
    """
    pipeline, workload, cluster = problem.pipeline, problem.workload, problem.cluster
    v, model = pipeline.invocations[vertex], pipeline.model_of(vertex)
    limits = (cluster.racks, cluster.nodes_per_rack, cluster.gpus_per_node)
    usable = cluster.usable_bytes
    found, least = [], float("inf")
    stage_counts = [p for p in divisors(model.shape.layers) if p == 1 or p % 2 == 0]
    for tensor in divisors(cluster.gpus_per_node):
        for stages in stage_counts:
            for data in divisors(workload.prompts):
                pi = Parallelism(data, stages, tensor)
                if pi.gpus > cluster.size:
                    break
                boxes = extents(pi, limits)
                counts = microbatch_counts(workload.sequences // data, stages) if boxes else []
                if not search_microbatches:
                    counts = [mb for mb in counts if mb == plain_microbatches(v.role, stages)]
                for mb in counts:
                    at = Assignment(Box((0, 0, 0), boxes[0]), pi, mb)
                    needs = operator_memory(v.role, model, workload, at, problem.options)
                    alone = needs.optimizer_bytes + needs.transient_bytes(resident=False)
                    least = min(least, alone)
                    if alone > usable:
                        continue
                    for extent in boxes:
                        here = Assignment(Box((0, 0, 0), extent), pi, mb)
                        time_s = operator_time(
                            v.role, model, workload, here, cluster, problem.options
                        ).total_s
                        found.append(Candidate(extent, pi, mb, time_s))
    if not found:
        raise _none(problem, v.name, least)
    found.sort(key=lambda c: (c.time_s, c.gpus, c.extent, str(c.parallelism), c.microbatches))
    return Directory(v.name, tuple(found), limits)


def _none(problem: Problem, name: str, least: float) -> InfeasibleError:
    usable = problem.cluster.usable_bytes
    if least == float("inf"):
        return InfeasibleError(
            f"no plan: {name} has no parallelism that {problem.cluster} and "
            f"{problem.workload.prompts} prompts allow",
            gpu="0/0/0",
            lacking_bytes=0,
            hint="use more prompts, or another topology",
        )
    lacking = math.ceil(least - usable)
    return InfeasibleError(
        f"no feasible plan: {name} alone needs {least:,.0f} bytes on GPU 0/0/0 at the least, of which "
        f"{usable:,.0f} are usable: {lacking:,} bytes are lacking",
        gpu="0/0/0",
        lacking_bytes=lacking,
        hint="use more GPUs, GPUs with more memory, or fewer or shorter sequences",
    )


def directories(problem: Problem, *, search_microbatches: bool = True) -> tuple[Directory, ...]:
    """Return the directory of every invocation, in the order of the pipeline; arguments as `directory`."""
    return tuple(
        directory(problem, i, search_microbatches=search_microbatches)
        for i in range(len(problem.pipeline.invocations))
    )
