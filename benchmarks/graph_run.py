"""What it costs to lower a graph of calls, and to run it beside what the task graph costs anyway.

A policy and a simulator play against each other in two groups of samples, with state by sample; their calls
do nothing. The dispatcher's own time is that of the same task graph with empty payloads: the difference is
putting arguments together, the context of each call, and looking for device work. CPU time of the process,
median and range of rounds.

    python -m benchmarks.graph_run
    python -m benchmarks.graph_run --json benchmarks/results/graph_run.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlprof.cores import usable_cores
from rlprof.overlap.bindings import External, Ref, Slice, arguments
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph
from rlprof.overlap.dependencies import dependencies
from rlprof.overlap.execute import Executor, MakeBackend
from rlprof.overlap.lower import lower, priorities
from rlprof.overlap.materialise import Arguments
from rlprof.overlap.specs import BatchSpec, Cell, NodeSpec, StateSpec
from rlprof.taskgraph import SerialBackend, ThreadBackend, run

LOWER_TARGET_S, CALL_TARGET_US = 1.0, 50.0
GROUPS = ((0, 1), (2, 3))


def graph(calls: int) -> CallGraph:
    """Chunks of policy and simulator, two groups of two samples each, interleaved."""
    nodes = {
        "r": NodeSpec("r", None),
        "r/infer": NodeSpec("r/infer", "r", component="policy"),
        "r/step": NodeSpec("r/step", "r", component="simulator", batch=BatchSpec(samples="samples")),
    }
    states = {
        "W": StateSpec("W", "policy", rollout_weights=True),
        "ENV": StateSpec("ENV", "simulator", partitions=4, by_sample=True),
    }
    made: list[Call] = []
    streams: tuple[list[str], list[str]] = ([], [])
    for chunk in range(calls // 4):
        for group, samples in enumerate(GROUPS):
            infer, step = f"r/infer#{chunk}@{group}", f"r/step#{chunk}@{group}"
            obs = Ref(f"r/step#{chunk - 1}@{group}", (0,)) if chunk else Slice(External((0, 0)), samples)
            before = f"r/step#{chunk - 1}" if chunk else INITIAL
            cells = tuple(Access(Cell("ENV", k), "update", before) for k in samples)
            shape = (samples, 4, group, 1e-4)
            weights = (Access(Cell("W"), "read", INITIAL),)
            made += [
                Call(
                    infer,
                    "r/infer",
                    f"r/infer#{chunk}",
                    2 * chunk,
                    arguments((obs,), {}),
                    weights,
                    (),
                    *shape,
                ),
                Call(
                    step,
                    "r/step",
                    f"r/step#{chunk}",
                    2 * chunk + 1,
                    arguments((Ref(infer, ("action",)),), {}),
                    cells,
                    (),
                    *shape,
                ),
            ]
            streams[group].extend((infer, step))
    return CallGraph(
        "r", nodes, states, tuple(made), (tuple(streams[0]), tuple(streams[1])), Ref(made[-1].id)
    )


def measured(body: Callable[[], object], rounds: int) -> list[float]:
    """CPU seconds of each round."""
    spent = []
    for _ in range(rounds):
        start = time.process_time()
        body()
        spent.append(time.process_time() - start)
    return spent


def summary(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    large = graph(options.calls)
    lowered = lower(large)
    seconds = {
        "dependencies": summary(measured(lambda: dependencies(large), options.rounds)),
        "lower": summary(measured(lambda: lower(large), options.rounds)),
        "priorities": summary(measured(lambda: priorities(lowered), options.rounds)),
    }
    small = graph(min(options.calls, 8000))
    entries: dict[str, Callable[..., Any]] = {
        "r/infer": lambda obs: {"action": obs},
        "r/step": lambda action, samples=None: (action, action),  # noqa: ARG005
    }
    executor = Executor(small, entries, {})
    external: Arguments = ((np.zeros((4, 3)),), {})
    empty = dict.fromkeys(entries, lambda task, inputs: None)  # noqa: ARG005
    backends: dict[str, MakeBackend] = {
        "serial": SerialBackend,
        "threads": partial(ThreadBackend, workers=2),
    }

    def empty_tasks(backend: MakeBackend) -> object:
        return run(executor.tasks, backend(empty))

    micros = {}
    for name, backend in backends.items():
        ours = measured(partial(executor.run, external, backend=backend), options.rounds)
        own = measured(partial(empty_tasks, backend), options.rounds)
        micros[name] = {
            "call": summary([1e6 * s / len(small) for s in ours]),
            "task graph": summary([1e6 * s / len(small) for s in own]),
            "beside": 1e6 * (statistics.median(ours) - statistics.median(own)) / len(small),
        }
    found = {
        "date": datetime.date.today().isoformat(),
        "cpus": usable_cores(),
        "python": platform.python_version(),
        "load_average": load,
        "calls": len(large),
        "rounds": options.rounds,
        "targets": {"lower_s": LOWER_TARGET_S, "beside_us": CALL_TARGET_US},
        "seconds": seconds,
        "microseconds": micros,
    }
    print(json.dumps(found, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
