"""How one plan becomes another: single moves and donor-receiver moves (specification B, section 7)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from random import Random

from rlprof.planning.baselines import overlap
from rlprof.planning.plan import Box
from rlprof.planning.space import Space, State


class Moves:
    """Draws neighbours of a state.

    Parameters
    ----------
    space : Space
        Where they lie.
    rng : random.Random
        All choices come from it.
    pair_probability, critical_probability : float
        As in `SearchOptions`.
    """

    def __init__(
        self, space: Space, rng: Random, *, pair_probability: float, critical_probability: float
    ) -> None:
        self.space, self.rng = space, rng
        self.pair_probability, self.critical_probability = pair_probability, critical_probability
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
        return (*state[:vertex], self._draw(vertex), *state[vertex + 1 :])

    def _vertex(self, critical_s: Sequence[float]) -> int:
        rng = self.rng
        if rng.random() < self.critical_probability and sum(critical_s) > 0:
            return rng.choices(range(len(critical_s)), critical_s)[0]
        return rng.randrange(len(critical_s))

    def _draw(self, vertex: int) -> tuple[int, int]:
        """Any candidate at any aligned origin."""
        candidate = self.rng.randrange(len(self._gpus[vertex]))
        return candidate, self.rng.randrange(self.space.origins[vertex][candidate])

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
        shrunk = self._by_gpus[donor][self.rng.randrange(smaller)]
        moved = list(state)
        moved[donor] = shrunk, self._within(donor, shrunk, boxes[donor])
        moved[receiver] = self._draw(receiver)
        return tuple(moved)

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
