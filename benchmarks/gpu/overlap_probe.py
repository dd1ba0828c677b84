"""Why two rollout epochs side by side stretch each other: answers and chunks alone, and both at once.

    python -m benchmarks.gpu.overlap_probe --out OUT --set cuda_graph=True --variants egl,egl+nice10

One policy, and two simulators of a kind after the other: thread A answers and steps the first, thread B the
second, and answers exclude each other, as in the graph that `rlprof optimize` selects. A variant is where
images are drawn with options: `osmesa+plain+nice10+w8` draws on the CPU without shadows, in 8 processes that
are nicer by 10; `none` draws nothing, and the policy answers images of before: cores alone are shared then.
Variants of a kind that follow each other use the same processes, made nicer. Written after every variant.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.gpu.common import end_s
from benchmarks.gpu.embodied_report import Gpu, Report, configuration, workload_options
from benchmarks.gpu.gauges import Gauges
from benchmarks.gpu.overlap_pair import Pair, Variant, make_nicer, variant_of
from benchmarks.gpu.solo import Solo

VARIANTS = (
    *("egl", "egl+nice10", "osmesa+plain", "osmesa+plain+nice10"),
    *("none", "none+nice10", "osmesa", "osmesa+nice10"),
)
#: Seconds that a variant takes at least: to start processes, and to measure.
START_S, MEASURE_S = 25.0, 8.0
#: Longest time of one state that is measured, in seconds, once it has three values.
MOST_S = 6.0


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median and range of seconds, and each of them."""
    if not values:
        return {"n": 0}
    low, high = np.quantile(values, [0.1, 0.9])
    found = {
        "median_s": statistics.median(values),
        "mean_s": statistics.fmean(values),
        "p10_s": low,
        "p90_s": high,
    }
    found |= {"min_s": min(values), "max_s": max(values)}
    return {
        "n": len(values),
        **{k: round(float(v), 5) for k, v in found.items()},
        "each_s": [round(v, 5) for v in values],
    }


class Policy:
    """The policy, which one thread uses: answers exclude each other."""

    def __init__(self, config: Any, spec: Any, gpu: Gpu) -> None:
        from rlprof.workloads.embodied.policies import make

        self.spec, self.gpu = spec, gpu
        self.policy = make(config.policy_size, spec, seed=config.seed, device=config.device)
        if config.cuda_graph:
            self.policy.capture()
        gpu.wait()
        draw = np.random.default_rng(0)
        shape = (spec.envs, spec.cameras, spec.height, spec.width, 3)
        self.images = draw.integers(0, 256, shape, dtype=np.uint8) if spec.cameras else None
        self.answers = ThreadPoolExecutor(1, "rlprof rollout")
        self.taken: list[float] = []
        self.phases: dict[str, list[float]] = {}

    def answer(self, seen: Any) -> Any:
        """Actions for what is seen; its seconds go to `taken`."""
        return self.answers.submit(self._answer, seen).result()

    def _answer(self, seen: Any) -> Any:
        from rlprof.workloads.embodied.contracts import GlobalStep

        if seen.images is not None:
            self.images = seen.images
        state = np.zeros((len(seen.state), self.spec.state_dim), np.float32)
        width = min(state.shape[1], seen.state.shape[1])
        state[:, :width] = seen.state[:, :width]
        seen = seen._replace(images=self.images, state=state)
        policy, marks = self.policy, []

        def mark(name: str) -> None:
            event = self.gpu.torch.cuda.Event(enable_timing=True) if self.gpu.cuda else None
            if event is not None:
                event.record()
            marks.append((name, event, time.perf_counter()))

        began = time.perf_counter()
        mark("")
        noise = policy.noise(seen, GlobalStep(0), 0, 0)
        mark("noise")
        sent, drawn = policy.upload(seen, noise)
        mark("upload")
        features = policy.vision(sent)
        mark("vision")
        prefix = policy.backbone(features)
        mark("backbone")
        points = [policy.start(drawn)]
        mark("start")
        for index in range(policy.spec.denoise_steps):
            points.append(policy.denoise_step(points[-1], prefix, features, drawn, index))
            mark("denoise_step")
        answer = policy.decode(tuple(points), prefix, drawn)
        mark("decode")
        self.gpu.wait()
        self.taken.append(time.perf_counter() - began)
        for (_, before, since), (name, after, until) in pairwise(marks):
            self.phases.setdefault(f"{name}, called", []).append(until - since)
            if before is not None:
                self.phases.setdefault(f"{name}, on the GPU", []).append(before.elapsed_time(after) / 1e3)
        return answer.actions

    def since(self) -> tuple[list[float], dict[str, Any]]:
        """Seconds of answers since the last time, and of their phases."""
        taken, phases = self.taken, {k: spread(v) for k, v in self.phases.items()}
        self.taken, self.phases = [], {}
        for one in phases.values():
            del one["each_s"]
        return taken, phases


