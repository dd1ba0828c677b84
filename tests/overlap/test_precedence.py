"""Clocks against plain reachability."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.overlap.precedence import Precedence


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_clocks_say_what_paths_say(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 12)
    streams: list[list[int]] = [[] for _ in range(draw.randint(1, 4))]
    for call in range(count):
        draw.choice(streams).append(call)
    if draw.random() < 0.3:
        for stream in streams:
            draw.shuffle(stream)
    edges = [(draw.randrange(count), draw.randrange(count)) for _ in range(draw.randint(0, 8))]
    edges = [(a, b) for a, b in edges if a < b or draw.random() < 0.1]
    steps = {*edges, *((a, b) for s in streams for a, b in pairwise(s))}
    paths = set(steps)
    while True:
        longer = paths | {(a, d) for a, b in paths for c, d in steps if b == c}
        if longer == paths:
            break
        paths = longer
    found = Precedence(streams, edges)
    if any(a == b for a, b in paths):
        ring = found.cycle
        assert ring
        assert all((a, b) in steps for a, b in zip(ring, (*ring[1:], ring[0]), strict=True))
    else:
        assert found.cycle == ()
        assert sorted(found.order) == list(range(count))
        assert {(a, b) for a in range(count) for b in range(count) if found.before(a, b)} == paths
