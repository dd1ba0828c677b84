"""What a plan is compared with: everything on all GPUs in turn, and independent invocations side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlprof.planning.candidates import Candidate, Directory, directories
from rlprof.planning.evaluate import Problem
from rlprof.planning.pipeline import Pipeline
from rlprof.planning.plan import Box, Plan


def synchronous(problem: Problem) -> Problem:
    """Return the problem without staleness."""
    return replace(problem, pipeline=problem.pipeline.with_staleness({}))


def greedy_plan(problem: Problem, found: Sequence[Directory] | None = None) -> Plan:
    """Every invocation on all GPUs, each with its fastest strategy; so one runs after the other.

    Parameters
    ----------
    problem : Problem
        What is planned for.
    found : sequence of Directory, optional
        Candidates of each invocation, if they are known.

    Returns
    -------
    Plan
        Its invocations fit into memory each alone; together they may not.
    """
    found = found or directories(problem)
    assignments = {}
    for d in found:
        most = max(c.gpus for c in d.candidates)
        best = next(c for c in d.candidates if c.gpus == most)
        assignments[d.invocation] = best.at((0, 0, 0))
    return Plan(assignments)


def independent_groups(pipeline: Pipeline) -> list[list[int]]:
    """Return positions of invocations in groups without data edges among them, in the order of the data.

    An invocation is in the group after the last one that it waits for.
    """
    depth: dict[int, int] = {}
    for i in pipeline.topological_order:
        before = [pipeline.index[e.source] for e in pipeline.data if pipeline.index[e.target] == i]
        depth[i] = 1 + max((depth[j] for j in before), default=-1)
    return [[i for i in sorted(depth) if depth[i] == n] for n in range(max(depth.values()) + 1)]


def concurrent_plan(problem: Problem, found: Sequence[Directory] | None = None) -> Plan:
    """Independent invocations side by side on disjoint boxes; the partition with the least time per group.

    The time of a group is that of its slowest invocation. Where a group has no disjoint partition (fewer GPUs
    than invocations), its invocations run one after the other on all GPUs.

    Parameters, returns
        As `greedy_plan`.
    """
    found = found or directories(problem)
    plan = dict(greedy_plan(problem, found).assignments)
    for group in independent_groups(problem.pipeline):
        chosen = _partition([found[i] for i in group])
        for i, placed in zip(group, chosen or (), strict=False):
            candidate, origin = placed
            plan[found[i].invocation] = candidate.at(origin)
    return Plan(plan)


Placed = tuple[Candidate, tuple[int, int, int]]


def _partition(group: Sequence[Directory]) -> list[Placed] | None:
    """Disjoint boxes with the least time of the slowest; None if there are none."""
    best = [_fastest_by_extent(d) for d in group]
    times = sorted({c.time_s for found in best for c in found})
    lo, hi, chosen = 0, len(times), None
    while lo < hi:  # the least time at which the smallest sufficient boxes fit
        middle = (lo + hi) // 2
        fits = _fit(group, [_smallest(found, times[middle]) for found in best])
        if fits is None:
            lo = middle + 1
        else:
            hi, chosen = middle, fits
    if chosen is None:
        return None
    # what is left over makes the slowest faster, as long as everything still fits
    times_s = [c.time_s for c, _ in chosen]
    for n in sorted(range(len(group)), key=lambda n: -times_s[n]):
        others = [c for c, _ in chosen]
        for faster in best[n]:
            if faster.time_s >= times_s[n]:
                break
            fits = _fit(group, [*others[:n], faster, *others[n + 1 :]])
            if fits is not None:
                chosen = fits
                break
    return chosen


def _fastest_by_extent(d: Directory) -> list[Candidate]:
    fastest: dict[tuple[int, int, int], Candidate] = {}
    for c in d.candidates:
        fastest.setdefault(c.extent, c)
    return list(fastest.values())


def _smallest(found: Sequence[Candidate], limit_s: float) -> Candidate | None:
    """The fewest GPUs that are fast enough; of several boxes the fastest."""
    enough = [c for c in found if c.time_s <= limit_s]
    return min(enough, key=lambda c: (c.gpus, c.time_s), default=None)


def _fit(group: Sequence[Directory], wanted: Sequence[Candidate | None]) -> list[Placed] | None:
    """Place boxes one after the other at the first aligned origin that is free, large ones first."""
    placed: dict[int, Placed] = {}
    taken: list[Box] = []
    sizes = {n: c.gpus for n, c in enumerate(wanted) if c is not None}
    if len(sizes) < len(wanted) or sum(sizes.values()) > _size(group[0]):
        return None
    for n in sorted(sizes, key=lambda n: -sizes[n]):
        candidate = wanted[n]
        if candidate is None:
            return None
        for number in range(group[n].origins(candidate)):
            box = Box(group[n].origin(candidate, number), candidate.extent)
            if not any(overlap(box, other) for other in taken):
                taken.append(box)
                placed[n] = candidate, box.origin
                break
        else:
            return None
    return [placed[n] for n in range(len(wanted))]


def _size(d: Directory) -> int:
    racks, nodes, gpus = d.limits
    return racks * nodes * gpus


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes share a GPU."""
    axes = zip(a.origin, a.extent, b.origin, b.extent, strict=True)
    return all(o1 < o2 + e2 and o2 < o1 + e1 for o1, e1, o2, e2 in axes)
