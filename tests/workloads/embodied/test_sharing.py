"""What is said of who shares which GPU."""

from __future__ import annotations

import pytest

from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.sharing import PERCENTAGE, PIPE, sharing


def test_one_gpu_is_divided_only_where_mps_runs_and_the_simulator_is_a_client(tmp_path) -> None:
    running = {PIPE: str(tmp_path)}
    config = configure("h200", schedule="hybrid", simulator="mujoco_warp")
    found = sharing(config, running)
    assert "time-sharing one GPU (no MPS daemon" in found.label  # the variable alone starts none
    (tmp_path / "control").touch()
    found = sharing(config, running)
    assert "divided by MPS: simulator on 50 % of the SMs, rollout and training (one process)" in found.label
    assert found.simulator_environment == {PERCENTAGE: "50"}
    for other in ("mujoco_arm", "libero"):
        found = sharing(configure("h200", schedule="hybrid-pipe", simulator=other), running)
        assert found.label == (
            f"hybrid, time-sharing one GPU ({other} is no CUDA client, so MPS cannot limit it)"
        )
        assert not found.simulator_environment
    assert sharing(configure("h200", simulator="mujoco_warp"), running).label == "colocated"
    assert not sharing(configure("h200", simulator="mujoco_warp"), running).simulator_environment


def test_two_gpus_are_two_gpus() -> None:
    config = configure("h200", schedule="hybrid", rollout_device="cuda:1")
    assert sharing(config, {}).label == "hybrid on two GPUs: training on cuda:0, rollout on cuda:1"
    config = configure("h200", schedule="async", rollout_device="cuda:1", simulator="mujoco_warp")
    assert "simulator and training on cuda:0" in sharing(config, {}).label
    assert sharing(configure("tiny", schedule="hybrid"), {}).label == "hybrid, sharing the processor"


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"rollout_device": "cuda:1"}, "rollouts and training on the same GPU"),
        ({"cuda_graph": True}, "CUDA graphs need a CUDA device, and rollouts compute on cpu"),
        ({"train_pipe": True}, "needs minibatches of single epochs"),
        ({"schedule": "hybrid", "env_prefetch": True}, "offloads the simulator while training"),
        ({"env_prefetch": True, "auto_reset": True}, "no episodes to begin early"),
        ({"schedule": "async", "env_prefetch": True}, "its rollouts never stop"),
    ],
)
def test_switches_that_do_not_fit_are_refused(values, what) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        configure("tiny", **values)
    assert caught.value.hint
