"""Resets ahead: what is handed out is what a reset gives, and nothing else notices."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

import torch

from rlprof.overlap.callgraph import Call
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.optimize import derive
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.overlap.optimize.steps import Step, step
from rlprof.workloads.embodied import ahead as module
from rlprof.workloads.embodied import graph_driver, record, runner
from rlprof.workloads.embodied.ahead import AheadSimulator, ResetsAhead, ahead_of, first_resets
from rlprof.workloads.embodied.build import make_simulator
from rlprof.workloads.embodied.config import Config, configure
from rlprof.workloads.embodied.contracts import GlobalStep, Simulator
from rlprof.workloads.embodied.errors import (
    ConfigurationError,
    SimulatorDiedError,
    SimulatorError,
    SimulatorTimeoutError,
)
from rlprof.workloads.embodied.exchange import Exchangeable
from rlprof.workloads.embodied.graph_driver import Answers, PlacedDriver
from rlprof.workloads.embodied.optimize import embodied
from rlprof.workloads.embodied.runner import measured_iteration, run
from rlprof.workloads.embodied.simulators import processes
from tests.workloads.embodied.made import small

EPOCH = "iteration/generate_rollouts/rollout_epoch"
TEMPORAL = (step("split_temporal", EPOCH, groups=2), step("interleave", EPOCH))
HALVES = (step("split_spatial", EPOCH, groups=2), step("interleave", EPOCH))


def in_processes(**values: Any) -> Config:
    return small(**{"workers": 1, "reset_ahead": True, "update_epochs": 1, **values})


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """No thread of the block is left after it."""
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 40.0
    while (left := set(threading.enumerate()) - before) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left


# the wrapper -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Simulator, AheadSimulator]]:
    """The same simulator twice: in this process, and in one of its own with resets ahead."""
    plain = make_simulator(small(envs=2, group=1))
    ahead = AheadSimulator(make_simulator(in_processes(envs=2, group=1)))
    yield plain, ahead
    plain.close()
    ahead.close()


ARGUMENTS = st.tuples(st.integers(0, 2), st.integers(0, 1))
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), ARGUMENTS),
        st.tuples(st.just("whole"), ARGUMENTS),
        st.tuples(st.just("parts"), ARGUMENTS),
        st.tuples(st.sampled_from(["step", "phases", "load"]), st.integers(0, 5)),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(CALLS)
def test_whatever_is_begun_ahead_a_reset_gives_what_it_gives_and_all_that_follows(
    pair: tuple[Simulator, AheadSimulator], calls: list[tuple[str, Any]]
) -> None:
    """All but what lies between a reset ahead and the reset that follows: nobody looks at the state there."""
    plain, ahead = pair
    plain.reset(GlobalStep(9), 0)  # steps need episodes
    fresh, first = True, plain.state_dict()
    now: list[list[Any]] = []
    plain.load_state_dict(first)
    ahead.load_state_dict(first)
    for call, given_ in calls:
        if call == "begin":
            ahead.begin(GlobalStep(given_[0]), given_[1])
            fresh = False
        elif call in ("whole", "parts"):
            parts = (None,) if call == "whole" else (np.array([1]), np.array([0]))
            now.append([one.reset(GlobalStep(given_[0]), given_[1], part) for part in parts
                        for one in (plain, ahead)])  # fmt: skip
            fresh = True
        elif call == "load":
            plain.load_state_dict(first)
            ahead.load_state_dict(first)
            fresh = True
        elif fresh and call == "step":
            actions = np.full((2, 5, 4), given_ / 10 - 0.2, np.float32)
            now.append([plain.step(actions), ahead.step(actions)])
        elif fresh:
            actions = np.full((2, 5, 4), given_ / 10 - 0.3, np.float32)
            plain.physics(actions)
            ahead.physics(actions)
            now += [[plain.reward(), ahead.reward()], [plain.render(), ahead.render()]]
    if fresh:
        assert equal_bits(plain.state_dict(), ahead.state_dict())
    for results in now:  # only now: what was handed out early is overwritten by nothing
        assert all(equal_bits(a, b) for a, b in zip(results[::2], results[1::2], strict=True))


def test_a_reset_that_was_begun_is_handed_out_once(pair: tuple[Simulator, AheadSimulator]) -> None:
    _, ahead = pair
    before = ahead.handed_out
    ahead.begin(GlobalStep(7), 1)
    first = ahead.reset(GlobalStep(7), 1)
    assert ahead.handed_out == before + 1
    again = ahead.reset(GlobalStep(7), 1)
    assert ahead.handed_out == before + 1
    assert equal_bits(first, again)
    for step_, epoch, samples in ((8, 1, None), (7, 0, None), (7, 1, np.array([0]))):
        ahead.begin(GlobalStep(7), 1)
        ahead.reset(GlobalStep(step_), epoch, samples)
        assert ahead.handed_out == before + 1
    ahead.begin(GlobalStep(7), 1)
    ahead.load_state_dict(ahead.state_dict())
    ahead.reset(GlobalStep(7), 1)
    assert ahead.handed_out == before + 1


class Fails:
    """A simulator whose resets fail, the first after a while."""

    spec = None
    process_ids = (1,)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.go = threading.Event()

    def reset(self, step_: GlobalStep, epoch: int, samples: Any = None) -> None:
        assert self.go.wait(60.0)
        self.calls.append("reset")
        raise SimulatorError(f"reset {step_.index}, {epoch}")

    def state_dict(self) -> dict[str, Any]:
        self.calls.append("state_dict")
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls.append("load_state_dict")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize(
    "use",
    [
        lambda one: one.reset(GlobalStep(1), 0),
        lambda one: one.reset(GlobalStep(2), 0),
        AheadSimulator.state_dict,
        AheadSimulator.render,
        AheadSimulator.finish,
        AheadSimulator.drop,
        lambda one: one.begin(GlobalStep(2), 0),
        lambda one: one.load_state_dict({}),
        lambda one: one.step(None),
        lambda one: one.physics(None),
        AheadSimulator.reward,
        AheadSimulator.auto_reset,
    ],
)
def test_what_a_reset_raises_is_raised_by_the_next_call_and_once(use: Any) -> None:
    inner = Fails()
    with nothing_left():
        ahead = AheadSimulator(inner)  # type: ignore[arg-type]
        ahead.begin(GlobalStep(1), 0)
        threading.Timer(0.02, inner.go.set).start()
        with pytest.raises(SimulatorError, match="reset 1, 0"):
            use(ahead)
        ahead.finish()
        assert ahead.state_dict() == {}
        ahead.close()
        ahead.close()
    assert inner.calls == ["reset", "state_dict", "close", "close"]


def test_closing_waits_for_a_reset_and_what_it_raises_is_of_no_use() -> None:
    inner = Fails()
    with nothing_left():
        ahead = AheadSimulator(inner)  # type: ignore[arg-type]
        ahead.begin(GlobalStep(1), 0)
        threading.Timer(0.05, inner.go.set).start()
        ahead.close()
        assert inner.calls == ["reset", "close"]


def then_interrupted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Ctrl-C while a function is at work that does not return without it."""
    native = getattr(owner, name)

    def interrupted(*args: Any) -> Any:
        patch.undo()
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            return native(*args)
        finally:
            timer.join()

    patch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("way", ["release", "close"])
