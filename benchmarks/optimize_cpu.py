"""Algorithm 1 on the tiny workload without a GPU: the policy beside the simulator, each with one thread.

`python -m benchmarks.optimize_cpu --out FILE` runs `rlprof optimize embodied` (preset tiny) here and keeps
what it decided, what it measured, and how busy the machine was with other work: two busy cores leave no
window, whoever keeps them busy.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.load import OthersLoad
from rlprof.cores import usable_cores
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.optimize_run import Request, optimize_embodied


def durations(preset: str, iterations: int) -> dict[str, Any]:
    """Median durations of every node on whole and on half batches, with nothing beside them."""
    from rlprof.analysis.batch_time import BatchTimes
    from rlprof.overlap.transforms import split_spatial
    from rlprof.workloads.embodied.optimize import embodied

    times = BatchTimes()
    config = configure(preset, workers=1)
    with tempfile.TemporaryDirectory() as folder, embodied(config, Path(folder), activity="off") as here:
        native = here.workload.native
        halves = split_spatial(native, "iteration/generate_rollouts/rollout_epoch", 2)
        for graph in (native, halves) * iterations:
            record = here.workload.profile(graph)
            for node, batch, duration_s in record.alone:
                if native.of_node(node):  # of calls; nodes above them are their sums
                    times = times.with_observation(node, batch, duration_s)
            for call, node, _, start_s, end_s in record.measurement.tasks:
                if graph.by_id[call].batch_size is None:
                    times = times.with_observation(node, 0, end_s - start_s)
    nodes = sorted({node for node, _ in times.observed})
    return {"preset": preset, "medians_s": {node: times.medians_s(node) for node in nodes}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--local-pairs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alternatives", type=int, default=3)
    parser.add_argument("--targets", type=int, default=3)
    parser.add_argument("--update-epochs", type=int)
    parser.add_argument("--durations", type=Path, help="only measure how long calls take, into this file")
    given = parser.parse_args()
    if given.durations is not None:
        found = durations(given.preset, 6)
        given.durations.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    config = configure(given.preset, workers=1, update_epochs=given.update_epochs)
    load = OthersLoad()
    with tempfile.TemporaryDirectory() as folder:
        request = Request(
            config=config,
            out=Path(folder) / "optimisation",
            spares=1,
            budget_s=given.budget,
            pairs=given.pairs,
            local_pairs=given.local_pairs,
            rounds=given.rounds,
            targets=given.targets,
            alternatives=given.alternatives,
        )
        done = optimize_embodied(request, say=lambda line: print(line, flush=True))
    others = load.end()
    print(done.summary)
    busy = sorted(others)
    result: dict[str, Any] = {
        "machine": {
            "cores": usable_cores(),
            "machine": platform.machine(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        },
        "others_busy_frac": {
            "median": busy[len(busy) // 2] if busy else None,
            "most": busy[-1] if busy else None,
        },
        **{k: v for k, v in done.document.items() if k not in ("timelines",)},
    }
    print(json.dumps(result["others_busy_frac"]))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
