"""How much the result of a search depends on its seed: the stability study of the RPEG paper.

The workloads of the paper's Table X (PPO, staleness 0 and 1, eight steps, three response-length phases,
constants of the shipped `gh200`), each searched with many seeds and the same number of evaluations, in one
process. What is found depends on seed and evaluations alone, not on the machine or on what runs beside;
seconds are processor time. Each run is on disk before the next begins: the same command goes on where it
ended.

    nice python -m benchmarks.plan_stability --raw stability.jsonl --seeds 200 --evaluations 20000
    python -m benchmarks.plan_stability --raw stability.jsonl --json stability.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlprof.cores import usable_cores
from rlprof.planning.algorithms import ppo
from rlprof.planning.evaluate import Problem
from rlprof.planning.hardware_file import cluster_named
from rlprof.planning.search import search
from rlprof.planning.search_options import SearchOptions
from rlprof.planning.workload import Workload, three_phases

#: By number of GPUs: actor, critic, reward, prompts, cluster (section 10 of the specification).
WORKLOADS = {
    64: ("llama2-13b", "llama2-13b", "llama2-7b", 1024, "gh200:2x8x4"),
    128: ("llama2-34b", "llama2-13b", "llama2-13b", 1024, "gh200:2x16x4"),
    256: ("llama2-70b", "llama2-34b", "llama2-13b", 1024, "gh200:4x16x4"),
    512: ("llama2-70b", "llama2-70b", "llama2-34b", 2048, "gh200:8x16x4"),
    1024: ("gpt3-175b", "llama2-70b", "llama2-34b", 2048, "gh200:16x16x4"),
}
#: What the paper prints, in percent: coefficient of variation, 200 seeds of 600 s on six cores each.
PAPER = "0.27 to 2.31 % over 64 to 1,024 GPUs"
TARGET_CV = 0.01


def problem(gpus: int) -> Problem:
    """The planning problem of one workload."""
    actor, critic, reward, prompts, cluster = WORKLOADS[gpus]
    work = Workload(prompts, 128, 384, quantiles=three_phases(384))
    return Problem(ppo(actor, critic, reward), work, cluster_named(cluster))


def run(raw: Path, sizes: Sequence[int], seeds: int, evaluations: int) -> None:
    """Search what the file does not hold yet, seed by seed: an interruption leaves all sizes alike."""
    done = {(r["gpus"], r["seed"], r["evaluations"]) for r in read(raw)}
    asked = {gpus: problem(gpus) for gpus in sizes}
    for seed in range(seeds):
        for gpus in sizes:
            if (gpus, seed, evaluations) in done:
                continue
            began, cpu = time.monotonic(), time.process_time()
            found = search(asked[gpus], SearchOptions(evaluations=evaluations, seed=seed), workers=1)
            row = {
                "gpus": gpus,
                "seed": seed,
                "evaluations": evaluations,
                "spent": found.evaluations,
                "score": found.evaluation.score,
                "memory_ratio": found.evaluation.memory_ratio,
                "cpu_s": time.process_time() - cpu,
                "wall_s": time.monotonic() - began,
            }
            with raw.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


def read(raw: Path) -> list[dict[str, Any]]:
    """Runs that are in a file; a line that was cut off is left out."""
    lines = raw.read_text().splitlines() if raw.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Spread of each size and budget."""
    rows = []
    for gpus, evaluations in sorted({(r["gpus"], r["evaluations"]) for r in runs}):
        there = [r for r in runs if (r["gpus"], r["evaluations"]) == (gpus, evaluations)]
        scores = [r["score"] for r in there]
        if len(scores) < 2:
            continue
        mean = statistics.fmean(scores)
        rows.append(
            {
                "gpus": gpus,
                "models": "/".join(m.rpartition("-")[2] for m in WORKLOADS[gpus][:3]),
                "evaluations": evaluations,
                "spent_median": statistics.median(r["spent"] for r in there),
                "seeds": len(there),
                "mean_tokens_per_s": mean,
                "least": min(scores),
                "most": max(scores),
                "cv_frac": statistics.pstdev(scores) / mean,
                "worst_below_best_frac": 1 - min(scores) / max(scores),
                "cpu_s_median": statistics.median(r["cpu_s"] for r in there),
                "memory_ratio_most": max(r["memory_ratio"] for r in there),
                "target_cv_frac": TARGET_CV if gpus <= 512 else None,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--raw", type=Path, required=True, help="file of runs (.jsonl), continued")
    parser.add_argument("--gpus", default="64,128,256,512", help=f"of {', '.join(map(str, WORKLOADS))}")
    parser.add_argument("--seeds", type=int, default=0, help="run so many seeds of each")
    parser.add_argument("--evaluations", type=int, default=20_000, help="of each run, polishing not counted")
    parser.add_argument("--json", type=Path, help="also write the results there")
    given = parser.parse_args()
    run(given.raw, [int(n) for n in given.gpus.split(",")], given.seeds, given.evaluations)
    rows = summary(read(given.raw))
    print("| GPUs | models | evaluations | seeds | mean tokens/s | CV | worst below best | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| {r['gpus']:,} | {r['models']} | {r['evaluations']:,} + polish = {r['spent_median']:,.0f}"
            f" | {r['seeds']} | {r['mean_tokens_per_s']:,.0f} | {r['cv_frac']:.2%}"
            f" | {r['worst_below_best_frac']:.1%} | {r['cpu_s_median']:.1f} |"
        )
    if given.json:
        about = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "cores": usable_cores(),
            "paper": PAPER,
        }
        given.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
