"""The compact pipeline graph of one training step: invocations of models, and what they pass on.

A `Pipeline` is a value, checked when it is made (RPEG, Appendix A).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

from rlprof.planning.errors import PipelineError
from rlprof.planning.shapes import Head, ModelShape
from rlprof.planning.workload import Workload

Role = Literal["generation", "inference", "training"]
ROLES: tuple[str, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the pipeline.

    Parameters
    ----------
    name : str
        Such as "actor"; unique in the pipeline.
    shape : ModelShape
        Its dimensions.
    head : {"lm", "scalar", "both"}
        What it puts out.
    trainable : bool
        It has a training invocation; a model that is not is frozen.
    """

    name: str
    shape: ModelShape
    head: Head = "lm"
    trainable: bool = False

    @property
    def parameters(self) -> int:
        """N_m."""
        return self.shape.parameters(self.head)


@dataclass(frozen=True, slots=True)
class Container:
    """What is passed between invocations.

    Parameters
    ----------
    name : str
        Unique in the pipeline.
    elements : str
        How many scalars, in terms of B, R, L_p and L_r, like ``B*R*(L_p+L_r)``; empty for weights.
    weights_of : str
        The model whose weights it holds; empty for data.
    """

    name: str
    elements: str = ""
    weights_of: str = ""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One use of a model within a step, a vertex of the graph.

    Parameters
    ----------
    name : str
        Unique in the pipeline.
    role : {"generation", "inference", "training"}
        What is done.
    model : str
        Name of the model.
    inputs, outputs : tuple of str
        Names of containers.
    """

    name: str
    role: Role
    model: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """An edge: `source` passes `container` to `target`, in the same step or (publication) in a later one."""

    source: str
    target: str
    container: str


@dataclass(frozen=True)
class Pipeline:
    """The compact graph G = (V, E_data, E_pub, A, M, tau).

    Parameters
    ----------
    name : str
        Name of the algorithm.
    models, containers, invocations : tuple
        M, A and V. The order of invocations breaks ties of the schedule.
    data, publications : tuple of Link
        Edges within a step, and from a training invocation to later steps.
    inputs, outputs : tuple of str
        Containers without a producer and without a consumer.
    staleness : mapping of str to int
        tau: steps by which the weights that serve a trainable model may lag; 0 for one that is not named.

    Raises
    ------
    PipelineError
        If it is not well-formed; names the edge, container, invocation or model.
    """

    name: str
    models: tuple[Model, ...]
    containers: tuple[Container, ...]
    invocations: tuple[Invocation, ...]
    data: tuple[Link, ...] = ()
    publications: tuple[Link, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    staleness: Mapping[str, int] | tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for field in ("models", "containers", "invocations", "data", "publications", "inputs", "outputs"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        pairs = self.staleness.items() if isinstance(self.staleness, Mapping) else self.staleness
        object.__setattr__(self, "staleness", tuple(sorted(pairs)))
        from rlprof.planning.well_formed import check

        check(self)

    @cached_property
    def model_by_name(self) -> dict[str, Model]:
        """Models by name."""
        return {model.name: model for model in self.models}

    @cached_property
    def container_by_name(self) -> dict[str, Container]:
        """Containers by name."""
        return {container.name: container for container in self.containers}

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each invocation, by name."""
        return {invocation.name: i for i, invocation in enumerate(self.invocations)}

    @cached_property
    def tau(self) -> dict[str, int]:
        """Staleness budget of every trainable model, in steps."""
        given = dict(self.staleness)
        return {model.name: given.get(model.name, 0) for model in self.models if model.trainable}

    @cached_property
    def training(self) -> dict[str, int]:
        """Position of the training invocation of every trainable model."""
        return {v.model: i for i, v in enumerate(self.invocations) if v.role == "training"}

    @cached_property
    def topological_order(self) -> tuple[int, ...]:
        """Positions of the invocations along data edges; of several that are ready, the first."""
        return topological_order(self)

    @cached_property
    def descendants(self) -> tuple[frozenset[int], ...]:
        """Positions that each invocation leads to over data edges."""
        reach: list[frozenset[int]] = [frozenset()] * len(self.invocations)
        for i in reversed(self.topological_order):
            direct = [self.index[e.target] for e in self.data if self.index[e.source] == i]
            reach[i] = frozenset(direct).union(*(reach[j] for j in direct))
        return tuple(reach)

    @cached_property
    def weight_pairs(self) -> tuple[tuple[int, int, str], ...]:
        """Consecutive invocations of each trainable model in topological order: (u, v, model)."""
        pairs = []
        for model in self.tau:
            of_model = [i for i in self.topological_order if self.invocations[i].model == model]
            pairs += [(u, v, model) for u, v in pairwise(of_model)]
        return tuple(pairs)

    def model_of(self, position: int) -> Model:
        """Return the model that the invocation at this position uses."""
        return self.model_by_name[self.invocations[position].model]

    def with_staleness(self, staleness: Mapping[str, int]) -> Pipeline:
        """Return the same graph with other staleness budgets."""
        return replace(self, staleness=tuple(staleness.items()))

    def volume_bytes(self, container: str, workload: Workload) -> int:
        """Return |a| s(a): the bytes that this container holds in one step."""
        found = self.container_by_name[container]
        if found.weights_of:
            return self.model_by_name[found.weights_of].parameters * workload.scalar_bytes
        return count_elements(found, workload) * workload.scalar_bytes


def topological_order(pipeline: Pipeline) -> tuple[int, ...]:
    """Return positions of the invocations along data edges.

    Raises
    ------
    PipelineError
        If data edges form a cycle; names the invocations on it.
    """
    index = pipeline.index
    before: list[set[int]] = [set() for _ in pipeline.invocations]
    for link in pipeline.data:
        before[index[link.target]].add(index[link.source])
    order: list[int] = []
    done: set[int] = set()
    while len(order) < len(before):
        ready = next((i for i, b in enumerate(before) if i not in done and b <= done), None)
        if ready is None:
            names = [pipeline.invocations[i].name for i in _cycle(before, done)]
            raise PipelineError(
                f"pipeline {pipeline.name!r}: data edges form a cycle: {' -> '.join((*names, names[0]))}",
                hint="remove one of these edges, or make it a publication",
            )
        order.append(ready)
        done.add(ready)
    return tuple(order)


def _cycle(before: list[set[int]], done: set[int]) -> list[int]:
    at, path = next(i for i in range(len(before)) if i not in done), list[int]()
    while at not in path:
        path.append(at)
        at = min(before[at] - done)
    return path[path.index(at) :][::-1]


def count_elements(container: Container, workload: Workload) -> int:
    """Return |a| of a data container.

    Raises
    ------
    PipelineError
        If its expression is not made of B, R, L_p, L_r, whole numbers, + , * and parentheses.
    """
    names = {
        "B": workload.prompts,
        "R": workload.rollouts_per_prompt,
        "L_p": workload.prompt_tokens,
        "L_r": workload.response_tokens,
    }

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return value(node.left) + value(node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return value(node.left) * value(node.right)
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0:
            return node.value
        raise ValueError

    try:
        return value(ast.parse(container.elements.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        raise PipelineError(
            f"container {container.name!r}: {container.elements!r} is no count of elements",
            hint="write it with B, R, L_p, L_r, whole numbers, +, * and parentheses, like B*R*(L_p+L_r)",
        ) from None
