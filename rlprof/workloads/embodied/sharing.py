"""What really shares which GPU in a run, and what has to be done for it: the label of its placement.

MPS divides SMs among processes. Rollout and training are one process here (the driver), so of a single GPU
only the simulator's share can be limited; and only if it computes with CUDA: graphics contexts are outside
MPS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlprof.workloads.embodied.config import Config

#: Simulators that are CUDA clients; the others draw through a graphics context, or use no GPU.
CUDA_SIMULATORS = ("mujoco_warp",)
#: Per cent of the SMs for the simulator where a hybrid schedule has one GPU: RLinf gives it half of the GPUs.
SIMULATOR_SM_PERCENT = 50
PIPE, PERCENTAGE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@dataclass(frozen=True)
class Sharing:
    """See the module.

    Parameters
    ----------
    label : str
        For people and for metrics.
    simulator_environment : mapping of str to str
        Variables for the simulator's processes.
    """

    label: str
    simulator_environment: Mapping[str, str] = field(default_factory=dict)


def sharing(config: Config, environ: Mapping[str, str] = os.environ) -> Sharing:
    """Return how a run shares GPUs.

    Parameters
    ----------
    config : Config
        Of the run.
    environ : mapping of str to str
        Of this process: says whether it is a client of an MPS daemon.
    """
    kind = config.stage_schedule.placement
    rollout = config.rollout_device or config.device
    if kind == "colocated":
        return Sharing("colocated")
    if not config.device.startswith("cuda"):
        return Sharing(f"{kind}, sharing the processor")
    if rollout != config.device:
        where = "simulator and training" if config.simulator in CUDA_SIMULATORS else "training"
        return Sharing(f"{kind} on two GPUs: {where} on {config.device}, rollout on {rollout}")
    why = _why_not_divided(config, environ)
    if why is not None:
        return Sharing(f"{kind}, time-sharing one GPU ({why})")
    label = (
        f"{kind} on one GPU divided by MPS: simulator on {SIMULATOR_SM_PERCENT} % of the SMs, rollout and"
        " training (one process) on all"
    )
    return Sharing(label, {PERCENTAGE: str(SIMULATOR_SM_PERCENT)})


def _why_not_divided(config: Config, environ: Mapping[str, str]) -> str | None:
    if config.simulator not in CUDA_SIMULATORS:
        return f"{config.simulator} is no CUDA client, so MPS cannot limit it"
    pipe = environ.get(PIPE)
    if not pipe or not (Path(pipe) / "control").exists():
        return "no MPS daemon; see rlprof mps start"
    return None
