"""Where the gain of a plan comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlprof.planning.evaluate import Evaluation, evaluate


@dataclass(frozen=True, slots=True)
class Rung:
    """One step from a baseline to a plan.

    Parameters
    ----------
    what : str
        What was added.
    score : float
        Throughput with it, in tokens per second.
    gain_frac : float
        Over the rung before; 0 for the first.
    """

    what: str
    score: float
    gain_frac: float


def ladder(
    evaluation: Evaluation, concurrent: Evaluation, synchronous_score: float | None = None
) -> list[Rung]:
    """Return the way from the concurrent baseline to a plan.

    Parameters
    ----------
    evaluation, concurrent : Evaluation
        Of the plan and of the baseline.
    synchronous_score : float, optional
        Of the best plan that the search found without staleness and sharing.
    """
    rungs = [("concurrent baseline", concurrent.score)]
    pipeline = evaluation.problem.pipeline
    more = ["staleness"] if any(pipeline.tau.values()) else []
    if pipeline.name != concurrent.problem.pipeline.name:
        more.append("sharing")
    if synchronous_score is not None and more:
        rungs.append(("placement, parallelism, microbatches", synchronous_score))
        rungs.append((f"{' and '.join(more)}, and placement for that", evaluation.score))
    else:
        rungs.append((", ".join(["placement, parallelism, microbatches", *more]), evaluation.score))
    before = concurrent.score
    found = []
    for what, score in rungs:
        found.append(Rung(what, score, score / before - 1))
        before = score
    return found


@dataclass(frozen=True, slots=True)
class Loss:
    """What a plan loses without one of its mechanisms, everything else as it is.

    Parameters
    ----------
    what : str
        The mechanism.
    score : float
        Throughput without it, in tokens per second.
    loss_frac : float
        Share of the throughput that is lost; negative if the plan is better without.
    """

    what: str
    score: float
    loss_frac: float


def losses(evaluation: Evaluation) -> list[Loss]:
    """Return what staleness, splitting and fusion are worth in a plan: each is taken away alone."""
    problem, options, graph = evaluation.problem, evaluation.problem.options, evaluation.graph
    found = []
    if any(problem.pipeline.tau.values()):
        found.append(("staleness", replace(problem, pipeline=problem.pipeline.with_staleness({}))))
    if any(node.phases > 1 for node in graph.nodes):
        whole = replace(options, split_generation=False)
        found.append(("splitting by response length", replace(problem, options=whole)))
    if any(node.fused_with >= 0 for node in graph.nodes):
        apart = replace(options, fuse_training=False)
        found.append(("stage fusion", replace(problem, options=apart)))
    scores = [(what, evaluate(without, evaluation.plan).score) for what, without in found]
    return [Loss(what, score, 1 - score / evaluation.score) for what, score in scores]
