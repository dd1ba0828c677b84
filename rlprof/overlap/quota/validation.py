"""Complete runs decide: the searched quota is kept only if it beats the one that was there before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlprof.analysis.trials import PairedComparison, Rule, measure_paired
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.search import QuotaSearch


@dataclass(frozen=True)
class Validation:
    """Which quota is kept, and why.

    Parameters
    ----------
    chosen : Level
        q*: the searched level if complete runs under it were better, else q0.
    kept : bool
        It is q0.
    comparison : PairedComparison or None
        Complete runs under q0 (reference) and the searched level (candidate); None if they are the same.
    reason : str
        For a person.
    """

    chosen: Level
    kept: bool
    comparison: PairedComparison | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "chosen": self.chosen.to_dict(),
            "kept": self.kept,
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "reason": self.reason,
        }


def validate(search: QuotaSearch, run: Callable[[Level], float], rule: Rule | None = None) -> Validation:
    """Validate the answer of a search end to end (last line of Algorithm 2).

    Parameters
    ----------
    search : QuotaSearch
        What was found.
    run : callable
        Runs a complete iteration under a level and returns its time in seconds. Runs under both levels are
        interleaved, and each advances training.
    rule : Rule, optional
        When a difference is clear; a gain within the noise is none.

    Returns
    -------
    Validation
        q0 unless complete iterations under the searched level are better. If the search ended where it began
        nothing is run.
    """
    q0, found = search.start_level, search.best_level
    if found == q0:
        return unneeded(search)
    rule = rule or Rule()
    return decided(search, measure_paired(lambda: run(q0), lambda: run(found), rule), rule)


def unneeded(search: QuotaSearch) -> Validation:
    """Keep q0, as a search that ended where it began has found: nothing is run for that."""
    reason = "no other level was faster in local trials"
    if not search.complete:
        tried = len({trial.k for trial in search.trials} - {search.start})
        levels = len(search.levels) - 1
        reason = f"none of the {tried} levels tried, of {levels} others, was faster; {search.reason}"
    return Validation(search.start_level, True, None, reason)


def decided(search: QuotaSearch, comparison: PairedComparison, rule: Rule) -> Validation:
    """Decide by complete iterations under q0 (reference) and the level that was found (candidate)."""
    q0, found = search.start_level, search.best_level
    if comparison.decision == "better":
        return Validation(
            found, False, comparison, f"complete runs gain {comparison.gain_frac:.1%}, {comparison.reason}"
        )
    what = "are slower" if comparison.decision == "worse" else "gain nothing that counts"
    if not comparison.settled and len(comparison.pairs) < rule.most_pairs:  # a budget ended it
        what = "do not tell whether it gains"
    return Validation(q0, True, comparison, f"complete runs under it {what}, {comparison.reason}")