class Probe:
    """All variants, one after the other."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.config = args, configuration(args)
        self.ends = end_s(args.seconds)
        argv = {k: str(v) for k, v in vars(args).items() if k != "out"}
        facts = {"command": "overlap_probe", "config": self.config.to_dict(), "argv": argv}
        self.report = Report(args.out / f"overlap_probe{args.name}.json", facts)
        self.gpu = Gpu(self.config.device)
        self.policy: Policy | None = None
        self.gauges: Gauges | None = None
        self.pair: Pair | None = None
        self.start_s = START_S
        self.rows: list[str] = []

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return float(self.ends - time.monotonic())

    def all(self) -> None:
        """Measure what there is time for."""
        failed: set[str] = set()
        try:
            for name in self.args.variants.split(","):
                variant = variant_of(name, self.config.simulator)
                same = self.pair is not None and self.pair.kind == variant.kind
                same = same and self.pair is not None and variant.nice >= self.pair.nice
                need_s = (0.0 if same else self.start_s) + MEASURE_S
                if variant.kind in failed or need_s > self.left_s:
                    why = "it did not start" if variant.kind in failed else f"{need_s:.0f} s are not left"
                    print(f"-- {name}: LEFT OUT, {why}", flush=True)
                    continue
                with self.report.step(name) as found:
                    if not same:
                        failed.add(variant.kind)  # until it has started
                        self._start(variant, found)
                        failed.discard(variant.kind)
                    self._measure(variant, found)
                    self._show(name, found)
        finally:
            if self.pair is not None:
                self.pair.close()
            self.table()

    def _start(self, variant: Variant, found: dict[str, Any]) -> None:
        began = time.monotonic()
        if self.pair is not None:
            pair, self.pair = self.pair, None
            pair.close()
        self.pair = Pair(self.config, variant)
        found["start_s"] = round(time.monotonic() - began, 2)
        if self.policy is None:
            config = self.config
            spec = replace(self.pair.spec, cameras=config.cameras, height=config.image, width=config.image)
            began_policy = time.monotonic()
            self.policy = Policy(config, spec, self.gpu)
            self.gauges = Gauges(self.gpu.torch, config.device)
            self.report.document["no_gpu_gauge"] = self.gauges.reason
            found["policy_s"] = round(time.monotonic() - began_policy, 2)
        else:
            self.start_s = min(START_S, 1.1 * found["start_s"] + 2.0)

    def _measure(self, variant: Variant, found: dict[str, Any]) -> None:
        from rlprof.workloads.embodied.contracts import GlobalStep

        pair, policy, args = self.pair, self.policy, self.args
        assert pair is not None
        assert policy is not None
        if variant.nice > pair.nice:
            make_nicer(pair.process_ids, variant.nice - pair.nice)
            pair.nice = variant.nice
        found["nice"] = sorted({os.getpriority(os.PRIO_PROCESS, p) for p in pair.process_ids})
        found.update(self.gpu.memory())
        seen = [s.reset(GlobalStep(0), 0) for s in pair.simulators]
        if seen[0].images is not None:
            found["image_std"] = round(float(seen[0].images.std()), 2)  # 0 would be a picture of nothing
        actions = [policy.answer(seen[k]) for k in (0, 1)]

        def step(k: int) -> float:
            began = time.perf_counter()
            seen[k] = pair.simulators[k].step(actions[k]).observation
            return time.perf_counter() - began

        for k in (0, 1):  # warming up
            step(k)
            actions[k] = policy.answer(seen[k])
        policy.since()
        self._times(lambda: policy.answer(seen[0]))
        alone, phases = policy.since()
        found["answer_alone"], found["answer_alone_phases"] = spread(alone), phases
        found["step_alone"] = spread(self._times(lambda: step(0)))
        found["parts_alone"] = self._parts(pair.simulators[0], actions[0])
        found["steps_at_once"] = spread(self._both(lambda k: [step(k) for _ in range(args.times)]))
        found["gauges_alone"] = self._gauged(lambda: False)
        with ThreadPoolExecutor(1) as pool:
            steps = pool.submit(self._both, lambda k: [step(k) for _ in range(args.times // 2 + 1)])
            found["gauges_beside_steps"] = self._gauged(lambda: not steps.done())
            found["steps_beside_gauges"] = spread(steps.result())
        policy.since()
        with Solo(self.config.device, SimpleNamespace(process_ids=pair.process_ids)) as solo:
            cycles: list[float] = []
            began = time.monotonic()

            def cycle(k: int) -> list[float]:
                mine: list[float] = []
                last = time.perf_counter()
                for number in range(args.cycles + 1):
                    if number > 3 and time.monotonic() > began + MOST_S:
                        break
                    actions[k] = policy.answer(seen[k])
                    taken = step(k)
                    now = time.perf_counter()
                    if number:  # in the first one nothing runs beside one of them
                        mine.append(taken)
                        cycles.append(now - last)
                    last = now
                return mine

            beside = self._both(cycle)
        together, phases = policy.since()
        found["answer_beside"], found["answer_beside_phases"] = spread(together[2:]), phases
        found["step_beside"], found["cycle"] = spread(beside), spread(cycles)
        found["solo"] = solo.to_dict()
        found["cores_busy"] = round((solo.own_core_s + solo.simulator_core_s) / solo.wall_s, 2)
        answer, step_ = found["answer_alone"]["median_s"], found["step_alone"]["median_s"]
        found["cycle_at_best_s"] = round(max(2 * answer, answer + step_), 5)
        found["speedup"] = round(2 * (answer + step_) / found["cycle"]["median_s"], 4)
        captured = getattr(policy.policy, "captured", None)
        found["cuda_graph_refused"] = None if captured is None else captured.refused

    def _times(self, call: Callable[[], Any]) -> list[Any]:
        until = time.monotonic() + MOST_S
        done = []
        for number in range(self.args.times):
            if number > 2 and time.monotonic() > until:
                break
            done.append(call())
        return done

    def _both(self, work: Callable[[int], list[float]]) -> list[float]:
        """Do something with both simulators at once; what both found."""
        with ThreadPoolExecutor(2, "rlprof pair") as pool:
            running = [pool.submit(work, k) for k in (0, 1)]
        return [value for one in running for value in one.result()]

    def _gauged(self, going_on: Callable[[], bool]) -> dict[str, Any]:
        """Seconds of known work."""
        assert self.gauges is not None
        found = {name: spread(values) for name, values in self.gauges.during(going_on).items()}
        for one in found.values():
            del one["each_s"]
        return found

    def _parts(self, simulator: Any, actions: Any) -> dict[str, Any]:
        """Seconds of what a step is made of."""
        if not all(hasattr(simulator, name) for name in ("physics", "reward", "render")):
            return {}
        calls: dict[str, Callable[[], Any]] = {
            "physics": functools.partial(simulator.physics, actions),
            "reward": simulator.reward,
            "render": simulator.render,
        }
        found: dict[str, list[float]] = {name: [] for name in calls}
        until = time.monotonic() + MOST_S / 2
        for _ in range(3):
            for name, call in calls.items():
                began = time.perf_counter()
                call()
                found[name].append(time.perf_counter() - began)
            if time.monotonic() > until:
                break
        return {name: spread(values) for name, values in found.items()}

    def _show(self, name: str, found: dict[str, Any]) -> None:
        def of(state: str) -> str:
            one = found[state]
            return f"{one['median_s']:.3f} ({one['p10_s']:.3f}-{one['p90_s']:.3f})"

        states = ("answer_alone", "step_alone", "steps_at_once", "answer_beside", "step_beside", "cycle")
        gauges = "/".join(
            f"{found['gauges_beside_steps'][name]['mean_s'] / alone['mean_s']:.2f}"
            for name, alone in found["gauges_alone"].items()
        )
        parts = [f"{one['median_s']:.3f}" for one in found["parts_alone"].values()]
        last = f"{found['cycle_at_best_s']:.3f} | {found['speedup']:.2f} | {found['cores_busy']:.1f}"
        self.rows.append(" | ".join([name, *map(of, states), last, "/".join(parts), gauges]))
        self.report.document["rows"] = self.rows
        print(f"   {self.rows[-1]}", flush=True)

    def table(self) -> None:
        """Print all rows."""
        gauges = "core/wake" if self.report.document.get("no_gpu_gauge") else "GPU/core/wake"
        print(
            "\nvariant | answer alone, s: median (p10-p90) | step alone | two steps at once | answer beside"
            " | step beside | cycle | at best | times as fast as one by one | cores busy"
            f" | physics/reward/render | known work on {gauges} beside steps, times as long"
        )
        for row in self.rows:
            print(row, flush=True)
        self.report.write()


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = functools.partial(parser.add_argument)
    workload_options(parser, "libero")
    add("--variants", default=",".join(VARIANTS))
    add("--cycles", type=int, default=8, help="counted answers and chunks of each simulator")
    add("--times", type=int, default=5, help="of what is measured alone")
    add("--seconds", type=float, default=110.0)
    add("--name", default="", help="added to the name of the result")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    def interrupt(*_: Any) -> None:
        """As Ctrl-C: processes are ended, and what was measured is shown."""
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    Probe(args).all()


if __name__ == "__main__":
    main()
