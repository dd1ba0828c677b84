"""Which of two ways is faster: paired, interleaved measurements, and a decision that noise does not make.

A pair is one time of the reference and one of the candidate, taken one right after the other, so that what
drifts (clocks, temperature, neighbours) meets both. Differences within pairs are judged by the sign test:
nothing is assumed of their distribution but that pairs are alike and independent. Its boundary is narrowed so
that looking after every pair, and stopping when the answer is clear, errs no more often than is allowed.
"""

from __future__ import annotations

import math
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from rlprof.errors import UsageError

Decision = Literal["better", "worse", "unclear"]

#: One time of the reference and one of the candidate, in seconds.
Pair = tuple[float, float]


@dataclass(frozen=True)
class Spread:
    """Times of the same work.

    Parameters
    ----------
    median_s : float
        Median, in seconds.
    low_s, high_s : float
        Quartiles, in seconds; the least and the greatest time if there are fewer than four.
    runs : int
        How many.
    """

    median_s: float
    low_s: float
    high_s: float
    runs: int

    @property
    def width_s(self) -> float:
        """Distance of the quartiles, in seconds."""
        return self.high_s - self.low_s


def spread(times_s: Sequence[float]) -> Spread:
    """Median and quartiles of times.

    Raises
    ------
    UsageError
        If there are none, or one is no finite number.
    """
    if not times_s or not all(math.isfinite(t) for t in times_s):
        raise UsageError(f"{list(times_s)!r} are no times", hint="give at least one finite number of seconds")
    if len(times_s) < 4:
        return Spread(statistics.median(times_s), min(times_s), max(times_s), len(times_s))
    low, _, high = statistics.quantiles(times_s, n=4, method="inclusive")
    return Spread(statistics.median(times_s), low, high, len(times_s))


@dataclass(frozen=True)
class Rule:
    """When a comparison is decided, and when it ends without a decision.

    Parameters
    ----------
    confidence : float
        Least probability that a comparison of two equal ways ends as neither better nor worse, however often
        it is looked at.
    most_pairs : int
        Pairs after which it ends. At 0.95 a decision needs at least 6, at 0.9 at least 5.
    least_gain_frac : float
        A candidate is better only if it gains more than this share of the reference's time.
    budget_s : float or None
        No pair is begun after so long, in seconds; None: no limit.

    Raises
    ------
    UsageError
        If a number is out of range.
    """

    confidence: float = 0.95
    most_pairs: int = 12
    least_gain_frac: float = 0.0
    budget_s: float | None = None

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise UsageError(f"a confidence of {self.confidence}", hint="give one from 0.5 to below 1")
        if not 1 <= self.most_pairs <= 1000:
            raise UsageError(f"{self.most_pairs} pairs at most", hint="give a number from 1 to 1000")
        if not 0 <= self.least_gain_frac < 1:
            raise UsageError(f"a least gain of {self.least_gain_frac}", hint="give a share from 0 to below 1")

    @property
    def least_pairs(self) -> int | None:
        """Pairs that a decision needs at least; None if `most_pairs` are too few for any."""
        bounds = against(self.confidence, self.most_pairs)
        return next((n + 1 for n, allowed in enumerate(bounds) if allowed >= 0), None)


