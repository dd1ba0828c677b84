"""The budget of a search: what is left of it, and comparisons within it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlprof.analysis.trials import PairedComparison, Rule, measure_paired
from rlprof.overlap.optimize.machine import Sides
from rlprof.overlap.optimize.options import exhausted


class Spent(Exception):
    """Nothing is left of the budget."""


class Budget:
    """Time in which measurements may begin.

    Parameters
    ----------
    limit_s : float or None
        From now on, seconds; None: no limit.
    clock : callable
        Seconds.
    """

    def __init__(self, limit_s: float | None, clock: Callable[[], float]) -> None:
        self._limit_s, self._clock, self._began = limit_s, clock, clock()
        #: A comparison was ended before it was decided: another call makes it again.
        self.cut = False

    def check(self) -> None:
        """Raise `Spent` if nothing is left."""
        if self._limit_s is not None and self._clock() - self._began >= self._limit_s:
            raise Spent

    def paired(
        self,
        reference: Callable[[], float],
        candidate: Callable[[], float],
        rule: Rule,
        sides: Sides,
        watch: Callable[[PairedComparison], None],
    ) -> PairedComparison:
        """Measure two ways in turn as `measure_paired`, within what is left.

        Parameters
        ----------
        reference, candidate : callable
            Do the work once; seconds.
        rule : Rule
            When the comparison ends; a budget of its own, if it has one.
        sides : Sides
            Looks at the machine beside them.
        watch : callable
            Gets the comparison after each pair.
        """
        ran = replace(rule, budget_s=self._left_s(rule.budget_s))
        watched = sides.reference(reference), sides.candidate(candidate)
        result = sides.judged(measure_paired(*watched, ran, clock=self._clock, watch=watch))
        self.cut |= ran.budget_s != rule.budget_s and not exhausted(result, rule)
        return result

    def _left_s(self, own_s: float | None) -> float | None:
        if self._limit_s is None:
            return own_s
        left_s = max(0.0, self._limit_s - (self._clock() - self._began))
        return left_s if own_s is None else min(left_s, own_s)
