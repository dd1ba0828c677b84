"""Devices, and shares of their SMs, that do not fit the rest of a run are refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.errors import ConfigurationError


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"rollout_device": "cuda:1"}, "rollouts and training on the same GPU"),
        ({"rollout_sm_percent": 50}, "cpu has no SMs of which rollouts could have a share"),
        ({"rollout_process": True, "rollout_sm_percent": 50}, "cpu has no SMs"),
        ({"train_devices": "cuda:0"}, "computes on cpu first, and --train-devices begins with cuda:0"),
        ({"device": "cuda:0", "train_devices": "cuda:0,cuda:0"}, "a GPU is twice"),
        ({"train_devices": "cpu,cpu"}, "no micro batch of 256 for each of 2 devices"),
        (
            {
                "schedule": "async",
                "device": "cuda:0",
                "rollout_device": "cuda:1",
                "train_devices": "cuda:0,cuda:1",
                "micro_batch": 64,
            },
            "training has no time of its own on cuda:1",
        ),
        ({"rollout_process": True, "rollout_sm_percent": 101}, "a share of 101 %"),
        ({"cuda_graph": True}, "CUDA graphs need a CUDA device, and rollouts compute on cpu"),
    ],
)
def test_devices_that_do_not_fit_are_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        configure("tiny", **values)
    assert caught.value.hint
