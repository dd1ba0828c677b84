"""The search of quotas for a graph, with times that were given in place of measured ones."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

from rlprof.analysis.batch_time import BatchTimes
from rlprof.analysis.machine_state import MachineState
from rlprof.analysis.trials import Rule
from rlprof.errors import RlprofError
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.optimize import derive
from rlprof.overlap.optimize.cost import QUOTAS
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.outcome import Optimization
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.optimize.workload import Measurement
from rlprof.overlap.quota import mps
from rlprof.overlap.quota.errors import ProbeError
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.pair import EligiblePair, Meeting
from rlprof.taskgraph.errors import RestoreError
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.build import make_simulator
from rlprof.workloads.embodied.errors import SimulatorError
from rlprof.workloads.embodied.exchange import Exchangeable
from rlprof.workloads.embodied.optimize import embodied
from rlprof.workloads.embodied.quotas import Quotas, failed, find_quotas, processes, tune, unreached
from rlprof.workloads.embodied.sharing import PERCENTAGE
from rlprof.workloads.embodied.simulators.processes import SimulatorProcesses
from tests.overlap.quota.conftest import fake_control, fake_driver, fake_mps  # noqa: F401 - fixtures
from tests.workloads.embodied.made import spec as small_spec
from tests.workloads.embodied.test_optimize import WHOLE, held, small

LEVELS = tuple(Level(sms, percent) for sms, percent in ((8, 6), (32, 25), (66, 50), (98, 75), (132, 100)))
#: Seconds by percentage: of the comparison, and of an iteration.
LOCAL_S = {None: 1.0, 75: 0.95, 50: 0.9, 25: 1.1, 6: 2.0}
WHOLE_S = {None: 2.0, 75: 1.9, 50: 1.8, 25: 2.1, 6: 3.0}
SLACK = EligiblePair(
    "env", "rollout", "gather", 0.2, 4, 4, 0.3, 0.5, 0, (Meeting("gather@0", 0.3, 0.5, 0.25),), ("others",)
)
RULE = Rule(confidence=0.9, most_pairs=8)
CONFIG = replace(small(), workers=1)


@dataclass
class Ran:
    """A training whose times are given, and what ran in it: what is "local" or "whole", under which key."""

    workload: Any
    simulator: Exchangeable
    graph: CallGraph
    here: Any = None
    ran: list[tuple[str, Any]] = field(default_factory=list)
    before: Callable[[str, Any], None] = lambda *_: None
    tuned: Any = None

    @property
    def key(self) -> Any:
        """Share in use, of whoever has one."""
        tuned = None if self.tuned is None else self.tuned.key
        return self.simulator.key if tuned is None else tuned

    def tune(self, store: Store | None = None, log: DecisionLog | None = None, **how: Any) -> Quotas:
        workers = processes(self.simulator, 0, client=True)
        how = {"rule": RULE, "local": Rule(confidence=0.9, most_pairs=5), "store": store, "log": log, **how}
        return tune(self.workload, self.graph, WHOLE, self.simulator, LEVELS, workers, **how)

    def give_times(self) -> None:
        """Note what runs, and give times in place of those that are measured."""
        iteration, prepared = self.workload.iteration, self.workload.prepared

        def timed(graph: CallGraph | None) -> Measurement:
            key = self.key
            self.before("whole", key)
            self.ran.append(("whole", key))
            found: Measurement = iteration(graph)
            return replace(found, time_s=WHOLE_S[key])

        @contextmanager
        def ready(*given: Any) -> Iterator[Any]:
            with prepared(*given) as (trial,):

                def run() -> float:
                    key = self.key
                    self.before("local", key)
                    self.ran.append(("local", key))
                    trial.run()
                    return LOCAL_S[key]

                yield (SimpleNamespace(run=run),)

        self.workload.iteration, self.workload.prepared = timed, ready


class Idle:
    """A simulator that does nothing."""

    spec = small_spec(4)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> CallGraph:
    with embodied(small(), tmp_path_factory.mktemp("recorded"), activity="off") as here:
        return here.workload.native


@pytest.fixture
def ran(native: CallGraph, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """A training that does nothing, whose simulator has the slack."""
    monkeypatch.setattr("rlprof.workloads.embodied.quota_search.find_pair", lambda *_: SLACK)

    @contextmanager
    def prepared(*_: Any) -> Iterator[Any]:
        yield (SimpleNamespace(run=lambda: None),)

    workload = SimpleNamespace(
        native=native, key="key", last_run=(None, None), prepared=prepared,
        iteration=lambda _: Measurement(0.0),
    )  # fmt: skip
    simulator: Any = Exchangeable(Idle(), lambda _: Idle())  # type: ignore[arg-type, return-value]
    made = Ran(workload, simulator, derive(native, WHOLE))
    made.give_times()
    return made


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ran]:
    """A real one."""
    monkeypatch.setattr("rlprof.workloads.embodied.quota_search.find_pair", lambda *_: SLACK)
    with embodied(CONFIG, tmp_path, activity="off") as here:
        made = Ran(here.workload, here.simulator, derive(here.workload.native, WHOLE), here)
        here.simulator._make = lambda _: make_simulator(CONFIG)
        made.give_times()
        yield made


def as_trained(iterations: int, folder: Path) -> dict[str, object]:
    """What native iterations leave."""
    with embodied(CONFIG, folder, activity="off") as here:
        while here.iterations < iterations:
            here.workload.iteration(None)
        return held(here.trainer)


def test_the_machine_is_looked_at_beside_levels_and_their_validation(ran: Ran, tmp_path: Path) -> None:
    clocks = {None: 1980.0, 50: 1700.0}
    ran.workload.machine = SimpleNamespace(
        look=lambda: None,
        since=lambda _: MachineState(1.0, 16, sm_clock_mhz=clocks.get(ran.simulator.key, 1980.0)),
    )
    log, path = DecisionLog(), tmp_path / "measurements.jsonl"
    found = ran.tune(Store(path), log)
    said = "clocks of the GPU's SMs were 1980 MHz beside the reference and 1700 beside the candidate"
    assert found.validation is not None
    assert found.validation.comparison is not None
    assert found.validation.comparison.doubts == (said,)
    lines = log.text().splitlines()
    told = [lines[i - 1] for i, line in enumerate(lines) if f"doubtful: {said}" in line]
    assert len(told) == 2
    assert "(50 %)" in told[0]
    assert told[1].startswith("quota of 50 %")
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    for entry in kept:
        if entry.get("kind") in ("quota level", "quota complete"):
            states, pairs = entry["value"]["machine"], entry["value"]["pairs"]
            assert len(states["reference"]) == len(states["candidate"]) == len(pairs)


def test_levels_are_measured_in_pairs_with_q0_and_all_of_it_is_told_and_counted(
    ran: Ran, tmp_path: Path
) -> None:
    log, store = DecisionLog(), Store(tmp_path / "measurements.jsonl")
    found = ran.tune(store, log)
    assert found.level == LEVELS[2]
    assert found.quotas == {"simulator": 50}
    assert [t.level.setting for t in found.search.trials] == [100, 50, 6, 25, 75]  # type: ignore[union-attr]
    local = [key for what, key in ran.ran if what == "local"]
    assert local[:6] == [None] * 6  # one of them is the first
    for n, percent in enumerate((50, 6, 25, 75)):  # the first one of each, and five pairs, in turn
        mine = local[6 + 11 * n : 6 + 11 * (n + 1)]
        assert mine == [percent, *[None, percent, percent, None] * 2, None, percent]
    assert [key for what, key in ran.ran if what == "whole"] == [
        *(None, 50), *[None, 50, 50, None] * 2, None, 50,
    ]  # fmt: skip
    assert ran.simulator.key == 50
    # what it took is apart, and what was trained in it counts there
    cost = store.spent(QUOTAS)
    assert found.cost == cost
    assert (cost.iterations, cost.trials) == (12, 1 + 5 + 4 * 11)
    assert cost.retained_s == pytest.approx(6 * 2.0 + 6 * 1.8)
    assert store.cost().total_s == 0
    names = [one.graph for one in store.trained()]
    assert names.count(ran.graph.hash) == 6  # under other quotas it is another one
    # every decision, for programs and for people
    assert [e["what"] for e in log.entries] == [
        "quota pair", *["quota level"] * 5, "quota found", "quota validated",
    ]  # fmt: skip
    said = log.text()
    assert "env is ready 200 ms before rollout (after 300 ms and 500 ms), 4 times an iteration" in said
    assert "level 5, 132 SMs (100 %), start: 1 s on" in said
    assert "level 3, 66 SMs (50 %), coarse: 900 ms; beside q0 in pairs, medians 1 s -> 900 ms" in said
    assert "quota of 50 %: complete iterations, medians 2 s -> 1.8 s; gain pair by pair +10.0%" in said
    made = json.loads(json.dumps(found.to_dict()))
    assert made["pair"]["slack_s"] == 0.2
    assert {t["setting"]: t["time_s"] for t in made["search"]["trials"]} == pytest.approx(
        {100: 1.0, 75: 0.95, 50: 0.9, 25: 1.1, 6: 2.0}
    )
    assert made["cost"]["part"] == "quotas"
    assert made["cost"]["apart"] is True


@pytest.mark.slow
def test_what_is_trained_stays_the_same(training: Ran, tmp_path: Path) -> None:
    here, began = training.here, training.here.iterations
    assert training.tune().level == LEVELS[2]
    assert here.iterations == began + 12
    assert equal_bits(held(here.trainer), as_trained(here.iterations, tmp_path))


def test_nothing_is_measured_again(ran: Ran, tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    first = ran.tune(Store(path))
    ran.ran.clear()
    log = DecisionLog()
    again = ran.tune(Store(path), log, budget_s=0.001)  # what is known takes no time
    assert not ran.ran
    assert all(e["reused"] for e in log.entries if e["what"] != "quota found")
    assert "(measured before)" in log.text()
    one, other = first.to_dict(), again.to_dict()
    assert one.pop("cost")["iterations"] == other.pop("cost")["iterations"] == 12
    assert json.loads(json.dumps(one)) == json.loads(json.dumps(other))
    ran.tune(Store(path), key="another machine")
    assert ran.ran


def test_more_pairs_do_not_lose_what_fewer_have_found(ran: Ran, tmp_path: Path) -> None:
    path, more = tmp_path / "measurements.jsonl", Rule(confidence=0.9, most_pairs=16)
    assert (RULE.least_pairs, more.least_pairs) == (5, 6)  # five that decided do not any more
    first = ran.tune(Store(path))
    ran.ran.clear()
    again = ran.tune(Store(path), rule=more, local=more)
    assert again.level == first.level == LEVELS[2]
    measured = {key for what, key in ran.ran if what == "local"}
    assert measured == {None, 75, 50, 25, 6}
    assert [key for what, key in ran.ran if what == "whole"].count(50) == 1 + 6
    ran.ran.clear()
    assert ran.tune(Store(path)).level == LEVELS[2]  # more than it needs
    assert not ran.ran


def test_a_validation_that_the_budget_cuts_short_is_not_complete(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, least = tmp_path / "measurements.jsonl", Rule(confidence=0.9, most_pairs=8, budget_s=1e-9)
    cut = ran.tune(Store(path), rule=least)
    assert (cut.level, cut.stopped) == (None, False)  # as long as somebody wanted it
    whole = [one for one in ran.ran if one[0] == "whole"]
    monkeypatch.setattr("rlprof.workloads.embodied.quota_search.no_validation", lambda *_: "")
    found = ran.tune(Store(path), budget_s=1e-9)
    assert (found.level, found.stopped) == (None, True)
    assert "do not tell whether it gains, the budget of" in found.reason
    assert len([one for one in ran.ran if one[0] == "whole"]) > len(whole)


def interrupting(what: str, number: int) -> Callable[[str, Any], None]:
    """Ctrl-C before the run of this number."""
    left = [number]

    def before(kind: str, _key: Any) -> None:
        left[0] -= kind == what
        if left[0] < 0:
            raise KeyboardInterrupt

    return before


@pytest.mark.parametrize(
    ("what", "number", "known"),
    [
        ("local", 3, None),
        ("local", 9, [100]),
        ("local", 20, [100, 50]),
        ("whole", 0, None),
        ("whole", 4, [100, 50, 6, 25, 75]),
    ],
)
def test_an_interruption_loses_nothing_that_was_measured(
    ran: Ran, tmp_path: Path, what: str, number: int, known: list[int] | None
) -> None:
    path, ran.before = tmp_path / "measurements.jsonl", interrupting(what, number)
    first = ran.tune(Store(path))
    assert (first.level, first.stopped, first.intact) == (None, True, True)
    assert first.reason == "q0 is kept: interrupted; --resume goes on"
    assert ran.simulator.key is None
    assert (first.search is None) == (known is None)
    if first.search is not None:
        assert [t.level.setting for t in first.search.trials] == known
    ran.before, ran.ran = (lambda *_: None), []
    again = ran.tune(Store(path))
    assert again.level == LEVELS[2]
    assert set(known or ()).isdisjoint({key for kind, key in ran.ran if kind == "local"})


@pytest.mark.slow
@pytest.mark.parametrize(("what", "number"), [("local", 10), ("whole", 4)])
def test_an_interruption_leaves_the_state_of_training(
    training: Ran, tmp_path: Path, what: str, number: int
) -> None:
    training.before = interrupting(what, number)
    assert training.tune().intact
    assert equal_bits(held(training.here.trainer), as_trained(training.here.iterations, tmp_path))


def test_an_interruption_in_a_trial_whose_state_cannot_be_put_back_is_told(training: Ran) -> None:
    def interrupt(kind: str, key: Any) -> None:
        if (kind, key) == ("local", 50):
            os.kill(training.simulator.process_ids[0], signal.SIGKILL)
            raise KeyboardInterrupt

    training.before = interrupt
    found = training.tune(local=Rule(confidence=0.9, most_pairs=1))
    assert (found.level, found.stopped, found.intact) == (None, True, False)


@pytest.mark.parametrize("dies", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_level_under_which_the_simulator_does_not_work_is_slower_than_all(
    training: Ran, tmp_path: Path, dies: bool
) -> None:
    def make(percent: Any) -> Any:
        if not dies and percent == 50:
            raise SimulatorError("no memory")
        return make_simulator(CONFIG)

    def die(kind: str, key: Any) -> None:
        if dies and (kind, key) == ("local", 50):
            os.kill(training.simulator.process_ids[0], signal.SIGKILL)

    training.simulator._make, training.before = make, die
    log, few = DecisionLog(), Rule(confidence=0.9, most_pairs=1)
    found = training.tune(log=log, local=few, rule=few)
    trial = found.search.trial(3)  # type: ignore[union-attr]
    assert isinstance(trial.measurement, Unavailable)
    assert found.search.best_level == LEVELS[3]  # type: ignore[union-attr]
    assert "level 3, 66 SMs (50 %), coarse: not measured, " in log.text()
    assert training.simulator.key is None
    assert equal_bits(held(training.here.trainer), as_trained(training.here.iterations, tmp_path))


def test_the_budget_leaves_time_for_the_validation(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("rlprof.workloads.embodied.quota_search.time.monotonic", lambda: now[0])

    def took(kind: str, key: Any) -> None:
        now[0] += (WHOLE_S if kind == "whole" else LOCAL_S)[key]

    ran.before = took
    # 2 s for the pair, 6 s for q0, 10.5 s for 50 %; a validation takes 22 s
    found = ran.tune(budget_s=50.0)
    assert [t.level.setting for t in found.search.trials] == [100, 50]  # type: ignore[union-attr]
    assert "a further level would take about" in found.search.reason  # type: ignore[union-attr]
    assert (found.level, found.stopped) == (LEVELS[2], True)
    now[0], ran.ran = 0.0, []
    found = ran.tune(budget_s=20.0)
    assert [what for what, _ in ran.ran] == ["whole"]
    assert found.reason == (
        "q0 is kept: 18 s of the budget of 20 s were left and the validation would take about 22 s"
    )
    assert found.stopped


def test_the_whole_range_is_told_too_and_nothing_twice(ran: Ran) -> None:
    said: list[str] = []
    found = ran.tune(sweep_every=2, say=said.append)
    assert [t.k for t in found.sweep] == [5, 3, 1]
    assert len([line for line in said if line.startswith("level ")]) == 5


@pytest.mark.parametrize(
    ("changes", "left_s", "whole", "says"),
    [
        ({}, 9.0, True, None),
        ({"steps": ()}, 9.0, True, "there is no graph in which branches overlap"),
        ({"stopped": True, "ended": "the budget of 90 s is spent"}, 0.0, True,
         "the budget of 90 s was spent before quotas of the graph that was found were searched; --resume"),
        ({"stopped": True, "ended": "the budget of 90 s is spent", "steps": ()}, 0.0, True,
         "the budget of 90 s was spent before quotas of a graph were searched"),
        ({}, 0.0, True, "the budget of 90 s was spent before quotas of the graph that was found"),
        ({"stopped": True, "ended": "interrupted"}, 9.0, True, "it was interrupted before quotas of"),
        ({"intact": False, "stopped": True}, 9.0, True, "interrupted inside of an iteration, or a trial"),
        ({}, 9.0, False, "interrupted inside of an iteration, or a trial"),
    ],
)  # fmt: skip
def test_why_quotas_are_not_searched(
    changes: dict[str, Any], left_s: float, whole: bool, says: str | None
) -> None:
    native: Any = object()
    found = Optimization(
        native=native, graph=native, steps=WHOLE, rounds=(), iterations=(), ended="all rounds are done",
        stopped=False, batch_times=BatchTimes(),
    )  # fmt: skip
    early = unreached(replace(found, **changes), whole=whole, left_s=left_s, budget_s=90.0)
    assert (early is None) == (says is None)
    if early is not None and says is not None:
        assert says in early.reason
        assert early.stopped == (says != "there is no graph in which branches overlap")


def test_under_a_daemon_levels_are_probed_once_and_simulators_get_their_share(
    ran: Ran,
    tmp_path: Path,
    fake_mps: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in for MPS: what clients are told is as given, the simulators compute on the processor."""
    shares: set[str] = set()

    def make(percent: int) -> SimulatorProcesses:
        made = SimulatorProcesses(
            "rlprof.workloads.embodied.simulators.mujoco_arm:MujocoArm", CONFIG.envs, workers=1,
            environment={PERCENTAGE: str(percent)}, seed=CONFIG.seed, chunk_steps=CONFIG.chunk_steps,
            episode_steps=CONFIG.episode_steps, group=CONFIG.group,
        )  # fmt: skip
        shares.add(_environment(made.process_ids[0])[PERCENTAGE])
        return made

    ran.simulator._all[None], ran.simulator._make = make_simulator(small()), make
    monkeypatch.setitem(globals(), "LOCAL_S", _Curve(1.0, 94, 0.9))
    monkeypatch.setitem(globals(), "WHOLE_S", _Curve(2.0, 94, 1.8))
    found = Optimization(
        native=ran.workload.native, graph=ran.graph, steps=WHOLE, rounds=(), iterations=(),
        ended="all rounds are done", stopped=False, batch_times=BatchTimes(),
    )  # fmt: skip
    here = SimpleNamespace(
        config=replace(CONFIG, simulator="mujoco_warp", device="cuda:0"), simulator=ran.simulator,
        workload=ran.workload, counter=SimpleNamespace(whole=True), key="this machine", share=None,
    )  # fmt: skip
    options = SimpleNamespace(validation=RULE, local=Rule(confidence=0.9, most_pairs=9))
    request = SimpleNamespace(options=options, epsilon=0.01, budget_s=600.0)
    with mps() as daemon:
        for name, value in daemon.environment().items():
            monkeypatch.setenv(name, value)
        answers = []
        for _ in range(2):
            search: Any = SimpleNamespace(
                request=request, here=here, store=Store(tmp_path / "measurements.jsonl"), log=DecisionLog(),
                streams={}, left_s=600.0, say=lambda _: None,
            )  # fmt: skip
            answers.append((find_quotas(search, found), search.log.entries))
            ran.ran, done = [], list(ran.ran)
            if len(answers) == 1:
                assert len(done) > 50
                monkeypatch.setenv("LD_LIBRARY_PATH", "")  # no driver: levels are not probed again
            else:
                assert not done
    ran.simulator.close()
    (one, entries), (other, _) = answers
    assert one.level is not None
    assert one.level.setting == 94
    assert other.level == one.level
    assert {"96", "92", "88", "94"} <= shares
    assert entries[-1]["what"] == "quotas"
    assert entries[-1]["quotas"] == {"simulator": 94}
    assert entries[-1]["cost"]["iterations"] == 12


