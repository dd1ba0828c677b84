"""Simulated annealing over the plans of one space, and polishing (specification B, section 7)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from time import monotonic
from typing import TypeAlias

from rlprof.planning.evaluate import FLOOR_SCORE, efficiency_score, memory_penalty
from rlprof.planning.moves import Moves
from rlprof.planning.search_options import SearchOptions
from rlprof.planning.space import Judge, Space, State, Verdict

#: Verdicts kept per space; when there are more, all are forgotten.
CACHE_SIZE = 500_000
#: Rounds in a row that meet no new state, after which a chain ends: it walks between equally good plans.
MOST_IDLE_ROUNDS = 10
#: Chains in a row that meet no new state, after which a space counts as exhausted.
MOST_IDLE_CHAINS = 20
#: Spaces of at most so many plans are searched exhaustively.
SMALL_SPACE = 20_000
#: States judged at once while polishing.
BATCH = 256
#: Strategies of one box that are tried when two invocations change at once.
PAIR_FEW = 2
#: Evaluations of one pass that changes several invocations at once, at most.
MOST_PAIRS = 10_000
#: Invocations that are placed anew together, those that take least time.
SHORTEST = 3


#: A pass of polishing: a better state and its verdict, or None.
Pass: TypeAlias = Callable[[State, Verdict, "Budget"], "tuple[State, Verdict] | None"]


@dataclass
class Budget:
    """What may still be spent: evaluations, time, patience of the person in front.

    Parameters
    ----------
    evaluations : float
        Evaluations left.
    deadline_s : float
        In `time.monotonic`.
    stopped : callable
        True once the person asked to stop.
    """

    evaluations: float = math.inf
    deadline_s: float = math.inf
    stopped: Callable[[], bool] = lambda: False

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self.evaluations <= 0 or monotonic() >= self.deadline_s or self.stopped()


@dataclass(frozen=True, slots=True)
class Found:
    """A feasible plan: which structure and state, and how good."""

    structure: int
    state: State
    verdict: Verdict


@dataclass
class Record:
    """Feasible plans worth keeping, over all structures.

    Parameters
    ----------
    options : SearchOptions
        For the objective.
    front : list of Found
        No one of them has more throughput and more utilisation than another.
    history : list of (float, int, float)
        Seconds since the start, evaluations, and best objective, at each improvement.
    best_score : float
        Score*, the best throughput of a feasible plan.
    evaluations : int
        Plans evaluated, cached ones not counted.
    least_infeasible : Found or None
        Of the plans that do not fit, the one that misses by least.
    by_structure : dict of int to Found
        The plan with most throughput of each structure.
    """

    options: SearchOptions
    front: list[Found] = field(default_factory=list)
    history: list[tuple[float, int, float]] = field(default_factory=list)
    best_score: float = 0.0
    evaluations: int = 0
    started_s: float = field(default_factory=monotonic)
    least_infeasible: Found | None = None
    by_structure: dict[int, Found] = field(default_factory=dict)

    def value(self, verdict: Verdict) -> float:
        """Return the objective with its memory penalty, given the best throughput so far."""
        if verdict.memory_ratio > 1 and not self.options.penalise_memory:
            return FLOOR_SCORE
        score = verdict.score
        if self.options.objective == "efficiency":
            score = efficiency_score(
                score, verdict.utilisation_frac, self.best_score, self.options.most_loss_frac
            )
        return score * memory_penalty(verdict.memory_ratio)

    def best(self) -> Found | None:
        """Return the best feasible plan so far; of equally good ones the first found."""
        return max(self.front, key=lambda f: self.value(f.verdict), default=None)

    def note(self, structure: int, state: State, verdict: Verdict) -> None:
        """Take note of an evaluated plan."""
        if not verdict.feasible:
            worst = self.least_infeasible
            if worst is None or verdict.memory_ratio < worst.verdict.memory_ratio:
                self.least_infeasible = Found(structure, state, verdict)
            return
        known = self.by_structure.get(structure)
        if known is None or verdict.score > known.verdict.score:
            self.by_structure[structure] = Found(structure, state, verdict)
        throughput = self.options.objective == "throughput"
        for f in self.front:
            useful = throughput or f.verdict.utilisation_frac >= verdict.utilisation_frac
            if useful and f.verdict.score >= verdict.score:
                return
        self.best_score = max(self.best_score, verdict.score)
        found = Found(structure, state, verdict)
        kept = [
            f
            for f in self.front
            if not (
                verdict.score >= f.verdict.score
                and (throughput or verdict.utilisation_frac >= f.verdict.utilisation_frac)
            )
        ]
        self.front = [*kept, found]  # at once: Ctrl-C may come between any two statements
        if self.best() is found:
            self.history.append((monotonic() - self.started_s, self.evaluations, self.value(verdict)))


@dataclass
class Annealer:
    """Searches one space.

    Parameters
    ----------
    space, judge : Space, Judge
        Plans, and who evaluates them.
    structure : int
        Number of the space, for the record.
    record : Record
        Shared by all spaces of a search.
    rng : random.Random
        All choices come from it.
    """

    space: Space
    judge: Judge
    structure: int
    record: Record
    rng: Random
    cache: dict[State, Verdict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        o = self.record.options
        self.moves = Moves(
            self.space,
            self.rng,
            pair_probability=o.pair_probability,
            critical_probability=o.critical_probability,
            guided_probability=o.guided_probability,
        )
        #: best feasible states, best first
        self.elites: list[State] = []

    def evaluate(self, states: Sequence[State], budget: Budget) -> list[Verdict]:
        """Return verdicts, from the cache where it has them; only others are paid for."""
        new = [s for s in dict.fromkeys(states) if s not in self.cache]
        if len(self.cache) + len(new) > CACHE_SIZE:
            self.cache.clear()
            new = list(dict.fromkeys(states))
        if new:
            self.record.evaluations += len(new)
            budget.evaluations -= len(new)
            for state, verdict in zip(new, self.judge.judge(new), strict=True):
                self.cache[state] = verdict
                self.record.note(self.structure, state, verdict)
                if verdict.feasible:
                    self._consider(state)
        return [self.cache[s] for s in states]

    def _consider(self, state: State) -> None:
        """Keep a feasible state if it is among the best few; of equally good ones (mirror images) one."""
        keep, value = self.record.options.elites, self.value(state)
        known = [self.value(s) for s in self.elites]
        if value in known or (len(known) == keep and value <= known[-1]):
            return
        self.elites = sorted([*self.elites, state], key=lambda s: -self.value(s))[:keep]

    def value(self, state: State) -> float:
        """Return the objective of a state that was evaluated before."""
        verdict = self.cache.get(state)
        if verdict is None:  # forgotten when the cache was full, or an elite of another structure
            verdict = self.judge.judge([state])[0]
            self.cache[state] = verdict
        return self.record.value(verdict)

    def chain(self, start: State, temperature: float, budget: Budget) -> None:
        """Run one chain until its proposals are rejected for long enough, or the budget is spent."""
        o, value = self.record.options, self.record.value
        state = start
        verdict = self.evaluate([start], budget)[0]
        critical_s = self.judge.critical_s(state)
        rejected = idle = 0
        while rejected < o.patience and idle < MOST_IDLE_ROUNDS and not budget.spent:
            before = self.record.evaluations
            proposed = [self.moves.neighbour(state, critical_s) for _ in range(o.proposals)]
            verdicts = self.evaluate(proposed, budget)
            values = [value(v) if s != state else -1.0 for s, v in zip(proposed, verdicts, strict=True)]
            n = max(range(len(values)), key=values.__getitem__)
            here = value(verdict)
            gain = (values[n] - here) / abs(here) if here else math.inf
            if values[n] >= 0 and (gain >= 0 or self.rng.random() < math.exp(gain / temperature)):
                state, verdict, rejected = proposed[n], verdicts[n], 0
                critical_s = self.judge.critical_s(state)
            else:
                rejected += 1
            idle = 0 if self.record.evaluations > before else idle + 1
            if o.cooling is not None:
                temperature = max(o.least_temperature, temperature * o.cooling)

    def anneal(self, baseline: State | None, elites: Iterable[State], budget: Budget) -> None:
        """Run chains until the budget is spent: the first from the baseline, later ones from elite states.

        Parameters
        ----------
        baseline : State or None
            A random state if None.
        elites : iterable of State
            Starts known from other structures with the same invocations.
        budget : Budget
            Is spent.
        """
        o = self.record.options
        if self.exhaust(budget):
            return
        start = baseline if baseline is not None else self.random_state()
        self.evaluate([start], budget)  # so that there is something, however soon the search is stopped
        for state in elites:
            if self.evaluate([state], budget)[0].feasible and state not in self.elites:
                self._consider(state)
        first, idle = True, 0
        while not budget.spent and idle < MOST_IDLE_CHAINS and len(self.cache) < self.space.size:
            before = self.record.evaluations
            if idle:  # the elite are surrounded by what is known: start afresh
                self.chain(self.random_state(), o.warm_temperature, budget)
            elif first or not (o.warm_restarts and self.elites):
                self.chain(start, o.first_temperature, budget)
            else:
                self.chain(self.rng.choice(self.elites), o.warm_temperature, budget)
            first, idle = False, 0 if self.record.evaluations > before else idle + 1

    def exhaust(self, budget: Budget) -> bool:
        """Evaluate every plan, if there are few; tell whether that was done."""
        if self.space.size > min(SMALL_SPACE, budget.evaluations):
            return False
        places = [[(c, o) for c, n in enumerate(counts) for o in range(n)] for counts in self.space.origins]
        states = itertools.product(*places)
        while batch := list(itertools.islice(states, BATCH)):
            if budget.spent:
                return False
            self.evaluate(batch, budget)
        return True

    def random_state(self) -> State:
        """Return any state."""
        return tuple(
            (c, self.rng.randrange(self.space.origins[v][c]))
            for v, d in enumerate(self.space.directories)
            for c in (self.rng.randrange(len(d)),)
        )

    def polish(self, state: State, budget: Budget, *, thorough: bool = True) -> State:
        """Try every candidate at every origin for each invocation in turn; take the best feasible gain.

        Of origins that are alike one is tried. Repeats until nothing improves: first with the fastest few
        candidates of each extent, then with pairs of invocations, then with all candidates. A candidate
        whose own time over all steps is longer than the makespan cannot improve it and is not tried. Without
        `thorough` the last of these is left out.
        """
        at = (state, self.evaluate([state], budget)[0])
        pairs = [self._shortest, self._all_pairs] if self.record.options.polish_pairs else []
        passes = [self._one_by_one(few=True), *pairs]
        passes += [self._one_by_one(few=False)] if thorough else []
        n = 0
        while n < len(passes) and not budget.spent:
            better = passes[n](*at, budget)
            # what improved may have made room for cheaper improvements
            n, at = (n + 1, at) if better is None else (0, better)
        return at[0]

    def _one_by_one(self, *, few: bool) -> Pass:
        """A pass over the invocations, one after another."""

        def run(state: State, verdict: Verdict, budget: Budget) -> tuple[State, Verdict] | None:
            improved = False
            for vertex in range(len(state)):
                better = self._best_of(vertex, state, verdict, budget, few=few)
                if better is not None:
                    state, verdict = better
                    improved = True
            return (state, verdict) if improved else None

        return run

    def _shortest(self, state: State, verdict: Verdict, budget: Budget) -> tuple[State, Verdict] | None:
        """The shortest few invocations at once, the fastest strategy of each on boxes near those of the plan.

        They fill what the long ones leave, and get into each other's way.
        """
        budget = replace(budget, evaluations=min(budget.evaluations, MOST_PAIRS))
        times = [d.candidates[c].time_s for d, (c, _) in zip(self.space.directories, state, strict=True)]
        short = sorted(range(len(state)), key=times.__getitem__)[:SHORTEST]
        boxes = self.moves.boxes_near(state, doubled=False)
        choices = [self.moves.strategies(v, boxes, 1) if v in short else [at] for v, at in enumerate(state)]
        return self._best_among(list(itertools.product(*choices)), verdict, budget)

    def _all_pairs(self, state: State, verdict: Verdict, budget: Budget) -> tuple[State, Verdict] | None:
        """A pass over pairs of invocations, on boxes near those of the plan; ends at the first gain."""
        budget = replace(budget, evaluations=min(budget.evaluations, MOST_PAIRS))
        boxes = self.moves.boxes_near(state)
        slowest_s = self._slowest_s(verdict)
        options = []
        for vertex, d in enumerate(self.space.directories):
            found = self.moves.strategies(vertex, boxes, PAIR_FEW)
            options.append(
                [at for at in found if at != state[vertex] and d.candidates[at[0]].time_s <= slowest_s]
            )
        for first, second in itertools.combinations(range(len(state)), 2):
            states = []
            for a, b in itertools.product(options[first], options[second]):
                changed = list(state)
                changed[first], changed[second] = a, b
                states.append(tuple(changed))
            better = self._best_among(states, verdict, budget)
            if better is not None:
                return better
        return None

    def _slowest_s(self, verdict: Verdict) -> float:
        """What takes longer than this cannot be in a better plan."""
        if self.record.options.objective != "throughput":
            return math.inf
        return self.space.problem.workload.step_tokens / verdict.score

    def _best_of(
        self, vertex: int, state: State, verdict: Verdict, budget: Budget, *, few: bool
    ) -> tuple[State, Verdict] | None:
        d = self.space.directories[vertex]
        slowest_s = self._slowest_s(verdict)
        places = self.moves.places(vertex, state)
        states = [
            (*state[:vertex], (c, o), *state[vertex + 1 :])
            for c, candidate in enumerate(d.candidates)
            if candidate.time_s <= slowest_s and not (few and c not in self.moves.fastest[vertex])
            for o in places[candidate.extent]
        ]
        return self._best_among(states, verdict, budget)

    def _best_among(
        self, states: Sequence[State], verdict: Verdict, budget: Budget
    ) -> tuple[State, Verdict] | None:
        """The best feasible one that is better than a verdict; None if there is none."""
        value = self.record.value
        best, best_value = None, value(verdict)
        for at in range(0, len(states), BATCH):
            if budget.spent:
                break
            batch = states[at : at + BATCH]
            for state, v in zip(batch, self.evaluate(batch, budget), strict=True):
                if v.feasible and value(v) > best_value:
                    best, best_value = (state, v), value(v)
        return best
