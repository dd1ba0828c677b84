"""How long a task graph takes to make, schedule and analyse, and what dispatch costs per task.

Graphs of several shapes at 100,000 tasks. Dispatch runs tasks that do nothing, so wall time by tasks is what
the dispatcher, the threads and the record cost: median and range over rounds, the garbage collector on.

    python -m benchmarks.taskgraph_schedule
    python -m benchmarks.taskgraph_schedule --json benchmarks/results/taskgraph_schedule.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlprof.taskgraph import (
    Edge,
    SerialBackend,
    Task,
    TaskGraph,
    ThreadBackend,
    Use,
    critical_path,
    run,
    schedule,
    slack,
    verify,
)

SCHEDULE_TARGET_S, DISPATCH_TARGET_US = 1.0, 50.0

Parts = tuple[tuple[Task, ...], tuple[Edge, ...], dict[str, int]]


def pipeline(count: int, rng: np.random.Generator) -> Parts:
    """Chunks of 8 groups: policy (gpu) -> simulator of the group -> policy of the next chunk."""
    tasks, edges = [], []
    for i in range(count // 2):
        group = f"simulator {i % 8}"
        policy_s, simulator_s = rng.random(2)
        tasks.append(Task(f"p{i}", "policy", policy_s, (Use("gpu"),), "call", 2 * i))
        tasks.append(Task(f"s{i}", "simulator", simulator_s, (Use(group),), "call", 2 * i + 1))
        edges.append(Edge(f"p{i}", f"s{i}"))
        if i >= 8:
            edges.append(Edge(f"s{i - 8}", f"p{i}"))
    return tuple(tasks), tuple(edges), {}


def layered(count: int, rng: np.random.Generator) -> Parts:
    """Two predecessors among the last 50 tasks, 8 exclusive resources."""
    durations = rng.random(count)
    tasks = [
        Task(f"t{i}", "", d, (Use(f"lane {i % 8}"),), "call", i) for i, d in enumerate(durations.tolist())
    ]
    edges = [
        Edge(f"t{j}", f"t{i}")
        for i in range(1, count)
        for j in sorted({int(x) for x in rng.integers(max(0, i - 50), i, 2)})
    ]
    return tuple(tasks), tuple(edges), {}


def contended(count: int, rng: np.random.Generator) -> Parts:
    """No edges, every task ready at once: 1 to 8 of 64 cores, half of the tasks the gpu as well."""
    amounts = rng.integers(1, 9, count).tolist()
    tasks = [
        Task(f"t{i}", "", d, (Use("cores", a), *([Use("gpu")] if i % 2 else [])), "call", i)
        for i, (d, a) in enumerate(zip(rng.random(count).tolist(), amounts, strict=True))
    ]
    return tuple(tasks), (), {"cores": 64}


SHAPES: dict[str, Callable[[int, np.random.Generator], Parts]] = {
    "pipeline of 8 groups": pipeline,
    "layered, 8 resources": layered,
    "all ready at once, counted": contended,
}


def nothing(task: Task, inputs: Mapping[str, Any]) -> None:
    """Do nothing."""


def timed(body: Callable[[], Any]) -> tuple[float, Any]:
    """Wall seconds of one call, and what it returned."""
    began = time.perf_counter()
    result = body()
    return time.perf_counter() - began, result


def one_round(parts: Parts, seconds: dict[str, list[float]]) -> TaskGraph:
    """All steps on a graph made anew; adds the time of each to `seconds`."""

    def step(what: str, body: Callable[[], Any]) -> Any:
        spent, result = timed(body)
        seconds.setdefault(what, []).append(spent)
        return result

    graph: TaskGraph = step("make", lambda: TaskGraph(*parts))
    planned = step("schedule", lambda: schedule(graph))
    step("critical path", lambda: critical_path(graph))
    step("slack", lambda: slack(graph, planned))
    step("hash", lambda: graph.hash)
    result = step("run, threads", lambda: run(graph, ThreadBackend({"call": nothing})))
    violations = step("verify", lambda: verify(graph, result.record))
    assert not violations
    step("run, 1 thread", lambda: run(graph, ThreadBackend({"call": nothing}, workers=1)))
    step("run, serial", lambda: run(graph, SerialBackend({"call": nothing})))
    return graph


def measure(name: str, count: int, rounds: int) -> dict[str, Any]:
    """All steps on one shape, `rounds` times."""
    seconds: dict[str, list[float]] = {}
    parts = SHAPES[name](count, np.random.default_rng(0))
    for _ in range(rounds):
        graph = one_round(parts, seconds)
    return {
        "shape": name,
        "tasks": len(graph),
        "edges": len(graph.edges),
        "rounds": rounds,
        "seconds": {
            what: {"median": statistics.median(s), "min": min(s), "max": max(s)}
            for what, s in seconds.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of task graphs.")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    shapes = []
    for name in SHAPES:
        shape = measure(name, options.tasks, options.rounds)
        shapes.append(shape)
        print(f"{name}: {shape['tasks']:,} tasks, {shape['edges']:,} edges")
        for what, s in shape["seconds"].items():
            each = f"{1e6 * s['median'] / shape['tasks']:8.2f} us a task"
            print(f"  {what:14}{s['median']:8.3f} s ({s['min']:.3f}..{s['max']:.3f}){each}")
    if options.json:
        facts = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cores": os.cpu_count(),
            "load_average_at_start": load,
            "schedule_target_s": SCHEDULE_TARGET_S,
            "dispatch_target_us": DISPATCH_TARGET_US,
            "shapes": shapes,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
