"""What the algorithm is given beside the program, and when a measurement counts as faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlprof.analysis.trials import PairedComparison, Rule, compare
from rlprof.errors import UsageError
from rlprof.overlap.optimize.comparison import ITERATIONS
from rlprof.overlap.optimize.windows import TAU_ABS_S, TAU_REL_FRAC


@dataclass(frozen=True)
class Options:
    """Inputs of the algorithm beside the program.

    Parameters
    ----------
    targets, alternatives, rounds : int
        K, L and R. The paper has K = 3 and R = 2.
    epsilon : float
        A round ends the search if it gains less than this share of the iteration.
    tau_abs_s, tau_rel_frac : float
        Least time of a window in an iteration: the smaller of the two.
    groups : tuple of int
        Numbers of parts to try.
    iterations : int
        Of a loop in a comparison.
    outer_iterations : int or None
        Of a loop that has a loop of several workers inside, which fills and drains; None: as `iterations`.
    warm_up : bool
        Run each form of a comparison once before it is measured.
    local : Rule
        When a local comparison ends.
    validation : Rule
        When a comparison of complete iterations ends; what must be gained is `epsilon`. With fewer pairs
        than a decision needs, medians alone decide, as in the paper.
    combinations : int
        How many combinations are validated in a round before it is given up.
    budget_s : float or None
        No measurement is begun after so long.
    given_budget_s : float or None
        What was given, of which `budget_s` is what levers left; None: `budget_s` is all. It is only told.
    memory_bytes : float or None
        M; None: memory is not looked at.

    Raises
    ------
    UsageError
        If a number is out of range.
    """

    targets: int = 3
    alternatives: int = 2
    rounds: int = 2
    epsilon: float = 0.01
    tau_abs_s: float = TAU_ABS_S
    tau_rel_frac: float = TAU_REL_FRAC
    groups: tuple[int, ...] = (2,)
    warm_up: bool = True
    iterations: int = ITERATIONS
    outer_iterations: int | None = None
    local: Rule = field(default_factory=lambda: Rule(confidence=0.9, most_pairs=9))
    validation: Rule = field(default_factory=lambda: Rule(confidence=0.9, most_pairs=8))
    combinations: int = 1
    budget_s: float | None = None
    given_budget_s: float | None = None
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("targets", "alternatives", "rounds", "iterations", "combinations"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", hint="give a number from 1 on")
        if not 0 < self.epsilon < 1:
            raise UsageError(f"epsilon is {self.epsilon}", hint="give a share between 0 and 1")
        if not self.groups or min(self.groups) < 2:
            raise UsageError(f"groups are {self.groups}", hint="give numbers from 2 on")

    @property
    def budget_spent(self) -> str:
        """What is said where the budget ends a search: as it was given, and what levers left of it."""
        left = self.budget_s or 0.0
        given = left if self.given_budget_s is None else self.given_budget_s
        # building takes a moment of it too, which is not worth a word
        after = f" ({round(left, 1):g} s after levers)" if given - left >= 1 else ""
        return f"the budget of {round(given, 1):g} s is spent{after}"

    def to_dict(self) -> dict[str, Any]:
        """Return the options as a JSON document."""
        return asdict(self)


def faster(result: PairedComparison, rule: Rule, least_gain_frac: float = 0.0) -> bool:
    """Whether a candidate is faster than its reference.

    Parameters
    ----------
    result : PairedComparison
        What was measured.
    rule : Rule
        With it. Where it allows fewer pairs than a decision needs, the medians decide, as in the paper, and
        the candidate must have won every pair.
    least_gain_frac : float
        eps.
    """
    if rule.least_pairs is not None and rule.least_pairs <= rule.most_pairs:
        return result.decision == "better"
    won = all(candidate < reference for reference, candidate in result.pairs)
    return won and result.candidate.median_s < (1 - least_gain_frac) * result.reference.median_s


def exhausted(result: PairedComparison, rule: Rule) -> bool:
    """Whether a comparison ended by itself: by this rule no further pair would be measured."""
    return result.settled or len(result.pairs) >= rule.most_pairs


def known_comparison(document: Mapping[str, Any] | None, rule: Rule) -> PairedComparison | None:
    """Make a comparison of its JSON document, by a rule that may be another than it was measured by.

    Returns
    -------
    PairedComparison or None
        None: there is no document, or by this rule it was not measured to its end. A decision that five
        pairs give where eight are allowed may need six where sixteen are.
    """
    if document is None:
        return None
    pairs = [(float(a), float(b)) for a, b in document["pairs"]]
    found = compare(pairs, replace(rule, most_pairs=max(rule.most_pairs, len(pairs))))
    if not exhausted(found, rule):
        return None
    doubts = tuple(map(str, document.get("doubts", ())))
    return replace(found, reason=str(document.get("reason", "")), doubts=doubts)
