"""How plans are searched; every mechanism can be switched off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlprof.errors import UsageError
from rlprof.planning.limits import MOST_STEPS

Objective = Literal["throughput", "efficiency"]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Budget, objective and mechanisms of the search (specification B, section 7).

    Parameters
    ----------
    seconds : float or None
        Time to spend; None for no limit.
    evaluations : int or None
        Plans to evaluate, cached ones not counted; None for no limit. One of both is needed.
    seed : int
        Of all random choices.
    objective : {"throughput", "efficiency"}
        Tokens per second; or that times utilisation, of plans that lose little throughput.
    most_loss_frac : float
        zeta: the most throughput that the efficiency objective gives up.
    staleness : tuple of int
        Budgets tried for each trainable model.
    share_actor_critic : bool
        Also try one backbone for actor and critic, where both have the same shape. It is another model, so
        it has to be asked for.
    search_microbatches : bool
        False: as many microbatches as stages, twice as many for training.
    proposals : int
        Plans proposed per round.
    pair_probability : float
        Of the donor-receiver move.
    critical_probability : float
        Of taking an invocation from the critical path.
    guided_probability : float
        Of drawing a strategy among the fastest of its extent, half of the time on the box of another
        invocation; otherwise it is drawn from all alike, as in the paper.
    patience : int
        Rejections in a row that end a chain.
    first_temperature, warm_temperature : float
        Of the first chain and of later ones; relative to the score.
    cooling : float or None
        Factor of the temperature per round, down to `least_temperature`; None for a constant one.
    least_temperature : float
        See `cooling`.
    warm_restarts : bool
        Later chains start from elite plans; otherwise from the baseline.
    elites : int
        Feasible plans kept as starts.
    penalise_memory : bool
        Plans beyond the memory are penalised; otherwise rejected.
    polish : bool
        Try every candidate of each invocation in turn at the end.
    polish_pairs : bool
        Then also change several invocations at once, with fast strategies on boxes near those of the plan:
        any two, and the three shortest; the paper does not.

    Raises
    ------
    UsageError
        If there is no budget, or a value is out of range.
    """

    seconds: float | None = None
    evaluations: int | None = None
    seed: int = 0
    objective: Objective = "throughput"
    most_loss_frac: float = 0.10
    staleness: tuple[int, ...] = (0, 1)
    share_actor_critic: bool = False
    search_microbatches: bool = True
    proposals: int = 6
    pair_probability: float = 0.28
    critical_probability: float = 0.6
    guided_probability: float = 0.5
    patience: int = 10
    first_temperature: float = 0.02
    warm_temperature: float = 0.05
    cooling: float | None = None
    least_temperature: float = 1e-3
    warm_restarts: bool = True
    elites: int = 3
    penalise_memory: bool = True
    polish: bool = True
    polish_pairs: bool = True

    def __post_init__(self) -> None:
        if self.seconds is None and self.evaluations is None:
            raise UsageError("a search without a budget", hint="give seconds or evaluations")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"a budget of {self.seconds} s", hint="give more than 0 s")
        for name in ("evaluations", "proposals", "patience", "elites"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}", hint="give at least 1")
        for name in ("most_loss_frac", "pair_probability", "critical_probability", "guided_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is {getattr(self, name)}", hint="give a number from 0 to 1")
        if self.objective not in ("throughput", "efficiency"):
            raise UsageError(f"the objective is {self.objective!r}", hint="use throughput or efficiency")
        if not self.staleness or min(self.staleness) < 0 or max(self.staleness) > MOST_STEPS:
            raise UsageError(
                f"staleness budgets {self.staleness}", hint=f"give 0, 1, 2, ... up to {MOST_STEPS:,} steps"
            )
        if min(self.first_temperature, self.warm_temperature, self.least_temperature) <= 0:
            raise UsageError("a temperature is not above 0")
