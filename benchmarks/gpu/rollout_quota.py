"""The quota of a rollout that is a process of its own, beside a simulator that computes on the GPU.

    python -m benchmarks.gpu.rollout_quota --out OUT --simulator mujoco_warp --seconds 150

A policy answers while the simulator carries out a chunk, both clients of MPS; a round ends when both are
ready. The one that is ready first has slack. If that is the rollout, processes with smaller quotas are
started, as many at the same time as memory holds, and take turns with the one that has all SMs: first over
the whole range, then around the best. A quota that is far from the best has one or two rounds. Algorithm 2
then goes over what was measured. A kill loses nothing of what was written after every step.

Chunks of an episode take different times. Every round tells which it was, all quotas have each about equally
often, and they are compared by their time for the mean chunk of an episode, the same work for all:
`benchmarks.gpu.quota_rounds` defines it, and computes a stored result again. With ``--by green`` the quotas
are those of a rollout in this process (`benchmarks.gpu.green_quota`).
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from benchmarks.gpu import quota_rounds
from benchmarks.gpu.common import end_s
from benchmarks.gpu.embodied_report import Gpu, Report, configuration, mps_daemon, workload_options
from benchmarks.gpu.quota_rounds import WARM_UP

#: A quota whose rounds so far all took so many times as long as with all SMs has no more than that many.
SETTLED = {1: 2.0, 2: 1.25}
#: Memory that a process takes besides what PyTorch has reserved: CUDA's context and its libraries.
CONTEXT_BYTES = 1.5e9


class Run:
    """One simulator, and a rollout process for each quota."""

    #: Quotas are those of processes.
    process = True

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.config = args, replace(configuration(args), rollout_process=self.process)
        self.ends: float = end_s(args.seconds)
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
        #: Which of the two waits for the other, as a document.
        self.waiting: dict[str, Any] = {}
        #: What starting some processes took, and the memory of each, as measured last.
        self.start_s, self.each_bytes = 0.0, 0.0

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
            if not self.args.pair_only:
                self.range()
        finally:
            self.result()
            self.end(list(self.rollouts))
            if self.trainer is not None:
                self.trainer.env.simulator.close()
            self.report.write()

    def build(self) -> None:
        from rlprof.taskgraph import Threads
        from rlprof.workloads.embodied.build import make_trainer

        with self.report.step("build") as found:
            self.trainer = make_trainer(self.config)
            self.rollouts[100] = self.trainer.rollout
            self.threads = Threads()
            found["handed_over_bytes"] = getattr(self.trainer.rollout, "handed_over_bytes", None)
            found.update(self.gpu.memory())
        with self.report.step("levels") as found:
            self.levels = {level.setting: level for level in self.probed()}
            found["levels"] = str([(v.amount, v.setting) for v in self.levels.values()])

    def probed(self) -> Sequence[Any]:
        """Levels by rising number of SMs: all, or those that were chosen and 100 %."""
        from rlprof.overlap.quota.clients import choose_gpu, list_gpus, probe_levels
        from rlprof.overlap.quota.levels import distinct

        chosen = sorted({*self.args.levels, 100}) if self.args.levels else []
        if self.args.pair_only:
            return distinct([(100, 100)])
        if not self.gpu.cuda:  # in tests, without SMs
            return distinct((p, p) for p in chosen or range(10, 101, 10))
        step = min(math.gcd(*chosen), 50) if chosen else self.args.level_step
        seen = dict(probe_levels(choose_gpu(list_gpus(), 0), dict(os.environ), step=step).probed)
        return distinct((p, sms) for p, sms in seen.items() if not chosen or p in chosen)

    # rounds ------------------------------------------------------------------------------------------------

    def predict(self, percent: int) -> None:
        from rlprof.workloads.embodied.contracts import GlobalStep

        self.answer = self.rollouts[percent].predict(self.seen, GlobalStep(10_000), 0, 0)

    def simulate(self) -> None:
        self.trainer.env.env_interact_step(self.actions)

    @property
    def chunks(self) -> int:
        """Of an episode."""
        return int(self.trainer.chunks)

    def ready(self) -> int:
        """Begin new episodes when all chunks of one were carried out, untimed; say which chunk comes next."""
        from rlprof.workloads.embodied.contracts import GlobalStep

        chunk = self.chunk % self.chunks
        if chunk == 0:
            self.seen = self.trainer.env.bootstrap_step(GlobalStep(10_000), 0)
        self.chunk += 1
        return chunk

    def round(self, percent: int, phase: str, *, warm: bool = False) -> None:
        """A chunk and an answer at the same time, until both are ready."""
        row = {"percent": percent, "phase": phase, "warm_up": warm, "chunk": self.ready()}
        ended = self.both(percent)
        row["time_s"] = max(ended.values())
        self.rounds.append(row | {f"{name}_ready_s": value for name, value in ended.items()})

    def both(self, percent: int) -> dict[str, float]:
        """Seconds until each of the two is ready, begun at the same time."""
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
        return ended

    def times(self, percent: int, name: str = "time_s", phase: str | None = None) -> list[float]:
        """Of the counted rounds of a quota."""
        return [r[name] for r in quota_rounds.counted(self.rounds, percent, phase)]

    # steps -------------------------------------------------------------------------------------------------

    def alone(self) -> None:
        """Each by itself."""
        with self.report.step("alone") as found:
            self.ready()
            self.predict(100)
            self.actions = self.answer.actions
            self.chunk = 0
            calls: dict[str, Callable[[], None]] = {
                "rollout": lambda: self.predict(100),
                "simulator": self.simulate,
            }
            for name, call in calls.items():
                taken = []
                for k in range(WARM_UP + 3):
                    if name == "simulator":
                        self.ready()
                    began = time.perf_counter()
                    call()
                    if k >= WARM_UP:
                        taken.append(time.perf_counter() - began)
                found[f"{name}_s"] = round(statistics.median(taken), 5)
                found[f"{name}_each_s"] = [round(t, 5) for t in taken]

    def pair(self) -> None:
        """Who waits, with all SMs for both: whole episodes, since quotas are compared chunk by chunk."""
        from rlprof.overlap.quota.pair import END, EligiblePair, Meeting

        with self.report.step("pair") as found:
            episodes = -(-self.args.rounds // self.chunks)
            for k in range(WARM_UP + episodes * self.chunks):
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
            self.report.document["waits"], self.waiting = earlier, pair.to_dict()

    def range(self) -> None:
        """All of the range, and what is around its best, each beside all SMs."""
        if not self.waiting:
            return
        if self.report.document["waits"] != "rollout" and not self.args.anyway:
            reason = "the simulator waits: a smaller quota of the rollout would only delay it more"
            print(f"== {reason}", flush=True)
            self.report.document["quotas"] = {"quotas": {}, "reason": reason, "pair": self.waiting}
            return
        percents = sorted((p for p in self.levels if self.args.least <= p < 100), reverse=True)
        coarse: int = self.args.coarse or (1 if self.args.levels else 3)
        left = percents[coarse - 1 :: coarse]
        while left:
            count = self.fits(len(left))
            # with too little memory for all the range is gone over more and more finely
            now = left[:: -(-len(left) // count)]
            left = [p for p in left if p not in now]
            if not self.turns(now, "sweep"):
                break
        measured = [p for p in sorted(self.levels, reverse=True) if self.times(p)]
        if coarse == 1 or not any(p < 100 for p in measured):
            return
        best = min(measured, key=lambda p: quota_rounds.time_s(self.rounds, p))
        order = [*reversed(percents), 100]
        at = order.index(best)
        near = [order[i] for d in range(1, coarse) for i in (at - d, at + d) if 0 <= i < len(order)]
        fine = [p for p in (best, *near) if p < 100]
        self.turns(fine[: self.fits(len(fine))], "fine")

    def fits(self, wanted: int) -> int:
        """How many processes may be started at the same time, for their memory on the GPU; at least one."""
        most: int = min(wanted, self.args.at_once)
        if self.gpu.cuda:
            cuda = self.gpu.torch.cuda
            each = self.each_bytes or cuda.max_memory_reserved(self.config.device) + CONTEXT_BYTES
            most = min(most, int(0.9 * cuda.mem_get_info(self.config.device)[0] / each))
        return max(most, 1)

    def turns(self, percents: Sequence[int], phase: str) -> bool:
        """Start a process for each quota, all at the same time, let them take turns, and end them.

        False if it came to nothing, so that no others need be started.
        """
        # starting, and a round of each at least
        needed = max(self.start_s, self.args.turn_seconds) + len(percents) * statistics.median(
            self.times(100)
        )
        if not percents or self.left_s < self.args.reserve + needed:
            print(f"== {phase} {list(percents)}: LEFT OUT, no time", flush=True)
            return False
        ready: list[int] = []
        with self.report.step(f"{phase}_{'_'.join(map(str, percents))}") as found:
            try:
                found["failed"] = failed = self.start(percents, found)
                ready += [p for p in percents if p in self.rollouts]
                for reason, ones in failed.items() if ready else ():
                    print(f"   not started: {', '.join(map(str, ones))} %: {reason}", flush=True)
                if not ready:
                    raise RuntimeError(f"none of {len(percents)} processes started: {'; '.join(failed)}")
                self.take_turns(ready, phase, failed)
            finally:
                self.end(percents)
                for percent in (100, *ready):
                    found[f"{percent} %"] = [round(t, 4) for t in self.times(percent, phase=phase)]
        self.result()
        if not ready:
            print("== no process with a quota started: nothing else is tried", flush=True)
        return any(self.times(p, phase=phase) for p in ready)

    def start(self, percents: Sequence[int], found: dict[str, Any]) -> dict[str, list[int]]:
        """Start processes and let each answer; why some did not, and which."""
        from rlprof.workloads.embodied.contracts import GlobalStep
        from rlprof.workloads.embodied.rollout_process import RolloutProcess
        from rlprof.workloads.embodied.sharing import PERCENTAGE

        began, before = time.monotonic(), self.gpu.memory()
        spec, actor = self.trainer.env.spec, self.trainer.actor

        def start(percent: int) -> float:
            share = {PERCENTAGE: str(percent)}
            rollout = RolloutProcess(self.config, spec, actor, environment=share)
            self.rollouts[percent] = rollout  # at once: whatever happens, it is ended
            for _ in range(WARM_UP):
                rollout.predict(self.seen, GlobalStep(10_000), 0, 0)
            return time.monotonic() - began

        with ThreadPoolExecutor(len(percents)) as pool:
            started = {p: pool.submit(start, p) for p in percents}
        failed: dict[str, list[int]] = {}
        for percent, future in started.items():
            if (error := future.exception()) is not None:
                failed.setdefault(reason_of(error), []).append(percent)
                self.end([percent])
        ready = [p for p in percents if p in self.rollouts]
        self.start_s = time.monotonic() - began
        found["start_s"], after = round(self.start_s, 2), self.gpu.memory()
        found["started_s"] = {p: round(started[p].result(), 2) for p in ready}
        found["handed_over_bytes"] = {p: self.rollouts[p].handed_over_bytes for p in ready}
        found.update(after)
        if ready and after:
            self.each_bytes = 1e9 * (after["device_used_gb"] - before["device_used_gb"]) / len(ready)
            found["each_gb"] = round(self.each_bytes / 1e9, 2)
        return failed

    def take_turns(self, ready: Sequence[int], phase: str, failed: dict[str, list[int]]) -> None:
        """Rounds of all SMs and of each quota in turn, each time of another chunk."""
        from rlprof.workloads.embodied.errors import RolloutError

        lost: set[int] = set()
        for _ in range(self.args.level_rounds):
            left = [p for p in (100, *ready) if p not in lost and not self.settled(p, phase)]
            for percent in quota_rounds.in_turn(left, self.rounds, self.chunk % self.chunks, self.chunks):
                longest = max(self.times(percent) or self.times(100))
                if self.left_s < self.args.reserve + longest:
                    return
                try:
                    self.round(percent, phase)
                except RolloutError as error:
                    if percent == 100:
                        raise
                    lost.add(percent)
                    failed.setdefault(reason_of(error), []).append(percent)
                    print(f"   {percent} % is given up: {error}", flush=True)

    def settled(self, percent: int, phase: str) -> bool:
        """Whether a quota is so far from the best that its rounds so far are enough."""
        ratios = quota_rounds.over_all(self.rounds, percent, phase=phase)
        return percent < 100 and min(ratios, default=0.0) > SETTLED.get(len(ratios), math.inf)

    def end(self, percents: Sequence[int]) -> None:
        """End the processes of some quotas, all at the same time."""
        ones = [self.rollouts.pop(p) for p in percents if p in self.rollouts]
        if ones:
            with ThreadPoolExecutor(len(ones)) as pool:
                list(pool.map(lambda one: one.close(), ones))

    def result(self) -> None:
        """Algorithm 2 over what was measured, and the whole curve."""
        document = self.report.document
        document["rounds"] = self.rounds
        levels = [level for _, level in sorted(self.levels.items())]
        found = quota_rounds.algorithm_2(self.rounds, levels, self.waiting) if self.waiting else None
        if found is not None:
            document.update(found)
            print(f"{quota_rounds.table(found['summary'])}\n== {found['quotas']['reason']}", flush=True)
        self.report.write()


def reason_of(error: BaseException) -> str:
    """Why, for a person: errors of rlprof say it all."""
    from rlprof.errors import RlprofError

    return f"{'' if isinstance(error, RlprofError) else f'{type(error).__name__}: '}{error}"[:300]


def _percentages(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if not all(1 <= percent <= 100 for percent in found):
        raise argparse.ArgumentTypeError(f"percentages of 1 to 100, with commas between, not {text!r}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    workload_options(parser, "mujoco_warp")
    add = parser.add_argument
    add("--seconds", type=float, default=150.0)
    add("--reserve", type=float, default=4.0, help="seconds to leave at the end")
    add("--turn-seconds", type=float, default=20.0, help="what starting processes takes at least")
    add("--rounds", type=int, default=5, help="counted rounds with all SMs first: whole episodes of them")
    add("--level-rounds", type=int, default=4, help="counted rounds of each other quota and phase")
    add("--level-step", type=int, default=4, help="percent between levels that are probed")
    add("--coarse", type=int, help="the first pass goes over every so many levels: 3, or 1 with --levels")
    add(
        "--least",
        type=int,
        default=8,
        help="percentage below which nothing is measured: answers take seconds",
    )
    add("--at-once", type=int, default=8, help="most processes at the same time, beside that with all SMs")
    add("--anyway", action="store_true", help="measure the range also where the simulator waits")
    add("--levels", type=_percentages, help="percentages, and 100, in place of all")
    add("--by", choices=("mps", "green"), default="mps", help="processes, or green contexts of this one")
    add("--mps", action="store_true", help="start an MPS daemon for the run")
    add(
        "--pair-only",
        action="store_true",
        help="no quota: both at once alone, as without a daemon beside a result that has one"
        " (`quota_rounds --unmanaged`)",
    )
    add("--name", default="", help="added to the name of the result")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with mps_daemon() if args.mps else nullcontext():
        if args.by == "green":
            from benchmarks.gpu.green_quota import GreenRun

            run: Run = GreenRun(args)
        else:
            run = Run(args)

        def interrupt(*_: Any) -> None:
            """As Ctrl-C: what was measured is written, and processes are ended."""
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, interrupt)
        run.all()


if __name__ == "__main__":
    main()
