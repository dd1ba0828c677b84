"""The hardest set of jobs on one machine: against all sets, and against schedules."""

from __future__ import annotations

from itertools import chain, combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.optimize.one_machine import Job, one_machine

TIMES = st.sampled_from((0.0, 0.5, 1.0, 1.0, 2.0, 3.5, 7.0))


def test_a_set_worked_by_hand() -> None:
    jobs = [Job(0, 4, 0), Job(2, 3, 5), Job(3, 2, 4), Job(9, 1, 0)]
    assert one_machine(jobs) == Job(2, 5, 4)  # the second and the third alone: 2 + 3 + 2 + 4
    assert one_machine([Job(1, 2, 3)]) == Job(1, 2, 3)
    assert one_machine([Job(50, 0, 50)]) == one_machine([]) == Job(0, 0, 0)


@given(st.lists(st.builds(Job, TIMES, TIMES, TIMES), max_size=7))
def test_no_set_is_harder(jobs: list[Job]) -> None:
    working = [job for job in jobs if job.work_s]
    sets = chain.from_iterable(combinations(working, n) for n in range(1, len(working) + 1))
    hardest = max(
        (min(j.head_s for j in s) + sum(j.work_s for j in s) + min(j.tail_s for j in s) for s in sets),
        default=0.0,
    )
    found = one_machine(jobs)
    assert found.total_s == pytest.approx(hardest)
    if working:  # and it is one of the sets
        of = [j for j in working if j.head_s >= found.head_s and j.tail_s >= found.tail_s]
        assert found.work_s == pytest.approx(sum(j.work_s for j in of))


@given(st.lists(st.builds(Job, TIMES, TIMES, TIMES), min_size=1, max_size=5))
def test_no_order_of_the_jobs_is_faster(jobs: list[Job]) -> None:
    jobs = [job for job in jobs if job.work_s]
    for order in permutations(jobs):
        now = makespan = 0.0
        for job in order:
            now = max(now, job.head_s) + job.work_s
            makespan = max(makespan, now + job.tail_s)
        assert one_machine(jobs).total_s <= makespan + 1e-9
