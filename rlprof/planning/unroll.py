"""Unrolling: the compact cyclic graph over several steps, as an acyclic one (specification B, section 2)."""

from __future__ import annotations

from dataclasses import dataclass

from rlprof.errors import UsageError
from rlprof.planning.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Step:
    """An invocation in one step: position in the pipeline, and number of the step."""

    vertex: int
    step: int


@dataclass(frozen=True, slots=True)
class UnrolledEdge:
    """`source` precedes `target` and passes `container` on."""

    source: Step
    target: Step
    container: str


@dataclass(frozen=True)
class UnrolledGraph:
    """Every invocation of every step.

    Parameters
    ----------
    pipeline : Pipeline
        What was unrolled.
    steps : int
        K_eval.
    data : tuple of UnrolledEdge
        Within a step.
    publications : tuple of UnrolledEdge
        Weights from a training invocation to one that serves them in a later step.
    updates : tuple of UnrolledEdge
        From each training invocation to the same of the next step, whatever the staleness.
    """

    pipeline: Pipeline
    steps: int
    data: tuple[UnrolledEdge, ...]
    publications: tuple[UnrolledEdge, ...]
    updates: tuple[UnrolledEdge, ...]


def served_version(step: int, staleness: int) -> int:
    """Return the version of the weights that serve in a step: 0 is the initial checkpoint, training in step j
    makes version j + 1.
    """
    return max(0, step - staleness)


def unroll(pipeline: Pipeline, steps: int) -> UnrolledGraph:
    """Unroll over so many steps (Algorithm 3).

    A publication of model m reaches step k from step k - tau(m) - 1; the first tau(m) + 1 steps are served by
    the initial checkpoint and wait for no training.

    Parameters
    ----------
    pipeline : Pipeline
        With its staleness budgets.
    steps : int
        K_eval, at least 1.

    Raises
    ------
    UsageError
        If there is no step.
    """
    if steps < 1:
        raise UsageError(f"a horizon of {steps} steps", hint="unroll over at least 1 step")
    index = pipeline.index
    data = [
        UnrolledEdge(Step(index[e.source], k), Step(index[e.target], k), e.container)
        for k in range(steps)
        for e in pipeline.data
    ]
    publications = []
    for k in range(steps):
        for e in pipeline.publications:
            u = index[e.source]
            from_step = k - pipeline.tau[pipeline.invocations[u].model] - 1
            if from_step >= 0:
                publications.append(UnrolledEdge(Step(u, from_step), Step(index[e.target], k), e.container))
    updates = [
        UnrolledEdge(Step(u, k - 1), Step(u, k), f"optimizer of {model}")
        for k in range(1, steps)
        for model, u in pipeline.training.items()
    ]
    return UnrolledGraph(pipeline, steps, tuple(data), tuple(publications), tuple(updates))
