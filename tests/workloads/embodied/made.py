"""Small trainers and observations for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlprof.workloads.embodied.build import make_trainer
from rlprof.workloads.embodied.config import Config, configure
from rlprof.workloads.embodied.contracts import GlobalStep, Observation, SimulatorSpec
from rlprof.workloads.embodied.trainer import Trainer

#: An iteration of 0.1 s: answers of 4 environments, 2 chunks, 2 epochs.
SMALL: dict[str, Any] = {
    "envs": 4,
    "chunks": 2,
    "episode_steps": 10,
    "denoise_steps": 2,
    "update_epochs": 2,
    "global_batch": 8,
    "micro_batch": 4,
}


def small(**values: Any) -> Config:
    return configure("exact", **{**SMALL, **values})


def trained(config: Config, iterations: int) -> tuple[list[Any], dict[str, Any]]:
    """Results of the plain loop, and all that it leaves."""
    trainer = make_trainer(config)
    try:
        return [trainer.iteration(GlobalStep(i)) for i in range(iterations)], left(trainer)
    finally:
        trainer.env.simulator.close()


def left(trainer: Trainer) -> dict[str, Any]:
    """All that training changes."""
    optimizer = trainer.actor.optimizer.state_dict()["state"]
    return {
        "actor": dict(trainer.actor.policy.state_dict()),
        "rollout": dict(trainer.rollout.policy.state_dict()),
        "optimizer": {k: dict(v) for k, v in optimizer.items()},
        "environments": trainer.env.simulator.state_dict(),
        "updates": trainer.actor.updates,
    }


def spec(envs: int = 4, *, cameras: int = 0, image: int = 32, **values: Any) -> SimulatorSpec:
    size = image if cameras else 0
    return SimulatorSpec("made", envs, 5, 40, 4, 20, cameras=cameras, height=size, width=size, **values)


def observation(batch: int, *, cameras: int = 0, image: int = 32, seed: int = 0) -> Observation:
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (batch, cameras, image, image, 3), dtype=np.uint8) if cameras else None
    return Observation(draw.normal(size=(batch, 20)).astype(np.float32), images, draw.integers(0, 2, batch))
