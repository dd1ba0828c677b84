"""What an answer of pi0 costs: eagerly, with captured steps, with compiled layers, and with both.

    python -m benchmarks.gpu.answer_cost --out OUT
    python -m benchmarks.gpu.answer_cost --out OUT --preset tiny --batches 3,2 --seconds 60    # on a CPU

Vision tower, backbone, a denoise step and whole answers, by CUDA events (on a CPU by the clock); seconds of
compilation; how far answers are from the eager ones; kernels of each part. It needs torch, transformers and
numpy alone, and writes `answer_cost.json` after every step. Ways take turns; what does not fit into
`--seconds` is left out. `--ways` and `--no-kernels` make it shorter.
"""

from __future__ import annotations

import argparse
import faulthandler
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import machine, save

#: Whether steps are captured, and whether layers are compiled.
WAYS = {
    "eager": (False, False),
    "captured": (True, False),
    "compiled": (False, True),
    "compiled+captured": (True, True),
}
PARTS = ("vision", "backbone", "step", "answer")
#: Longest time of a measurement, and calls of it, besides one before it.
MOST_S, MOST_CALLS, LEAST_CALLS = 0.4, 12, 2
#: Of the first number of samples; of the others one.
ROUNDS = 2


def size_of(preset: str) -> Any:
    """Size of pi0 of transformers."""
    from rlprof.workloads.embodied.policies import sizes

    if preset == "h200":
        return sizes.size_of("pi0", "h200")
    stack = sizes.StackSize(3, 64, 128, 8, 1, 32)
    tiny = sizes.size_of("pi0", "tiny")
    return replace(tiny, transformers=True, image=32, backbone=stack, expert=stack, dtype="bfloat16")


