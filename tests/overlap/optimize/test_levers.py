"""Levers: what is tried, kept, dropped and refused, by durations that are given."""

from __future__ import annotations

import itertools
import random
import re
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.analysis.machine_state import MachineState
from rlprof.analysis.trials import Rule
from rlprof.errors import RlprofError
from rlprof.overlap.optimize.levers import Measured, Value, measure_levers
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.optimize.workload import Measurement
from rlprof.unavailable import Unavailable

RULE = Rule(confidence=0.9, most_pairs=8)


@dataclass
class Program:
    """Settings, and how long an iteration takes with them."""

    at: dict[str, Value]
    factors: dict[tuple[str, Value], float] = field(default_factory=dict)
    noise_frac: float = 0.0
    ran: list[dict[str, Value]] = field(default_factory=list)
    drawn: random.Random = field(default_factory=lambda: random.Random(0))
    machines: dict[tuple[str, Value], MachineState] = field(default_factory=dict)

    def iterate(self) -> tuple[str, Measurement]:
        self.ran.append(dict(self.at))
        time_s = 1.0 + self.noise_frac * self.drawn.gauss(0, 1)
        for setting in self.at.items():
            time_s *= self.factors.get(setting, 1.0)
        machines = [self.machines[s] for s in self.at.items() if s in self.machines]
        facts = {"machine": machines[0].to_dict()} if machines else {}
        return str(self.at), Measurement(time_s, facts=facts)


@dataclass
class Setting:
    """A lever of a `Program`."""

    program: Program
    name: str
    tried: tuple[Value, ...] | Unavailable
    cannot: tuple[Value, ...] = ()
    without_effect: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        self.present: Value = self.program.at[self.name]
        self.kept: list[Value] = []

    def others(self) -> tuple[Value, ...] | Unavailable:
        return self.tried

    def use(self, value: Value) -> None:
        if value in self.cannot:
            raise RlprofError(f"{self.name} cannot be {value}")
        self.program.at[self.name] = value

    def refused(self) -> str | None:
        return "the capture failed" if self.program.at[self.name] in self.without_effect else None

    def keep(self, value: Value) -> None:
        self.present = value
        self.kept.append(value)


def measured(
    program: Program,
    *levers: Setting,
    store: Store | None = None,
    log: DecisionLog | None = None,
    **how: object,
) -> Measured:
    options: dict[str, object] = {
        "key": lambda: str(sorted(program.at.items())), "rule": RULE, "least_gain_frac": 0.01,
        "log": DecisionLog() if log is None else log, "store": Store() if store is None else store, **how,
    }  # fmt: skip
    return measure_levers(levers, program.iterate, **options)  # type: ignore[arg-type]


def test_what_is_clearly_faster_is_kept_and_the_next_lever_is_tried_with_it() -> None:
    program = Program({"workers": 14, "graph": False}, {("workers", 16): 0.9, ("graph", True): 0.8})
    log = DecisionLog()
    found = measured(
        program, Setting(program, "workers", (8, 16)), Setting(program, "graph", (True,)), log=log
    )
    assert [r.outcome for r in found.rows] == ["dropped", "kept", "kept"]
    assert found.kept == {"workers": 16, "graph": True}
    assert program.at == found.kept
    assert found.rows[2].result is not None
    assert found.rows[2].result.gain_frac == pytest.approx(0.2)
    assert {"workers": 14, "graph": True} not in program.ran
    # one to warm up, and five pairs for a clear answer
    assert len(program.ran) == len(found.iterations) == 3 * (1 + 2 * 5)
    said = log.text().splitlines()
    assert said[0].startswith(
        "lever workers, 14 -> 8: complete iterations, medians 1 s -> 1 s; gain pair by pair +0.0% (5 pairs),"
        " no gain that counts, clear"
    )
    assert said[1].endswith("clear after 5 pairs: kept")
    assert said[2].startswith(
        "lever graph, off -> on: complete iterations, medians 900 ms -> 720 ms; gain pair by pair +20.0% (5"
    )


def test_few_pairs_decide_if_all_are_won() -> None:
    program = Program({"workers": 1}, {("workers", 2): 0.9})
    found = measured(program, Setting(program, "workers", (2,)), rule=Rule(confidence=0.9, most_pairs=1))
    assert found.kept == {"workers": 2}
    assert found.rows[0].reason == "every pair was won, not clear after 1 pairs"


