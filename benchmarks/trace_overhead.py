"""What a call of an overlap node costs, while nobody looks and while it is recorded.

Each figure is the time of one call of a node whose entry does nothing, less that of the entry called
directly: median and quartiles over batches of calls, the constructs taking turns so that all see the same
machine. The time is CPU time of the thread, which is what the call itself takes, also on a busy machine; one
``with contextlib.nullcontext()`` is measured beside it, to compare machines. Recording costs grow with the
size of arrays: what calls are given and return is compared with what it was, to find writes in place;
``writes=False`` leaves that out. In all runs but the first the objects around the calls are looked at too, so
these are measured by themselves. The cases with tensors come last: once torch is imported, every call notes
its modes.

    python -m benchmarks.trace_overhead
    python -m benchmarks.trace_overhead --json benchmarks/results/trace_overhead.json
"""

# ruff: noqa: B023  (functions in loops are called there)
from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import importlib
import importlib.util
import json
import logging
import os
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlprof.cores import usable_cores
from rlprof.overlap import Batch, ExecutionNode, LoopNode, State, reads, wrap

OFF_LIMIT_NS, ON_LIMIT_NS = 2_000, 10_000
#: How a call is recorded: what `record` is told, and whether the first run is measured or a later one.
STATES: dict[str, tuple[bool, bool]] = {
    "first run": (True, True),
    "later runs": (True, False),
    "writes=False": (False, False),
}


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
    """Returns what was made before."""

    def __init__(self) -> None:
        self.results: Any = iter(())

    def infer(self, obs: Any, samples: Any = None) -> Any:
        del obs, samples
        return next(self.results)


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
            infer, model.results = model.infer, iter(told)
            for _ in told:
                infer(obs)

        return run

    return Case(
        top,
        lambda: {"action": np.empty_like(obs), "value": time.perf_counter()},
        repeat_with(model),
        repeat_with(native),
    )


def tensors(size_bytes: int) -> Case:
    """As `arrays`, of tensors in the host's memory."""
    torch = importlib.import_module("torch")
    top, model, native = region(), Model(), Model()
    obs = torch.zeros(8, size_bytes // 64, dtype=torch.float64)
    wrap(model, "infer", top, reads(State("W", model)), batch=Batch(samples="samples"))

    def repeat_with(model: Model) -> Callable[[list[Any]], None]:
        def run(told: list[Any]) -> None:
            infer, model.results = model.infer, iter(told)
            for _ in told:
                infer(obs)

        return run

    return Case(
        top,
        lambda: {"action": torch.zeros_like(obs), "value": time.perf_counter()},
        repeat_with(model),
        repeat_with(native),
    )


class Env:
    """A simulator: its state is another object after each step."""

    def __init__(self) -> None:
        self.qpos, self.qvel = np.zeros((8, 7)), np.zeros((8, 6))
        self.steps = 0
        self.config = SimpleNamespace(**{f"option_{n}": n for n in range(10)})

    def step(self, action: Any) -> Any:
        del action
        self.steps += 1
        self.qpos = np.zeros((8, 7))
        return self.qpos


class Trainer:
    """Forty attributes, and seventy more in what these hold."""

    def __init__(self, modules: bool) -> None:
        for n in range(20):
            setattr(self, f"rate_{n}", n * 1e-3)
        for n in range(5):
            setattr(self, f"options_{n}", SimpleNamespace(name=str(n), size=n * 1000, scale=0.5))
            setattr(self, f"history_{n}", deque([float(k) for k in range(10)], maxlen=10))
            setattr(self, f"table_{n}", {"loss": [0.5, 0.25], "reward": [1.0], "steps": 1000 + n})
        self.env = Env()
        self.logger = logging.getLogger(__name__)
        self.draw = np.random.default_rng(0)
        self.iteration_number = 1000
        if modules:
            torch = importlib.import_module("torch")
            layers = [torch.nn.Linear(8, 8) for _ in range(4)]
            self.policy = torch.nn.Sequential(*layers)
            self.optimizer = torch.optim.Adam(self.policy.parameters())

    def iteration(self, body: Callable[[], None]) -> None:
        body()


def trainer(modules: bool) -> Case:
    """A method of an object that a trainer with many attributes holds, called by the trainer's own code."""
    owner, native = Trainer(modules), Trainer(modules)
    top = ExecutionNode(None, owner.iteration, name="region")
    action = np.zeros((8, 6))
    wrap(owner.env, "step", top, reads(State("ENV", owner.env)))

    def repeat_with(env: Env) -> Callable[[list[Any]], None]:
        def run(told: list[Any]) -> None:
            step = env.step
            for _ in told:
                step(action)

        return run

    return Case(top, lambda: None, repeat_with(owner.env), repeat_with(native.env))


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
    "method beside a trainer of 40 attributes": (lambda: trainer(False), 100),
    NULL: (calibration, 200),
}
TORCH_CASES: dict[str, tuple[Callable[[], Case], int]] = {
    "function without arguments, torch imported": (plain, 200),
    "method: tensor of 1 kB in, dict with one out": (lambda: tensors(1 << 10), 200),
    "the same, 100 kB, tensors": (lambda: tensors(100 << 10), 20),
    "beside a trainer with modules and Adam": (lambda: trainer(True), 100),
}


def measure(cases: dict[str, tuple[Callable[[], Case], int]], rounds: int, batches: int) -> list[Cost]:
    """Time cases in turn, off and recorded; `batches` of calls in each of `rounds`."""
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):
        for name, (make, calls) in cases.items():
            case = make()
            for state in ("off", *STATES):
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
                    writes, first = STATES[state]
                    with case.region.program.record(case.region, writes=writes) as recorder:
                        if not first:
                            case.region(body)
                            taken.clear()
                        case.region(body)
                        recorder.drop()
                if turn:  # the first warms up
                    times.setdefault((name, state), []).extend(taken)
    order = list(cases)
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
    costs = measure(CASES, options.rounds, options.batches)
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch").set_num_threads(1)
        costs += measure(TORCH_CASES, options.rounds, options.batches)
    else:
        print("torch is not installed: no tensors are measured")
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
            "cores": usable_cores(),
            "load_1_min": load,
            "costs": [asdict(c) for c in costs],
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
