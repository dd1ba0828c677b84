"""Decisions of a tuning, with a bench that gives recorded or simulated times in place of processes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlprof.cli.console import json_bytes
from rlprof.errors import UsageError
from rlprof.overlap.quota.branches import Branch, Round, Span
from rlprof.overlap.quota.errors import BranchError
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.mechanism import Mechanism, Progress
from rlprof.overlap.quota.pair import EligiblePair
from rlprof.overlap.quota.products import Products, WrongProduct
from rlprof.overlap.quota.report import tuning_document, tuning_text
from rlprof.overlap.quota.search import QuotaSearch
from rlprof.overlap.quota.tune import _Tuner, tune
from rlprof.overlap.quota.tuning import Settings, Tuning
from rlprof.overlap.quota.validation import Validation
from rlprof.progress import silent
from rlprof.unavailable import Unavailable

LEVELS = tuple(Level(8 + 2 * k, 2 * k) for k in range(1, 33))


class Sms(Mechanism):
    """Levels of a GPU that there is not."""

    name = "mps"
    unit = "SMs"
    setting = "%"

    def __init__(self, clients: Collection[str] = ("A", "B"), levels: Sequence[Level] = LEVELS) -> None:
        self.names, self.all = set(clients), tuple(levels)

    @property
    def resource(self) -> str:
        return "GPU 0"

    def levels(self, _progress: Progress, /) -> tuple[Level, ...]:
        return self.all

    def clients(self, processes: Collection[Any], /) -> bool:
        return not self.names.isdisjoint(processes)

    def unmanaged(self) -> dict[str, str] | None:
        return {}


@dataclass
class SimulatedWorker:
    """Stands for a process."""

    branch: Branch
    level: Level | None
    managed: bool
    in_rounds: bool = True

    @property
    def processes(self) -> list[str]:
        return [self.branch.name]


@dataclass
class SimulatedBench:
    """Stands for processes that run: their times come from a function of who runs under which levels."""

    times: Callable[[dict[str, Level | None], bool], dict[str, float]]
    noise: float = 0.0
    fails_below: int = 0
    alive: list[SimulatedWorker] = field(default_factory=list)
    began: int = 0
    rounds: int = 0
    starts: int = 0
    took_s: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def worker(self, branch: Branch, level: Level | None = None, *, managed: bool = True) -> SimulatedWorker:
        self.began += 1
        self.starts += managed and level is not None
        if level is not None and level.amount < self.fails_below:
            raise BranchError(f"branch {branch.name} ended with code 1: out of memory")
        self.alive.append(SimulatedWorker(branch, level, managed))
        return self.alive[-1]

    def workers(
        self, wanted: Sequence[tuple[Branch, Level | None]], *, managed: bool = True
    ) -> list[SimulatedWorker]:
        self.starts += 1
        return [self.worker(branch, level, managed=managed) for branch, level in wanted]

    def release(self, worker: SimulatedWorker) -> None:
        self.alive.remove(worker)

    def together(self, workers: Sequence[SimulatedWorker], tick: object = None) -> Round:
        assert all(w in self.alive for w in workers)
        self.rounds += 1
        times = self.times({w.branch.name: w.level for w in workers}, workers[0].managed)
        start = self.rounds * 10**12
        ends = [times[w.branch.name] * (1 + self.random.uniform(-self.noise, self.noise)) for w in workers]
        self.took_s += max(ends)
        return Round(start, tuple(Span(start, start + round(1e9 * end)) for end in ends))


def gemm_and_elementwise(levels: dict[str, Level | None], managed: bool) -> dict[str, float]:
    """A chain of products (A) beside elementwise kernels (B), about as measured on a GPU of 132 SMs.

    Alone 0.89 and 0.28 s; time-sliced 1.04 and 0.33; under MPS 0.94 and 1.15; with A at 80 % 1.06 and 0.38.
    """
    sms = {name: 72 if level is None else level.amount for name, level in levels.items()}  # of 72
    if len(levels) == 1:
        return {"A": 0.89, "B": 0.28}
    if not managed:
        return {"A": 1.04, "B": 0.33}
    lack = 1 - sms["A"] / 72
    return {"A": 0.94 + 0.6 * lack, "B": max(0.30, 1.15 - 4.0 * lack)}


def tuned(
    times: Callable[[dict[str, Level | None], bool], dict[str, float]] = gemm_and_elementwise,
    mechanism: Mechanism | None = None,
    settings: Settings | None = None,
    **bench: Any,
) -> tuple[Tuning, SimulatedBench, list[Tuning]]:
    simulated, told = SimulatedBench(times, **bench), list[Tuning]()
    branches = (Branch("A", ("a", "x y")), Branch("B", ("b",)))
    tuner = _Tuner(
        branches,
        mechanism or Sms(),
        settings or Settings(),
        simulated,  # type: ignore[arg-type]
        silent,
        told.append,
        None,
    )
    return tuner.run(), simulated, told


@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_the_process_with_slack_is_given_fewer_sms(noise: float) -> None:
    found, bench, told = tuned(noise=noise)
    assert isinstance(found.search, QuotaSearch)
    assert isinstance(found.validation, Validation)
    # A is ready after 0.94 s, B after 1.15 s: A has the slack, though it is the longer one alone
    assert isinstance(found.pair, EligiblePair)
    assert (found.pair.earlier, found.pair.later) == ("A", "B")
    assert found.pair.slack_s == pytest.approx(0.21, abs=0.01)
    best = min(LEVELS, key=lambda x: max(gemm_and_elementwise({"A": x, "B": None}, True).values()))
    assert abs(found.quotas["A"].amount - best.amount) <= (4 if noise else 0)
    assert not found.validation.kept
    assert isinstance(found.unmanaged, type(found.together))
    assert found.unmanaged.median_s == pytest.approx(1.04, rel=0.01)
    # the first workers and what a level needs beside them: never more than three at a time after the start
    assert len(bench.alive) == 3
    assert [type(t.search).__name__ for t in told][-1] == "QuotaSearch"
    assert told[-1] == found


class LookedAt(Sms):
    """Products of matrices are wrong under some levels; who looks takes time, and cannot always tell."""

    alters_products = True

    def __init__(self, wrong: Collection[Level], look: Callable[[float], None] = lambda _: None) -> None:
        super().__init__()
        self.wrong, self.look = set(wrong), look
        self.looked_at: list[Level] = []
        self.known = True

    def products(self, level: Level, /, *, limit_s: float = 120.0) -> Products | Unavailable:
        self.looked_at.append(level)
        self.look(limit_s)
        if not self.known:
            return Unavailable("PyTorch is not installed, which computes them")
        bad = (WrongProduct(176, 1024, 256, "forward", 8, 768, None),)
        return Products(level.amount, 36, bad if level in self.wrong else ())


def test_levels_under_which_products_are_wrong_are_passed_over_before_the_validation() -> None:
    (best,) = tuned()[0].quotas.values()
    sms = LookedAt([best])
    found, bench, told = tuned(mechanism=sms)
    (level,) = found.quotas.values()
    # the fastest one of the others that were measured
    assert isinstance(found.search, QuotaSearch)
    assert isinstance(found.validation, Validation)
    times = {trial.level: trial.time_s for trial in found.search.trials if trial.level != best}
    assert level == min(times, key=times.__getitem__)
    assert sms.looked_at == [best, level]
    assert found.products == Products(level.amount, 36, ())
    assert found.search.reason.endswith(f"; passed over, as matrix products are wrong: {best.setting} %")
    assert found.search.reason in tuning_text(found)
    # nothing was validated before
    for one in told:
        if isinstance(one.validation, Validation):
            assert one.products == found.products
    assert [w.level for w in bench.alive if w.level is not None] == [level]


def test_q0_is_kept_where_products_are_wrong_under_all_levels_that_are_faster() -> None:
    sms = LookedAt(LEVELS[:-1])
    found, bench, _ = tuned(mechanism=sms)
    assert found.quotas == {}
    assert isinstance(found.validation, Unavailable)
    assert re.match(
        r"q0 is kept: matrix products are wrong under all levels that were faster: \d+ %, ", found.reason
    )
    assert len(sms.looked_at) > 2
    assert all(w.level is None for w in bench.alive)  # no level was validated
    assert json.loads(json_bytes(tuning_document(found)))["products"]["wrong"][0]["unwritten"] == 768
    # who multiplies no matrices has another answer
    anyway, _, _ = tuned(mechanism=LookedAt(LEVELS[:-1]), settings=Settings(check_products=False))
    assert anyway.quotas
    assert "nobody knows whether matrix products are right under it" in tuning_text(anyway)
    assert "it was not asked for" in tuning_text(anyway)


def test_of_a_quota_whose_products_nobody_can_look_at_it_says_so() -> None:
    sms = LookedAt([])
    sms.known = False
    found, _, _ = tuned(mechanism=sms)
    assert found.quotas
    assert len(sms.looked_at) == 1
    assert "(PyTorch is not installed, which computes them)" in tuning_text(found)
    assert "unavailable" in json.loads(json_bytes(tuning_document(found)))["products"]
    right = tuned(mechanism=LookedAt([]))[0]
    assert "nobody knows" not in tuning_text(right)


@pytest.mark.parametrize("takes_s", [1.0, 80.0])
def test_looking_at_products_is_within_the_budget(takes_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []

    def look(limit_s: float) -> None:
        looked.append(min(limit_s, takes_s))

    monkeypatch.setattr(
        _Tuner, "spent_s", property(lambda self: 5.0 * self.bench.starts + self.bench.took_s + sum(looked))
    )
    found, bench, _ = tuned(mechanism=LookedAt([], look), settings=Settings(budget_s=170.0))
    assert len(looked) == 1
    assert bench.starts * 5 + bench.took_s + sum(looked) <= 170.0 + 5.0
    assert bool(found.quotas) == (takes_s < 60.0)
    if not found.quotas:
        assert "s of the budget of 170 s were left and the validation would take about" in found.reason
        assert isinstance(found.validation, Unavailable)


def test_what_it_says_can_be_read_by_people_and_programs() -> None:
    found, _, told = tuned(fails_below=30)
    for one in told:
        json.loads(json_bytes(tuning_document(one)))
    document = json.loads(json_bytes(tuning_document(found)))
    assert document["branches"] == {"A": "a 'x y'", "B": "b"}
    assert document["quotas"]["A"]["setting"] == found.quotas["A"].setting
    assert document["search"]["trials"][0]["phase"] == "start"
    assert document["search"]["trials"][1]["comparison"]["decision"] == "better"
    assert document["pair"]["earlier"] == "A"
    text = tuning_text(found)
    for part in (
        "branch",
        "alone",
        "all ready",
        "without MPS",
        "slack",
        "anchor",
        "validation   better, gain",
    ):
        assert part in text
    level = found.quotas["A"]
    assert f"A: {level.setting} % ({level.amount} SMs) (complete runs gain" in text


def test_a_branch_that_is_no_client_keeps_q0() -> None:
    found, bench, _ = tuned(mechanism=Sms(clients=["A"]))
    assert isinstance(found.pair, Unavailable)
    assert found.quotas == {}
    assert "B is no client (no process of it is a client of the MPS server" in found.reason
    assert "keep q0" in tuning_text(found)
    assert json.loads(json_bytes(tuning_document(found)))["pair"]["unavailable"] == found.pair.reason
    assert bench.began == 4  # no level was tried


def test_readiness_within_the_noise_is_no_slack() -> None:
    found, _, _ = tuned(lambda levels, _m: dict.fromkeys(levels, 1.0 if len(levels) > 1 else 0.5), noise=0.05)
    assert isinstance(found.pair, Unavailable)
    assert "is not clearly ready before" in found.reason
    assert found.quotas == {}


def test_a_later_branch_that_is_not_slowed_down_needs_no_search() -> None:
    found, bench, _ = tuned(lambda levels, _m: {"A": 0.3, "B": 1.0}, noise=0.01)
    assert "B is not clearly slower together than alone" in found.reason
    assert (found.quotas, bench.began) == ({}, 4)


def test_a_gain_that_complete_runs_do_not_confirm_is_none() -> None:
    """Levels look faster in local trials; in the new processes of the validation they are not."""

    class Flattering(SimulatedBench):
        validating = False

        def release(self, worker: SimulatedWorker) -> None:
            self.validating |= worker.level is None and worker.managed
            super().release(worker)

    def times(levels: dict[str, Level | None], managed: bool) -> dict[str, float]:
        under = levels.get("A")
        looks_faster = under is not None and not bench.validating
        return {"A": 0.5, "B": 0.5} if len(levels) == 1 else {"A": 0.8, "B": 0.9 if looks_faster else 1.0}

    bench = Flattering(times, noise=0.01)
    branches = (Branch("A", ("a",)), Branch("B", ("b",)))
    found = _Tuner(branches, Sms(), Settings(), bench, silent, None, None).run()  # type: ignore[arg-type]
    assert isinstance(found.search, QuotaSearch)
    assert found.search.best != found.search.start
    assert isinstance(found.validation, Validation)
    assert found.validation.kept
    assert found.quotas == {}


def test_a_level_under_which_a_branch_fails_counts_as_slower() -> None:
    # B gains all the way down, so the search goes to where A does not start any more
    def times(levels: dict[str, Level | None], managed: bool) -> dict[str, float]:
        if len(levels) == 1:
            return {"A": 0.2, "B": 0.3}
        under = levels["A"]
        return {"A": 0.3, "B": 0.4 + 0.01 * (72 if under is None else under.amount)}

    found, _, _ = tuned(times, fails_below=33)
    assert isinstance(found.search, QuotaSearch)
    assert found.quotas["A"].amount == 34
    assert "out of memory" in json.dumps(tuning_document(found)["search"])


def test_a_sweep_draws_the_curve_and_the_search_measures_nothing_twice() -> None:
    found, bench, _ = tuned(settings=Settings(sweep=4))
    assert [t.k for t in found.sweep] == list(range(32, 0, -4))
    assert isinstance(found.search, QuotaSearch)
    measured = {t.k for t in (*found.sweep, *found.search.trials)}
    assert bench.began == 4 + (len(measured) - 1) + 3  # two sets, every level but q0, the validation
    plain, _, _ = tuned()
    assert found.quotas == plain.quotas
    document = tuning_document(found)
    assert [row["k"] for row in document["sweep"]] == [t.k for t in found.sweep]
    assert tuning_text(found).count("sweep") > 3


def test_one_level_is_nothing_to_choose_from() -> None:
    found, _, _ = tuned(mechanism=Sms(levels=LEVELS[-1:]))
    assert "one level only of GPU 0" in found.reason


@pytest.mark.parametrize("budget_s", [5.0, 60.0, 150.0, 400.0])
def test_nothing_is_begun_that_the_budget_does_not_hold(
    budget_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a simulated clock, on which a start takes 5 s and a round as long as its branches."""
    monkeypatch.setattr(_Tuner, "spent_s", property(lambda self: 5.0 * self.bench.starts + self.bench.took_s))
    found, bench, _ = tuned(settings=Settings(budget_s=budget_s))
    assert bench.starts * 5 + bench.took_s < budget_s + 15  # the first turn is always measured
    if budget_s < 50:
        assert "the budget held" in found.reason
    elif budget_s < 100:
        assert isinstance(found.search, QuotaSearch)
        assert not found.search.complete
        told = re.fullmatch(
            r"(\S+) s of the budget of 60 s were left, of which a further level would take about (\S+) s and"
            r" the validation (\S+) s, after 1 of at most \d+ trials",
            found.search.reason,
        )
        assert told, found.search.reason
        left_s, level_s, validation_s = map(float, told.groups())
        assert 0 < left_s <= budget_s - bench.took_s
        assert left_s < level_s + validation_s + 0.1  # not spent, but kept for the validation
    else:
        assert isinstance(found.validation, Validation)
        assert not found.validation.kept
    assert (found.quotas == {}) == (budget_s < 100)