def test_more_pairs_do_not_lose_a_lever_that_fewer_have_kept() -> None:
    program, store = Program({"workers": 1}, {("workers", 2): 0.9}), Store()
    for most, pairs in ((8, 5), (16, 6), (8, 6)):  # of 16 pairs five do not decide
        program.at, program.ran = {"workers": 1}, []
        rule = Rule(confidence=0.9, most_pairs=most)
        found = measured(program, Setting(program, "workers", (2,)), rule=rule, store=store)
        assert found.kept == {"workers": 2}
        assert found.rows[0].result is not None
        assert len(found.rows[0].result.pairs) == pairs
    assert not program.ran  # the third time it is known


def test_what_is_slower_or_within_the_noise_is_not_kept() -> None:
    program = Program({"workers": 1}, {("workers", 2): 1.2, ("workers", 3): 0.999}, noise_frac=0.02)
    found = measured(program, Setting(program, "workers", (2, 3)))
    assert [r.outcome for r in found.rows] == ["dropped", "dropped"]
    assert found.rows[0].result is not None
    assert found.rows[0].result.decision == "worse"
    assert not found.kept
    assert program.at == {"workers": 1}


def test_a_gain_beside_a_machine_that_others_kept_busy_is_doubted() -> None:
    machines: dict[tuple[str, Value], MachineState] = {
        ("workers", value): MachineState(1.0, 2, own_cores=1.8, others_cores=others)
        for value, others in ((1, 0.9), (2, 0.1))
    }
    program = Program({"workers": 1}, {("workers", 2): 0.9}, machines=machines)
    log = DecisionLog()
    found = measured(program, Setting(program, "workers", (2,)), log=log)
    (row,) = found.rows
    assert row.result is not None
    (said,) = row.result.doubts
    assert said == "others kept 0.90 of 2 cores busy beside the reference and 0.10 beside the candidate"
    assert f"doubtful: {said}" in log.text()


def test_a_gain_below_the_least_one_is_none() -> None:
    program = Program({"workers": 1}, {("workers", 2): 0.995})
    assert not measured(program, Setting(program, "workers", (2,))).kept


def test_what_does_not_apply_cannot_be_used_or_has_no_effect_says_so() -> None:
    program = Program({"graph": False, "drawn": "egl", "streams": None}, {("drawn", "osmesa"): 0.5})
    log = DecisionLog()
    found = measured(
        program,
        Setting(program, "streams", Unavailable("cpu has no streams")),
        Setting(program, "drawn", ("egl-one", "osmesa"), cannot=("egl-one",)),
        Setting(program, "graph", (True,), without_effect=(True,)),
        log=log,
    )
    assert [(r.outcome, r.reason) for r in found.rows if r.outcome != "kept"] == [
        ("does not apply", "cpu has no streams"),
        ("not measured", "drawn cannot be egl-one"),
        ("not measured", "the capture failed"),
    ]
    assert not any(row.undecided for row in found.rows)  # another call would say the same
    assert program.at == {"graph": False, "drawn": "osmesa", "streams": None}
    assert "lever streams: does not apply, cpu has no streams" in log.text()
    assert "lever graph, off -> on: not measured, the capture failed" in log.text()


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    for turn in range(2):
        program = Program({"workers": 1}, {("workers", 2): 0.9})
        found = measured(
            program, Setting(program, "workers", (2, 4)), store=Store(tmp_path / "measurements.jsonl")
        )
        assert found.kept == {"workers": 2}
        assert program.at == {"workers": 2}
        assert bool(program.ran) == (turn == 0)
        assert ("measured before" in found.rows[0].reason) == (turn == 1)


def test_what_was_measured_and_cannot_be_used_any_more_is_not_kept() -> None:
    store = Store()
    first = Program({"workers": 14, "graph": False}, {("workers", 16): 0.9, ("graph", True): 0.8})
    measured(first, Setting(first, "workers", (16,)), store=store)
    again = replace(first, at={"workers": 14, "graph": False}, ran=[])
    workers = Setting(again, "workers", (16,), cannot=(16,))
    found = measured(again, workers, Setting(again, "graph", (True,)), store=store)
    first_row = found.rows[0]
    assert (first_row.outcome, first_row.reason) == ("not measured", "workers cannot be 16")
    assert again.at == {"workers": 14, "graph": True}
    assert not workers.kept


