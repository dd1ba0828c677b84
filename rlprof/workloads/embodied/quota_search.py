"""The search of `rlprof.workloads.embodied.quotas.tune`: pair, levels in pairs with q0, whole iterations."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from rlprof.analysis.trials import PairedComparison, Rule, measure_paired, spread
from rlprof.errors import RlprofError
from rlprof.interrupts import interrupted
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize.comparison import Comparison, affected, comparison
from rlprof.overlap.optimize.cost import QUOTAS
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.machine import Sides
from rlprof.overlap.optimize.options import exhausted, known_comparison
from rlprof.overlap.optimize.steps import Step
from rlprof.overlap.optimize.store import Store, key_of
from rlprof.overlap.optimize.workload import Trial as Ready
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.pair import EligiblePair, WorkerProcess, find_pair
from rlprof.overlap.quota.paired import PairedLevels, left_of, no_further_level, no_validation
from rlprof.overlap.quota.search import (
    Measurement,
    QuotaSearch,
    Spent,
    Trial,
    quota_search,
    sweep,
    unfinished,
)
from rlprof.overlap.quota.validation import Validation, decided, unneeded
from rlprof.taskgraph.errors import RestoreError
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.errors import SimulatorError
from rlprof.workloads.embodied.nodes import ENV, ROLLOUT, VISION
from rlprof.workloads.embodied.quotas import INTERRUPTED, OF_ROLLOUT, Quotas
from rlprof.workloads.embodied.rollout_share import RolloutShare, levels_of

if TYPE_CHECKING:
    from rlprof.overlap.optimize.program import ProgramWorkload
    from rlprof.workloads.embodied.exchange import Exchangeable


class Tuned(Protocol):
    """Who may have a share: a simulator, or the rollout."""

    @property
    def key(self) -> Any:
        """Share in use, in percent; None: that of q0."""

    def use(self, key: int | None, *, only: bool = False) -> None:
        """Let it have a share; end or drop what was made for others, if `only` this one is used."""

    def abandon(self, key: int | None) -> None:
        """Let it have that of q0 without asking the one before, which may be dead."""

    def drop(self, key: int | None) -> None:
        """End or drop what was made for a share that is not in use."""


@dataclass
class Tuner:
    """One search at work; parameters as of `rlprof.workloads.embodied.quotas.tune`.

    Attributes
    ----------
    found : Quotas
        What is known so far.
    trials : list of Trial
        Of the search, in the order measured.
    """

    workload: ProgramWorkload
    graph: CallGraph
    steps: Sequence[Step]
    simulator: Exchangeable
    levels: tuple[Level, ...]
    workers: Mapping[str, WorkerProcess | None]
    rule: Rule
    local: Rule
    budget_s: float | None
    sweep_every: int | None
    key: str
    log: DecisionLog
    store: Store
    share: RolloutShare | None = None
    found: Quotas = field(default_factory=lambda: Quotas(None, "not finished"))
    trials: list[Trial] = field(default_factory=list)
    began_s: float = 0.0
    trial_s: float = 0.0  # how long measuring a level takes
    iteration_s: float = 0.0
    _reused: set[Level] = field(default_factory=set)
    _reserved: bool = True  # levels leave the time that the validation needs
    _stack: ExitStack = field(default_factory=ExitStack)
    _tuned: Tuned = field(init=False)

    def __post_init__(self) -> None:
        self._tuned = self.simulator

    def run(self) -> Quotas:
        """Do all of it."""
        self.began_s = time.monotonic()
        with self.store.spending(QUOTAS):
            try:
                self._search()
            except KeyboardInterrupt:
                self._interrupted(intact=True)
            except RestoreError as error:
                if not interrupted(error):
                    raise
                self._interrupted(intact=False)
        self.found = replace(self.found, cost=self.store.spent(QUOTAS))
        return self.found

    def _search(self) -> None:
        pair = self._pair()
        if isinstance(pair, Unavailable):
            self.found = Quotas(None, pair.reason)
            return
        self.found = replace(self.found, pair=pair)
        if (why := self._choose(pair.earlier)) is not None:
            self.found = replace(self.found, reason=f"{pair.earlier} has the slack, and {why}: keep q0")
            return
        if len(self.levels) < 2:
            self.found = replace(self.found, reason="there is one level only of the GPU")
            return
        why = no_validation(self.left_s, self.budget_s, self._validation_s)
        if why and self.store.get(self._q0_key) is None:
            self.found = replace(self.found, reason=f"q0 is kept: {why}", stopped=True)
            return
        with ExitStack() as stack:
            self._stack = stack
            measure = PairedLevels(self._q0(), self.levels[-1], self._compare)
            search = quota_search(self.levels, measure, watch=self._watch)
        self.found = replace(self.found, search=search)
        self.log.add(
            "quota found",
            level=search.best_level.to_dict(),
            best=search.best,
            levels=len(self.levels),
            trials=len(search.trials),
            complete=search.complete,
            reason=search.reason,
        )
        reused = self._validate(search)
        if self.sweep_every is not None:
            self._sweep(measure, self.sweep_every)
        # who goes on from here has the quota; nobody does where all was known
        self._tuned.use(None if reused else self._key(self.found.level), only=True)

    def _choose(self, earlier: str) -> str | None:
        """Tune who has the slack; why it can have no share, else None."""
        component = earlier.partition("#")[0]
        if component == ENV:
            return None
        if component not in (ROLLOUT, VISION):
            return "is one process with the rollout, which alone can have a share in it"
        levels = levels_of(self.share)
        if isinstance(levels, Unavailable):
            return levels.reason
        assert self.share is not None
        self._tuned, self.levels = self.share, levels
        self.found = replace(self.found, component=OF_ROLLOUT)
        return None

    def _sweep(self, measure: PairedLevels, every: int) -> None:
        """Measure further levels in what is left of the budget, all of it."""
        self._reserved, known = False, {trial.k for trial in self.trials}

        def watch(trial: Trial) -> None:
            if trial.k not in known:
                self._watch(trial)

        with ExitStack() as stack:
            self._stack = stack
            curve = sweep(self.levels, measure, every, spent=lambda: self.left_s <= 0, watch=watch)
        self.found = replace(self.found, sweep=curve)

    def _interrupted(self, *, intact: bool) -> None:
        """Keep q0, and what is known; all shares are those of q0 again, if they still can be."""
        search = self.found.search
        if search is None and self.trials:
            search = unfinished(self.levels, self.trials, "interrupted")
        try:
            self._tuned.use(None, only=True)
        except RlprofError:
            intact = False
        self.found = replace(
            self.found, level=None, reason=INTERRUPTED, search=search, stopped=True, intact=intact
        )

    # budget ------------------------------------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        """What is left of the budget; infinite without one."""
        return left_of(self.budget_s, time.monotonic() - self.began_s)

    @property
    def _validation_s(self) -> float:
        """How long the shortest validation probably takes."""
        pairs = self.rule.least_pairs or self.rule.most_pairs
        return (2 * pairs + 1) * self.iteration_s

    def _why_over(self) -> str:
        """Why no further level is begun; empty if one is."""
        if not self._reserved:
            return ""
        return no_further_level(self.left_s, self.budget_s, self.trial_s, self._validation_s)

    # what is measured --------------------------------------------------------------------------------------

    def _store_key(self, *parts: str) -> str:
        return key_of(self.key, "quota", self.graph.hash, *parts)

    def _level_key(self, what: str, level: Level, *parts: str) -> str:
        return self._store_key(what, self.found.component, json.dumps(level.to_dict()), *parts)

    def _key(self, level: Level | None) -> int | None:
        """Key of who is tuned, under a level."""
        return None if level is None or level == self.levels[-1] else level.setting

    def _iteration(self) -> float:
        """Train one iteration by the graph, under the quota that is in use."""
        measured = self.workload.iteration(self.graph)
        percent = self._tuned.key
        under = "" if percent is None else f", {self.found.component} at {percent} %"
        what = f"{self.graph.hash}{under}"
        self.store.train(what, measured)
        self.iteration_s = max(self.iteration_s, measured.time_s)
        return measured.time_s

    def _pair(self) -> EligiblePair | Unavailable:
        """Find who has slack in a complete iteration."""
        clients = {name: None if w is None else w.client for name, w in sorted(self.workers.items())}
        key = self._store_key("pair", json.dumps(clients))
        known = self.store.get(key)
        pair: EligiblePair | Unavailable
        if known is None:
            self._tuned.use(None)
            time_s = self._iteration()
            ran = self.workload.last_run
            assert ran is not None
            pair = find_pair(*ran, self.workers)
            told = {"unavailable": pair.reason} if isinstance(pair, Unavailable) else pair.to_dict()
            self.store.put(key, "quota pair", {"iteration_s": time_s, "pair": told})
        else:
            self.iteration_s, told = known["iteration_s"], known["pair"]
            unavailable = told.get("unavailable")
            pair = EligiblePair.from_dict(told) if unavailable is None else Unavailable(unavailable)
        self.log.add("quota pair", pair=told, reused=known is not None)
        return pair

    @cached_property
    def _work(self) -> Comparison:
        native = self.workload.native
        return comparison(native, [native, self.graph], [*affected(self.steps)], outer_iterations=1)

    @cached_property
    def _trial(self) -> Ready:
        """The work to compare, prepared when the first level is measured; it ends with the search."""
        self._tuned.use(None)
        (trial,) = self._stack.enter_context(self.workload.prepared(self._work, [self.graph]))
        self._stack.callback(self.__dict__.pop, "_trial")
        trial.run()  # the first one is slower
        self.store.tried()
        return trial

    def _run(self, key: int | None) -> float:
        trial = self._trial
        self._tuned.use(key)
        time_s = trial.run()
        self.store.tried()
        return time_s

    @property
    def _q0_key(self) -> str:
        return self._store_key("q0", json.dumps(sorted(self._work.origins)))

    def _q0(self) -> Measurement:
        """Time under q0 by itself: what the gains of levels are subtracted from."""
        key = self._q0_key
        known = self.store.get(key)
        if known is None:
            began_s = time.monotonic()
            runs = self.local.least_pairs or self.local.most_pairs
            times_s = [self._run(None) for _ in range(runs)]
            self.trial_s = 2 * (time.monotonic() - began_s)
            self.store.put(key, "quota q0", {"times_s": times_s, "level_s": self.trial_s})
        else:
            times_s, self.trial_s = known["times_s"], known["level_s"]
            self._reused.add(self.levels[-1])
        found = spread(times_s)
        return Measurement(found.median_s, found.width_s, found.runs)

    def _compare(self, level: Level) -> PairedComparison | Unavailable:
        """Compare a level with q0, in turn; simulators of each are processes of their own."""
        key = self._level_key("level", level, json.dumps(sorted(self._work.origins)))
        known = known_comparison(self.store.get(key), self.local)
        if known is not None:
            self._reused.add(level)
            return known
        if why := self._why_over():
            raise Spent(why)
        began_s, percent = time.monotonic(), self._key(level)
        try:
            self._run(percent)  # the first one is slower
            sides = Sides.beside(self.workload)
            watched = sides.reference(lambda: self._run(None)), sides.candidate(lambda: self._run(percent))
            result = sides.judged(measure_paired(*watched, self.local))
        except RlprofError as error:
            dead = _failure_of_simulator(error)
            if isinstance(error, RestoreError) and dead is None:
                raise
            self._tuned.abandon(percent)  # simulators of q0 are as prepared: each of their trials ended so
            return Unavailable((dead or error).what)
        finally:
            self.trial_s = max(self.trial_s, time.monotonic() - began_s)
        self._tuned.use(None)
        self._tuned.drop(percent)
        self.store.put(key, "quota level", {**result.to_dict(), "machine": sides.to_dict()})
        return result

    def _watch(self, trial: Trial) -> None:
        """Note a level of the search."""
        self.trials.append(trial)
        self.log.add(
            "quota level",
            **trial.to_dict(),
            comparison_of=str(self._work),
            reused=trial.level in self._reused,
        )

    # complete iterations -----------------------------------------------------------------------------------

    def _validate(self, search: QuotaSearch) -> bool:
        """Decide by complete iterations, in turn with those under q0; whether they were known already."""
        reused, stopped = False, not search.complete
        if search.best == search.start:
            checked = unneeded(search)
        else:
            key = self._level_key("complete", search.best_level)
            known = known_comparison(self.store.get(key), self.rule)
            if known is not None:
                checked, reused = decided(search, known, self.rule), True
            elif why := no_validation(self.left_s, self.budget_s, self._validation_s):
                self.found = replace(self.found, reason=f"q0 is kept: {why}", stopped=True)
                return False
            else:
                result, cut = self._complete(search, key)
                checked, stopped = decided(search, result, self.rule), stopped or cut
        found = None if checked.kept else checked.chosen
        self.found = replace(
            self.found, level=found, reason=checked.reason, validation=checked, stopped=stopped
        )
        self.log.add("quota validated", **_validated(search, checked), reused=reused)
        return reused

    def _complete(self, search: QuotaSearch, key: str) -> tuple[PairedComparison, bool]:
        """Compare complete iterations; whether the budget of the search ended it before it was decided."""
        rule = self.rule
        if self.budget_s is not None:
            left_s = max(0.0, self.left_s)
            rule = replace(rule, budget_s=left_s if rule.budget_s is None else min(left_s, rule.budget_s))

        def run(level: Level) -> float:
            self._tuned.use(self._key(level))
            return self._iteration()

        run(search.best_level)  # the first one is slower, and not counted
        sides = Sides.beside(self.workload)
        start, best = lambda: run(search.start_level), lambda: run(search.best_level)
        result = sides.judged(measure_paired(sides.reference(start), sides.candidate(best), rule))
        ended = exhausted(result, rule)
        if ended:
            self.store.put(key, "quota complete", {**result.to_dict(), "machine": sides.to_dict()})
        return result, not ended and rule.budget_s != self.rule.budget_s


def _validated(search: QuotaSearch, checked: Validation) -> dict[str, Any]:
    return {
        "level": search.best_level.to_dict(),
        "result": None if checked.comparison is None else checked.comparison.to_dict(),
        "outcome": "q0 is kept" if checked.kept else "kept",
        "reason": checked.reason,
    }


def _failure_of_simulator(error: BaseException | None) -> SimulatorError | None:
    """What a simulator failed with, if an error came of that."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, SimulatorError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