def test_who_is_interrupted_while_a_reset_is_waited_for_at_the_end_does_not_wait_on(way: str) -> None:
    """A process that hangs would keep whoever presses Ctrl-C until its time limit."""
    with nothing_left():
        config = in_processes(timeout_s=600.0)
        one, other = (AheadSimulator(make_simulator(config)) for _ in range(2))
        ids = (*one.process_ids, *other.process_ids)
        began = time.monotonic()
        try:
            for simulator in (one, other):
                os.kill(simulator.process_ids[0], signal.SIGSTOP)
                simulator.begin(GlobalStep(0), 0)
            with contextlib.ExitStack() as patches:
                first, second = (patches.enter_context(pytest.MonkeyPatch.context()) for _ in range(2))
                if way == "release":
                    then_interrupted(first, module, "wait")
                    with pytest.raises(KeyboardInterrupt):
                        ResetsAhead((one, other)).release()
                else:  # the first ends the wait for the reset, the second that for the simulator
                    for simulator in (one, other):
                        then_interrupted(first, module, "wait")
                        then_interrupted(second, simulator.inner, "close")
                        with pytest.raises(KeyboardInterrupt):
                            simulator.close()
            assert time.monotonic() - began < 60.0
            assert not any(Path(f"/proc/{p}").exists() for p in ids)
        finally:
            for simulator in (one, other):
                simulator.end()
                simulator.close()


