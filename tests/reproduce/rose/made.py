"""Documents as programs of `benchmarks.gpu` and `rlprof quota` write them, with few numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlprof.reproduce.compare import Compared

#: Environments of made runs by simulator, where they are not 16.
ENVS = {"mujoco_warp": 80}


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
        "config": {
            "simulator": simulator,
            "policy": "pi0",
            "envs": ENVS.get(simulator, 16),
            "device": device,
        },
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


def over_time(low: float, seconds: float = 10.0, part: float = 6.0) -> dict[str, Any]:
    """Samples of an iteration as `samples.summary` keeps them: a share of it at 20 %, the rest at 90 %."""

    def one(seconds: float) -> dict[str, Any]:
        levels = [0.0] * 20
        levels[4], levels[18] = low, 1 - low
        return {
            "seconds": seconds, "covered_frac": 1.0, "active_frac": 0.2 * low + 0.9 * (1 - low),
            "below_half": low, "below_most": low, "levels": levels,
        }  # fmt: skip

    course = [0.2 if n < 400 * low else 0.9 for n in range(400)]
    parts = {"iteration": one(seconds), "generate_rollouts": one(part), "actor_training": one(4.0)}
    return {"source": "SM counters", "period_s": 0.001, "course": [None, *course[1:]], "parts": parts}


def optimised(
    simulator: str = "libero",
    *,
    mps: bool = False,
    device: str = "cuda:0",
    variants: tuple[tuple[str, float, float], ...] = (
        ("native", 100.0, 0.4),
        ("colocated-pipe", 110.0, 0.5),
        ("round 1", 132.0, 0.55),
        ("optimised", 143.0, 0.65),
    ),
    accepted: tuple[bool, ...] = (True, True),
    **more: Any,
) -> dict[str, Any]:
    """A document as `benchmarks.gpu.optimize` writes it; variants: name, steps/s, activity."""
    document = run(simulator, mps, device) | {"command": "optimize"}
    document["iterations"] = [
        iteration(name, 1, rate, active=None, sm_activity=active, over_time=over_time(1 - active))
        for name, rate, active in variants
    ]
    document["optimisation"] = {
        "overhead": {
            "total_s": 300.0, "retained_training_s": 200.0, "net_s": 100.0, "gain_s": 3.0,
            "paid_back_after_iterations": 34,
        },
        "rounds": [{"accepted": yes} for yes in accepted],
        "steps": ["split", "interleave"],
        "ended": "all 2 rounds are done" if all(accepted) else "round 2 found nothing that pays",
        "stopped": False,
        "iterations": [{"graph": "a", "time_s": 10.0}, {"graph": "b", "time_s": 8.0}],
    }  # fmt: skip
    return document | more


def spread(median_s: float) -> dict[str, Any]:
    return {"median_s": median_s, "low_s": 0.9 * median_s, "high_s": 1.1 * median_s, "runs": 6}


def tuning(mechanism: str = "mps", times: dict[int, float | None] | None = None) -> dict[str, Any]:
    trials = [
        {"order": n, "k": percent // 2, "setting": percent, "amount": percent, "time_s": s, "runs": 3}
        for n, (percent, s) in enumerate((times or {}).items())
    ]
    return {
        "mechanism": mechanism,
        "branches": {"A": "a", "B": "b"},
        "alone": {"A": spread(4.0), "B": spread(1.0)},
        "ready": {"A": spread(5.0), "B": spread(2.0)},
        "together": spread(5.0),
        "unmanaged": spread(6.0),
        "pair": {"earlier": "B"},
        "search": {"trials": trials} if trials else {"unavailable": "not reached"},
    }


def told(compared: Sequence[Compared]) -> list[Compared]:
    """Rows of what is measured: without those of policies that were not, and gains over other runs."""
    return [
        c
        for c in compared
        if not c.quantity.startswith("not measured: ") and "with or without MPS" not in c.quantity
    ]


def write(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def checkout(folder: Path, **documents: Any) -> Path:
    """A folder with these results in it, by file name without suffix."""
    results = folder / "benchmarks" / "results" / "gpu"
    results.mkdir(parents=True)
    for name, document in documents.items():
        (results / f"{name}.json").write_text(json.dumps(document))
    return folder
