"""What an annotation costs, off and on, beside nvtx.annotate and contextlib.nullcontext.

Each figure is the time of one use of a construct, less that of the loop around it: median and spread
(interquartile range) over rounds, the constructs taking turns so that all see the same machine. CPU time of
the thread is what the construct itself takes, also on a busy machine; wall time adds waiting for the
interpreter's lock while the draining thread holds it, and for a core. Off: no session, no NVTX tool. On:
recorded into a session's folder, whose draining thread runs meanwhile.

    python -m benchmarks.annotate_overhead
    python -m benchmarks.annotate_overhead --rounds 51 --json benchmarks/results/annotate_overhead.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nvtx

import rlprof
from rlprof.capture import recorder
from rlprof.cores import usable_cores

OFF_LIMIT_NS, ON_LIMIT_NS = 300, 3000


@dataclass(frozen=True)
class Cost:
    """Time of one use, over rounds."""

    construct: str
    state: str
    cpu_ns: tuple[float, float, float]  # first quartile, median, third quartile
    wall_ns: tuple[float, float, float]
    rounds: int


def plain() -> None: ...


annotated = rlprof.annotate("work")(plain)
nvtx_annotated = nvtx.annotate("work", domain="bench")(plain)


async def plain_async() -> None: ...


annotated_async = rlprof.annotate("work")(plain_async)


def empty(n: int) -> None:
    for _ in range(n):
        pass


def call(n: int) -> None:
    for _ in range(n):
        plain()


def null(n: int) -> None:
    for _ in range(n):
        with contextlib.nullcontext():
            pass


def with_rlprof(n: int) -> None:
    for _ in range(n):
        with rlprof.annotate("work"):
            pass


def with_nvtx(n: int) -> None:
    for _ in range(n):
        with nvtx.annotate("work", domain="bench"):
            pass


def decorated(n: int) -> None:
    for _ in range(n):
        annotated()


def decorated_nvtx(n: int) -> None:
    for _ in range(n):
        nvtx_annotated()


def loop(n: int) -> None:
    for _ in rlprof.annotate_loop(n, "step"):
        pass


def in_task(body: Callable[[], Any]) -> Callable[[int], None]:
    """Await `body` n times inside one task."""

    async def run(n: int) -> None:
        for _ in range(n):
            await body()

    return lambda n: asyncio.run(run(n))


def nested(n: int) -> None:
    with rlprof.annotate("a"), rlprof.annotate("b"), rlprof.annotate("c"):
        with_rlprof(n)


# construct -> (what runs, what is subtracted)
CONSTRUCTS: dict[str, tuple[Callable[[int], None], Callable[[int], None]]] = {
    "with contextlib.nullcontext()": (null, empty),
    "with nvtx.annotate(name, domain)": (with_nvtx, empty),
    "with rlprof.annotate(name)": (with_rlprof, empty),
    "with rlprof.annotate(name), 3 deep": (nested, empty),
    "function decorated by nvtx.annotate": (decorated_nvtx, call),
    "function decorated by rlprof.annotate": (decorated, call),
    "coroutine decorated by rlprof.annotate": (in_task(annotated_async), in_task(plain_async)),
    "step of rlprof.annotate_loop": (loop, empty),
}


def measure(state: str, rounds: int, uses: int) -> list[Cost]:
    """Time all constructs `rounds` times in turn."""
    cpu: dict[str, list[float]] = {name: [] for name in CONSTRUCTS}
    wall: dict[str, list[float]] = {name: [] for name in CONSTRUCTS}
    for turn in range(rounds + 1):
        for name, (body, base) in CONSTRUCTS.items():
            spent = []
            for run in (base, body):
                began = time.perf_counter_ns(), time.thread_time_ns()
                run(uses)
                spent.append((time.perf_counter_ns() - began[0], time.thread_time_ns() - began[1]))
            if turn:  # the first warms up
                wall[name].append((spent[1][0] - spent[0][0]) / uses)
                cpu[name].append((spent[1][1] - spent[0][1]) / uses)
    return [Cost(name, state, quartiles(cpu[name]), quartiles(wall[name]), rounds) for name in CONSTRUCTS]


def quartiles(times: list[float]) -> tuple[float, float, float]:
    first, median, third = statistics.quantiles(times, n=4, method="inclusive")
    return round(first, 1), round(median, 1), round(third, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of rlprof.annotate.")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--uses", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    costs = measure("off", options.rounds, options.uses)
    with tempfile.TemporaryDirectory() as folder:
        recorder.start(Path(folder))
        costs += measure("on", options.rounds, options.uses)
        problems = recorder.stop()
        written_bytes = sum(p.stat().st_size for p in Path(folder).iterdir())
    limits = {"off": OFF_LIMIT_NS, "on": ON_LIMIT_NS}
    print(f"{'':46}{'CPU time':>28}{'wall time':>28}")
    for cost in costs:
        shown = "".join(f"{t[1]:10.0f} ns ({t[0]:5.0f} to {t[2]:5.0f})" for t in (cost.cpu_ns, cost.wall_ns))
        over = (
            "  over the limit" if "rlprof" in cost.construct and cost.cpu_ns[1] > limits[cost.state] else ""
        )
        print(f"{cost.state:4}{cost.construct:42}{shown}{over}")
    print(f"written: {written_bytes} bytes; problems: {problems or 'none'}")
    if options.json:
        facts = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "nvtx": importlib.metadata.version("nvtx"),
            "cores": usable_cores(),
            "load_1_min": round(os.getloadavg()[0], 1),
            "uses_per_round": options.uses,
            "costs": [asdict(c) for c in costs],
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
