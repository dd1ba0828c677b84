"""How many plans the search evaluates per second on one core, and what a plain evaluation costs.

The workloads of the RPEG paper's stability study (appendix B) at 64 and 1,024 GPUs: PPO with staleness 0 and
1, eight steps, three response-length phases, constants of the shipped `gh200`. Evaluations are uncached ones
of a whole search without polishing, in one process: moves, cache and bookkeeping are in the time.

    python -m benchmarks.plan_search
    python -m benchmarks.plan_search --profile 64
    python -m benchmarks.plan_search --json benchmarks/results/planning/search_speed.json
"""

from __future__ import annotations

import argparse
import cProfile
import datetime
import json
import os
import platform
import pstats
import statistics
import time
from pathlib import Path
from typing import Any

from rlprof.cores import usable_cores
from rlprof.planning.algorithms import ppo
from rlprof.planning.baselines import concurrent_plan
from rlprof.planning.candidates import directories
from rlprof.planning.evaluate import Problem, evaluate
from rlprof.planning.hardware_file import cluster_named
from rlprof.planning.search import search
from rlprof.planning.search_options import SearchOptions
from rlprof.planning.workload import Workload, three_phases

#: By number of GPUs: actor, critic, reward, prompts, cluster; and the target in evaluations per second.
WORKLOADS = {
    64: ("llama2-13b", "llama2-13b", "llama2-7b", 1024, "gh200:2x8x4", 1_000),
    1024: ("gpt3-175b", "llama2-70b", "llama2-34b", 2048, "gh200:16x16x4", 300),
}
ROUNDS, EVALUATIONS = 5, 20_000


def problem(gpus: int) -> Problem:
    """The planning problem of one workload."""
    actor, critic, reward, prompts, cluster, _ = WORKLOADS[gpus]
    work = Workload(prompts, 128, 384, quantiles=three_phases(384))
    return Problem(ppo(actor, critic, reward), work, cluster_named(cluster))


def measure(gpus: int) -> dict[str, Any]:
    """Evaluations per second of searches, and milliseconds of one plain evaluation."""
    asked = problem(gpus)
    options = SearchOptions(evaluations=EVALUATIONS, polish=False)
    search(
        asked, SearchOptions(evaluations=200, polish=False), workers=1
    )  # compiles, or loads what was compiled
    rates = []
    for seed in range(ROUNDS):
        start = time.process_time()
        found = search(asked, SearchOptions(evaluations=EVALUATIONS, polish=False, seed=seed), workers=1)
        rates.append(found.evaluations / (time.process_time() - start))
    plan = concurrent_plan(asked, directories(asked))
    start = time.process_time()
    for _ in range(20):
        evaluate(asked, plan)
    plain_ms = (time.process_time() - start) / 20 * 1e3
    return {
        "gpus": gpus,
        "evaluations": options.evaluations,
        "per_second": [statistics.median(rates), min(rates), max(rates)],
        "target_per_second": WORKLOADS[gpus][5],
        "plain_evaluation_ms": plain_ms,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--profile", type=int, choices=sorted(WORKLOADS), help="profile a search of this many GPUs"
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    given = parser.parse_args()
    if given.profile:
        asked, options = problem(given.profile), SearchOptions(evaluations=EVALUATIONS, polish=False)
        search(asked, SearchOptions(evaluations=200, polish=False), workers=1)
        profile = cProfile.Profile()
        profile.runcall(search, asked, options, workers=1)
        pstats.Stats(profile).sort_stats("tottime").print_stats(15)
        return
    load = os.getloadavg()[0]  # of other programs: this one has not begun
    rows = [measure(gpus) for gpus in WORKLOADS]
    print("| GPUs | evaluations/s, one core, median (range) | target | plain evaluation |")
    print("|---|---|---|---|")
    for row in rows:
        median, low, high = row["per_second"]
        spread, plain = f"{median:,.0f} ({low:,.0f} to {high:,.0f})", f"{row['plain_evaluation_ms']:.1f} ms"
        print(f"| {row['gpus']:,} | {spread} | {row['target_per_second']:,} | {plain} |")
    if given.json:
        about = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "cores": usable_cores(),
            "rounds": ROUNDS,
            "load_average": load,
        }
        given.json.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
