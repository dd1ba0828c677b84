"""Sizes that do not fit together are refused before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from rlprof.workloads.embodied.config import SCHEDULES, SIMULATORS, configure
from rlprof.workloads.embodied.errors import ConfigurationError

FIT = {"envs": 8, "chunks": 3, "rollout_epochs": 2, "global_batch": 24, "micro_batch": 12}


def test_sizes_that_fit() -> None:
    config = configure("tiny", **FIT)
    assert (config.samples, config.global_batch, config.micro_batch) == (48, 24, 12)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"micro_batch": 10}, "a global batch of 24 is no multiple of the micro batch 10"),
        ({"seed": -1}, "the seed is negative"),
        ({"workers": "2"}, "workers is '2'. Next: give a whole number$"),
        ({"workers": True}, "workers is True. Next: give a whole number$"),
        ({"phases": 1}, "phases is 1. Next: give true or false$"),
        ({"train_devices": []}, r"train_devices is \[\]. Next: give a name$"),
        ({"policy": 5}, "policy is 5. Next: give a name$"),
        ({"gamma": float("nan")}, "gamma is nan. Next: give a number$"),
        ({"envs": 0}, "envs is 0. Next: give 1 to 1,000,000,000$"),
        ({"global_batch": 0}, "global_batch is 0"),
        ({"envs": 10**30}, "envs is 10"),
        ({"envs": 10**5000}, "envs is a number of thousands of digits"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0. Next: give 0 to 1,000,000$"),
        ({"timeout_s": 1e7, "workers": 1}, "timeout_s is 10000000.0. Next: give 0.01 to 2,000,000$"),
        ({"seed": 2**64}, "the seed has 65 bits"),
        ({"micro_batch": 48}, "a global batch of 24 is no multiple of the micro batch 48"),
        ({"global_batch": 36}, r"48 samples \(envs x chunks x epochs\) do not make global batches of 36"),
        ({"minibatch_scope": "epoch", "global_batch": 48}, r"24 samples \(envs x chunks\) do not make"),
        (
            {"envs": 9, "chunks": 4, "schedule": "colocated-pipe"},
            "9 environments do not make 2 stages of whole groups",
        ),
    ],
)
def test_sizes_that_do_not_fit(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        configure("tiny", **{**FIT, **changed})


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"train_pipe": True}, "needs minibatches of single epochs"),
        ({"schedule": "hybrid", "env_prefetch": True}, "offloads the simulator while training"),
        ({"env_prefetch": True, "auto_reset": True}, "no episodes to begin early"),
        ({"schedule": "async", "env_prefetch": True}, "its rollouts never stop"),
    ],
)
def test_switches_that_do_not_fit_are_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        configure("tiny", **values)
    assert caught.value.hint


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_staggered_episodes_are_of_environments_that_reset_by_themselves(simulator: str) -> None:
    for schedule in SCHEDULES:
        config = configure("tiny", simulator=simulator, schedule=schedule, auto_reset=True, staggered=True)
        assert config.staggered
        with pytest.raises(ConfigurationError, match="staggered episodes need environments that") as caught:
            configure("tiny", simulator=simulator, schedule=schedule, staggered=True)
        assert "--auto-reset" in str(caught.value.hint)


def test_processes_alone_can_be_nicer() -> None:
    assert configure("tiny", workers=2, simulator_nice=19).simulator_nice == 19
    for simulator in ("libero", "mujoco_warp"):
        assert configure("tiny", simulator=simulator, simulator_nice=1).own_processes
    with pytest.raises(ConfigurationError, match="the simulator is in this process"):
        configure("tiny", simulator_nice=1)
    for value in (-1, 20):
        with pytest.raises(ConfigurationError, match=f"a nice value of {value}"):
            configure("tiny", workers=2, simulator_nice=value)


def test_prefixes_are_kept_where_training_leaves_what_makes_them() -> None:
    assert configure("h200", keep_prefix=True).keep_prefix
    for values, said in (
        ({"train": "full"}, "training full of pi0 changes"),
        ({"train": "lora"}, "training lora of pi0 changes"),
        ({"policy": "openvla_oft", "train": "expert"}, "training expert of openvla_oft changes"),
        ({"rollout_process": True}, "in another process"),
        ({"schedule": "async"}, "every epoch that waits"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            configure("h200", keep_prefix=True, **values)


def test_a_prefix_worker_is_none_of_a_rollout_process() -> None:
    assert configure("tiny", prefix_worker=True).prefix_worker
    with pytest.raises(ConfigurationError, match="leave --prefix-worker or --rollout-process away"):
        configure("tiny", prefix_worker=True, rollout_process=True)


def test_whole_answers_are_none_of_a_rollout_process() -> None:
    assert configure("tiny", whole_answers=True).whole_answers
    with pytest.raises(ConfigurationError, match="leave --whole-answers or --rollout-process away"):
        configure("tiny", whole_answers=True, rollout_process=True)
