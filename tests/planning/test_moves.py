"""Moves: origins that count as alike are alike, boxes are divided, neighbours stay in the space."""

from __future__ import annotations

from random import Random

import pytest

from rlprof.planning.algorithms import ppo
from rlprof.planning.candidates import directories
from rlprof.planning.compiled import CompiledJudge
from rlprof.planning.evaluate import Problem
from rlprof.planning.moves import Moves, doubles, halves
from rlprof.planning.options import ModelOptions
from rlprof.planning.plan import Box
from rlprof.planning.space import Space, State
from rlprof.planning.workload import Workload, three_phases
from tests.planning.made import TINY, cluster

WORK = Workload(32, 64, 64, quantiles=three_phases(64))
PROBLEM = Problem(
    ppo(TINY, TINY, TINY).with_staleness({"actor": 1, "critic": 1}),
    WORK,
    cluster(2, 4, 4),
    ModelOptions(steps=3),
)
SPACE = Space(PROBLEM, directories(PROBLEM), {})


def moves(seed: int, **more: float) -> Moves:
    chances = {"pair_probability": 0.28, "critical_probability": 0.6, "guided_probability": 0.5} | more
    return Moves(SPACE, Random(seed), **chances)


def random_state(random: Random) -> State:
    return tuple(
        (c, random.randrange(SPACE.origins[v][c]))
        for v, d in enumerate(SPACE.directories)
        for c in (random.randrange(len(d)),)
    )


@pytest.mark.parametrize("seed", range(8))
def test_every_origin_gives_what_one_of_the_unlike_ones_gives(seed: int) -> None:
    random, judge = Random(seed), CompiledJudge(SPACE)
    state, vertex = random_state(random), random.randrange(len(SPACE.directories))
    d = SPACE.directories[vertex]
    places = moves(seed).places(vertex, state)
    candidate = random.randrange(len(d))
    extent = d.candidates[candidate].extent

    def judged(origins: list[int]) -> set[tuple[float, float, float]]:
        states = [(*state[:vertex], (candidate, o), *state[vertex + 1 :]) for o in origins]
        return {
            (round(v.score, 6), round(v.utilisation_frac, 9), round(v.memory_ratio, 9))
            for v in judge.judge(states)
        }

    every = list(range(SPACE.origins[vertex][candidate]))
    assert set(places[extent]) <= set(every)
    assert judged(places[extent]) == judged(every)


def test_of_a_free_cluster_one_origin_is_tried() -> None:
    """Alone, with everybody else on all GPUs, each place of one extent is as good as another."""
    whole = []
    for d in SPACE.directories:
        c = next(i for i, x in enumerate(d.candidates) if x.extent == d.limits)
        whole.append((c, 0))
    places = moves(0).places(0, tuple(whole))
    assert all(len(found) == 1 for found in places.values())


def test_halves_and_doubles_of_a_box() -> None:
    box = Box((0, 4, 0), (1, 4, 1))
    assert halves(box) == [Box((0, 4, 0), (1, 2, 1)), Box((0, 6, 0), (1, 2, 1))]
    assert doubles(box, (1, 8, 2)) == [Box((0, 0, 0), (1, 8, 1)), Box((0, 4, 0), (1, 4, 2))]
    assert doubles(Box((0, 0, 0), (1, 8, 2)), (1, 8, 2)) == []


@pytest.mark.parametrize("guided", [0.0, 1.0])
def test_neighbours_are_plans_of_the_space_and_change_two_invocations_at_most(guided: float) -> None:
    random, move = Random(5), moves(5, guided_probability=guided, pair_probability=0.5)
    state = random_state(random)
    critical = [1.0] * len(state)
    for _ in range(300):
        new = move.neighbour(state, critical)
        assert sum(a != b for a, b in zip(state, new, strict=True)) <= 2
        assert all(o < SPACE.origins[v][c] for v, (c, o) in enumerate(new))
        assert SPACE.state(SPACE.plan(new)) == new
        state = new


def test_a_box_is_divided_between_two_that_shared_it() -> None:
    move = moves(1)
    random = Random(2)
    found = 0
    for _ in range(200):
        state = random_state(random)
        boxes = [SPACE.plan(state)[d.invocation].box for d in SPACE.directories]
        parted = move._parted(0, 1, boxes[0], state)
        if parted is None:
            continue
        found += 1
        plan = SPACE.plan(parted)
        first, second = (plan[SPACE.directories[v].invocation].box for v in (0, 1))
        gpus = [set(b.gpus(PROBLEM.cluster)) for b in (first, second, boxes[0])]
        assert not gpus[0] & gpus[1]
        assert gpus[0] | gpus[1] <= gpus[2]
    assert found > 20
