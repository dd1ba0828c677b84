"""Rollouts that never stop: staleness is bounded, what is too old is dropped, failures arrive."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from rlprof.workloads.embodied.asynchronous import AsynchronousTrainer
from rlprof.workloads.embodied.build import make_trainer
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.errors import SimulatorError, SimulatorTimeoutError
from tests.workloads.embodied.made import small

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")


def test_data_is_at_most_one_version_behind_and_older_data_is_dropped() -> None:
    trainer = make_trainer(small(chunks=2))
    asynchronous = AsynchronousTrainer(trainer, staleness=1)
    try:
        lags, dropped = [], 0
        for i in range(7):
            result = asynchronous.iteration(GlobalStep(i))
            lags += result["staleness"]
            dropped += result["dropped_epochs"]
            if i == 2:  # the rollout runs ahead, and then the weights move on
                until = time.monotonic() + 60
                while len(asynchronous._ready) < 6 and time.monotonic() < until:
                    time.sleep(0.01)
        assert len(lags) == 7 * 2
        assert set(lags) <= {0, 1}
        assert 1 in lags
        assert dropped == asynchronous.dropped > 0
        assert trainer.actor.updates == 7 * 4
        assert trainer.rollout.version == trainer.actor.updates
    finally:
        asynchronous.close()
    assert not asynchronous._thread.is_alive()
    assert trainer.chunk is iter


def test_training_and_rollout_overlap() -> None:
    trainer = make_trainer(small())
    spans: dict[str, list[tuple[float, float]]] = {"env": [], "train": []}

    def timed(name: str, call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = time.monotonic()
            time.sleep(0.02)
            result = call(*args, **kwargs)
            spans[name].append((started, time.monotonic()))
            return result

        return run

    trainer.env.simulator.step = timed("env", trainer.env.simulator.step)  # type: ignore[method-assign]
    trainer.actor.training_step = timed("train", trainer.actor.training_step)  # type: ignore[method-assign]
    asynchronous = AsynchronousTrainer(trainer)
    for i in range(2):
        asynchronous.iteration(GlobalStep(i))
    asynchronous.close()
    assert any(a < d and c < b for a, b in spans["env"] for c, d in spans["train"])


def test_weights_change_between_two_chunks_only() -> None:
    trainer = make_trainer(small())
    during = threading.Event()
    broken = []
    predict, sync = trainer.rollout.predict, trainer.rollout.sync_model_from_actor

    def watched_predict(*args: Any, **kwargs: Any) -> Any:
        during.set()
        try:
            return predict(*args, **kwargs)
        finally:
            during.clear()

    def watched_sync(actor: Any) -> None:
        broken.append(during.is_set())
        sync(actor)
        broken.append(during.is_set())

    trainer.rollout.predict = watched_predict  # type: ignore[method-assign]
    trainer.rollout.sync_model_from_actor = watched_sync  # type: ignore[method-assign]
    asynchronous = AsynchronousTrainer(trainer)
    for i in range(3):
        asynchronous.iteration(GlobalStep(i))
    asynchronous.close()
    assert len(broken) == 8
    assert not any(broken)


def test_a_rollout_that_fails_is_what_the_actor_sees() -> None:
    trainer = make_trainer(small())

    def broken(*_args: Any, **_kwargs: Any) -> Any:
        raise SimulatorError("the gripper is stuck")

    trainer.env.simulator.step = broken  # type: ignore[method-assign]
    asynchronous = AsynchronousTrainer(trainer)
    with pytest.raises(SimulatorError, match="stuck"):
        asynchronous.iteration(GlobalStep(0))
    asynchronous.close()


def test_weights_that_cannot_be_handed_over_are_an_error_of_the_next_iteration() -> None:
    trainer = make_trainer(small())
    asynchronous = AsynchronousTrainer(trainer)

    def broken(_actor: Any) -> None:
        raise SimulatorError("the other side is gone")

    trainer.rollout.sync_model_from_actor = broken  # type: ignore[method-assign]
    assert asynchronous.iteration(GlobalStep(0))["training"]
    with pytest.raises(SimulatorError, match="gone"):
        asynchronous.iteration(GlobalStep(1))
    asynchronous.close()


def test_epochs_that_were_done_before_the_rollout_failed_are_trained_on() -> None:
    trainer = make_trainer(small())
    epoch, calls = trainer.rollout_epoch, []

    def breaks(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise SimulatorError("the gripper is stuck")
        return epoch(*args)

    trainer.rollout_epoch = breaks  # type: ignore[method-assign]
    asynchronous = AsynchronousTrainer(trainer)
    asynchronous._thread.join()
    assert asynchronous.iteration(GlobalStep(0))["training"]
    with pytest.raises(SimulatorError, match="stuck"):
        asynchronous.iteration(GlobalStep(1))
    asynchronous.close()


def test_a_rollout_that_takes_too_long_is_said() -> None:
    trainer = make_trainer(small())
    step = trainer.env.simulator.step

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.5)
        return step(*args, **kwargs)

    trainer.env.simulator.step = slow  # type: ignore[method-assign]
    asynchronous = AsynchronousTrainer(trainer, timeout_s=0.2)
    with pytest.raises(SimulatorTimeoutError, match=r"no 2 fresh rollout epochs within 0\.2 s"):
        asynchronous.iteration(GlobalStep(0))
    asynchronous.timeout_s = 30
    asynchronous.close()
