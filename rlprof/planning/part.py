"""One part of a search: all structures annealed in turn, and the best plans polished."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import TYPE_CHECKING

from rlprof.planning.annealing import Annealer, Budget, Found, Record
from rlprof.planning.baselines import concurrent_plan
from rlprof.planning.compiled import judge_of
from rlprof.planning.plan import Plan
from rlprof.planning.search_options import SearchOptions
from rlprof.planning.space import Space, State

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

#: Share of the time that is kept for polishing.
POLISH_FRAC = 0.1
#: A structure whose best plan has less than this share of the best throughput is not polished.
POLISHED_FRAC = 0.9


@dataclass(frozen=True)
class Task:
    """What one part of a search has to do.

    Parameters
    ----------
    spaces : sequence of Space
        Of all structures.
    options : SearchOptions
        Budget and mechanisms of the whole search.
    start : tuple of Plan
        Plans to start from besides the baseline.
    part, parts : int
        Which of how many parts.
    deadline_s : float
        In `time.monotonic`; infinite without a budget of time.
    """

    spaces: Sequence[Space]
    options: SearchOptions
    start: tuple[Plan, ...]
    part: int
    parts: int
    deadline_s: float


@dataclass(frozen=True)
class Part:
    """What one part found.

    Parameters
    ----------
    front : tuple of Found
        Feasible plans of which none is better than another in all that counts.
    by_structure : dict of int to Found
        The plan with most throughput of each structure.
    least_infeasible : Found or None
        Of the plans that do not fit, the one that misses by least.
    elites : tuple of (int, State)
        The best plans of each structure.
    history : tuple of (float, int, float)
        Seconds, evaluations and best objective at each improvement.
    evaluations : int
        Plans evaluated, cached ones not counted.
    interrupted : bool
        It was stopped before its budget was spent.
    """

    front: tuple[Found, ...]
    by_structure: dict[int, Found]
    least_infeasible: Found | None
    elites: tuple[tuple[int, State], ...]
    history: tuple[tuple[float, int, float], ...]
    evaluations: int
    interrupted: bool


class Stop:
    """Whether to stop: asked by an event of the parent process, or by Ctrl-C here."""

    def __init__(self, event: Event | None = None) -> None:
        self.event, self.here = event, False

    def __call__(self) -> bool:
        """Return whether anybody asked."""
        return self.here or (self.event is not None and self.event.is_set())


def _part(record: Record, annealers: Sequence[Annealer], evaluations: int, interrupted: bool) -> Part:
    return Part(
        tuple(record.front),
        record.by_structure,
        record.least_infeasible,
        tuple((a.structure, state) for a in annealers for state in a.elites),
        tuple(record.history),
        evaluations,
        interrupted,
    )


def anneal_all(task: Task, stop: Stop, tell: Callable[[Record], None]) -> Part:
    """Anneal every structure in turn; with a budget of time alone, then polish the best plan.

    With a budget of evaluations only the best plan of all parts is polished, once.

    Parameters
    ----------
    task : Task
        What to do.
    stop : Stop
        Asked between evaluations.
    tell : callable
        Told the record, as often.
    """
    o = task.options
    record = Record(o)
    rng = Random(f"{o.seed}/{task.part}")
    count = len(task.spaces)
    share = math.inf if o.evaluations is None else max(1, o.evaluations // (task.parts * count))
    end = task.deadline_s
    left_s = end - monotonic()
    anneal_end = end - POLISH_FRAC * left_s if o.polish and math.isfinite(end) else end
    annealers: list[Annealer] = []
    interrupted = False
    for n, space in enumerate(task.spaces):
        annealer = Annealer(space, judge_of(space), n, record, rng)
        annealers.append(annealer)
        known = [space.state(plan) for plan in task.start]
        elites = [state for state in known if state is not None]
        for other in annealers[:-1]:
            if other.space.directories is space.directories:
                elites += [s for s in other.elites if s not in elites]
        baseline = space.state(concurrent_plan(space.problem, space.directories))
        slot = monotonic() + max(0.0, anneal_end - monotonic()) / (count - n)

        def stopped() -> bool:
            tell(record)
            return stop()

        try:
            annealer.anneal(baseline, elites, Budget(share, slot, stopped))
        except KeyboardInterrupt:
            stop.here = True
        if stop():
            interrupted = True
            break
    best = record.best()
    if o.polish and o.evaluations is None and best is not None and not interrupted:
        interrupted = _polish(record, annealers, record.by_structure, best, end, stop)
    return _part(record, annealers, record.evaluations, interrupted)


def polished(task: Task, parts: Sequence[Part], began: float) -> list[Part]:
    """Polish the best plan of each good structure a little, then the best of these, as one more part.

    After an interruption the best plan is first tried in the structures that were not searched yet.

    Parameters
    ----------
    task : Task
        Any part of the search, with the deadline of polishing: spaces and options are those of all.
    parts : sequence of Part
        What all parts found.
    began : float
        When the search began, in `time.monotonic`.

    Returns
    -------
    list of Part
        One, or none if no plan fits.
    """
    record = Record(task.options, started_s=began)
    record.best_score = max((f.verdict.score for part in parts for f in part.front), default=0.0)
    record.evaluations = before = sum(part.evaluations for part in parts)
    best = best_of(record, parts)
    if best is None:
        return []
    record.history = list(parts[best[0]].history)
    fastest: dict[int, Found] = {}
    for part in parts:
        for n, found in part.by_structure.items():
            if n not in fastest or found.verdict.score > fastest[n].verdict.score:
                fastest[n] = found
    annealers = [
        Annealer(space, judge_of(space), n, record, Random(task.options.seed))
        for n, space in enumerate(task.spaces)
    ]
    start = best[1]
    if any(part.interrupted for part in parts):  # some structures may not have had their turn
        fastest |= _elsewhere(start, annealers, fastest)
        start = max([start, *fastest.values()], key=lambda f: record.value(f.verdict))
    interrupted = _polish(record, annealers, fastest, start, task.deadline_s, Stop())
    return [_part(record, annealers, record.evaluations - before, interrupted)]


def _elsewhere(best: Found, annealers: Sequence[Annealer], known: Mapping[int, Found]) -> dict[int, Found]:
    """The plan in the structures of which none is known, where it is a plan of theirs too and fits."""
    found = {}
    for a in annealers:
        if a.structure not in known and a.space.directories is annealers[best.structure].space.directories:
            verdict = a.evaluate([best.state], Budget())[0]
            if verdict.feasible:
                found[a.structure] = Found(a.structure, best.state, verdict)
    return found


def _polish(
    record: Record,
    annealers: Sequence[Annealer],
    fastest: Mapping[int, Found],
    best: Found,
    end_s: float,
    stop: Stop,
) -> bool:
    """Polish the best plan a little, then the fastest of each good structure, then the best of all of them.

    Returns whether it was interrupted.
    """
    least = POLISHED_FRAC * record.best_score
    starts = {best.structure: best.state}
    for n, found in fastest.items():
        if found.verdict.score >= least:
            starts.setdefault(n, found.state)
    budget = Budget(math.inf, end_s, stop)
    try:
        for n, state in starts.items():
            annealers[n].polish(state, budget, thorough=False)
        found = record.best() or best
        annealers[found.structure].polish(found.state, budget)
    except KeyboardInterrupt:
        stop.here = True
    return stop()


def best_of(record: Record, parts: Sequence[Part]) -> tuple[int, Found] | None:
    """The part and the plan that are best, of equally good ones the first; None if there is none."""
    found = [(record.value(f.verdict), -n, f) for n, part in enumerate(parts) for f in part.front]
    if not found:
        return None
    _, n, best = max(found, key=lambda x: x[:2])
    return -n, best
