"""Schedules of today's systems: what shares GPUs with what, stages, offloading (RLinf's presets).

A schedule is a value; `rlprof.workloads.embodied.schedule_graph` makes a task graph of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlprof.workloads.embodied.errors import ConfigurationError

Placement = Literal["colocated", "hybrid", "disaggregated"]


@dataclass(frozen=True)
class StageSchedule:
    """What runs where and when.

    Parameters
    ----------
    name : str
        As on the command line.
    placement : {"colocated", "hybrid", "disaggregated"}
        Simulator, rollout and training on the same GPUs; simulator on one half, rollout on the other,
        training on all; each on its own.
    stages : int
        Parts of the environments that take turns, so that one is simulated while another is answered.
    offload : bool
        Simulator, rollout and actor leave GPU memory while they are not needed.
    train_pipe : bool
        Training on an epoch may begin before the next one is there (needs minibatches of single epochs).
    env_prefetch : bool
        The first episodes of the next iteration are begun while training runs (RLinf's prefetch of the
        bootstrap step; the simulator must not be offloaded).
    asynchronous : bool
        Rollouts go on while training runs.
    staleness : int
        Versions by which the weights of a rollout may be behind; older data is dropped.
    """

    name: str
    placement: Placement
    stages: int = 1
    offload: bool = False
    train_pipe: bool = False
    env_prefetch: bool = False
    asynchronous: bool = False
    staleness: int = 0


#: The presets, by name.
SCHEDULES: dict[str, StageSchedule] = {
    s.name: s
    for s in (
        StageSchedule("colocated", "colocated"),
        StageSchedule("colocated-pipe", "colocated", stages=2),
        StageSchedule("hybrid", "hybrid", offload=True),
        StageSchedule("hybrid-pipe", "hybrid", stages=2, offload=True),
        StageSchedule("async", "disaggregated", asynchronous=True, staleness=1),
    )
}


def schedule_named(name: str) -> StageSchedule:
    """Return a preset.

    Raises
    ------
    ConfigurationError
        If there is none of this name.
    """
    if name not in SCHEDULES:
        raise ConfigurationError(f"no schedule is called {name!r}", hint=f"use {', '.join(SCHEDULES)}")
    return SCHEDULES[name]
