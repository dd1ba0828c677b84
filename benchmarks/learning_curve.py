"""Does the preset `tiny` learn? Success and return over iterations, several seeds.

    python -m benchmarks.learning_curve --work DIR [--algorithm ppo] [--seeds 0,1,2] [--iterations 120]

Runs `rlprof run embodied` for each seed into DIR, going on where an earlier run was ended, and writes
benchmarks/results/workloads/learning_ALGORITHM_POLICY.json. Times of a machine that others use say little:
`processor_s` is the time of the run's own process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from rlprof.cores import usable_cores
from rlprof.workloads.embodied import metrics, runner
from rlprof.workloads.embodied.config import configure

RESULTS = Path(__file__).parent / "results" / "workloads"


def curve(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept of one run, rounded."""
    return {
        "iteration": [r["iteration"] for r in rows],
        "return_mean": [round(r["return_mean"], 4) for r in rows],
        "success_frac": [round(r["success_frac"], 4) for r in rows],
        "processor_s": [round(float(s), 1) for s in np.cumsum([r["processor_s"] for r in rows])],
        "wall_s": [round(float(s), 1) for s in np.cumsum([r["wall_s"] for r in rows])],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--policy", default="pi0")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--iterations", type=int, default=120)
    options = parser.parse_args()
    seeds = [int(s) for s in options.seeds.split(",")]
    curves = {}
    for seed in seeds:
        config = configure("tiny", policy=options.policy, algorithm=options.algorithm, seed=seed)
        out = options.work / f"{options.algorithm}_{options.policy}_s{seed}"
        begun = (out / "checkpoint.pt").exists()
        runner.run(config, out, options.iterations, resume=begun, force=not begun)
        curves[seed] = curve(metrics.read(out / metrics.NAME))
    import mujoco
    import torch

    last = [np.mean(c["success_frac"][-10:]) for c in curves.values()]
    document = {
        "command": f"python -m benchmarks.learning_curve --work DIR --algorithm {options.algorithm}"
        f" --policy {options.policy} --seeds {options.seeds} --iterations {options.iterations}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{usable_cores()} cores, {platform.machine()}, shared with other work",
        "versions": {"torch": torch.__version__, "mujoco": mujoco.__version__},
        "configuration": {**configure("tiny", algorithm=options.algorithm).to_dict(), "seed": seeds},
        "success_frac_of_last_10": {
            "mean": round(float(np.mean(last)), 4),
            "min": round(float(min(last)), 4),
        },
        "curves": curves,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    target = RESULTS / f"learning_{options.algorithm}_{options.policy}.json"
    beside = target.with_suffix(".tmp")
    beside.write_text(json.dumps(document, indent=1) + "\n")
    beside.replace(target)
    print(target.name, document["success_frac_of_last_10"])


if __name__ == "__main__":
    main()