@dataclass(frozen=True)
class PairedComparison:
    """A candidate compared with a reference.

    Parameters
    ----------
    decision : {"better", "worse", "unclear"}
        Of the candidate: better if its gain is above `least_gain_s` throughout the interval, worse if it is
        below zero throughout. What lies within the noise is unclear, and no win.
    gain_s : float
        Median of reference minus candidate, in seconds: above zero the candidate is faster.
    low_s, high_s : float
        Confidence interval of that median; infinite where there are too few pairs.
    least_gain_s : float
        What a gain must exceed to count, in seconds.
    confidence : float
        Of the decision, over all looks.
    reference, candidate : Spread
        The times themselves.
    pairs : tuple of (float, float)
        Times of reference and candidate in seconds, in the order taken.
    reason : str
        Why it ended there.
    doubts : tuple of str
        What the machine's state beside the trials puts in doubt, as of
        `rlprof.analysis.machine_state.doubts`; none: nothing, or nobody looked.
    """

    decision: Decision
    gain_s: float
    low_s: float
    high_s: float
    least_gain_s: float
    confidence: float
    reference: Spread
    candidate: Spread
    pairs: tuple[Pair, ...]
    reason: str = ""
    doubts: tuple[str, ...] = ()

    @property
    def settled(self) -> bool:
        """More pairs would not help: it is decided, or the gain is surely too small to count."""
        return self.decision != "unclear" or self.high_s <= self.least_gain_s

    @property
    def gain_frac(self) -> float:
        """Gain as a share of the reference's median time."""
        return self.gain_s / self.reference.median_s if self.reference.median_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document; infinite ends are null."""
        document = asdict(self) | {"gain_frac": self.gain_frac, "pairs": [list(p) for p in self.pairs]}
        document["doubts"] = list(self.doubts)
        for end in ("low_s", "high_s"):
            if not math.isfinite(document[end]):
                document[end] = None
        return document


def compare(pairs: Sequence[Pair], rule: Rule | None = None) -> PairedComparison:
    """Compare the two times of each pair.

    Parameters
    ----------
    pairs : sequence of (float, float)
        Times of reference and candidate in seconds, each pair taken together.
    rule : Rule, optional
        Confidence, and the gain that counts.

    Returns
    -------
    PairedComparison
        Its interval has the order statistics of the differences as ends, at the level that keeps the error
        over all looks within the rule's.

    Raises
    ------
    UsageError
        If there is no pair, or a time is no finite number.
    """
    rule = rule or Rule()
    pairs = tuple((float(a), float(b)) for a, b in pairs)
    reference, candidate = spread([a for a, _ in pairs]), spread([b for _, b in pairs])
    gains = sorted(a - b for a, b in pairs)
    bounds = against(rule.confidence, max(rule.most_pairs, len(gains)))
    allowed = bounds[len(gains) - 1]
    low, high = (gains[allowed], gains[-1 - allowed]) if allowed >= 0 else (-math.inf, math.inf)
    least_gain_s = rule.least_gain_frac * reference.median_s
    decision: Decision = "better" if low > least_gain_s else "worse" if high < 0 else "unclear"
    return PairedComparison(
        decision=decision,
        gain_s=statistics.median(gains),
        low_s=low,
        high_s=high,
        least_gain_s=least_gain_s,
        confidence=rule.confidence,
        reference=reference,
        candidate=candidate,
        pairs=pairs,
    )


def measure_paired(
    reference: Callable[[], float],
    candidate: Callable[[], float],
    rule: Rule | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    watch: Callable[[PairedComparison], None] | None = None,
) -> PairedComparison:
    """Measure two ways in turn until the difference is clear or the budget is spent.

    Which one goes first changes from pair to pair, so that neither gains from a steady drift.

    Parameters
    ----------
    reference, candidate : callable
        Do the same work once, each in its way, and return its time in seconds.
    rule : Rule, optional
        When to end.
    clock : callable, optional
        Seconds, for the budget.
    watch : callable, optional
        Gets the comparison after each pair.

    Returns
    -------
    PairedComparison
        Of all pairs that were measured; at least one is.
    """
    rule = rule or Rule()
    began, pairs, longest_s = clock(), list[Pair](), 0.0
    for first_is_candidate in _turns():
        before = clock()
        if first_is_candidate:
            b = candidate()
            a = reference()
        else:
            a = reference()
            b = candidate()
        pairs.append((a, b))
        longest_s = max(longest_s, clock() - before)
        result = compare(pairs, rule)
        if watch is not None:
            watch(result)
        if reason := _why_it_ends(result, rule, clock() - began, longest_s):
            return replace(result, reason=reason)
    raise AssertionError("the turns never end")


def _why_it_ends(result: PairedComparison, rule: Rule, spent_s: float, pair_s: float) -> str:
    """Return why no further pair is measured; empty if one is."""
    count = len(result.pairs)
    if result.settled:
        return f"clear after {count} pairs"
    if count >= rule.most_pairs:
        return f"not clear after {count} pairs"
    if rule.budget_s is not None and spent_s + pair_s > rule.budget_s:
        return f"the budget of {round(rule.budget_s, 1):g} s holds no more than {count} pairs"
    return ""


def _turns() -> Iterator[bool]:
    """Whether the candidate goes first: no, yes, no, ..."""
    first = False
    while True:
        yield first
        first = not first


@lru_cache(maxsize=256)
def against(confidence: float, most: int) -> tuple[int, ...]:
    """Differences of the other sign that a decision allows, after each number of pairs.

    Parameters
    ----------
    confidence : float
        Least probability of no decision between equals, over all looks.
    most : int
        Largest number of pairs.

    Returns
    -------
    tuple of int
        For 1 ... `most` pairs; -1 where no decision is possible. One level is used at all looks (Pocock
        1977), the greatest for which the probability of a false decision, exact for the sign test,
        stays within ``1 - confidence``.
    """
    error = 1.0 - confidence
    tails = [_tails(n) for n in range(1, most + 1)]
    fitting = sorted({2 * p for of_n in tails for p in of_n if 2 * p <= error})
    low, high = 0, len(fitting)  # the error grows with the level
    while low < high:
        middle = (low + high) // 2
        if _false_decisions(_bounds(fitting[middle], tails), error) <= error:
            low = middle + 1
        else:
            high = middle
    return _bounds(fitting[low - 1], tails) if low else (-1,) * most


def _tails(n: int) -> list[float]:
    """Probability of at most k tails in `n` throws of a fair coin, for each k below half of them."""
    found, ways, number = list[float](), 0, 1  # in whole numbers: exact but for the last rounding
    for k in range((n - 1) // 2 + 1):
        ways += number
        number = number * (n - k) // (k + 1)
        found.append(ways * 0.5**n)
    return found


def _bounds(level: float, tails: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Differences of the other sign that a level allows, by the tails of each number of pairs."""
    return tuple(bisect_right(of_n, level / 2) - 1 for of_n in tails)


def _false_decisions(bounds: Sequence[int], most: float) -> float:
    """Probability that a fair coin is called unfair at some look; where it exceeds `most`, so far."""
    going, stopped = {0: 1.0}, 0.0  # by number of tails
    for n, allowed in enumerate(bounds, start=1):
        after: dict[int, float] = {}
        for tails, p in going.items():
            for new in (tails, tails + 1):
                after[new] = after.get(new, 0.0) + p / 2
        ended = {t for t in after if t <= allowed or n - t <= allowed}
        stopped += sum(after[t] for t in ended)
        if stopped > most:
            break
        going = {t: p for t, p in after.items() if t not in ended}
    return stopped