@pytest.mark.parametrize(
    ("sent", "error"), [(signal.SIGKILL, SimulatorDiedError), (signal.SIGSTOP, SimulatorTimeoutError)]
)
def test_a_process_that_dies_or_hangs_during_a_reset_ahead_is_the_error_that_it_is(
    sent: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def patient(connections: list[Any], timeout_s: float) -> list[Any]:
        """The time limit is for the one that hangs: the other one may take its time."""
        return connection.wait(connections, timeout_s if len(connections) == 1 else 60.0)

    monkeypatch.setattr(processes, "wait", patient)
    with nothing_left():
        ahead = AheadSimulator(make_simulator(in_processes(workers=2, timeout_s=1.0)))
        ids = ahead.process_ids
        os.kill(ids[1], sent)
        ahead.begin(GlobalStep(0), 0)
        with pytest.raises(error, match="simulator process 1"):
            ahead.reset(GlobalStep(0), 0)
        ahead.close()
    assert not any(Path(f"/proc/{p}").exists() for p in ids)


def test_exchanging_waits_for_a_reset_and_hands_it_out_to_nobody() -> None:
    def made(_key: Any) -> Simulator:
        return AheadSimulator(make_simulator(in_processes()))

    here = Exchangeable(made(None), made)
    try:
        first = ahead_of(here)
        assert first is not None
        first.begin(GlobalStep(3), 1)
        here.use(2)
        other = ahead_of(here)
        assert other is not None
        assert other is not first
        assert equal_bits(first.state_dict(), other.state_dict())
        seen = here.reset(GlobalStep(3), 1)
        here.use(None)
        assert ahead_of(here) is first
        assert equal_bits(here.reset(GlobalStep(3), 1), seen)
        assert (first.handed_out, other.handed_out) == (0, 0)
    finally:
        here.close()
    assert ahead_of(Fails()) is None


# runs ------------------------------------------------------------------------------------------------------


def written(folder: Path, config: Config, steps: tuple[Step, ...], spares: int) -> Path:
    with embodied(replace(config, reset_ahead=False), folder, spares=spares, activity="off") as here:
        native = here.workload.native
        GraphFile.of(native, derive(native, steps), steps, spares=spares).write(folder / "graph.json")
    return folder / "graph.json"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def saved(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return found


def plain(value: Any) -> Any:
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def same(one: Path, other: Path, *names: str) -> None:
    assert (one / "semantic_record.jsonl").read_text() == (other / "semantic_record.jsonl").read_text()
    for name in ("actor", "rollout", "optimizer", "masters", "updates", "version", *names):
        assert equal_bits(plain(saved(one)[name]), plain(saved(other)[name])), name


@pytest.mark.parametrize(
    ("steps", "spares", "ahead", "options"),
    [
        pytest.param(TEMPORAL, 1, 2, {}, id="epochs side by side"),
        pytest.param(TEMPORAL, 1, 2, {"phases": True}, id="phases", marks=pytest.mark.slow),
        pytest.param((), 0, 1, {}, id="one simulator", marks=pytest.mark.slow),
        pytest.param(HALVES, 0, 0, {}, id="halves are begun by themselves", marks=pytest.mark.slow),
    ],
)
def test_a_run_with_resets_ahead_trains_as_the_native_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[Step, ...],
    spares: int,
    ahead: int,
    options: dict[str, Any],
) -> None:
    config = in_processes(**options)
    environments: dict[int, dict[str, Any]] = {}
    save = runner.checkpoint.save

    def saves(path: Path, trainer: Any, configuration: dict[str, Any], iteration: int) -> None:
        save(path, trainer, configuration, iteration)
        found = torch.load(path, weights_only=True)["environments"]
        environments[iteration] = {k: v.numpy() for k, v in found.items()}

    graph = written(tmp_path, config, steps, spares)
    native, by_graph, parts = (tmp_path / name for name in ("native", "by_graph", "parts"))
    run(config, native, 8)
    assert "resets_ahead" not in rows_of(native)[0]
    with nothing_left(), monkeypatch.context() as patched:
        patched.setattr(runner.checkpoint, "save", saves)
        run(config, by_graph, 8, graph=graph, checkpoint_every=6)
    rows = rows_of(by_graph)
    assert [row["graph"] for row in rows] == [False, False, *[True] * 6]
    assert [row["resets_ahead"] for row in rows] == [0, 0, 0, *[ahead] * 5]
    assert all(row["semantic_differences"] == [] for row in rows)
    same(native, by_graph, "environments")  # for an iteration after the last one nothing is begun
    # the environments of a checkpoint before it are those that the next iteration begins with
    simulator = make_simulator(config)
    try:
        if ahead:
            simulator.reset(GlobalStep(6), 1 if spares else 0)
            assert equal_bits(simulator.state_dict(), environments[6])
    finally:
        simulator.close()
    if steps is not TEMPORAL or options:
        return
    run(config, parts, 4, graph=graph)
    run(config, parts, 8, graph=graph, resume=True)
    assert [row["resets_ahead"] for row in rows_of(parts)] == [0, 0, 0, 2, 0, 0, 0, 2]
    same(by_graph, parts, "environments")


def test_a_process_that_dies_between_iterations_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = in_processes()
    graph = written(tmp_path, config, TEMPORAL, 1)
    spares: list[Any] = []
    iterate = runner.measured_iteration

    def make(config: Config, *shared: Any) -> Simulator:
        spares.append(make_simulator(config, *shared))
        found: Simulator = spares[-1]
        return found

    monkeypatch.setattr(graph_driver, "make_simulator", make)

    def dies(*args: Any) -> Any:
        if args[-1] == 4:
            os.kill(spares[0].process_ids[0], signal.SIGKILL)
            time.sleep(0.05)
            # begun before it died: it has to be begun anew to notice
            ahead_of(args[1]._resets._simulators[1]).begin(GlobalStep(4), 0)  # type: ignore[union-attr]
        return iterate(*args)

    monkeypatch.setattr(runner, "measured_iteration", dies)
    with nothing_left(), pytest.raises(SimulatorDiedError, match="SIGKILL during reset"):
        run(config, tmp_path / "run", 6, graph=graph, checkpoint_every=1)
    assert not any(Path(f"/proc/{p}").exists() for p in spares[0].process_ids)
    assert saved(tmp_path / "run")["iteration"] == 4
    monkeypatch.setattr(runner, "measured_iteration", iterate)
    assert len(run(config, tmp_path / "run", 6, graph=graph, resume=True).rows) == 2


def test_what_a_reset_for_the_next_iteration_raises_loses_nothing_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that were trained the last one is saved, and for one after the last nothing is begun."""
    config = in_processes()
    graph = written(tmp_path, config, TEMPORAL, 1)
    run(config, tmp_path / "native", 5)
    begin, begun = AheadSimulator.begin, []

    def dies(self: AheadSimulator, step_: GlobalStep, epoch: int) -> None:
        begun.append(step_.index)
        if step_.index == 4:
            os.kill(self.process_ids[0], signal.SIGKILL)
        begin(self, step_, epoch)

    monkeypatch.setattr(AheadSimulator, "begin", dies)
    out = tmp_path / "run"
    with nothing_left():
        assert run(config, out, 4, graph=graph).iterations == 4
        assert begun == [3, 3]
        with pytest.raises(SimulatorDiedError, match="SIGKILL during reset"):
            run(config, out, 5, graph=graph, checkpoint_every=4, force=True)
    assert saved(out)["iteration"] == len(rows_of(out)) == 4
    assert saved(out)["environments"] is None
    run(config, out, 5, graph=graph, resume=True)
    same(tmp_path / "native", out, "environments")


def test_orders_that_take_turns_have_resets_ahead_by_a_graph_alone(tmp_path: Path) -> None:
    """As `benchmarks/gpu/optimize.py` compares them: each iteration is prepared as one of its own order."""
    config = in_processes()
    with nothing_left(), embodied(config, tmp_path, spares=1, activity="off") as here:
        workload, graph = here.workload, derive(here.workload.native, TEMPORAL)
        assert first_resets(graph) == {0: 1, 1: 0}
        assert first_resets(workload.native) == {0: 0}
        assert first_resets(derive(workload.native, HALVES)) == {}
        workload.iteration(graph)  # what the optimiser measures begins nothing
        assert here.resets.there
        seen = record.watch(here.trainer)
        rows = []
        for order in (graph, None, graph, graph, None):
            driver = PlacedDriver(workload, here.trainer, order, here.resets)
            before = here.resets.handed_out
            driver.prepare(GlobalStep(here.counter.step))
            rows.append(measured_iteration(here.trainer, driver, config, seen, here.counter.step).row)
            assert here.resets.handed_out - before == (0 if order is None else 2)
            driver.close()
            here.counter.step += 1
        workload.iteration(graph)
        assert here.resets.handed_out == 6
        assert [row.get("resets_ahead") for row in rows] == [2, None, 2, 2, None]
        assert all(0 <= r["reset_ahead_left_s"] < r["wall_s"] for r in rows if r["graph"])
        assert not any(row["semantic_differences"] for row in rows)
        iterations, found = here.iterations, copy.deepcopy(held(here))
    with embodied(replace(config, reset_ahead=False), tmp_path, spares=1, activity="off") as here:
        assert not here.resets.there
        for _ in range(iterations - here.iterations):
            here.workload.iteration(None)
        assert equal_bits(held(here), found)


def test_resets_begin_before_training_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    begin, started = AheadSimulator.begin, Answers.started

    def begins(self: AheadSimulator, step_: GlobalStep, epoch: int) -> None:
        events.append(f"begin {step_.index}, {epoch}")
        begin(self, step_, epoch)

    def starts(self: Answers, call: Call, arguments: Any) -> None:
        events.append(call.node.rpartition("/")[2])
        started(self, call, arguments)

    monkeypatch.setattr(AheadSimulator, "begin", begins)
    monkeypatch.setattr(Answers, "started", starts)
    config = in_processes(reset_ahead=True)
    with embodied(config, tmp_path, spares=1, activity="off") as here:
        driver = PlacedDriver(
            here.workload, here.trainer, derive(here.workload.native, TEMPORAL), here.resets
        )
        driver.iteration(GlobalStep(2))
        driver.close()
    chosen = [e for e in events if e.startswith(("begin", "step", "compute_adv", "training_step"))]
    assert set(chosen[: chosen.index("compute_adv")]) == {"step", "begin 3, 0", "begin 3, 1"}
    # whichever is through first: the other one's last chunk has the machine to itself
    assert [e for e in chosen if e != "training_step"] == ["step"] * 4 + [
        "begin 3, 0",
        "begin 3, 1",
        "compute_adv",
    ]


def held(here: Any) -> Any:
    trainer = here.trainer
    return plain(
        {
            "rollout": trainer.rollout.policy.state_dict(),
            "actor": trainer.actor.policy.state_dict(),
            "optimizer": trainer.actor.optimizer.state_dict(),
        }
    )


def test_resets_ahead_are_refused_where_they_would_change_what_is_trained_or_gain_nothing() -> None:
    assert configure("tiny", workers=2, reset_ahead=True).reset_ahead
    with pytest.raises(ConfigurationError, match="the simulator is in this process"):
        configure("tiny", reset_ahead=True)
    with pytest.raises(ConfigurationError, match="have no episodes to begin ahead"):
        configure("tiny", workers=2, auto_reset=True, reset_ahead=True)
