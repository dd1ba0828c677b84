"""Levers: settings beside the order of calls, each measured alone and kept only if it pays.

A lever is changed, complete iterations run with it and without it in turn, and it stays changed only if the
gain is clear. The graph plays no part in that, so that what overlap gains can be told from what levers gain:
whatever is compared later has the same ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from rlprof.analysis.machine_state import MachineState, doubts
from rlprof.analysis.trials import PairedComparison, Rule, measure_paired
from rlprof.errors import RlprofError
from rlprof.interrupts import noted
from rlprof.overlap.optimize.cost import LEVERS, NOTHING, Cost, Trained
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.options import exhausted, faster, known_comparison
from rlprof.overlap.optimize.store import Store, key_of
from rlprof.overlap.optimize.workload import Measurement
from rlprof.unavailable import Unavailable

Value = bool | int | str | None
Outcome = Literal["kept", "dropped", "not measured", "does not apply"]
#: End of the reason of a row that needed no measurement.
AGAIN = " (measured before)"


class Lever(Protocol):
    """A setting of a program that trains.

    Attributes
    ----------
    name : str
        As on the command line.
    present : bool, int, str or None
        Its value that is kept so far.
    """

    name: str

    @property
    def present(self) -> Value:
        """The value that is kept so far."""
        ...

    def others(self) -> Sequence[Value] | Unavailable:
        """Values to try in place of the present one; why there are none."""
        ...

    def use(self, value: Value) -> None:
        """Let the program run with a value from now on; an `RlprofError` if it cannot."""
        ...

    def refused(self) -> str | None:
        """Say why the value in use had no effect when the program ran; None if it had."""
        ...

    def keep(self, value: Value) -> None:
        """Make a value the present one, and end what only others need."""
        ...


@dataclass(frozen=True)
class Row:
    """One value of a lever: a row of the ablation.

    Parameters
    ----------
    lever : str
        Name.
    before, value : bool, int, str or None
        What was in use, and what was tried in its place.
    outcome : {"kept", "dropped", "not measured", "does not apply"}
        What became of it.
    reason : str
        Why.
    result : PairedComparison or None
        Complete iterations without it and with it.
    undecided : bool
        The budget ended before it could be told whether the value pays: another call measures it again.
    """

    lever: str
    before: Value
    value: Value
    outcome: Outcome
    reason: str
    result: PairedComparison | None = None
    undecided: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a JSON document."""
        return {
            "lever": self.lever,
            "before": self.before,
            "value": self.value,
            "outcome": self.outcome,
            "reason": self.reason,
            "result": None if self.result is None else self.result.to_dict(),
            "undecided": self.undecided,
        }


@dataclass(frozen=True)
class Measured:
    """What came of the levers.

    Parameters
    ----------
    rows : tuple of Row
        In the order in which they were looked at.
    iterations : tuple of (str, Measurement)
        All complete iterations, with what ran in them.
    spent_s : float
        Time for all of it.
    stopped : bool
        It was interrupted; what was kept by then is in use.
    cost : Cost
        Of the optimisation until then, over all sessions.
    trained : tuple of Trained
        All iterations of the optimisation until then, as of `Store.trained`.
    """

    rows: tuple[Row, ...] = ()
    iterations: tuple[tuple[str, Measurement], ...] = ()
    spent_s: float = 0.0
    stopped: bool = False
    cost: Cost = NOTHING
    trained: tuple[Trained, ...] = ()

    @property
    def kept(self) -> dict[str, Value]:
        """Levers that were changed, and to what."""
        return {row.lever: row.value for row in self.rows if row.outcome == "kept"}