def test_a_program_with_other_settings_is_measured_anew() -> None:
    store = Store()
    for _ in range(2):
        program = Program({"workers": 1, "cameras": 0}, {("workers", 2): 0.9})
        measured(program, Setting(program, "workers", (2,)), store=store)
    program = Program({"workers": 1, "cameras": 2}, {("workers", 2): 1.1})
    assert not measured(program, Setting(program, "workers", (2,)), store=store).kept
    assert program.ran


def test_the_budget_ends_it_and_what_is_left_over_says_so() -> None:
    ticks = itertools.count()
    program = Program({"workers": 1, "graph": False}, {("graph", True): 0.5})
    found = measured(
        program, Setting(program, "workers", (2,)), Setting(program, "graph", (True,)),
        budget_s=12.0, clock=lambda: float(next(ticks)),
    )  # fmt: skip
    assert found.rows[-1].reason == "the levers' budget of 12 s is spent"
    assert [row.undecided for row in found.rows] == [True, True]
    assert not found.kept
    # the first one was cut short, and its few pairs say nothing
    assert found.rows[0].result is not None
    assert re.fullmatch(r"not decided, the budget of \S+ s holds no more than . pairs", found.rows[0].reason)


def test_the_budget_may_end_with_the_iteration_that_is_not_counted() -> None:
    program = Program({"workers": 1}, {("workers", 2): 0.5})
    store = Store()
    found = measured(
        program, Setting(program, "workers", (2,)), store=store,
        budget_s=0.5, clock=lambda: float(len(program.ran)),
    )  # fmt: skip
    assert [(r.outcome, r.reason, r.undecided) for r in found.rows] == [
        ("not measured", "the levers' budget of 0.5 s is spent", True)
    ]
    assert (program.at, len(program.ran)) == ({"workers": 1}, 1)
    assert measured(program, Setting(program, "workers", (2,)), store=store).kept == {"workers": 2}


def test_an_interrupt_leaves_what_was_kept_by_then() -> None:
    program = Program({"workers": 1, "graph": False}, {("workers", 2): 0.9})
    levers = (Setting(program, "workers", (2,)), Setting(program, "graph", (True,)))
    whole = program.iterate

    def iterate() -> tuple[str, Measurement]:
        if program.at["graph"]:
            raise KeyboardInterrupt
        return whole()

    program.iterate = iterate  # type: ignore[method-assign]
    found = measured(program, *levers)
    assert found.stopped
    assert found.kept == {"workers": 2}
    assert program.at == {"workers": 2, "graph": False}


def test_an_interrupt_while_a_decision_is_told_keeps_it_and_tries_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program({"workers": 1, "graph": False}, {("workers", 2): 0.9})
    levers = (Setting(program, "workers", (2,)), Setting(program, "graph", (True,)))
    add = DecisionLog.add

    def interrupted(self: DecisionLog, what: str, **entry: Any) -> None:
        add(self, what, **entry)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(DecisionLog, "add", interrupted)
    found = measured(program, *levers)
    assert found.stopped
    assert found.kept == {"workers": 2}
    assert [row.lever for row in found.rows] == ["workers"]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.floats(0.5, 1.5), min_size=1, max_size=3), max_size=4
    ),
    st.integers(0, 3),
)
def test_what_is_in_use_afterwards_is_what_was_kept(times: dict[str, list[float]], broken: int) -> None:
    program = Program(dict.fromkeys(times, 0))
    levers = []
    for name, factors in times.items():
        values = range(1, len(factors) + 1)
        program.factors.update({(name, v): f for v, f in zip(values, factors, strict=True)})
        levers.append(Setting(program, name, tuple(values), cannot=(broken,) if broken else ()))
    found = measured(program, *levers)
    assert program.at == {lever.name: lever.present for lever in levers}
    assert program.at == {**dict.fromkeys(times, 0), **found.kept}
    for name, factors in times.items():  # without noise the best one is found, up to the least gain
        usable = [1.0, *(f for v, f in enumerate(factors, 1) if v != broken)]
        assert program.factors.get((name, program.at[name]), 1.0) <= min(usable) / 0.99 + 1e-9