class Cost:
    """The measurement; see the module."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.until = time.monotonic() + arguments.seconds
        self.document: dict[str, Any] = {"command": " ".join(sys.argv[1:]), "preset": arguments.preset}
        self.document |= {"errors": [], "left_out": [], "first_s": {}, "rows": [], "differences": []}
        self.document |= {"kernels": []}
        self.captured: dict[bool, Any] = {}
        self.compiled: Any = None
        self.refused: dict[str, str] = {}

    def save(self) -> None:
        save(self.arguments.out / "answer_cost.json", self.document)

    def say(self, text: str) -> None:
        left = self.until - time.monotonic()
        print(f"[{left:5.1f} s left] {text}", flush=True)

    def attempt(self, name: str, function: Callable[[], None]) -> bool:
        """Run a step unless the time is over; a failure is printed and written down."""
        if time.monotonic() > self.until:
            self.document["left_out"].append(name)
            self.say(f"{name}: left out, the time is over")
            return False
        try:
            function()
            return True
        except Exception as error:
            traceback.print_exc()
            self.document["errors"].append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            self.say(f"{name} FAILED: {type(error).__name__}: {str(error)[:300]}")
            return False
        finally:
            self.save()

    # steps -------------------------------------------------------------------------------------------------

    def make(self) -> None:
        import torch
        import transformers

        from rlprof.workloads.embodied.contracts import SimulatorSpec
        from rlprof.workloads.embodied.policies import make

        self.torch = torch
        self.document["machine"] = machine() | {"transformers": transformers.__version__}
        self.on_gpu = torch.cuda.is_available()
        self.device = "cuda:0" if self.on_gpu else "cpu"
        size, most = size_of(self.arguments.preset), max(self.arguments.batches)
        spec = SimulatorSpec("random", most, 5, 60, 7, 8, cameras=2, height=size.image, width=size.image)
        began = time.monotonic()
        self.policy: Any = make(size, spec, seed=0, device=self.device)
        self.spec = spec
        self._wait()
        spent = time.monotonic() - began
        self.say(f"the policy is there on {self.device}, {spent:.1f} s; torch {torch.__version__}")

    def probe(self, way: str) -> None:
        """Set a way up, or write down why not."""
        captured, compiled = WAYS[way]
        try:
            if compiled and self.compiled is None:
                self.policy.compiled = None
                began = time.monotonic()
                self.policy.compile_layers()
                self.compiled = self.policy.compiled
                self.document["first_s"]["a little"] = round(time.monotonic() - began, 2)
            if captured and compiled not in self.captured:
                self.policy.capture()
                self.captured[compiled] = self.policy.captured
        except Exception as error:
            if self.on_gpu:
                traceback.print_exc()
            self.refused[way] = f"{type(error).__name__}: {error}"
            self.say(f"{way} cannot be had: {self.refused[way][:500]}")
            self.document["errors"].append(f"{way}: {self.refused[way][:500]}")

    def use(self, way: str) -> None:
        captured, compiled = WAYS[way]
        self.policy.captured = self.captured[compiled] if captured else None
        self.policy.compiled = self.compiled if compiled else None

    def seen(self, batch: int) -> tuple[Any, Any]:
        from rlprof.workloads.embodied.contracts import GlobalStep, Observation

        draw = np.random.default_rng(batch)
        spec = self.spec
        images = draw.integers(0, 256, (batch, 2, spec.height, spec.width, 3), dtype=np.uint8)
        state = draw.normal(size=(batch, spec.state_dim)).astype(np.float32)
        observation = Observation(state, images, draw.integers(0, 3, batch))
        return observation, self.policy.noise(observation, GlobalStep(0), 0, 0)

    def first(self, way: str, batch: int) -> None:
        """The first answer of a way: captures and compilations; and how far it is from the eager one."""
        self.use(way)
        observation, noise = self.seen(batch)
        before = len(self.compiled.compilations) if self.compiled else 0
        began = time.monotonic()
        answer = self.policy.act(observation, noise)
        self._wait()
        self.document["first_s"][f"{way} {batch}"] = round(time.monotonic() - began, 3)
        new = self.compiled.compilations[before:] if self.compiled else []
        made = [f"{c.part} {c.shape}: {c.seconds:.1f} s, {c.graphs} graph" for c in new]
        self.document.setdefault("compilations", []).extend(made)
        for what, holder in (("capture", self.policy.captured), ("compilation", self.policy.compiled)):
            if holder is not None and holder.refused is not None:
                self.document["errors"].append(f"{way} {batch}: {what} refused: {holder.refused}")
                self.say(f"{way} {batch}: {what} REFUSED: {holder.refused}")
        self.use("eager")
        wanted = self.policy.act(observation, noise)
        apart = {
            name: float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-12)
            for name in ("actions", "chain", "value")
            for a, b in [(getattr(answer, name), getattr(wanted, name))]
        }
        largest = float(np.abs(answer.actions - wanted.actions).max())
        self.document["differences"].append({"way": way, "batch": batch, **apart, "actions_most": largest})
        self.say(
            f"{way} {batch}: first answer {self.document['first_s'][f'{way} {batch}']} s;"
            f" relative difference from eager {apart['chain']:.2g} (chain), {apart['value']:.2g} (value)"
            + "".join(f"\n    {line}" for line in made)
        )

    def calls(self, batch: int) -> dict[str, Callable[[], Any]]:
        """What is timed, by part."""
        policy = self.policy
        observation, noise = self.seen(batch)
        sent, drawn = policy.upload(observation, noise)
        features = policy.vision(sent)
        prefix = policy.backbone(features)

        def chain() -> Any:
            point = policy.start(drawn)
            for index in range(policy.spec.denoise_steps):
                point = policy.denoise_step(point, prefix, features, drawn, index)
            return point

        return {
            "vision": lambda: policy.vision(sent),
            "backbone": lambda: policy.backbone(features),
            "step": chain,
            "answer": lambda: policy.act(observation, noise),
        }

    def measure(self, way: str, batch: int, number: int) -> None:
        self.use(way)
        found = {}
        for part, call in self.calls(batch).items():
            times = self._times(call)
            scale = self.policy.spec.denoise_steps if part == "step" else 1
            found[f"{part}_ms"] = round(1e3 * statistics.median(times) / scale, 3)
            found[f"{part}_least_ms"] = round(1e3 * min(times) / scale, 3)
        self.document["rows"].append({"way": way, "batch": batch, "round": number, **found})
        told = ", ".join(f"{part} {found[f'{part}_ms']:.2f}" for part in PARTS)
        self.say(f"round {number} {way} {batch}: {told} ms")

    def kernels(self, way: str, batch: int) -> None:
        """Kernels of each part, and which take the most time."""
        if not self.on_gpu:
            return
        torch = self.torch
        self.use(way)
        row: dict[str, Any] = {"way": way, "batch": batch}
        for part, call in list(self.calls(batch).items())[:3]:
            call()
            self._wait()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                call()
                self._wait()
            events = [e for e in profile.events() if str(e.device_type).endswith("CUDA")]
            sums: dict[str, list[float]] = {}
            for e in events:
                one = sums.setdefault(e.name[:90], [0, 0.0])
                one[0] += 1
                one[1] += e.time_range.elapsed_us() / 1e3
            top = sorted(sums.items(), key=lambda item: -item[1][1])[:12]
            row[part] = {
                "kernels": len(events),
                "busy_ms": round(sum(s for _, s in sums.values()), 3),
                "most": [[name, int(n), round(ms, 3)] for name, (n, ms) in top],
            }
        self.document["kernels"].append(row)
        told = ", ".join(f"{p} {row[p]['kernels']} ({row[p]['busy_ms']} ms)" for p in PARTS[:3])
        self.say(f"kernels of {way} {batch} (step: all of a chain): {told}")

    def _wait(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def _times(self, call: Callable[[], Any]) -> list[float]:
        call()
        self._wait()
        times: list[float] = []
        began = time.monotonic()
        while len(times) < LEAST_CALLS or (
            len(times) < MOST_CALLS and time.monotonic() - began < self.arguments.part_seconds
        ):
            if self.on_gpu:
                event: Any = partial(self.torch.cuda.Event, enable_timing=True)
                start, end = event(), event()
                start.record()
                call()
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end) / 1e3)
            else:
                at = time.perf_counter()
                call()
                times.append(time.perf_counter() - at)
        return times

    # all ---------------------------------------------------------------------------------------------------

    def run(self) -> int:
        if not self.attempt("make", self.make):
            return 1
        asked = self.arguments.ways
        for way in asked:
            self.attempt(f"probe {way}", partial(self.probe, way))
        ways = [way for way in asked if way not in self.refused]
        batches = self.arguments.batches
        for batch in batches:
            there = [w for w in ways if self.attempt(f"first {w} {batch}", partial(self.first, w, batch))]
            for number in range(ROUNDS if batch == batches[0] else 1):
                for way in there[:: 1 if number % 2 == 0 else -1]:
                    self.attempt(f"{way} {batch} {number}", partial(self.measure, way, batch, number))
            if batch == batches[0] and self.arguments.kernels and self.on_gpu:
                for way in [w for w in ("eager", "compiled") if w in there]:
                    self.attempt(f"kernels {way}", partial(self.kernels, way, batch))
        self.table()
        self.save()
        return 1 if self.document["errors"] else 0

    def table(self) -> None:
        """Print the means of all rounds' medians, and what they are of the eager ones."""
        for batch in self.arguments.batches:
            base: dict[str, float] = {}
            for way in WAYS:
                rows = [r for r in self.document["rows"] if r["way"] == way and r["batch"] == batch]
                if not rows:
                    continue
                means = {p: statistics.mean(r[f"{p}_ms"] for r in rows) for p in PARTS}
                base = base or means
                told = "  ".join(f"{p} {m:8.2f} ({m / base[p]:4.2f})" for p, m in means.items())
                print(f"{batch:4} {way:18} {told}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for answer_cost.json")
    parser.add_argument("--preset", choices=("h200", "tiny"), default="h200")
    parser.add_argument("--batches", default="16,80", help="numbers of samples")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--seconds", type=float, default=85.0, help="nothing is begun after them")
    parser.add_argument("--part-seconds", type=float, default=MOST_S, help="of one measurement")
    parser.add_argument(
        "--no-kernels", dest="kernels", action="store_false", help="no profiler after the first batch"
    )
    arguments = parser.parse_args()
    arguments.batches = [int(n) for n in arguments.batches.split(",")]
    arguments.ways = arguments.ways.split(",")
    if not set(arguments.ways) <= set(WAYS):
        parser.error(f"ways are {', '.join(WAYS)}")
    # what hangs ends, and says where; what was measured is there
    faulthandler.dump_traceback_later(arguments.seconds + 60, exit=True)
    return Cost(arguments).run()


if __name__ == "__main__":
    sys.exit(main())
