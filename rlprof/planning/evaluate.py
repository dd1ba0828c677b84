"""One plan, judged: lowered, costed, scheduled, and checked against memory (specification B, section 6).

This is the plain evaluator. It keeps every intermediate result and is the reference for faster ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlprof.planning.cluster import Cluster
from rlprof.planning.cost_memory import GroupMemory, group_memory, operator_memory
from rlprof.planning.executable import ExecutableGraph
from rlprof.planning.fusion import fused_pairs
from rlprof.planning.lower import lower
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Pipeline
from rlprof.planning.plan import Plan
from rlprof.planning.timeline import Timeline, schedule
from rlprof.planning.times import ModelTimes, NodeTimes, times_of
from rlprof.planning.workload import Workload

#: How steeply memory beyond the capacity is penalised, beta_oom.
MEMORY_PENALTY = 40.0
#: Score of a plan that is slower than the efficiency objective allows.
FLOOR_SCORE = 1e-12


@dataclass(frozen=True)
class Problem:
    """What is planned for.

    Parameters
    ----------
    pipeline : Pipeline
        The graph, with shapes and staleness budgets.
    workload : Workload
        Work of a step.
    cluster : Cluster
        Machines.
    options : ModelOptions
        Horizon, and choices of the cost model.
    """

    pipeline: Pipeline
    workload: Workload
    cluster: Cluster
    options: ModelOptions = ModelOptions()  # noqa: RUF009  frozen


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the cost model says about a plan.

    Parameters
    ----------
    problem, plan
        What was evaluated.
    graph, timeline, times
        Executable graph, its schedule, and where its times come from.
    memory : tuple of GroupMemory
        Of every group of GPUs that the plan uses.
    """

    problem: Problem
    plan: Plan
    graph: ExecutableGraph
    timeline: Timeline
    times: NodeTimes
    memory: tuple[GroupMemory, ...]

    @property
    def makespan_s(self) -> float:
        """Of all unrolled steps."""
        return self.timeline.makespan_s

    @property
    def score(self) -> float:
        """Throughput in tokens per second: K_eval B R (L_p + L_r) / makespan."""
        tokens = self.problem.options.steps * self.problem.workload.step_tokens
        return tokens / self.makespan_s if self.makespan_s else math.inf

    @property
    def utilisation_frac(self) -> float:
        """Mean over all GPUs of the cluster of the share of the makespan for which they are held."""
        return self.timeline.utilisation_frac

    @property
    def peak_bytes(self) -> float:
        """Of the fullest GPU."""
        return max((group.peak_bytes for group in self.memory), default=0.0)

    @property
    def memory_ratio(self) -> float:
        """Peak over usable memory; feasible up to 1."""
        return self.peak_bytes / self.problem.cluster.usable_bytes

    @property
    def feasible(self) -> bool:
        """Whether the peak fits on every GPU."""
        return self.memory_ratio <= 1.0

    @property
    def penalised_score(self) -> float:
        """Score, cut down where memory is exceeded."""
        return self.score * memory_penalty(self.memory_ratio)


def memory_penalty(ratio: float) -> float:
    """exp(-40 max(0, peak / usable - 1))."""
    return math.exp(-MEMORY_PENALTY * max(0.0, ratio - 1.0))


def efficiency_score(
    score: float, utilisation_frac: float, best_score: float, most_loss_frac: float
) -> float:
    """Score times utilisation, for plans that lose at most a share of the best throughput found so far.

    Parameters
    ----------
    score, utilisation_frac : float
        Of the plan.
    best_score : float
        Score*, of the best feasible plan so far.
    most_loss_frac : float
        zeta.
    """
    return score * utilisation_frac if score >= (1.0 - most_loss_frac) * best_score else FLOOR_SCORE


def plan_memory(problem: Problem, plan: Plan) -> tuple[GroupMemory, ...]:
    """Return what every group of GPUs holds under a plan, which is taken to fit."""
    pipeline = problem.pipeline
    at = [plan[v.name] for v in pipeline.invocations]
    needs = [
        operator_memory(v.role, pipeline.model_of(i), problem.workload, at[i], problem.options)
        for i, v in enumerate(pipeline.invocations)
    ]
    masks = [a.box.mask(problem.cluster) for a in at]
    fused = fused_pairs(pipeline, at) if problem.options.fuse_training else None
    return group_memory(pipeline, masks, needs, fused)


def evaluate(problem: Problem, plan: Plan, times: NodeTimes | None = None) -> Evaluation:
    """Evaluate one plan.

    Parameters
    ----------
    problem : Problem
        What is planned for.
    plan : Plan
        Of every invocation.
    times : NodeTimes, optional
        Times of nodes; the cost model's by default.

    Raises
    ------
    PlanError
        If the plan does not fit pipeline, workload or cluster.
    """
    p = problem
    graph = lower(p.pipeline, plan, p.workload, p.cluster, p.options)
    source = times or ModelTimes(p.pipeline, plan, p.workload, p.cluster, p.options)
    timeline = schedule(graph, times_of(graph, source), p.cluster, reserve_source=p.options.reserve_source)
    return Evaluation(problem, plan, graph, timeline, source, plan_memory(problem, plan))
