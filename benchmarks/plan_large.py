"""How near a short search comes to a long one at 2,048 GPUs.

The largest workload of the RPEG paper's Fig 12: PPO with LLaMA-2 70B as actor, critic and reward, 2,048
prompts, 32 racks of 16 nodes of 4 GPUs, constants of the shipped `gh200`. Runs have a time limit and two
processes; the processor time that they really got is kept beside, since other work slows them down. Each run
is on disk when it is done, a long one also while it goes on (`--slice`: it is continued from its best plans).

    nice python -m benchmarks.plan_large --raw large.jsonl --long 3600 --slice 300
    python -m benchmarks.plan_large --raw large.jsonl --short 30 --seeds 5
    python -m benchmarks.plan_large --raw large.jsonl --json benchmarks/results/planning/large.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
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
from rlprof.planning.plan import Plan
from rlprof.planning.search import search
from rlprof.planning.search_options import SearchOptions
from rlprof.planning.workload import Workload, three_phases

CLUSTER, PROMPTS, MODEL = "gh200:32x16x4", 2048, "llama2-70b"
WORKERS = 2
#: What the paper reaches with 300 s, and the target with 30 s.
MOST_LOSS_FRAC = 0.05


def problem() -> Problem:
    """The planning problem."""
    work = Workload(PROMPTS, 128, 384, quantiles=three_phases(384))
    return Problem(ppo(MODEL, MODEL, MODEL), work, cluster_named(CLUSTER))


def processor_s() -> float:
    """Processor time of this process and of those that it ended."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def run(
    raw: Path, kind: str, seconds: float, seed: int, start: Sequence[Plan], spent: float = 0.0
) -> tuple[Plan, ...]:
    """One search; its result goes into the file, and its best plans are returned."""
    asked = problem()
    began, cpu = time.monotonic(), processor_s()
    found = search(asked, SearchOptions(seconds=seconds, seed=seed), start=start, workers=WORKERS)
    row = {
        "kind": kind,
        "seconds": seconds,
        "from_s": spent,
        "seed": seed,
        "score": found.evaluation.score,
        "memory_ratio": found.evaluation.memory_ratio,
        "evaluations": found.evaluations,
        "cpu_s": processor_s() - cpu,
        "wall_s": time.monotonic() - began,
        "load": os.getloadavg()[0],
        "by_structure": found.by_structure,
    }
    with raw.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, flush=True)
    return found.elites


def read(raw: Path) -> list[dict[str, Any]]:
    """Runs that are in a file; a line that was cut off is left out."""
    lines = raw.read_text().splitlines() if raw.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The long search, and how far short ones stay behind it and behind the best plan of all."""
    long = [r for r in runs if r["kind"] == "long"]
    best = max(r["score"] for r in runs)
    document: dict[str, Any] = {
        "cluster": CLUSTER,
        "models": [MODEL] * 3,
        "prompts": PROMPTS,
        "workers": WORKERS,
    }
    if long:
        document["long"] = {
            "wall_s": sum(r["wall_s"] for r in long),
            "cpu_s": sum(r["cpu_s"] for r in long),
            "evaluations": sum(r["evaluations"] for r in long),
            "tokens_per_s": max(r["score"] for r in long),
        }
    rows = []
    for seconds in sorted({r["seconds"] for r in runs if r["kind"] == "short"}):
        there = [r for r in runs if r["kind"] == "short" and r["seconds"] == seconds]
        scores = [r["score"] for r in there]
        reference = max((r["score"] for r in long), default=best)
        rows.append(
            {
                "seconds": seconds,
                "seeds": len(there),
                "evaluations_median": statistics.median(r["evaluations"] for r in there),
                "cpu_s_median": statistics.median(r["cpu_s"] for r in there),
                "wall_s_most": max(r["wall_s"] for r in there),
                "load_median": statistics.median(r["load"] for r in there),
                "tokens_per_s_median": statistics.median(scores),
                "loss_to_long_frac": [1 - s / reference for s in sorted(scores, reverse=True)],
                "loss_to_best_of_all_frac_most": 1 - min(scores) / best,
                "target_loss_frac": MOST_LOSS_FRAC,
            }
        )
    return {**document, "best_of_all_tokens_per_s": best, "short": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--raw", type=Path, required=True, help="file of runs (.jsonl), continued")
    parser.add_argument("--long", type=float, default=0.0, help="seconds of the long search")
    parser.add_argument("--slice", type=float, default=300.0, help="it is on disk every so many seconds")
    parser.add_argument("--short", type=float, default=30.0, help="seconds of short searches")
    parser.add_argument("--seeds", type=int, default=0, help="short searches to run")
    parser.add_argument("--json", type=Path, help="also write the results there")
    given = parser.parse_args()
    search(problem(), SearchOptions(evaluations=200, polish=False), workers=1)  # compiles, or loads
    spent = 0.0
    elites: tuple[Plan, ...] = ()
    while spent < given.long:
        elites = run(
            given.raw, "long", min(given.slice, given.long - spent), int(spent) + 1_000, elites, spent
        )
        spent += given.slice
    done = {r["seed"] for r in read(given.raw) if r["kind"] == "short" and r["seconds"] == given.short}
    for seed in range(given.seeds):
        if seed not in done:
            run(given.raw, "short", given.short, seed, ())
    found = summary(read(given.raw))
    print(json.dumps(found, indent=1))
    if given.json:
        about = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "cores": usable_cores(),
        }
        given.json.write_text(json.dumps({**about, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
