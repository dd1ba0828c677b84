"""Which schedule and how many GPUs for each role: all placements of a few GPUs, found without trying all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlprof.taskgraph import schedule
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.schedule_graph import Costs, Shape, iteration_graph
from rlprof.workloads.embodied.schedules import SCHEDULES, StageSchedule

#: Costs of a stage: gets the schedule and the GPUs of simulator, rollout and actor.
Pricing = Callable[[StageSchedule, int, int, int], Costs]


@dataclass(frozen=True)
class Placement:
    """A schedule on some of the GPUs.

    Parameters
    ----------
    schedule : StageSchedule
        A synchronous one.
    env, rollout, actor : int
        GPUs of each role; the same ones where they are colocated, otherwise the actor's are those of both.
    time_s : float
        Predicted time of an iteration.
    """

    schedule: StageSchedule
    env: int
    rollout: int
    actor: int
    time_s: float = float("inf")


def placements(gpus: int) -> Iterator[Placement]:
    """Yield every placement on at most so many GPUs; the others are idle."""
    for s in SCHEDULES.values():
        if s.asynchronous:
            continue
        for first in range(1, gpus + 1):
            if s.placement == "colocated":
                yield Placement(s, first, first, first)
                continue
            for second in range(1, gpus - first + 1):
                yield Placement(s, first, second, first + second)


def predicted_s(placement: Placement, shape: Shape, pricing: Pricing) -> float:
    """Time of an iteration: the makespan of its task graph."""
    costs = pricing(placement.schedule, placement.env, placement.rollout, placement.actor)
    return schedule(iteration_graph(placement.schedule, shape, costs)).makespan_s


def bound_s(placement: Placement, shape: Shape, pricing: Pricing) -> float:
    """Time that no schedule of this placement beats.

    It is the longer of the simulator's and the rollout's own time, and training after it.
    """
    p = placement
    costs = pricing(p.schedule, p.env, p.rollout, p.actor)
    calls = shape.epochs * p.schedule.stages
    values = costs.values_s if costs.values_s is not None else costs.predict_s
    env = calls * (_known(costs.reset_s) + shape.chunks * _known(costs.env_s))
    answers = calls * (shape.chunks * _known(costs.predict_s) + shape.values * _known(values))
    training = shape.update_epochs * shape.parts * shape.minibatches * _known(costs.train_s)
    return _known(costs.sync_s) + max(env, answers) + training


def _known(seconds: float | None) -> float:
    if seconds is None:
        raise ConfigurationError(
            "a placement is compared by times, and one is not known", hint="give all costs"
        )
    return seconds


def best_placement(gpus: int, shape: Shape, pricing: Pricing) -> Placement:
    """Return the placement with the shortest iteration; of equal ones the first that `placements` yields.

    Parameters
    ----------
    gpus : int
        There are.
    shape : Shape
        Sizes of an iteration.
    pricing : callable
        Costs of a stage.

    Raises
    ------
    ConfigurationError
        If there is no GPU, or a cost is not known.
    """
    if gpus < 1:
        raise ConfigurationError(f"{gpus} GPUs cannot run anything", hint="give at least 1")
    every = list(placements(gpus))
    # the most promising first, so that the others need not be scheduled
    order = sorted(range(len(every)), key=lambda i: (bound_s(every[i], shape, pricing), i))
    best, time_s = -1, float("inf")
    for i in order:
        if bound_s(every[i], shape, pricing) > time_s:
            break
        found = predicted_s(every[i], shape, pricing)
        if (found, i) < (time_s, best if best >= 0 else len(every)):
            best, time_s = i, found
    p = every[best]
    return Placement(p.schedule, p.env, p.rollout, p.actor, time_s)
