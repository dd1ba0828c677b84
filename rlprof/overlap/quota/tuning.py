"""What a tuning measures and finds: settings and result of `rlprof.overlap.quota.tune`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlprof.analysis.trials import Rule, Spread
from rlprof.overlap.quota.branches import Branch
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.pair import EligiblePair
from rlprof.overlap.quota.products import Products
from rlprof.overlap.quota.search import QuotaSearch, Trial
from rlprof.overlap.quota.validation import Validation
from rlprof.unavailable import Unavailable


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Parameters
    ----------
    rule : Rule
        For the first measurements and for each level: confidence and pairs.
    final : Rule
        For the validation, with the least gain that counts.
    budget_s : float or None
        Time for all of it, in seconds: no turn, level or validation is begun that would probably not end in
        time, judged by those before it. The first turn is always measured.
    timeout_s : float
        Longest time of a set-up or a round, in seconds.
    sweep : int or None
        Also measure every so many levels before the search, which uses what is known then.
    check_products : bool
        Look whether matrix products are right under a level before it is validated, and pass over those under
        which some are wrong; False: the commands multiply no matrices.
    """

    rule: Rule = field(default_factory=lambda: Rule(most_pairs=6))
    final: Rule = field(default_factory=lambda: Rule(most_pairs=12, least_gain_frac=0.01))
    budget_s: float | None = None
    timeout_s: float = 600.0
    sweep: int | None = None
    check_products: bool = True

    @property
    def rounds(self) -> int:
        """Rounds of the first measurements: as many as a clear answer needs."""
        return self.rule.least_pairs or self.rule.most_pairs


@dataclass(frozen=True)
class Tuning:
    """What was measured and decided. Parts that were not reached are `Unavailable` and say why.

    Parameters
    ----------
    branches : tuple of Branch
        The commands.
    mechanism, unit, setting, resource : str
        What sets the quotas, of what.
    in_rounds : dict of str to bool
        Whether the branch takes part in rounds; else its start and end are in its times.
    alone : dict of str to Spread
        Times of each branch by itself.
    ready : dict of str to Spread
        When each branch is ready if all run together under q0.
    together : Spread
        When all are ready, under q0.
    unmanaged : Spread or Unavailable
        The same without the mechanism (under MPS: time-sliced).
    pair : EligiblePair or Unavailable
        Who has slack.
    levels : tuple of Level or Unavailable
        Weakest first.
    sweep : tuple of Trial
        Levels that were measured beside the search, if that was wanted.
    search : QuotaSearch or Unavailable
        Algorithm 2.
    validation : Validation or Unavailable
        Its answer against q0.
    products : Products or Unavailable
        What was found of matrix products under the level that was looked at last: the one that was validated,
        or one that was passed over because some are wrong.
    reason : str
        Why the quotas are what they are.
    spent_s : float
        Time that it took, in seconds.
    states : tuple of dict
        State of the machine from time to time.
    """

    branches: tuple[Branch, ...]
    mechanism: str
    unit: str
    setting: str
    resource: str
    in_rounds: dict[str, bool]
    alone: dict[str, Spread]
    ready: dict[str, Spread]
    together: Spread
    unmanaged: Spread | Unavailable
    pair: EligiblePair | Unavailable
    levels: tuple[Level, ...] | Unavailable
    search: QuotaSearch | Unavailable
    validation: Validation | Unavailable
    products: Products | Unavailable
    reason: str
    spent_s: float
    sweep: tuple[Trial, ...] = ()
    states: tuple[dict[str, Any], ...] = ()

    @property
    def quotas(self) -> dict[str, Level]:
        """The quota of each branch that is given one."""
        pair, validation = self.pair, self.validation
        if isinstance(pair, EligiblePair) and isinstance(validation, Validation) and not validation.kept:
            return {pair.earlier: validation.chosen}
        return {}
