"""What the measurements of embodied RL share: a report written after every step, the device, activity."""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import machine, save


@contextmanager
def said_in_a_line() -> Iterator[None]:
    """End the program with an error on purpose as the command line does: one line, exit code 2."""
    from rlprof.errors import RlprofError

    try:
        yield
    except RlprofError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


class Report:
    """A document that is written after every step."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.began = path, time.monotonic()
        self.document: dict[str, Any] = {**facts, "machine": machine(), "steps": {}}
        for package in ("transformers", "mujoco", "mujoco-core", "mujoco-warp", "warp-lang", "robosuite"):
            self.document["machine"].update(_version(package))
        self.write()

    def write(self) -> None:
        self.document["seconds"] = round(time.monotonic() - self.began, 1)
        save(self.path, self.document)

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """A step: what it found goes into the dict; one that fails is noted with its traceback."""
        found: dict[str, Any] = {}
        print(f"-- {name}", flush=True)
        began = time.monotonic()
        try:
            yield found
            found["ok"] = True
        except Exception as error:
            found |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
            traceback.print_exc()
        found["seconds"] = round(time.monotonic() - began, 3)
        self.document["steps"][name] = found
        self.write()
        print(f"   {name}: {_short(found)}", flush=True)


def _short(found: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in found.items() if not isinstance(v, list | dict))[:600]


def _version(package: str) -> dict[str, str]:
    try:
        return {package: importlib.metadata.version(package)}
    except importlib.metadata.PackageNotFoundError:
        return {}


class Gpu:
    """The device, or a processor that stands in for it in tests of this script."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device, self.cuda = torch, device, device.startswith("cuda")
        if not self.cuda:
            torch.set_num_threads(1)

    def wait(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize(self.device)

    def memory(self) -> dict[str, float]:
        if not self.cuda:
            return {}
        cuda = self.torch.cuda
        free, total = cuda.mem_get_info(self.device)
        return {
            "allocated_gb": round(cuda.memory_allocated(self.device) / 1e9, 2),
            "peak_gb": round(cuda.max_memory_allocated(self.device) / 1e9, 2),
            "device_used_gb": round((total - free) / 1e9, 2),
        }

    def state(self) -> Any:
        """Clocks, temperature, what slows it down."""
        if not self.cuda:
            return None
        from rlprof.gpu_numbers import gpu_number
        from rlprof.overlap.quota.machine import gpu_state
        from rlprof.unavailable import Unavailable

        number = gpu_number(self.device)
        found = number if isinstance(number, Unavailable) else gpu_state(str(number))
        return found if isinstance(found, dict) else str(found)

    def timed(self, call: Callable[[], Any], times: int = 3, most_s: float = 1e9) -> dict[str, Any]:
        """Seconds of calls that end when the device has done them; the first one is told apart.

        After so many seconds two counted calls are enough.
        """
        until = time.perf_counter() + most_s
        taken = []
        counted_ns = 0
        for k in range(times + 1):
            if k > 2 and time.perf_counter() > until:
                break
            self.wait()
            counted_ns = time.monotonic_ns() if k == 1 else counted_ns
            began = time.perf_counter()
            call()
            self.wait()
            taken.append(time.perf_counter() - began)
        return {
            "first_s": round(taken[0], 5),
            "median_s": round(statistics.median(taken[1:]), 5),
            "each_s": [round(t, 5) for t in taken[1:]],
            "span_ns": [counted_ns, time.monotonic_ns()],
        }


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def workload_options(parser: argparse.ArgumentParser, simulator: str) -> None:
    """Options that say what is trained, for `configuration`, and where results go."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="h200")
    parser.add_argument("--policy", default="pi0")
    parser.add_argument("--simulator", default=simulator)
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--set", nargs="*", metavar="NAME=VALUE", help="further values of the configuration")


def configuration(args: argparse.Namespace) -> Any:
    from rlprof.workloads.embodied.config import configure

    more: dict[str, Any] = {}
    for item in args.set or ():
        name, _, value = item.partition("=")
        more[name] = _value(value)
    return configure(
        args.preset,
        **{
            "policy": args.policy,
            "simulator": args.simulator,
            "device": args.device,
            "workers": args.workers,
            **more,
        },
    )


@contextmanager
def shortened(trainer: Any, short: bool = True) -> Iterator[None]:
    """One epoch of two chunks with the same batches of rollouts; one optimiser step."""
    actor = trainer.actor
    was = trainer.epochs, trainer.chunks, actor.global_batch, actor.micro_batch
    if short:
        trainer.epochs, trainer.chunks = 1, min(2, trainer.chunks)
        actor.global_batch = trainer.env.spec.envs * trainer.chunks
        actor.micro_batch = math.gcd(actor.global_batch, actor.micro_batch)
    try:
        yield
    finally:
        trainer.epochs, trainer.chunks, actor.global_batch, actor.micro_batch = was


def replay_facts(again: Any) -> dict[str, Any]:
    """What replayed answers (`rlprof.workloads.embodied.record.Replayed`) are in a result."""
    limit = again.tolerance
    limits = {"chain_tolerance": limit.chain, "log_prob_tolerance": limit.log_prob}
    return {**asdict(again), **limits, "passed": again.passed}


@contextmanager
def mps_daemon() -> Iterator[None]:
    """An MPS daemon of our own; this process and those that it starts are its clients."""
    from rlprof.overlap.quota.daemon import mps

    with mps(0) as daemon:
        os.environ.update(daemon.environment())
        print(f"-- MPS daemon in {daemon.folder}", flush=True)
        yield


def sampler(args: argparse.Namespace, config: Any) -> Any:
    from rlprof.workloads.embodied.activity import Activity

    scratch = args.out / "activity"
    scratch.mkdir(parents=True, exist_ok=True)
    return Activity.start(scratch, *config.devices, backend=args.backend)


def means(activity: Any, spans: dict[str, tuple[int, int]]) -> Any:
    from rlprof.workloads.embodied.activity import Span

    means = activity.means({k: Span(*v) for k, v in spans.items()}, wait_s=2.0)
    if not means:
        return str(means)
    return {k: round(v, 4) for k, v in means.items()}
