"""Which call is done before which: everything that follows from streams and edges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


class Precedence:
    """Reachability over streams and edges; each call has a clock: the last call of every stream before it.

    Parameters
    ----------
    streams : sequence of sequence of int
        Calls 0 .. n - 1, each in one stream, in the order of the stream.
    edges : iterable of (int, int)
        (earlier, later), besides the streams' own.

    Attributes
    ----------
    cycle : tuple of int
        Calls that wait for each other, each before the next and the last before the first; empty without any.
        With a cycle there are no clocks.
    order : list of int
        All calls, each after those before it; incomplete with a cycle.

    Notes
    -----
    Exact, because a stream is a chain; time and space are calls times streams.
    """

    def __init__(self, streams: Sequence[Sequence[int]], edges: Iterable[tuple[int, int]]) -> None:
        count = sum(len(stream) for stream in streams)
        self.stream, self.place = [0] * count, [0] * count
        before: list[list[int]] = [[] for _ in range(count)]
        after: list[list[int]] = [[] for _ in range(count)]
        for number, stream in enumerate(streams):
            previous = -1
            for place, call in enumerate(stream):
                self.stream[call], self.place[call] = number, place
                if previous >= 0:
                    before[call].append(previous)
                    after[previous].append(call)
                previous = call
        for source, target in edges:
            before[target].append(source)
            after[source].append(target)
        waiting = [len(sources) for sources in before]
        self.order = [call for call in range(count) if not waiting[call]]
        for call in self.order:  # grows while it is walked
            for target in after[call]:
                waiting[target] -= 1
                if not waiting[target]:
                    self.order.append(target)
        self.cycle = () if len(self.order) == count else _cycle(before, waiting)
        self.clock = np.full((count, len(streams)), -1, dtype=np.int32)
        if not self.cycle:
            for call in self.order:
                row = self.clock[call]
                for source in before[call]:
                    np.maximum(row, self.clock[source], out=row)
                    row[self.stream[source]] = max(row[self.stream[source]], self.place[source])

    def before(self, earlier: int, later: int) -> bool:
        """Whether one call is always complete before another starts."""
        return bool(self.clock[later, self.stream[earlier]] >= self.place[earlier])


def _cycle(before: list[list[int]], waiting: list[int]) -> tuple[int, ...]:
    """Some calls in a ring, among those that still wait."""
    at = next(call for call, n in enumerate(waiting) if n)
    seen: dict[int, int] = {}
    walk: list[int] = []
    while at not in seen:
        seen[at] = len(walk)
        walk.append(at)
        at = next(source for source in before[at] if waiting[source])
    return tuple(reversed(walk[seen[at] :]))
