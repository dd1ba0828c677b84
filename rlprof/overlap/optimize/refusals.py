"""Why calls cannot run beside each other, in words: the dependencies that lead from one to the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlprof.overlap.callgraph import Call
from rlprof.overlap.transforms.common import Reach

#: Calls of a path that are named.
SHOWN = 8


def why_ordered(reach: Reach, pairs: Iterable[tuple[Sequence[Call], Sequence[Call]]]) -> str:
    """Say what orders calls of which none may run beside another.

    Parameters
    ----------
    reach : Reach
        Of their graph.
    pairs : iterable of (sequence of Call, sequence of Call)
        Calls of one node and of the other: of one group of a split, or all of them.

    Returns
    -------
    str
        With shortest dependency paths to a call in the middle of one node and on from it: calls, and the
        cells through which state leads from one to the next.
    """
    pairs = list(pairs)
    way = next((found for some, others in pairs if (found := _ways(reach, some, others))), "")
    if not way:
        return "the order of streams orders them all, or one worker serves them"
    alone = all(reach.ordered(a.id, b.id) for some, others in pairs for a in some for b in others)
    return f"dependencies{'' if alone else ' and the order of streams'} order them all: {way}"


def _ways(reach: Reach, some: Sequence[Call], others: Sequence[Call]) -> str:
    """Paths to a call in the middle from those before it, and on to one after it; empty without any."""
    middle = some[len(some) // 2]
    before = [c for c in others if reach.leads(c.id, middle.id)]
    after = [c for c in others if reach.leads(middle.id, c.id)]
    ways = [reach.path(reach.bits(before), middle.id)[1]] if before else []
    if after:
        ways.append(reach.path(reach.bits([middle]), after[0].id)[1])
    return ", and ".join(map(shortened, ways))


def shortened(way: str) -> str:
    """Return a path in words without the middle of a long one."""
    calls = way.split(" -> ")
    if len(calls) <= SHOWN:
        return way
    first, last = calls[: SHOWN - 3], calls[-2:]
    return " -> ".join([*first, f"{len(calls) - len(first) - len(last)} further calls", *last])
