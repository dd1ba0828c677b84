"""Levels measured in pairs with q0, each once, and whether the budget holds another one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from rlprof.analysis.trials import PairedComparison
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.search import Measurement
from rlprof.unavailable import Unavailable


@dataclass(frozen=True)
class PairedLevels:
    """Local times of levels: that of q0 less what a level gains over it.

    What drifts meets both sides of a pair, so that levels which were measured far apart can be compared.

    Parameters
    ----------
    q0 : Measurement
        Of the last level: what gains are subtracted from.
    top : Level
        The last level.
    compare : callable
        Compares a level with q0, in pairs; why it cannot.
    known : dict
        What was measured, by level.
    """

    q0: Measurement
    top: Level
    compare: Callable[[Level], PairedComparison | Unavailable]
    known: dict[Level, Measurement | Unavailable] = field(default_factory=dict)

    def __call__(self, level: Level) -> Measurement | Unavailable:
        """Measure a level, if it was not measured."""
        if level == self.top:
            return self.q0
        if level not in self.known:
            found = self.compare(level)
            if isinstance(found, Unavailable):
                self.known[level] = found
            else:
                time_s, width_s = self.q0.time_s - found.gain_s, found.candidate.width_s
                self.known[level] = Measurement(time_s, width_s, len(found.pairs), found)
        return self.known[level]


def no_further_level(left_s: float, budget_s: float | None, trial_s: float, validation_s: float) -> str:
    """Say why no further level is begun: the validation needs the time that is left; empty if one is.

    Parameters
    ----------
    left_s, budget_s : float
        What is left of the budget, and the budget, in seconds; None: there is none.
    trial_s, validation_s : float
        What a further level and the validation would probably take, in seconds.
    """
    if budget_s is None or trial_s + validation_s <= left_s:
        return ""
    budget = f"the budget of {budget_s:.3g} s"
    if left_s <= 0:
        return f"{budget} was spent"
    return (
        f"{left_s:.3g} s of {budget} were left, of which a further level would take about {trial_s:.3g} s"
        f" and the validation {validation_s:.3g} s,"
    )


def no_validation(left_s: float, budget_s: float | None, validation_s: float) -> str:
    """Say why the answer is not validated; empty if it is. Parameters as of `no_further_level`."""
    if budget_s is None or validation_s <= left_s:
        return ""
    return (
        f"{max(0.0, left_s):.3g} s of the budget of {budget_s:.3g} s were left and the validation would take"
        f" about {validation_s:.3g} s"
    )


def left_of(budget_s: float | None, spent_s: float) -> float:
    """What is left of a budget, in seconds; infinite without one."""
    return math.inf if budget_s is None else budget_s - spent_s
