"""A document as `benchmarks.gpu.embodied run` writes it, with few numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def iteration(
    variant: str, turn: int, rate: float, active: float | None = 0.4, **more: Any
) -> dict[str, Any]:
    return {
        "variant": variant,
        "schedule": variant.partition("+")[0],
        "round": turn,
        "warm_up": turn == 0,
        "short": False,
        "wall_s": 1000 / rate,
        "simulator_steps_per_s": rate,
        "phases_s": {"generate_rollouts": 600 / rate, "actor_training": 400 / rate},
        "activity": {"iteration": active} if active is not None else "unavailable: no counters",
        "semantic_differences": [],
        **more,
    }


def run(simulator: str = "libero", mps: bool = False, device: str = "cuda:0") -> dict[str, Any]:
    return {
        "command": "run",
        "config": {"simulator": simulator, "policy": "pi0", "envs": 16, "device": device},
        "argv": {"mps": str(mps)},
        "machine": {
            "gpu": "NVIDIA H200, 580.1, 345 MHz\nNVIDIA H200",
            "date": "2026-11-30",
            "torch": "2.11.0",
        },
        "steps": {
            "build": {"ok": True},
            "solo_inference": {"ok": True, "each_s": [0.3, 0.2, 0.4], "activity": {"inference": 0.5}},
            "solo_simulation": {"ok": True, "each_s": [0.5, 0.5, 0.5], "activity": "unavailable: none"},
            "solo_captured": {"ok": False, "error": "RuntimeError: no graph"},
            "solo_serial": {"ok": True, "each_s": [0.8, 0.9, 0.7]},
            "solo_overlapped": {
                "ok": True,
                "each_s": [0.64, 0.64],
                "ended_s": [{"predict": 0.4, "simulate": 0.64}, {"predict": 0.5, "simulate": 0.64}],
            },
            "table1": {"ok": True},
        },
        "iterations": [
            iteration("colocated", 0, 50.0),
            iteration("colocated", 1, 100.0),
            iteration("colocated", 2, 110.0),
            iteration("hybrid", 1, 120.0, active=None),
            iteration("hybrid", 1, 900.0, short=True),
            iteration("hybrid-pipe+prefetch", 1, 150.0),
        ],
    }


def checkout(folder: Path, **documents: Any) -> Path:
    """A folder with these results in it, by file name without suffix."""
    results = folder / "benchmarks" / "results" / "gpu"
    results.mkdir(parents=True)
    for name, document in documents.items():
        (results / f"{name}.json").write_text(json.dumps(document))
    return folder
