"""Algorithm 1 on the tiny workload without a GPU: the policy beside the simulator, each with one thread.

`python -m benchmarks.optimize_cpu --out FILE` runs `rlprof optimize embodied` (preset tiny) here and keeps
what it decided, what it measured, and how busy the machine was with other work: two busy cores leave no
window, whoever keeps them busy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.optimize_run import Request, optimize_embodied


class OthersLoad:
    """Share of the host's cores that other programs keep busy: /proc/stat less this program's own time."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        cores = os.cpu_count() or 1
        busy, own, at = *self._look(), time.monotonic()
        while not self._ended.wait(2.0):
            now_busy, now_own, now = *self._look(), time.monotonic()
            span = (now - at) * cores
            self.shares.append(min(1.0, max(0.0, (now_busy - busy - (now_own - own)) / span)))
            busy, own, at = now_busy, now_own, now

    @staticmethod
    def _look() -> tuple[float, float]:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        ticks = os.sysconf("SC_CLK_TCK")
        user, nice, system, _, _, irq, soft = (int(n) for n in first[:7])
        times = os.times()
        own = times.user + times.system
        for child in Path("/proc/self/task").glob("*/children"):
            for pid in child.read_text().split():
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                own += (int(fields[11]) + int(fields[12])) / ticks
        return (user + nice + system + irq + soft) / ticks, own

    def end(self) -> list[float]:
        self._ended.set()
        self._thread.join()
        return self.shares


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
            "cores": os.cpu_count(),
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
