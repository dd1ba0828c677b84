"""Put measured alternatives of several targets into one graph (specification A, section 7, `combine`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.optimize.steps import Step, derive


@dataclass(frozen=True)
class Item:
    """An alternative that was measured to be faster.

    Parameters
    ----------
    target : str
        Whose window it fills.
    steps : tuple of Step
        How.
    gain_s : float
        In one training iteration: that of the comparison, times how often it comes.
    origins : frozenset of str
        Native calls of the comparison.
    """

    target: str
    steps: tuple[Step, ...]
    gain_s: float
    origins: frozenset[str]


@dataclass(frozen=True)
class Combination:
    """Alternatives in one graph.

    Parameters
    ----------
    items : tuple of Item
        In the order of their application.
    graph : CallGraph
        With all of them.
    gain_s : float
        Estimated; of overlapping comparisons the larger gain only.
    """

    items: tuple[Item, ...]
    graph: CallGraph
    gain_s: float

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(one for item in self.items for one in item.steps)


def combine(
    graph: CallGraph,
    items: Sequence[Item],
    *,
    refused: Callable[[Item, Sequence[Item], str], None] | None = None,
) -> tuple[Combination, ...]:
    """Combine alternatives greedily, from each one as seed.

    Parameters
    ----------
    graph : CallGraph
        The present graph.
    items : sequence of Item
        With gains above noise.
    refused : callable, optional
        Told of an item that cannot join others, and why.

    Returns
    -------
    tuple of Combination
        Each graph once; by falling estimated gain, then fewer steps, then hash. Every stage of a greedy
        sequence is one, so that an item whose gain is not counted does not have to come along.
    """
    by_gain = sorted(items, key=lambda i: (-i.gain_s, len(i.steps), i.target, tuple(map(str, i.steps))))
    found: dict[str, Combination] = {}
    told: set[tuple[Item, tuple[Item, ...]]] = set()
    for seed in by_gain:
        taken: list[Item] = []
        here = graph
        for item in (seed, *(i for i in by_gain if i is not seed)):
            if any(item.target == t.target or item.steps == t.steps for t in taken):
                continue
            try:
                here = derive(here, item.steps)
            except OverlapError as error:
                key = (item, tuple(taken))
                if refused is not None and key not in told:
                    told.add(key)
                    refused(item, tuple(taken), error.what)
                continue
            taken.append(item)
            made = Combination(tuple(taken), here, estimated_gain_s(taken))
            old = found.get(here.hash)
            if old is None or made.gain_s > old.gain_s:
                found[here.hash] = made
    return tuple(sorted(found.values(), key=lambda c: (-round(c.gain_s, 12), len(c.steps), c.graph.hash)))


def estimated_gain_s(items: Sequence[Item]) -> float:
    """Sum of gains per training iteration; of items whose comparisons share calls the larger only."""
    counted: list[Item] = []
    for item in sorted(items, key=lambda i: -i.gain_s):
        if all(item.origins.isdisjoint(other.origins) for other in counted):
            counted.append(item)
    return sum(item.gain_s for item in counted)
