"""The quota of one of several commands that run at the same time: slack, Algorithm 2, validation, by itself.

What runs alone and what runs together is measured in turn, so that a drift of the machine meets all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rlprof.analysis.trials import PairedComparison, Rule, compare, measure_paired, spread
from rlprof.errors import UsageError
from rlprof.overlap.quota.branches import Bench, Branch, Round, Worker
from rlprof.overlap.quota.errors import BranchError
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.mechanism import Mechanism
from rlprof.overlap.quota.pair import EligiblePair, WorkerProcess, find_pair
from rlprof.overlap.quota.paired import PairedLevels, left_of, no_further_level, no_validation
from rlprof.overlap.quota.products import LIMIT_S
from rlprof.overlap.quota.search import (
    Measurement,
    QuotaSearch,
    Trial,
    most_trials,
    quota_search,
    sweep,
    unfinished,
)
from rlprof.overlap.quota.tuning import Settings, Tuning
from rlprof.overlap.quota.validation import Validation, validate
from rlprof.progress import Progress, silent
from rlprof.taskgraph import Edge, RunRecord, Task, TaskGraph
from rlprof.taskgraph.record import TaskRun
from rlprof.unavailable import Unavailable

JOIN = "join"


class _Stopped(Exception):
    """q0 is kept, for a reason."""


def tune(
    branches: Sequence[Branch],
    mechanism: Mechanism,
    settings: Settings | None = None,
    *,
    progress: Progress = silent,
    watch: Callable[[Tuning], None] | None = None,
    state: Callable[[], dict[str, Any]] | None = None,
) -> Tuning:
    """Find the quota with which several commands are all done soonest.

    Parameters
    ----------
    branches : sequence of Branch
        At least two, with distinct names. They meet when all are done.
    mechanism : Mechanism
        What sets quotas.
    settings : Settings, optional
        How much is measured.
    progress : Progress
        Told the stage.
    watch : callable, optional
        Gets what is known after every step, so that nothing is lost if this is ended.
    state : callable, optional
        Gives the state of the machine, to be kept with the measurements.

    Returns
    -------
    Tuning
        Its `Tuning.quotas` are empty if q0 is kept.

    Raises
    ------
    UsageError
        If there are fewer than two branches, or two of one name.
    QuotaError
        If a branch does not run, or levels cannot be probed. All processes that were started have ended.
    """
    branches, settings = tuple(branches), settings or Settings()
    names = [branch.name for branch in branches]
    if len(names) < 2 or len(set(names)) != len(names):
        raise UsageError(f"branches {', '.join(names) or 'none'}", hint="name two or more, all different")
    with Bench(mechanism, timeout_s=settings.timeout_s) as bench:
        return _Tuner(branches, mechanism, settings, bench, progress, watch, state).run()


class _Tuner:
    """One tuning at work."""

    def __init__(
        self,
        branches: tuple[Branch, ...],
        mechanism: Mechanism,
        settings: Settings,
        bench: Bench,
        progress: Progress,
        watch: Callable[[Tuning], None] | None,
        state: Callable[[], dict[str, Any]] | None,
    ) -> None:
        self.branches, self.mechanism, self.settings, self.bench = branches, mechanism, settings, bench
        self.progress, self.watch, self.state = progress, watch, state
        self.began_s = time.monotonic()
        self.workers: list[Worker] = []
        self.clients: set[str] = set()
        self.set_up_s = self.trial_s = 0.0  # how long starting branches and measuring a level take
        self.known: Tuning

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.began_s

    def keep(self, **changes: Any) -> None:
        """Note what is known now, and tell it."""
        self.known = replace(self.known, **changes, spent_s=self.spent_s)
        if self.state is not None:
            now = {"after_s": self.spent_s, **self.state()}
            self.known = replace(self.known, states=(*self.known.states, now))
        if self.watch is not None:
            self.watch(self.known)

    def run(self) -> Tuning:
        self.progress("starting branches", 0.0)
        self.workers = self.bench.workers([(branch, None) for branch in self.branches])
        self.set_up_s = self.spent_s
        rounds = self.first_rounds()
        try:
            pair = self.find_pair(rounds)
            self.check_room(pair, rounds)
            self.progress("probing quotas", 0.3)
            levels = self.mechanism.levels(self.progress)
            self.keep(levels=levels)
            if len(levels) < 2:
                raise _Stopped(f"there is one level only of {self.mechanism.resource}")
            search = self.search(pair, levels)
            self.keep(search=search)
            search = self.right(search)
            self.keep(search=search)
            validation = self.validate(pair, search)
            self.keep(validation=validation, reason=validation.reason)
        except _Stopped as stopped:
            self.keep(reason=f"q0 is kept: {stopped}")
        return self.known

    @property
    def left_s(self) -> float:
        """What is left of the budget; infinite without one."""
        return left_of(self.settings.budget_s, self.spent_s)

    def holds(self, more_s: float) -> bool:
        """Whether so many seconds more are within the budget."""
        return more_s <= self.left_s

    # under q0 ----------------------------------------------------------------------------------------------

    def look_for_clients(self) -> None:
        """Note which branches have a process that quotas have an effect on."""
        for worker in self.workers:
            name = worker.branch.name
            if name not in self.clients and self.mechanism.clients(worker.processes):
                self.clients.add(name)

    def unmanaged_workers(self) -> tuple[list[Worker], Unavailable]:
        """Start all branches without the mechanism; none, and why, if it makes no difference or fails."""
        if self.mechanism.unmanaged() is None:
            return [], Unavailable("there is no such difference")
        try:
            started = self.bench.workers([(branch, None) for branch in self.branches], managed=False)
        except BranchError as error:  # there may be no room for a second set
            return [], Unavailable(str(error))
        self.bench.together(started)  # the first round is slower: not timed
        return started, Unavailable("not measured")

    def first_rounds(self) -> list[tuple[tuple[float, ...], Round]]:
        """Measure branches alone and together, in turn: times alone, and the round of all, of each turn."""
        bench, workers = self.bench, self.workers
        unmanaged, why = self.unmanaged_workers()
        # the first rounds are slower: not timed
        bench.together(workers, tick=self.look_for_clients)
        self.look_for_clients()
        turns: list[tuple[tuple[float, ...], Round]] = []
        sliced: list[float] = []
        count = self.settings.rounds
        for turn in range(count):
            began_s = self.spent_s
            self.progress("alone and together", 0.3 * turn / count)
            alone = tuple(bench.together([worker]).join_s for worker in workers)
            turns.append((alone, bench.together(workers)))
            if unmanaged:
                sliced.append(bench.together(unmanaged).join_s)
            if not self.holds(self.spent_s - began_s):
                break
        for worker in unmanaged:
            bench.release(worker)
        names = [branch.name for branch in self.branches]
        nothing = Unavailable("not reached")
        self.known = Tuning(
            branches=self.branches,
            mechanism=self.mechanism.name,
            unit=self.mechanism.unit,
            setting=self.mechanism.setting,
            resource=self.mechanism.resource,
            in_rounds={worker.branch.name: bool(worker.in_rounds) for worker in workers},
            alone={name: spread([alone[n] for alone, _ in turns]) for n, name in enumerate(names)},
            ready={name: spread([r.ready_s[n] for _, r in turns]) for n, name in enumerate(names)},
            together=spread([r.join_s for _, r in turns]),
            unmanaged=spread(sliced) if sliced else why,
            pair=nothing,
            levels=nothing,
            search=nothing,
            validation=nothing,
            products=Unavailable("no level was to be validated"),
            reason="not finished",
            spent_s=self.spent_s,
        )
        self.keep()
        return turns

    def find_pair(self, turns: Sequence[tuple[tuple[float, ...], Round]]) -> EligiblePair:
        """Find who has slack, and make sure that it is no noise."""
        names = [branch.name for branch in self.branches]
        graph = _graph(names)
        processes = {
            name: WorkerProcess(
                name,
                self.mechanism.resource,
                name in self.clients,
                "no process of it is a client of the MPS server: it does no CUDA work, or graphics only",
            )
            for name in names
        }
        found = find_pair(graph, [_record(graph, names, r) for _, r in turns], processes)
        self.keep(pair=found)
        if isinstance(found, Unavailable):
            raise _Stopped(found.reason)
        if len(turns) < self.settings.rounds:
            raise _Stopped(f"the budget held {len(turns)} of the {self.settings.rounds} first rounds")
        later, earlier = names.index(found.later), names.index(found.earlier)
        times = [(r.ready_s[later], r.ready_s[earlier]) for _, r in turns]
        if compare(times, self._rule(self.settings.rule, len(times))).decision != "better":
            why = f"{found.earlier} is not clearly ready before {found.later}"
            self.keep(pair=Unavailable(why))
            raise _Stopped(why)
        return found

    def check_room(self, pair: EligiblePair, turns: Sequence[tuple[tuple[float, ...], Round]]) -> None:
        """Stop unless the later branch is slower than alone: a quota cannot give it back more than that."""
        later = [branch.name for branch in self.branches].index(pair.later)
        times = [(r.join_s, alone[later]) for alone, r in turns]
        if compare(times, self._rule(self.settings.rule, len(times))).decision != "better":
            raise _Stopped(f"{pair.later} is not clearly slower together than alone, so no quota can help it")

    @staticmethod
    def _rule(rule: Rule, pairs: int) -> Rule:
        return replace(rule, most_pairs=pairs, budget_s=None)

    # levels ------------------------------------------------------------------------------------------------

    def others(self, pair: EligiblePair, worker: Worker) -> list[Worker]:
        """The workers, with another one in place of the earlier branch's."""
        return [worker if w.branch.name == pair.earlier else w for w in self.workers]

    def branch(self, name: str) -> Branch:
        return next(b for b in self.branches if b.name == name)

    def search(self, pair: EligiblePair, levels: Sequence[Level]) -> QuotaSearch:
        """Measure what is wanted beside the search, then run Algorithm 2."""
        count = len(levels)
        q0 = self.known.together  # it was measured: its median is what gains are subtracted from
        measure = PairedLevels(
            Measurement(q0.median_s, q0.width_s, q0.runs), levels[-1], lambda level: self.compare(pair, level)
        )

        def tell(trial: Trial, done: int, most: int) -> None:
            self.progress(f"level {trial.k} of {count}", 0.3 + 0.5 * done / most)

        if self.settings.sweep is not None:
            swept: list[Trial] = []

            def note_sweep(trial: Trial) -> None:
                swept.append(trial)
                tell(trial, len(swept), 2 * count)
                self.keep(sweep=tuple(swept))

            sweep(levels, measure, self.settings.sweep, spent=self._search_is_over, watch=note_sweep)
        trials: list[Trial] = []

        def note(trial: Trial) -> None:
            trials.append(trial)
            tell(trial, len(trials), most_trials(count))
            self.keep(search=unfinished(levels, trials, "not finished"))

        return quota_search(levels, measure, spent=self._search_is_over, watch=note)

    def compare(self, pair: EligiblePair, level: Level) -> PairedComparison | Unavailable:
        """Measure a level in pairs with q0, in a process of its own."""
        bench, began_s = self.bench, self.spent_s
        try:
            worker = bench.worker(self.branch(pair.earlier), level)
        except BranchError as error:
            return Unavailable(str(error))
        changed = self.others(pair, worker)
        try:
            bench.together(changed)
            return measure_paired(
                lambda: bench.together(self.workers).join_s,
                lambda: bench.together(changed).join_s,
                self.settings.rule,
            )
        finally:
            bench.release(worker)
            self.trial_s = max(self.trial_s, self.spent_s - began_s)

    def _search_is_over(self) -> str:
        """Why no further level is begun: the validation needs the time that is left; empty if one is."""
        trial_s = self.set_up_s + 2 * self.settings.rounds * self.known.together.median_s
        trial_s = max(trial_s, self.trial_s)
        # a client that looks takes about as long to start as a branch
        last_s = self._validation_s() + (self.set_up_s if self.looks else 0.0)
        return no_further_level(self.left_s, self.settings.budget_s, trial_s, last_s)

    def _validation_s(self) -> float:
        """How long the shortest validation probably takes."""
        final = self.settings.final
        pairs = final.least_pairs or final.most_pairs
        return self.set_up_s + 2 * (pairs + 1) * self.known.together.median_s

    def check_budget(self) -> None:
        """Stop if what is left does not hold the validation."""
        if why := no_validation(self.left_s, self.settings.budget_s, self._validation_s()):
            raise _Stopped(why)

    # the answer --------------------------------------------------------------------------------------------

    @property
    def looks(self) -> bool:
        """Whether one looks at matrix products under a level before it is used."""
        return self.settings.check_products and self.mechanism.alters_products

    def right(self, search: QuotaSearch) -> QuotaSearch:
        """Pass over levels under which matrix products are wrong, from the fastest one on.

        One of which that cannot be told is taken: who reads the result is told.
        """
        if search.best == search.start:
            return search
        if not self.settings.check_products:
            self.keep(products=Unavailable("it was not asked for"))
            return search
        times, wrong = search.measured, list[str]()
        for k in sorted((k for k in times if times[k] < times[search.start]), key=times.__getitem__):
            if self.looks:
                self.check_budget()
                self.progress("matrix products", 0.8)
            level = search.levels[k - 1]
            products = self.mechanism.products(level, limit_s=min(LIMIT_S, self.left_s))
            self.keep(products=products)
            if isinstance(products, Unavailable) or not products.wrong:
                passed = f"; passed over, as matrix products are wrong: {', '.join(wrong)}" if wrong else ""
                return replace(search, best=k, reason=search.reason + passed)
            wrong.append(f"{level.setting} {self.mechanism.setting}")
        raise _Stopped(f"matrix products are wrong under all levels that were faster: {', '.join(wrong)}")

    def validate(self, pair: EligiblePair, search: QuotaSearch) -> Validation:
        """Compare the answer with q0 in processes that are all new."""
        self.progress("validation", 0.85)
        if search.best == search.start:
            return validate(search, lambda _level: 0.0)
        self.check_budget()
        bench = self.bench
        for worker in list(self.workers):
            bench.release(worker)
        wanted = [(branch, None) for branch in self.branches]
        *self.workers, worker = bench.workers([*wanted, (self.branch(pair.earlier), search.best_level)])
        sets = {search.start_level: self.workers, search.best_level: self.others(pair, worker)}
        for workers in sets.values():
            bench.together(workers)
        rule = self.settings.final
        if self.settings.budget_s is not None:
            left_s = max(0.0, self.left_s)
            rule = replace(rule, budget_s=left_s if rule.budget_s is None else min(left_s, rule.budget_s))
        return validate(search, lambda level: bench.together(sets[level]).join_s, rule)


def _graph(names: Sequence[str]) -> TaskGraph:
    """The branches and the join."""
    tasks = [Task(name, payload="round", worker=name) for name in names]
    return TaskGraph(
        (*tasks, Task(JOIN, program_order=1)), tuple(Edge(name, JOIN, "order") for name in names)
    )


def _record(graph: TaskGraph, names: Sequence[str], round_: Round) -> RunRecord:
    runs = [
        TaskRun(name, name, span.start_ns, span.end_ns, span.end_ns)
        for name, span in zip(names, round_.spans, strict=True)
    ]
    end_ns = max(run.end_ns for run in runs)
    join = TaskRun(JOIN, "caller", end_ns, end_ns, end_ns)
    return RunRecord(graph.hash, (*runs, join), round_.start_ns, end_ns)
