"""Algorithm 2 (Rose, section 4.4): the quota of one process, coarse to fine around a fixed anchor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from rlprof.errors import UsageError
from rlprof.overlap.quota.errors import QuotaError
from rlprof.overlap.quota.levels import Level
from rlprof.unavailable import Unavailable

Phase = Literal["start", "coarse", "fine", "sweep"]


@dataclass(frozen=True)
class Measurement:
    """Local time under one level.

    Parameters
    ----------
    time_s : float
        What levels are compared by, in seconds.
    spread_s : float or None
        Distance of the quartiles of what it is the median of, in seconds; None if measured once.
    runs : int
        How many times it is the median of.
    detail : object
        What else the measurement holds, such as a `rlprof.analysis.trials.PairedComparison`.
    """

    time_s: float
    spread_s: float | None = None
    runs: int = 1
    detail: Any = None


@dataclass(frozen=True)
class Trial:
    """One level that was measured.

    Parameters
    ----------
    k : int
        Number of the level, from 1 (weakest) to Q.
    level : Level
        The quota.
    phase : {"start", "coarse", "fine", "sweep"}
        Which part of the search asked for it; "sweep" for none.
    measurement : Measurement or Unavailable
        Its time; a level that could not be measured counts as slower than all others.
    """

    k: int
    level: Level
    phase: Phase
    measurement: Measurement | Unavailable

    @property
    def time_s(self) -> float:
        """Measured time in seconds; infinite if there is none."""
        return self.measurement.time_s if isinstance(self.measurement, Measurement) else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        row: dict[str, Any] = {"k": self.k, "phase": self.phase, **self.level.to_dict()}
        found = self.measurement
        if isinstance(found, Unavailable):
            return row | {"time_s": None, "unavailable": found.reason}
        row |= {"time_s": found.time_s, "spread_s": found.spread_s, "runs": found.runs}
        if hasattr(found.detail, "to_dict"):
            row["comparison"] = found.detail.to_dict()
        return row


@dataclass(frozen=True)
class QuotaSearch:
    """What Algorithm 2 measured, and its answer.

    Parameters
    ----------
    levels : tuple of Level
        All, weakest first.
    start : int
        k0, the level of q0.
    step : int
        rho, the coarse step.
    trials : tuple of Trial
        H, in the order measured; each level at most once.
    anchor : int
        kb, the best of the coarse part, around which the fine part searched.
    best : int
        k*, the level with the least time; of equal ones the first that was measured. Of those that can be
        used: under some matrix products are wrong, and `reason` tells which were passed over.
    complete : bool
        The search went to its end; False: the budget ended it, and `best` is the best of what was measured.
    reason : str
        Why it ended, for a person.
    """

    levels: tuple[Level, ...]
    start: int
    step: int
    trials: tuple[Trial, ...]
    anchor: int
    best: int
    complete: bool
    reason: str

    @property
    def measured(self) -> dict[int, float]:
        """H: time in seconds by level number, in the order measured."""
        return {trial.k: trial.time_s for trial in self.trials}

    @property
    def best_level(self) -> Level:
        """The level with the least time."""
        return self.levels[self.best - 1]

    @property
    def start_level(self) -> Level:
        """The level of q0."""
        return self.levels[self.start - 1]

    def trial(self, k: int) -> Trial:
        """Return the trial of a level.

        Raises
        ------
        KeyError
            If it was not measured.
        """
        for trial in self.trials:
            if trial.k == k:
                return trial
        raise KeyError(k)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        rows = [{"order": order, **trial.to_dict()} for order, trial in enumerate(self.trials)]
        return {
            "levels": [level.to_dict() for level in self.levels],
            "start": self.start,
            "step": self.step,
            "trials": rows,
            "anchor": self.anchor,
            "best": self.best,
            "complete": self.complete,
            "reason": self.reason,
        }


class Spent(Exception):
    """No further trial is to be begun, for a reason: ends a search with what it has."""


def coarse_step(levels: int) -> int:
    """rho: max(2, Q // 16)."""
    return max(2, levels // 16)


def most_trials(levels: int, start: int | None = None) -> int:
    """Upper bound of the number of levels that `quota_search` measures.

    Parameters
    ----------
    levels, start : int
        Q, and k0 (Q by default).

    Returns
    -------
    int
        Start and coarse steps, and the fine steps between the anchor and its coarse neighbours; at most Q.
    """
    start = levels if start is None else start
    step = coarse_step(levels)
    coarse = 1 + math.ceil((start - 1) / step)
    return min(levels, coarse + (step - 1) + max(step - 1, levels - start))


def quota_search(
    levels: Sequence[Level],
    measure: Callable[[Level], float | Measurement | Unavailable],
    start: int | None = None,
    *,
    spent: Callable[[], bool | str] | None = None,
    watch: Callable[[Trial], None] | None = None,
) -> QuotaSearch:
    """Search the level with the least local time (Specification A, section 9).

    From the start downwards in steps of rho until the time rises; then, from the best of these, one level at
    a time in both directions until it rises or a level is reached that was measured. That finds the least
    time wherever times strictly fall and then strictly rise.

    Parameters
    ----------
    levels : sequence of Level
        All levels, weakest first.
    measure : callable
        Measures the same work under a level: seconds or a `Measurement`. `Unavailable` says that there is no
        time under this level; `Spent` ends the search with what it has, whatever else it raises goes through.
    start : int, optional
        k0, from 1 to Q; Q by default.
    spent : callable, optional
        Asked before every trial but the first: True (the budget was spent) or a reason of its own ends the
        search with what it has.
    watch : callable, optional
        Gets each trial when it is done.

    Returns
    -------
    QuotaSearch
        All that was measured.

    Raises
    ------
    UsageError
        If there is no level, they are not in ascending order, `start` is none of them, or a time is negative
        or no number.
    QuotaError
        If the start itself cannot be measured.
    """
    levels = _ascending(levels)
    count = len(levels)
    k0 = count if start is None else start
    if not 1 <= k0 <= count:
        raise UsageError(f"the search is to start at level {k0}", hint=f"there are levels 1 to {count}")
    search = _Search(levels, measure, spent, watch)
    rho, anchor, complete = coarse_step(count), k0, True
    try:
        search.take(k0, "start")
        anchor = search.coarse(k0, rho)
        search.fine(anchor)
        reason = f"the time rises on both sides of level {anchor}, or the levels end"
    except Spent as why:
        complete = False
        reason = f"{why} after {len(search.trials)} of at most {most_trials(count, k0)} trials"
        anchor = search.anchor
    best = min(search.times, key=search.times.__getitem__)  # of equal ones the first
    return QuotaSearch(levels, k0, rho, tuple(search.trials), anchor, best, complete, reason)


def unfinished(levels: Sequence[Level], trials: Sequence[Trial], reason: str) -> QuotaSearch:
    """Return what there is of a search from the last level that has not ended.

    Parameters
    ----------
    levels : sequence of Level
        All levels, weakest first.
    trials : sequence of Trial
        Those that were measured; at least the start.
    reason : str
        Why it has not ended.
    """
    count, best = len(levels), min(trials, key=lambda trial: trial.time_s)
    return QuotaSearch(tuple(levels), count, coarse_step(count), tuple(trials), count, best.k, False, reason)


def sweep(
    levels: Sequence[Level],
    measure: Callable[[Level], float | Measurement | Unavailable],
    every: int = 1,
    *,
    spent: Callable[[], bool | str] | None = None,
    watch: Callable[[Trial], None] | None = None,
) -> tuple[Trial, ...]:
    """Measure every so many levels, from the last one down: the curve along which the search goes.

    Parameters
    ----------
    levels, measure, spent, watch
        As of `quota_search`.
    every : int
        1: all levels.

    Raises
    ------
    UsageError
        As `quota_search`, or if `every` is below 1.
    """
    levels = _ascending(levels)
    if every < 1:
        raise UsageError(f"every {every} levels cannot be measured", hint="give 1 for all of them")
    trials: list[Trial] = []
    for k in range(len(levels), 0, -every):
        if trials and spent is not None and spent():
            break
        trials.append(_measured(k, levels[k - 1], "sweep", measure))
        if watch is not None:
            watch(trials[-1])
    return tuple(trials)


def _ascending(levels: Sequence[Level]) -> tuple[Level, ...]:
    levels = tuple(levels)
    if not levels or any(a.amount >= b.amount for a, b in pairwise(levels)):
        raise UsageError("the levels are not in ascending order", hint="give distinct(probed), weakest first")
    return levels


def _measured(
    k: int, level: Level, phase: Phase, measure: Callable[[Level], float | Measurement | Unavailable]
) -> Trial:
    found = measure(level)
    if not isinstance(found, Measurement | Unavailable):
        found = Measurement(float(found))
    trial = Trial(k, level, phase, found)
    if math.isnan(trial.time_s) or trial.time_s < 0:
        raise UsageError(f"the time under level {k} is {trial.time_s}", hint="measure must give seconds")
    return trial


class _Search:
    """The state of one search: H, and the budget."""

    def __init__(
        self,
        levels: tuple[Level, ...],
        measure: Callable[[Level], float | Measurement | Unavailable],
        spent: Callable[[], bool | str] | None,
        watch: Callable[[Trial], None] | None,
    ) -> None:
        self.levels, self.measure, self.spent, self.watch = levels, measure, spent, watch
        self.trials: list[Trial] = []
        self.times: dict[int, float] = {}
        self.anchor = 0

    def take(self, k: int, phase: Phase) -> float:
        """Measure level k."""
        if self.trials and self.spent is not None and (why := self.spent()):
            raise Spent(why if isinstance(why, str) else "the budget was spent")
        trial = _measured(k, self.levels[k - 1], phase, self.measure)
        if phase == "start":
            if isinstance(trial.measurement, Unavailable):
                raise QuotaError(f"the quota to start from cannot be measured: {trial.measurement.reason}")
            self.anchor = k
        self.trials.append(trial)
        self.times[k] = trial.time_s
        if self.watch is not None:
            self.watch(trial)
        return trial.time_s

    def coarse(self, best: int, rho: int) -> int:
        """Go down in steps of `rho` until the time rises; return the last level before that."""
        while best > 1:
            k = max(1, best - rho)
            if self.take(k, "coarse") > self.times[best]:
                break
            best = self.anchor = k
        return best

    def fine(self, anchor: int) -> None:
        """Go down and up from the anchor, which stays, until the time rises above its or a level is known."""
        for direction in (-1, 1):
            k = anchor + direction
            while 1 <= k <= len(self.levels) and k not in self.times:
                if self.take(k, "fine") > self.times[anchor]:
                    break
                k += direction