class _Curve(dict[Any, float]):
    """Seconds by percentage: least at one, and no less far below or above it."""

    def __init__(self, q0_s: float, best: int, best_s: float) -> None:
        super().__init__({None: q0_s})
        self.best, self.best_s = best, best_s

    def __missing__(self, percent: int) -> float:
        return self.best_s + 0.01 * abs(percent - self.best)


def _environment(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_text()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def test_an_error_of_the_daemon_is_told_in_the_log(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver levels cannot be probed."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    config = replace(CONFIG, simulator="mujoco_warp", device="cuda:0")
    options = SimpleNamespace(validation=RULE, local=RULE)
    search: Any = SimpleNamespace(
        request=SimpleNamespace(options=options, epsilon=0.01, budget_s=9.0),
        here=SimpleNamespace(
            config=config, counter=SimpleNamespace(whole=True), key="k", simulator=None, workload=None
        ),
        store=Store(), log=DecisionLog(), streams={}, left_s=9.0, say=lambda _: None,
    )  # fmt: skip
    found: Any = SimpleNamespace(stopped=False, intact=True, steps=WHOLE, graph=ran.graph)
    with pytest.raises(RlprofError) as raised:
        find_quotas(search, found)
    assert f"the search for quotas failed: {raised.value.what}" in search.log.text()


def test_after_a_trial_that_cannot_be_taken_back_there_is_no_checkpoint() -> None:
    assert failed(ProbeError("no driver")).intact
    assert not failed(RestoreError("state of ENV is not what it was")).intact
