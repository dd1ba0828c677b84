"""The presets of a training run: what of its configuration each changes."""

from __future__ import annotations

from typing import Any

#: Fields of `config.Config`, by preset.
VALUES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "exact": {
        "envs": 8,
        "rollout_epochs": 2,
        "chunks": 3,
        "episode_steps": 15,
        "update_epochs": 2,
        "global_batch": 24,
        "micro_batch": 12,
    },
    # 12 chunks x 2 epochs of 16 environments, only the expert is trained
    "h200": {
        "envs": 16,
        "rollout_epochs": 2,
        "chunks": 12,
        "chunk_steps": 5,
        "episode_steps": 60,
        "update_epochs": 1,
        "global_batch": 192,
        "micro_batch": 64,
        "learning_rate": 5e-6,
        "workers": 16,  # one for each environment: all wait for the process that has the most
        "cameras": 2,
        "image": 224,
        "device": "cuda:0",
        "timeout_s": 120.0,
    },
}
#: Most environments that start alike with GRPO: the more, the better a baseline they are. With groups of 8
#: the tiny one learns slowly.
LARGEST_GROUP = {"tiny": 32, "exact": 4, "h200": 8}