def test_a_budget_that_is_over_is_called_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probing the levels takes all that was left after the first rounds."""

    class Slow(Sms):
        def levels(self, _progress: Progress, /) -> tuple[Level, ...]:
            monkeypatch.setattr(_Tuner, "spent_s", 61.0)
            return self.all

    monkeypatch.setattr(_Tuner, "spent_s", 10.0)
    found, _, _ = tuned(mechanism=Slow(), settings=Settings(budget_s=60.0))
    assert isinstance(found.search, QuotaSearch)
    assert found.search.reason.startswith("the budget of 60 s was spent after 1 of at most ")
    assert found.search.reason in found.reason


def test_a_validation_that_the_budget_does_not_hold_says_how_much_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last level that is begun takes longer than those before it."""

    def times(levels: dict[str, Level | None], managed: bool) -> dict[str, float]:
        if levels.get("A") is not None:
            monkeypatch.setattr(_Tuner, "spent_s", 59.0)
        return gemm_and_elementwise(levels, managed)

    monkeypatch.setattr(_Tuner, "spent_s", 10.0)
    found, _, _ = tuned(times, settings=Settings(budget_s=60.0))
    assert isinstance(found.search, QuotaSearch)
    assert not found.search.complete
    assert isinstance(found.validation, Unavailable)
    assert "1 s of the budget of 60 s were left and the validation would take about" in found.reason
    assert found.quotas == {}


@pytest.mark.parametrize("names", [["A"], ["A", "A"], []])
def test_branches_are_two_with_distinct_names(names: list[str]) -> None:
    with pytest.raises(UsageError, match="two or more"):
        tune([Branch(name, ("true",)) for name in names], Sms())
