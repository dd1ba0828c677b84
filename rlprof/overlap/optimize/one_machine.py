"""Least time of jobs that share one machine: each has something before it and something after it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple


class Job(NamedTuple):
    """Work that a machine has to do.

    Parameters
    ----------
    head_s : float
        It cannot begin before, seconds from the start.
    work_s : float
        Seconds of the machine.
    tail_s : float
        So much is left when it is complete, and not of this machine.
    """

    head_s: float
    work_s: float
    tail_s: float

    @property
    def total_s(self) -> float:
        """Least time with all three, one after another."""
        return self.head_s + self.work_s + self.tail_s


def one_machine(jobs: Sequence[Job]) -> Job:
    """Return the hardest set of jobs: its least head, all of its work, its least tail.

    Parameters
    ----------
    jobs : sequence of Job
        Those without work are left out.

    Returns
    -------
    Job
        Of all sets the one with the largest `total_s`, of equal ones one with more work. The total is the
        least makespan if jobs may be interrupted or share the machine at rates that add up to 1.

    Notes
    -----
    The one-machine relaxation of Carlier (1982). Jackson's preemptive schedule (of the jobs that are there,
    the one with the longest tail) attains the largest total over all sets, and the job that ends it has the
    least tail of such a set; of the jobs with at least that tail, those from some head on are the set.
    """
    jobs = sorted((job for job in jobs if job.work_s > 0), key=lambda job: job.head_s)
    if not jobs:
        return Job(0.0, 0.0, 0.0)
    least_tail_s = _critical_tail_s(jobs)
    work_s, best = 0.0, Job(0.0, 0.0, 0.0)
    for job in reversed(jobs):
        if job.tail_s >= least_tail_s:
            work_s += job.work_s
            found = Job(job.head_s, work_s, least_tail_s)
            best = found if found.total_s >= best.total_s else best
    return best


def _critical_tail_s(jobs: Sequence[Job]) -> float:
    """Tail of the job that ends Jackson's preemptive schedule; jobs by head."""
    now_s, found = 0.0, (0.0, 0.0)  # time with the tail, negative tail: the shorter of equal ones
    there: list[tuple[float, int, float]] = []  # negative tail, job, work that is left
    coming = 0
    while there or coming < len(jobs):
        if not there:
            now_s = max(now_s, jobs[coming].head_s)
        while coming < len(jobs) and jobs[coming].head_s <= now_s:
            heapq.heappush(there, (-jobs[coming].tail_s, coming, jobs[coming].work_s))
            coming += 1
        next_s = jobs[coming].head_s if coming < len(jobs) else float("inf")
        negative, job, left_s = heapq.heappop(there)
        if now_s + left_s > next_s:
            heapq.heappush(there, (negative, job, left_s - (next_s - now_s)))
            now_s = next_s
            continue
        now_s += left_s
        found = max(found, (now_s - negative, negative))
    return -found[1]
