"""How one plan becomes another: single moves and donor-receiver moves (specification B, section 7).

Guided draws are an addition: most strategies of an extent are slow, and sharing a box saves transfers.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from random import Random

from rlprof.planning.baselines import overlap
from rlprof.planning.plan import Box
from rlprof.planning.space import Space, State

#: Strategies of one extent that count as fast.
FEW = 3
#: Draws of a second part that does not touch the first, before a division of a box is given up.
PARTS_TRIED = 8


def fits(extent: tuple[int, int, int], within: tuple[int, int, int]) -> bool:
    """Whether aligned boxes of an extent lie within one of another extent, side by side."""
    return all(w % e == 0 for e, w in zip(extent, within, strict=True))


def halves(box: Box) -> list[Box]:
    """The two halves of a box along each side that has halves."""
    found = []
    for axis, length in enumerate(box.extent):
        if length % 2 == 0:
            extent = tuple(n // 2 if a == axis else n for a, n in enumerate(box.extent))
            for at in (0, length // 2):
                origin = tuple(o + at if a == axis else o for a, o in enumerate(box.origin))
                found.append(Box(_three(origin), _three(extent)))
    return found


def doubles(box: Box, limits: tuple[int, int, int]) -> list[Box]:
    """The aligned boxes that a box is one half of, within a cluster."""
    found = []
    for axis, length in enumerate(box.extent):
        extent = tuple(2 * n if a == axis else n for a, n in enumerate(box.extent))
        origin = tuple(o // e * e for o, e in zip(box.origin, extent, strict=True))
        if 2 * length <= limits[axis] and all(
            o + e <= n for o, e, n in zip(origin, extent, limits, strict=True)
        ):
            found.append(Box(_three(origin), _three(extent)))
    return found


def _unlike(length: int, limit: int, others: Sequence[tuple[int, int]]) -> list[int]:
    """Aligned positions along one side that overlap and span the others, (origin, length), differently."""
    seen: dict[tuple[tuple[int, bool], ...], int] = {}
    for at in range(0, limit - length + 1, length):
        end = at + length
        alike = tuple(
            (max(0, min(end, o + n) - max(at, o)), max(end, o + n) - min(at, o) > 1) for o, n in others
        )
        seen.setdefault(alike, at)
    return list(seen.values())


def _three(numbers: tuple[int, ...]) -> tuple[int, int, int]:
    return numbers[0], numbers[1], numbers[2]


class Moves:
    """Draws neighbours of a state.

    Parameters
    ----------
    space : Space
        Where they lie.
    rng : random.Random
        All choices come from it.
    pair_probability, critical_probability, guided_probability : float
        As in `SearchOptions`.
    """

    def __init__(
        self,
        space: Space,
        rng: Random,
        *,
        pair_probability: float,
        critical_probability: float,
        guided_probability: float,
    ) -> None:
        self.space, self.rng = space, rng
        self.pair_probability, self.critical_probability = pair_probability, critical_probability
        self.guided_probability = guided_probability
        self._by_extent: list[dict[tuple[int, int, int], list[int]]] = []
        for d in space.directories:
            same: dict[tuple[int, int, int], list[int]] = {}
            for c, candidate in enumerate(d.candidates):
                same.setdefault(candidate.extent, []).append(c)
            self._by_extent.append(same)
        #: the fastest few candidates of each extent, of each invocation
        self.fastest = [{c for found in same.values() for c in found[:FEW]} for same in self._by_extent]
        self._gpus = [[c.gpus for c in d.candidates] for d in space.directories]
        # candidates by number of GPUs, so that smaller ones are a slice
        self._by_gpus = [sorted(range(len(g)), key=lambda c, g=g: (g[c], c)) for g in self._gpus]  # type: ignore[misc]
        self._sizes = [[g[c] for c in order] for g, order in zip(self._gpus, self._by_gpus, strict=True)]

    def neighbour(self, state: State, critical_s: Sequence[float]) -> State:
        """Return another state, one or two invocations away (or, rarely, the same)."""
        if self.rng.random() < self.pair_probability:
            moved = self._pair(state)
            if moved is not None:
                return moved
        vertex = self._vertex(critical_s)
        return (*state[:vertex], self._draw(vertex, state), *state[vertex + 1 :])

    def _vertex(self, critical_s: Sequence[float]) -> int:
        rng = self.rng
        if rng.random() < self.critical_probability and sum(critical_s) > 0:
            return rng.choices(range(len(critical_s)), critical_s)[0]
        return rng.randrange(len(critical_s))

    def _draw(self, vertex: int, state: State) -> tuple[int, int]:
        """A candidate at an aligned origin: any, or (guided) a fast one, perhaps on the box of another."""
        if self.rng.random() < self.guided_probability:
            return self._guided(vertex, state)
        candidate = self.rng.randrange(len(self._gpus[vertex]))
        return candidate, self.rng.randrange(self.space.origins[vertex][candidate])

    def _guided(self, vertex: int, state: State) -> tuple[int, int]:
        d, same = self.space.directories[vertex], self._by_extent[vertex]
        other = self.rng.randrange(2 * len(state))
        if other < len(state):
            box = self._box(other, state[other])
            found = same.get(box.extent)
            if found is not None:
                candidate = self._fast(found)
                number = d.number_of(d.candidates[candidate], box.origin)
                if number is not None:
                    return candidate, number
        candidate = self._fast(same[self.rng.choice(list(same))])
        return candidate, self.rng.randrange(self.space.origins[vertex][candidate])

    def _fast(self, found: Sequence[int]) -> int:
        """One of the candidates of an extent: the fastest half of the time, the next a quarter, and so on."""
        n = 0
        while n + 1 < len(found) and self.rng.random() < 0.5:
            n += 1
        return found[n]

    def _pair(self, state: State) -> State | None:
        """Shrink one invocation and draw another, one that shared GPUs with it, anew."""
        sizes = [self._gpus[v][c] for v, (c, _) in enumerate(state)]
        donor = self.rng.choices(range(len(state)), sizes)[0]
        boxes = [self._box(v, at) for v, at in enumerate(state)]
        receivers = [v for v in range(len(state)) if v != donor and overlap(boxes[v], boxes[donor])]
        smaller = bisect_left(self._sizes[donor], sizes[donor])
        if not receivers or not smaller:
            return None
        receiver = self.rng.choice(receivers)
        if self.rng.random() < self.guided_probability:
            parted = self._parted(donor, receiver, boxes[donor], state)
            if parted is not None:
                return parted
        shrunk = self._by_gpus[donor][self.rng.randrange(smaller)]
        moved = list(state)
        moved[donor] = shrunk, self._within(donor, shrunk, boxes[donor])
        moved[receiver] = self._draw(receiver, tuple(moved))
        return tuple(moved)

    def _parted(self, donor: int, receiver: int, box: Box, state: State) -> State | None:
        """Divide a box between the two, with a fast strategy each; None if no two parts are found."""
        first = self._inside(donor, box)
        for _ in range(PARTS_TRIED if first is not None else 0):
            second = self._inside(receiver, box)
            if second is None:
                return None
            assert first is not None
            if not overlap(self._box(donor, first), self._box(receiver, second)):
                moved = list(state)
                moved[donor], moved[receiver] = first, second
                return tuple(moved)
        return None

    def _inside(self, vertex: int, box: Box) -> tuple[int, int] | None:
        """A fast strategy on a smaller box within a box; None if the invocation has none so small."""
        extents = [e for e in self._by_extent[vertex] if e != box.extent and fits(e, box.extent)]
        if not extents:
            return None
        candidate = self._fast(self._by_extent[vertex][self.rng.choice(extents)])
        return candidate, self._within(vertex, candidate, box)

    def strategies(self, vertex: int, boxes: Sequence[Box], most: int) -> list[tuple[int, int]]:
        """The fastest few strategies of an invocation on each of some boxes."""
        d, found = self.space.directories[vertex], []
        for box in boxes:
            for candidate in self._by_extent[vertex].get(box.extent, ())[:most]:
                number = d.number_of(d.candidates[candidate], box.origin)
                if number is not None:
                    found.append((candidate, number))
        return found

    def places(self, vertex: int, state: State) -> dict[tuple[int, int, int], list[int]]:
        """For each extent of an invocation the origins that differ, given where the others are.

        Two origins are alike if along each side they overlap all other boxes by as much, and span as far
        with them: everything that a schedule, a transfer or a peak depends on is then the same.
        """
        d = self.space.directories[vertex]
        others = [self._box(v, at) for v, at in enumerate(state) if v != vertex]
        found = {}
        for extent, candidates in self._by_extent[vertex].items():
            sides = [
                _unlike(length, limit, [(b.origin[axis], b.extent[axis]) for b in others])
                for axis, (length, limit) in enumerate(zip(extent, d.limits, strict=True))
            ]
            numbers = (
                d.number_of(d.candidates[candidates[0]], (r, n, g)) for r, n, g in itertools.product(*sides)
            )
            found[extent] = [number for number in numbers if number is not None]
        return found

    def boxes_near(self, state: State, *, doubled: bool = True) -> list[Box]:
        """The boxes of a plan, their halves, and (doubled) what they are halves of."""
        limits = self.space.directories[0].limits
        mine = [self._box(v, at) for v, at in enumerate(state)]
        near = [*mine, *(part for box in mine for part in halves(box))]
        if doubled:
            near += [whole for box in mine for whole in doubles(box, limits)]
        return list(dict.fromkeys(near))

    def _box(self, vertex: int, at: tuple[int, int]) -> Box:
        d = self.space.directories[vertex]
        candidate = d.candidates[at[0]]
        return Box(d.origin(candidate, at[1]), candidate.extent)

    def _within(self, vertex: int, candidate: int, box: Box) -> int:
        """An aligned origin at which the candidate lies within a box; any, if there is none."""
        d = self.space.directories[vertex]
        extent = d.candidates[candidate].extent
        origin = []
        for start, length, step in zip(box.origin, box.extent, extent, strict=True):
            first, last = -(-start // step), (start + length - step) // step
            if last < first:
                return self.rng.randrange(self.space.origins[vertex][candidate])
            origin.append(self.rng.randint(first, last) * step)
        number = d.number_of(d.candidates[candidate], (origin[0], origin[1], origin[2]))
        return 0 if number is None else number