def measure_levers(
    levers: Sequence[Lever],
    iterate: Callable[[], tuple[str, Measurement]],
    *,
    key: Callable[[], str],
    rule: Rule,
    least_gain_frac: float,
    log: DecisionLog,
    store: Store,
    budget_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Measured:
    """Try every value of every lever alone, against what is in use by then.

    Parameters
    ----------
    levers : sequence of Lever
        In the order in which they are tried.
    iterate : callable
        Trains one complete iteration as the program is set; what ran, and its measurement.
    key : callable
        Program, settings and hardware as they are now: measurements of another key are not reused.
    rule : Rule
        Of a comparison.
    least_gain_frac : float
        What must be gained, as a share of the iteration.
    log : DecisionLog
        Told of every decision.
    store : Store
        Measurements of earlier calls, and what this one takes.
    budget_s : float, optional
        No comparison is begun after so long, and none goes on.
    clock : callable, optional
        Seconds.

    Returns
    -------
    Measured
        Values that were kept are in use, and present, afterwards.
    """
    run = _Run(iterate, key, replace(rule, least_gain_frac=least_gain_frac), log, store, budget_s, clock)
    with store.spending(LEVERS):
        for lever in levers:
            if run.stopped:
                break
            run.one(lever)
    return run.result()


class _Run:
    def __init__(
        self,
        iterate: Callable[[], tuple[str, Measurement]],
        key: Callable[[], str],
        rule: Rule,
        log: DecisionLog,
        store: Store,
        budget_s: float | None,
        clock: Callable[[], float],
    ) -> None:
        self.iterate, self.key, self.rule, self.log, self.store = iterate, key, rule, log, store
        self.budget_s, self.clock, self.began = budget_s, clock, clock()
        self.rows: list[Row] = []
        self.iterations: list[tuple[str, Measurement]] = []
        self.stopped = False

    def result(self) -> Measured:
        """What there is by now."""
        return Measured(
            tuple(self.rows),
            tuple(self.iterations),
            self.clock() - self.began,
            self.stopped,
            self.store.cost(),
            self.store.trained(),
        )

    def trained(self) -> Measurement:
        """Train a complete iteration, and keep it."""
        ran, measured = self.iterate()
        self.iterations.append((ran, measured))
        self.store.train(ran, measured)
        return measured

    @property
    def left_s(self) -> float | None:
        return None if self.budget_s is None else max(0.0, self.budget_s - (self.clock() - self.began))

    def one(self, lever: Lever) -> None:
        """Try all values of a lever."""
        values = lever.others()
        if isinstance(values, Unavailable):
            self.note(Row(lever.name, lever.present, None, "does not apply", values.reason))
            return
        for value in values:
            self.note(self.tried(lever, value))
            if self.stopped:
                return

    def note(self, row: Row) -> None:
        """Keep a row and tell of it; an interrupt meanwhile ends after it, with what is known by then."""
        with noted() as asked:
            self.rows.append(row)
            self.log.add("lever", **row.to_dict())
        self.stopped = self.stopped or asked()

    def tried(self, lever: Lever, value: Value) -> Row:
        """Compare a value with the present one, and keep the faster."""
        before = lever.present

        def row(
            outcome: Outcome, reason: str, result: PairedComparison | None = None, *, undecided: bool = False
        ) -> Row:
            return Row(lever.name, before, value, outcome, reason, result, undecided)

        key = key_of(self.key(), "lever", lever.name, json.dumps(before), json.dumps(value))
        known = known_comparison(self.store.get(key), self.rule)
        spent = f"the levers' budget of {round(self.budget_s or 0.0, 1):g} s is spent"
        if known is None and self.left_s == 0.0:
            return row("not measured", spent, undecided=True)
        try:
            if known is not None:
                result = known
            else:
                why = self.unusable(lever, value) or (spent if self.left_s == 0.0 else None)
                if why is not None:
                    lever.use(before)
                    return row("not measured", why, undecided=why == spent)
                result = self.measured(lever, before, value)
                if exhausted(result, self.rule):
                    self.store.put(key, "lever", result.to_dict())
            if not faster(result, self.rule, self.rule.least_gain_frac):
                lever.use(before)
                undecided = not exhausted(result, self.rule)
                why = _why(result, self.rule, reused=known is not None)
                return row("dropped", why, result, undecided=undecided)
            try:
                lever.use(value)
            except RlprofError as error:  # it could be when this was measured
                lever.use(before)
                return row("not measured", error.what)
            lever.keep(value)
            return row("kept", _why(result, self.rule, reused=known is not None, kept=True), result)
        except KeyboardInterrupt:
            self.stopped = True
            lever.use(before)
            return row("not measured", "interrupted")

    def unusable(self, lever: Lever, value: Value) -> str | None:
        """Run with a value for the first time, which is slower and not counted; why it cannot be."""
        try:
            lever.use(value)
        except RlprofError as error:
            return error.what
        self.trained()
        return lever.refused()

    def measured(self, lever: Lever, before: Value, value: Value) -> PairedComparison:
        states: tuple[list[MachineState], list[MachineState]] = ([], [])

        def run(which: Value, side: int) -> float:
            lever.use(which)
            found = self.trained()
            if known := found.facts.get("machine"):
                states[side].append(MachineState.from_dict(known))
            return found.time_s

        rule = replace(self.rule, budget_s=self.left_s)
        result = measure_paired(
            lambda: run(before, 0), lambda: run(value, 1), rule, clock=self.clock, watch=self.log.measuring
        )
        return replace(result, doubts=doubts(*states))


def _why(result: PairedComparison, rule: Rule, *, reused: bool, kept: bool = False) -> str:
    word: str = result.decision
    if word == "unclear" and not kept:  # another call makes again what the budget cut short
        word = "no gain that counts" if exhausted(result, rule) else "not decided"
    elif word == "unclear":  # with too few pairs for a decision those that there are decide
        word = "every pair was won"
    return f"{word}, {result.reason}" + (AGAIN if reused else "")
