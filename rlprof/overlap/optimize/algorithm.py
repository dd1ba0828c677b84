"""Algorithm 1 of Rose: rank windows, try what may run in them, combine what pays, validate, repeat.

Nothing here touches a program: a `Workload` does, and measurements that a `Store` has are not made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlprof.analysis.trials import PairedComparison, Rule
from rlprof.errors import OutputError, RlprofError
from rlprof.interrupts import interrupted
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.legality import check
from rlprof.overlap.memory import beyond_memory
from rlprof.overlap.optimize.budget import Budget, Spent
from rlprof.overlap.optimize.combine import Combination, Item, combine
from rlprof.overlap.optimize.comparison import Comparison, affected, comparison
from rlprof.overlap.optimize.cost import SEARCH
from rlprof.overlap.optimize.decisions import log_session
from rlprof.overlap.optimize.entries import Entries
from rlprof.overlap.optimize.log import DecisionLog, not_accepted
from rlprof.overlap.optimize.machine import Sides
from rlprof.overlap.optimize.options import Options, exhausted, faster, known_comparison
from rlprof.overlap.optimize.outcome import Optimization, Round
from rlprof.overlap.optimize.search import Candidate, Known, search
from rlprof.overlap.optimize.steps import Step
from rlprof.overlap.optimize.store import Store, key_of
from rlprof.overlap.optimize.trials import Estimates, Seen, watch
from rlprof.overlap.optimize.windows import Window, ranked, targets
from rlprof.overlap.optimize.workload import Measurement, Profile, Trial, Workload
from rlprof.taskgraph.errors import RestoreError


def optimize(
    workload: Workload,
    options: Options | None = None,
    *,
    log: DecisionLog | None = None,
    store: Store | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Optimization:
    """Find a faster graph for a program that trains.

    Parameters
    ----------
    workload : Workload
        The program.
    options : Options, optional
        K, L, R, eps, thresholds, limits.
    log : DecisionLog, optional
        Told of every decision.
    store : Store, optional
        Measurements of earlier calls: what is known under the workload's key is not measured again. It is
        told what this one takes; its session begins here unless it has begun.
    clock : callable, optional
        Seconds.

    Returns
    -------
    Optimization
        Also after Ctrl-C or when the budget is spent: the best graph that was validated so far. Its cost is
        that of all sessions of the store.

    Notes
    -----
    Specification A, section 7; Rose, Algorithm 1.
    """
    return _Run(
        workload,
        options or Options(),
        DecisionLog() if log is None else log,
        Store(clock=clock) if store is None else store,  # an empty one is false
        clock,
    ).run()


class _Run:
    def __init__(
        self,
        workload: Workload,
        options: Options,
        log: DecisionLog,
        store: Store,
        clock: Callable[[], float],
    ) -> None:
        self.workload, self.options, self.log, self.store = workload, options, log, store
        self.told = Entries(log)
        self.budget = Budget(options.budget_s, clock)
        self.native = self.graph = workload.native
        self.steps: tuple[Step, ...] = ()
        self.rounds: list[Round] = []
        self.iterations: list[tuple[str, Measurement]] = []
        self.known = Estimates()
        self.dropped: set[tuple[Step, ...]] = set()
        self._warm: Trial | None = None
        self._validation: PairedComparison | None = None  # the latest one of the round
        self._derived: dict[str, Known] = {}

    def run(self) -> Optimization:
        if self.store.session is None:
            self.store.begin({"program": self.workload.key})
            log_session(self.store, self.log)
        with self.store.spending(SEARCH):
            found = self._found()
        return found.up_to(self.store)

    def _found(self) -> Optimization:
        stopped, intact = False, True
        self.told.started(self.native, self.options)
        total: PairedComparison | None = None
        try:
            ended = self._rounds()
            total = self._total()
            if self.budget.cut:
                ended, stopped = self.options.budget_spent, True
        except Spent:
            ended, stopped = self.options.budget_spent, True
        except KeyboardInterrupt:
            ended, stopped = "interrupted", True
        except RestoreError as error:
            if not interrupted(error):
                raise
            ended, stopped, intact = "interrupted in a trial, whose state could not be put back", True, False
        if stopped and (last := self._not_accepted()):
            ended += f"; {last}"
        self.told.ended(ended, self.graph, self.steps, stopped=stopped)
        return Optimization(
            native=self.native,
            graph=self.graph,
            steps=self.steps,
            rounds=tuple(self.rounds),
            iterations=tuple(self.iterations),
            ended=ended,
            stopped=stopped,
            batch_times=self.known.times,
            together=self.known.together,
            total=total or self._only_round(),
            intact=intact,
        )

    def _not_accepted(self) -> str:
        """What was measured of the last round, if it was not accepted; empty otherwise."""
        last = self.rounds[-1] if self.rounds else None
        if last is None or last.accepted or last.validation is None:
            return ""
        return not_accepted(len(self.rounds), last.validation.to_dict())

    def _only_round(self) -> PairedComparison | None:
        """The comparison of the round, if one was accepted: it began with the native program."""
        accepted = [r for r in self.rounds if r.accepted]
        return accepted[0].validation if len(accepted) == 1 else None

    def _total(self) -> PairedComparison | None:
        """Compare the result of several rounds with the native program."""
        if self.graph is self.native or self._only_round() is not None:
            return self._only_round()
        result, reused = self._validate(self.native, self.graph)
        outcome = "all rounds together"
        self.told.validated(None, self.steps, self.graph, result, outcome, reused=reused)
        return result

    def _rounds(self) -> str:
        for number in range(1, self.options.rounds + 1):
            before = self.graph
            profile = self._profile()
            chosen = self._rank(number, profile)
            tried: set[tuple[Step, ...]] = set()
            items = [item for window in chosen for item in self._try(number, window, profile, tried)]
            self._validation = None
            try:
                accepted = self._accept(number, items)
            except (Spent, KeyboardInterrupt):
                if self._validation is not None:  # of a combination that was not accepted
                    self.rounds.append(Round(profile, before, self.graph, self._validation))
                raise
            self.rounds.append(Round(profile, before, self.graph, self._validation))
            if (
                not accepted and self.budget.cut
            ):  # what was cut short may pay: that nothing does cannot be told
                raise Spent
            if not accepted:
                return f"round {number} found nothing that pays"
        return f"all {self.options.rounds} rounds are done"

    # ranking -----------------------------------------------------------------------------------------------

    def _profile(self) -> Profile:
        key = key_of(self.workload.key, "profile", self.workload.activity_from, self.graph.hash)
        known = self.store.get(key)
        profile = None if known is None else Profile.from_dict(known)
        if profile is None or not profile.active:  # there may be a source of activity by now
            self.budget.check()
            profile = self.workload.profile(self.graph)
            self._trained(self.graph.hash, profile.measurement)
            self.store.put(key, "profile", profile.to_dict())
        self.known = self.known.having(Seen(profile.alone))
        return profile

    def _rank(self, number: int, profile: Profile) -> tuple[Window, ...]:
        whole = next((w for w in profile.windows if w.node == self.native.region), None)
        least_s = self.options.tau_abs_s
        if whole is not None:
            least_s = min(least_s, self.options.tau_rel_frac * whole.total_s)
        windows = ranked(replace(w, eligible=w.total_s >= least_s) for w in profile.windows)
        chosen = targets(windows, self.native.region, self.options.targets)
        self.told.ranking(number, profile, windows, chosen)
        return chosen

    # candidates and local trials ---------------------------------------------------------------------------

    def _try(self, number: int, window: Window, profile: Profile, tried: set[tuple[Step, ...]]) -> list[Item]:
        found = search(
            self.graph,
            window.node,
            {w.node: w.mean_s for w in profile.windows},
            estimate=self.known.of(self.graph),
            groups=self.options.groups,
            check=self._memory,
            known=self._derived.setdefault(self.graph.hash, {}),
        )
        kept = found.best(self.options.alternatives, tried, self.dropped)
        self.told.candidates(number, window.node, found, kept, tried)
        tried.update(c.steps for c in kept)
        if not kept:
            return []
        paths = dict.fromkeys([window.node])
        for candidate in kept:
            paths.update(dict.fromkeys([candidate.partner, *affected(candidate.steps)]))
        graphs = [c.graph for c in kept]
        work = comparison(
            self.native,
            [self.graph, *graphs],
            paths,
            iterations=self.options.iterations,
            outer_iterations=self.options.outer_iterations,
        )
        results = self._compare(number, window, work, kept)
        for candidate, result in zip(kept, results, strict=True):
            if result is None or not faster(result, self.options.local):
                self.dropped.add(candidate.steps)
        return [
            Item(window.node, c.steps, r.gain_s * work.windows, work.origins)
            for c, r in zip(kept, results, strict=True)
            if r is not None and faster(r, self.options.local)
        ]

    def _memory(self, graph: CallGraph) -> str | None:
        return beyond_memory(graph, self.options.memory_bytes, self.workload.call_bytes())

    def _compare(
        self, number: int, window: Window, work: Comparison, kept: Sequence[Candidate]
    ) -> list[PairedComparison | None]:
        keys = [key_of(self.workload.key, "local", self.graph.hash, c.graph.hash, work.origins) for c in kept]
        again = [
            partial(self._again, number, window, work, c, key) for c, key in zip(kept, keys, strict=True)
        ]
        results: list[PairedComparison | None] = []
        if all(self._known(key, self.options.local) is not None for key in keys):
            return [take() for take in again]
        self.budget.check()
        try:
            with self.workload.prepared(work, [self.graph, *(c.graph for c in kept)]) as trials:
                for candidate, key, take, trial in zip(kept, keys, again, trials[1:], strict=True):
                    if (known := take()) is not None:
                        results.append(known)
                        continue
                    self.budget.check()
                    sides = Sides.beside(self.workload)
                    result = self._measure(number, window, candidate, trials[0], trial, sides)
                    results.append(result)
                    if result is not None:
                        both = [(self.graph, trials[0]), (candidate.graph, trial)]
                        serial = f"{candidate.name}, call by call"
                        failed = partial(self.told.not_measured, number, window.node, serial)
                        seen = watch(self.known, both, self.store.tried, failed)
                        self.known = self.known.having(seen)
                        told = {"machine": sides.to_dict(), "seen": seen.to_dict()}
                        self._keep(key, "local", result, self.options.local, told)
                        self._tell(number, window, work, candidate, result, sides)
        except (RestoreError, OutputError):
            raise
        except RlprofError as error:
            reason = f"the comparison cannot be prepared: {error.what}"
            for candidate in kept[len(results) :]:
                self.told.not_measured(number, window.node, candidate.name, reason)
        return [*results, *[None] * (len(kept) - len(results))]

    def _again(
        self, number: int, window: Window, work: Comparison, candidate: Candidate, key: str
    ) -> PairedComparison | None:
        """Take a local comparison, and what its trials told, from the store; None: it is not there."""
        result = self._known(key, self.options.local)
        if result is not None:
            document = self.store.get(key) or {}
            self.known = self.known.having(Seen.from_dict(document.get("seen", {})))
            self._tell(number, window, work, candidate, result, Sides.of(document), reused=True)
        return result

    def _measure(
        self, number: int, window: Window, candidate: Candidate, reference: Trial, trial: Trial, sides: Sides
    ) -> PairedComparison | None:
        def run(which: Trial) -> float:
            time_s = which.run()
            self.store.tried()
            return time_s

        try:
            if self.options.warm_up:  # what runs for the first time is slower
                if self._warm is not reference:
                    self._warm = reference
                    run(reference)
                run(trial)
                self.budget.check()
            return self._paired(lambda: run(reference), lambda: run(trial), self.options.local, sides)
        except (RestoreError, OutputError, Spent):
            raise
        except Exception as error:
            self.told.not_measured(number, window.node, candidate.name, error)
            return None

    def _tell(
        self,
        number: int,
        window: Window,
        work: Comparison,
        candidate: Candidate,
        result: PairedComparison,
        sides: Sides,
        *,
        reused: bool = False,
    ) -> None:
        """Tell of a local comparison."""
        kept = faster(result, self.options.local)
        self.told.compared(number, window.node, work, candidate.name, result, sides, kept=kept, reused=reused)

    # combination and validation ----------------------------------------------------------------------------

    def _accept(self, number: int, items: Sequence[Item]) -> bool:
        refused: list[tuple[Item, Sequence[Item], str]] = []
        made = combine(self.graph, items, refused=lambda *apart: refused.append(apart))
        judged: list[tuple[Combination, str | None]] = []
        fitting: list[Combination] = []
        for one in made:
            reason = self._invalid(one) if len(fitting) < self.options.combinations else None
            if reason is None:
                fitting.append(one)
            judged.append((one, reason))
        self.told.combined(number, judged, refused)
        for one in fitting[: self.options.combinations]:
            self._validation, reused = self._validate(self.graph, one.graph)
            result = self._validation
            accepted = faster(result, self.options.validation, self.options.epsilon)
            outcome = "accepted" if accepted else "not accepted"
            self.told.validated(number, one.steps, one.graph, result, outcome, reused=reused)
            if accepted:
                self.graph, self.steps = one.graph, (*self.steps, *one.steps)
                return True
        return False

    def _invalid(self, one: Combination) -> str | None:
        refusals = check(self.native, one.graph)
        if refusals:
            return str(refusals[0])
        return self._memory(one.graph) or self.workload.check(one.graph)

    def _validate(self, before: CallGraph, graph: CallGraph) -> tuple[PairedComparison, bool]:
        """Compare complete iterations, each of which is training that goes on."""
        rule = replace(self.options.validation, least_gain_frac=self.options.epsilon)
        key = key_of(self.workload.key, "complete", before.hash, graph.hash)
        known = self._known(key, rule)
        if known is not None:
            return known, True
        self.budget.check()
        present = None if before is self.native else before

        def run(which: CallGraph | None) -> float:
            measured = self.workload.iteration(which)
            self._trained((which or self.native).hash, measured)
            return measured.time_s

        sides = Sides.beside(self.workload)
        result = self._paired(lambda: run(present), lambda: run(graph), rule, sides)
        self._keep(key, "complete", result, rule, {"machine": sides.to_dict()})
        return result, False

    def _trained(self, graph: str, measured: Measurement) -> None:
        self.iterations.append((graph, measured))
        self.store.train(graph, measured)

    def _paired(
        self, reference: Callable[[], float], candidate: Callable[[], float], rule: Rule, sides: Sides
    ) -> PairedComparison:
        return self.budget.paired(reference, candidate, rule, sides, self.log.measuring)

    def _known(self, key: str, rule: Rule) -> PairedComparison | None:
        return known_comparison(self.store.get(key), rule)

    def _keep(self, key: str, kind: str, result: PairedComparison, rule: Rule, told: dict[str, Any]) -> None:
        """Keep a comparison that ended by itself; one that the budget cut short is made again."""
        if exhausted(result, rule):
            self.store.put(key, kind, {**result.to_dict(), **told})
