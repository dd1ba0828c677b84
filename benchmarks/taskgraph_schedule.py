"""How long a task graph takes to make, schedule and analyse, and what dispatch costs per task.

Graphs of several shapes at 100,000 tasks. Dispatch runs tasks that do nothing, so wall time by tasks is what
the dispatcher, the threads and the record cost: median and range over rounds, the garbage collector on.
Worker processes: the time of a task that does nothing in a chain over two of them, and of handing an array
from one to the other.

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
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlprof.cores import usable_cores
from rlprof.taskgraph import (
    CellAccess,
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
    state_edges,
    verify,
)
from rlprof.taskgraph.processes import ProcessBackend

SCHEDULE_TARGET_S, DISPATCH_TARGET_US = 1.0, 50.0
ARRAY_BYTES = 1 << 23

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


def stateful(count: int, rng: np.random.Generator) -> Parts:
    """The pipeline with state: the policy reads weights, every simulator updates its group's environment."""
    tasks, edges, _ = pipeline(count, rng)
    environment = [""] * 8
    annotated = []
    for task in tasks:
        group = task.program_order // 2 % 8
        if task.name == "policy":
            accesses = (CellAccess("W", ""),)
        else:
            accesses = (CellAccess(f"ENV[{group}]", environment[group], task.id),)
            environment[group] = task.id
        annotated.append(replace(task, accesses=accesses))
    return tuple(annotated), (*edges, *state_edges(annotated)), {}


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
    "the same with state": stateful,
    "layered, 8 resources": layered,
    "all ready at once, counted": contended,
}


def nothing(task: Task, inputs: Mapping[str, Any]) -> None:
    """Do nothing."""


def array_worker() -> dict[str, Any]:
    """Calls of a worker process: nothing, and an array made once and handed out whenever asked."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def make(_task: Task, _inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        return arrays.setdefault("large", np.ones(ARRAY_BYTES // 8))

    return {"call": nothing, "make": make}


def processes(rounds: int) -> dict[str, Any]:
    """Time of an empty task, and of one whose output is an array, each consumed in the other process."""
    chain = [Task(f"t{i}", payload="call", worker="ab"[i % 2], program_order=i) for i in range(2000)]
    order = [Edge(a.id, b.id, "order") for a, b in pairwise(chain)]
    arrays, data = [], []
    for i in range(50):
        arrays += [Task(f"m{i}", payload="make", worker="a"), Task(f"u{i}", payload="call", worker="b")]
        data += [Edge(f"m{i}", f"u{i}"), *([Edge(f"u{i - 1}", f"m{i}", "order")] if i else [])]
    graphs = {"empty": TaskGraph(tuple(chain), tuple(order)), "array": TaskGraph(tuple(arrays), tuple(data))}
    micros: dict[str, list[float]] = {what: [] for what in graphs}
    with ProcessBackend({"a": array_worker, "b": array_worker}) as backend:
        for _ in range(rounds):
            for what, graph in graphs.items():
                spent, result = timed(partial(run, graph, backend))
                assert not verify(graph, result.record)
                micros[what].append(1e6 * spent / (len(graph) if what == "empty" else len(graph) / 2))
    found: dict[str, Any] = {
        what: {"median": statistics.median(m), "min": min(m), "max": max(m)} for what, m in micros.items()
    }
    return {"array_bytes": ARRAY_BYTES, "rounds": rounds, "microseconds": found}


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
    workers = processes(options.rounds)
    for what, m in workers["microseconds"].items():
        print(f"worker processes, {what}: {m['median']:.0f} us ({m['min']:.0f}..{m['max']:.0f})")
    if options.json:
        facts = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cores": usable_cores(),
            "load_average_at_start": load,
            "schedule_target_s": SCHEDULE_TARGET_S,
            "dispatch_target_us": DISPATCH_TARGET_US,
            "shapes": shapes,
            "processes": workers,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
