"""What a call of an overlap node costs, while nobody looks and while it is recorded.

Each figure is the time of one call of a node whose entry does nothing, less that of the entry called
directly: median and quartiles over batches of calls, the constructs taking turns so that all see the same
machine. The time is CPU time of the thread, which is what the call itself takes, also on a busy machine; one
``with contextlib.nullcontext()`` is measured beside it, to compare machines. Recording costs grow with the
size of numpy arrays: what calls are given and return is compared with what it was, to find writes in place;
``writes=False`` leaves that out.

    python -m benchmarks.trace_overhead
    python -m benchmarks.trace_overhead --json benchmarks/results/trace_overhead.json
"""

# ruff: noqa: B023  (functions in loops are called there)
from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlprof.overlap import Batch, ExecutionNode, LoopNode, State, reads, wrap

OFF_LIMIT_NS, ON_LIMIT_NS = 1_000, 10_000


@dataclass(frozen=True)
class Cost:
    """Time of one call, over batches."""

    call: str
    state: str
    cpu_ns: tuple[float, float, float]  # first quartile, median, third quartile
    batches: int


@dataclass(frozen=True)
class Case:
    """A call that is measured: what it returns is made before, and not timed."""

    region: ExecutionNode
    returned: Callable[[], Any]
    call: Callable[[list[Any]], None]
    base: Callable[[list[Any]], None]


class Model:
    """Returns what it is told to."""

    def __init__(self) -> None:
        self.result: Any = None

    def infer(self, obs: Any, samples: Any = None) -> Any:
        del obs, samples
        return self.result


def nothing() -> None: ...


async def nothing_async() -> None: ...


def region() -> ExecutionNode:
    return ExecutionNode(None, lambda body: body(), name="region")


def plain() -> Case:
    top = region()
    node = ExecutionNode(top, nothing, name="node", stateless=True)
    return Case(top, lambda: None, lambda told: repeat(node, told), lambda told: repeat(nothing, told))


def repeat(call: Callable[[], object], told: list[Any]) -> None:
    for _ in told:
        call()


def marked() -> Case:
    top = region()
    loop = LoopNode(None, top, name="loop")
    return Case(top, lambda: None, lambda told: passing(loop(told)), passing)


def passing(steps: Any) -> None:
    for _ in steps:
        pass


def coroutine() -> Case:
    top = region()
    node = ExecutionNode(top, nothing_async, name="node", stateless=True)

    async def many(call: Callable[[], Any], told: list[Any]) -> None:
        for _ in told:
            await call()

    def run(call: Callable[[], Any]) -> Callable[[list[Any]], None]:
        return lambda told: asyncio.run(many(call, told))

    return Case(top, lambda: None, run(node), run(nothing_async))


def arrays(size_bytes: int) -> Case:
    """A wrapped method that is given an array, and returns a dict of one of that size and a number."""
    top, model, native = region(), Model(), Model()
    obs = np.zeros(size_bytes // 8).reshape(8, -1)
    wrap(model, "infer", top, reads(State("W", model)), batch=Batch(samples="samples"))

    def repeat_with(model: Model) -> Callable[[list[Any]], None]:
        def run(told: list[Any]) -> None:
            infer = model.infer
            for model.result in told:
                infer(obs)

        return run

    return Case(
        top,
        lambda: {"action": np.empty_like(obs), "value": time.perf_counter()},
        repeat_with(model),
        repeat_with(native),
    )


def calibration() -> Case:
    def run(told: list[Any]) -> None:
        for _ in told:
            with contextlib.nullcontext():
                pass

    return Case(region(), lambda: None, run, passing)


NULL = "with contextlib.nullcontext(), to compare"
CASES: dict[str, tuple[Callable[[], Case], int]] = {
    "function without arguments": (plain, 200),
    "iteration of a marked loop": (marked, 200),
    "coroutine": (coroutine, 200),
    "method: array of 1 kB in, dict with one out": (lambda: arrays(1 << 10), 200),
    "the same, 100 kB": (lambda: arrays(100 << 10), 20),
    "the same, 1 MB": (lambda: arrays(1 << 20), 4),
    NULL: (calibration, 200),
}


def measure(rounds: int, batches: int) -> list[Cost]:
    """Time all cases in turn, off and recorded; `batches` of calls in each of `rounds`."""
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):
        for name, (make, calls) in CASES.items():
            case = make()
            for state in ("off", "recorded", "writes=False"):
                if state != "off" and name == NULL:
                    continue
                taken: list[float] = []

                def body() -> None:
                    for _ in range(batches):
                        told = [case.returned() for _ in range(calls)]
                        taken.append((timed(case.call, told) - timed(case.base, told)) / calls)

                if state == "off":
                    case.region(body)
                else:
                    checked = state == "recorded"
                    with case.region.program.record(case.region, writes=checked) as recorder:
                        case.region(body)
                        recorder.drop()
                if turn:  # the first warms up
                    times.setdefault((name, state), []).extend(taken)
    order = list(CASES)
    found = sorted(times, key=lambda key: (key[1], order.index(key[0])))
    return [Cost(*key, quartiles(times[key]), len(times[key])) for key in found]


def timed(run: Callable[[list[Any]], None], told: list[Any]) -> int:
    """CPU time of the thread, in nanoseconds."""
    began = time.thread_time_ns()
    run(told)
    return time.thread_time_ns() - began


def quartiles(times: list[float]) -> tuple[float, float, float]:
    first, median, third = statistics.quantiles(times, n=4, method="inclusive")
    return round(first, 1), round(median, 1), round(third, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a call of an overlap node.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    costs = measure(options.rounds, options.batches)
    for cost in costs:
        first, median, third = cost.cpu_ns
        limit = OFF_LIMIT_NS if cost.state == "off" else ON_LIMIT_NS
        over = "  over the limit" if median > limit else ""
        print(f"{cost.state:13}{cost.call:46}{median:10.0f} ns ({first:8.0f} to {third:8.0f}){over}")
    if options.json:
        facts = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cores": os.cpu_count(),
            "load_1_min": load,
            "costs": [asdict(c) for c in costs],
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
