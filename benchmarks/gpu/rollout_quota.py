"""The quota of a rollout that is a process of its own, beside a simulator that computes on the GPU.

    python -m benchmarks.gpu.rollout_quota --out OUT --simulator mujoco_warp --seconds 150

A policy answers while the simulator carries out a chunk, both clients of MPS; a round ends when both are
ready. The one that is ready first has slack. If that is the rollout, processes with smaller quotas are
started, several at the same time, and take turns with the one that has all SMs: first over the whole range,
then around the best. Algorithm 2 then goes over what was measured. A kill loses nothing of what was written
after every step.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from benchmarks.gpu.embodied_report import Gpu, Report, configuration, mps_daemon, workload_options

#: Rounds of a fresh process that are not counted: kernels are loaded, CUDA graphs captured.
WARM_UP = 2


class Run:
    """One simulator, and a rollout process for each quota."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.config = args, replace(configuration(args), rollout_process=True)
        self.ends = time.monotonic() + args.seconds
        facts = {
            "command": "rollout_quota",
            "config": self.config.to_dict(),
            "argv": {k: str(v) for k, v in vars(args).items() if k != "out"},
        }
        self.report = Report(args.out / f"rollout_quota_{args.simulator}{args.name}.json", facts)
        self.gpu = Gpu(self.config.device)
        self.trainer: Any = None
        #: By percentage; 100 is the trainer's own, with all SMs.
        self.rollouts: dict[int, Any] = {}
        self.rounds: list[dict[str, Any]] = []
        self.levels: dict[int, Any] = {}
        self.threads: Any = None
        self.seen: Any = None
        self.answer: Any = None
        self.actions: Any = None
        self.chunk = 0

    @property
    def left_s(self) -> float:
        return self.ends - time.monotonic()

    def all(self) -> None:
        try:
            self.build()
            if self.trainer is None:
                return
            self.alone()
            self.pair()
            self.range()
        finally:
            self.result()
            for part in (*self.rollouts.values(), *([self.trainer.env.simulator] if self.trainer else ())):
                part.close()
            self.report.write()

    def build(self) -> None:
        from rlprof.overlap.quota.clients import choose_gpu, list_gpus, probe_levels
        from rlprof.overlap.quota.levels import Level
        from rlprof.taskgraph import Threads
        from rlprof.workloads.embodied.build import make_trainer

        with self.report.step("build") as found:
            self.trainer = make_trainer(self.config)
            self.rollouts[100] = self.trainer.rollout
            self.threads = Threads()
            found.update(self.gpu.memory())
        with self.report.step("levels") as found:
            if self.args.levels:
                levels: Sequence[Level] = [Level(int(p), int(p)) for p in self.args.levels.split(",")]
            else:
                gpu = choose_gpu(list_gpus(), 0)
                levels = probe_levels(gpu, dict(os.environ), step=self.args.level_step).levels
            self.levels = {level.setting: level for level in levels}
            found["levels"] = str([(v.amount, v.setting) for v in levels])

    # rounds ------------------------------------------------------------------------------------------------

    def predict(self, percent: int) -> None:
        from rlprof.workloads.embodied.contracts import GlobalStep

        self.answer = self.rollouts[percent].predict(self.seen, GlobalStep(10_000), 0, 0)

    def simulate(self) -> None:
        self.trainer.env.env_interact_step(self.actions)

    def ready(self) -> None:
        """Begin new episodes when all chunks of one were carried out; untimed."""
        from rlprof.workloads.embodied.contracts import GlobalStep

        if self.chunk % self.trainer.chunks == 0:
            self.seen = self.trainer.env.bootstrap_step(GlobalStep(10_000), 0)
        self.chunk += 1

    def round(self, percent: int, phase: str, *, warm: bool = False) -> None:
        """Both at the same time, until both are ready."""
        self.ready()
        ended: dict[str, float] = {}
        failed: list[BaseException] = []
        began = time.perf_counter()

        def work(name: str, call: Callable[[], None]) -> None:
            try:
                call()
            except BaseException as error:
                failed.append(error)
            ended[name] = time.perf_counter() - began

        calls: dict[str, Callable[[], None]] = {
            "rollout": lambda: self.predict(percent),
            "simulator": self.simulate,
        }
        joins = [self.threads.start(n, lambda n=n, c=c: work(n, c)) for n, c in calls.items()]
        for join in joins:
            join()
        if failed:
            raise failed[0]
        row = {"percent": percent, "phase": phase, "warm_up": warm, "time_s": max(ended.values())}
        self.rounds.append(row | {f"{name}_ready_s": value for name, value in ended.items()})

    def times(self, percent: int, name: str = "time_s", phase: str | None = None) -> list[float]:
        """Of the counted rounds of a quota."""
        return [
            r[name]
            for r in self.rounds
            if r["percent"] == percent and not r["warm_up"] and phase in (None, r["phase"])
        ]

    # steps -------------------------------------------------------------------------------------------------

    def alone(self) -> None:
        """Each by itself."""
        with self.report.step("alone") as found:
            self.ready()
            self.predict(100)
            self.actions = self.answer.actions
            self.chunk = 0
            for name, call in (("rollout", lambda: self.predict(100)), ("simulator", self.simulate)):
                taken = []
                for k in range(WARM_UP + 3):
                    self.ready()
                    began = time.perf_counter()
                    call()
                    if k >= WARM_UP:
                        taken.append(time.perf_counter() - began)
                found[f"{name}_s"] = round(statistics.median(taken), 5)
                found[f"{name}_each_s"] = [round(t, 5) for t in taken]

    def pair(self) -> None:
        """Who waits, with all SMs for both."""
        from rlprof.overlap.quota.pair import END, EligiblePair, Meeting

        with self.report.step("pair") as found:
            for k in range(WARM_UP + self.args.rounds):
                self.round(100, "start", warm=k < WARM_UP)
            names = ("rollout", "simulator")
            ready = {n: statistics.median(self.times(100, f"{n}_ready_s")) for n in names}
            earlier, later = sorted(names, key=ready.__getitem__)
            meetings = tuple(
                Meeting(END, f, c, min(f, c))
                for f, c in zip(
                    self.times(100, f"{earlier}_ready_s"), self.times(100, f"{later}_ready_s"), strict=True
                )
            )
            slack_s = statistics.median(m.later_ready_s - m.earlier_ready_s for m in meetings)
            agreeing = sum(m.later_ready_s > m.earlier_ready_s for m in meetings)
            pair = EligiblePair(
                earlier, later, END, slack_s, 1, agreeing, ready[earlier], ready[later], 0, meetings
            )
            found["waits"], found["slack_s"] = earlier, round(slack_s, 4)
            self.report.document["quotas"] = {"quotas": {}, "reason": "", "pair": pair.to_dict()}
            self.report.document["waits"] = earlier

    def range(self) -> None:
        """All of the range, and what is around its best, each beside all SMs."""
        if self.report.document.get("waits") != "rollout" and not self.args.anyway:
            print(
                "   the simulator waits: a smaller quota of the rollout would only delay it more", flush=True
            )
            return
        percents = sorted((p for p in self.levels if p < 100), reverse=True)
        coarse = percents[self.args.coarse - 1 :: self.args.coarse]
        for k in range(0, len(coarse), self.args.at_once):
            self.turns(coarse[k : k + self.args.at_once], "sweep")
        measured = [p for p in self.levels if self.times(p)]
        if not any(p < 100 for p in measured):
            return
        best = min(measured, key=lambda p: statistics.median(self.times(p)))
        order = sorted(self.levels)
        at = order.index(best)
        near = [order[i] for d in range(1, self.args.coarse) for i in (at - d, at + d) if 0 <= i < len(order)]
        fine = [p for p in (best, *near) if p < 100][: self.args.at_once]
        self.turns(fine, "fine")

    def turns(self, percents: Sequence[int], phase: str) -> None:
        """Start a process for each quota, all at the same time, let them take turns, and end them."""
        from rlprof.workloads.embodied.rollout_process import RolloutProcess
        from rlprof.workloads.embodied.sharing import PERCENTAGE

        if not percents or self.left_s < self.args.reserve + self.args.turn_seconds:
            print(f"   {phase} {percents}: LEFT OUT, no time", flush=True)
            return
        with self.report.step(f"{phase}_{'_'.join(map(str, percents))}") as found:
            began = time.monotonic()

            def start(percent: int) -> Any:
                share = {PERCENTAGE: str(percent)}
                spec, actor = self.trainer.env.spec, self.trainer.actor
                return RolloutProcess(self.config, spec, actor, environment=share)

            with ThreadPoolExecutor(len(percents)) as pool:
                started = {p: pool.submit(start, p) for p in percents}
            failed = {p: str(f.exception())[:200] for p, f in started.items() if f.exception() is not None}
            self.rollouts |= {p: f.result() for p, f in started.items() if p not in failed}
            found["start_s"], found["failed"] = round(time.monotonic() - began, 2), str(failed)
            found.update(self.gpu.memory())
            ready = [p for p in percents if p not in failed]
            for percent in ready:
                for _ in range(WARM_UP):
                    self.round(percent, phase, warm=True)
            for _ in range(self.args.rounds):
                if self.left_s < self.args.reserve:
                    break
                for percent in (100, *ready):
                    self.round(percent, phase)
            for percent in ready:
                self.rollouts.pop(percent).close()
                found[f"{percent} %"] = [round(t, 4) for t in self.times(percent, phase=phase)]
            found["100 %"] = [round(t, 4) for t in self.times(100, phase=phase)]
        self.result()

    def result(self) -> None:
        """Algorithm 2 over what was measured, and the whole curve."""
        from rlprof.overlap.quota.search import Measurement, quota_search, sweep

        document = self.report.document
        document["rounds"] = self.rounds
        levels = tuple(v for p, v in sorted(self.levels.items()) if self.times(p))
        if not levels or "quotas" not in document:
            self.report.write()
            return

        def measured(level: Any) -> Measurement:
            times = self.times(level.setting)
            return Measurement(statistics.median(times), _spread(times), len(times))

        search = quota_search(levels, measured)
        top, best = levels[-1], search.best_level
        gain = 1 - measured(best).time_s / measured(top).time_s
        reason = f"{best.setting} % takes {100 * gain:.1f} % less than all SMs" if best != top else "keep q0"
        document["quotas"] |= {
            "quotas": {} if best == top else {"rollout": best.setting},
            "reason": reason,
            "search": search.to_dict(),
            "sweep": [trial.to_dict() for trial in sweep(levels, measured)],
        }
        document["summary"] = {
            f"{level.setting} %": {
                "sms": level.amount,
                "rounds": len(self.times(level.setting)),
                **{
                    name: round(statistics.median(self.times(level.setting, name)), 5)
                    for name in ("time_s", "rollout_ready_s", "simulator_ready_s")
                },
            }
            for level in reversed(levels)
        }
        for name, row in document["summary"].items():
            print(f"== {name}: {row}", flush=True)
        print(f"== {reason}", flush=True)
        self.report.write()


def _spread(times: Sequence[float]) -> float | None:
    """Distance of the quartiles."""
    if len(times) < 2:
        return None
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return high - low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    workload_options(parser, "mujoco_warp")
    add = parser.add_argument
    add("--seconds", type=float, default=150.0)
    add("--reserve", type=float, default=5.0, help="seconds to leave at the end")
    add("--turn-seconds", type=float, default=30.0, help="no processes are started with less left")
    add("--rounds", type=int, default=6, help="counted rounds of each quota and phase")
    add("--level-step", type=int, default=4, help="percent between levels that are probed")
    add("--coarse", type=int, default=3, help="levels between those of the first pass")
    add("--at-once", type=int, default=5, help="processes at the same time, beside that with all SMs")
    add("--anyway", action="store_true", help="measure the range also where the simulator waits")
    add("--levels", help="percentages, in place of a probe")
    add("--mps", action="store_true", help="start an MPS daemon for the run")
    add("--name", default="", help="added to the name of the result")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with mps_daemon() if args.mps else nullcontext():
        run = Run(args)

        def interrupt(*_: Any) -> None:
            """As Ctrl-C: what was measured is written, and processes are ended."""
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, interrupt)
        run.all()


if __name__ == "__main__":
    main()
