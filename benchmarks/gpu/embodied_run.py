"""Complete iterations of embodied RL under each schedule, interleaved: `benchmarks.gpu.embodied run`."""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from benchmarks.gpu.common import end_s
from benchmarks.gpu.embodied_report import Gpu, Report, configuration, means, replay_facts, sampler


class Run:
    """One trainer, driven by one schedule after the other."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.config = args, configuration(args)
        self.ends = end_s(args.seconds)
        name = f"embodied_{args.simulator}{args.name}.json"
        facts = {"command": "run", "config": self.config.to_dict(), "argv": _argv(args), "iterations": []}
        self.report = Report(args.out / name, facts)
        self.gpu = Gpu(self.config.device)
        self.trainer: Any = None
        self.activity: Any = None
        self.index = 0
        # by their MPS share; None: all SMs
        self.simulators: dict[int | None, Any] = {}
        self.rollouts: dict[int | None, Any] = {}
        self.drivers: dict[str, Any] = {}
        self.rebuilt = 0

    def all(self) -> None:
        from rlprof.workloads.embodied.build import make_trainer

        with self.report.step("build") as found:
            began = time.perf_counter()
            self.trainer = make_trainer(self.config)
            self.gpu.wait()
            self.simulators[None] = self.trainer.env.simulator
            self.rollouts[None] = self.trainer.rollout
            found["build_s"] = round(time.perf_counter() - began, 2)
            found["simulator"] = asdict(self.trainer.env.spec)
            found.update(self.gpu.memory())
        if self.trainer is None:
            return
        try:
            self.activity = sampler(self.args, self.config)
            self.report.document["activity_source"] = self.activity.source
            print(f"   activity: {self.activity.source}", flush=True)
            parts = self.args.parts.split(",")
            if "solo" in parts:
                self.solo()
            if "schedules" in parts:
                self.schedules()
            if "async" in parts:
                self.asynchronous()
        finally:
            self.summary()
            if self.activity is not None:
                self.activity.close()
            for part in (*self.drivers.values(), *self.simulators.values(), *self.rollouts.values()):
                part.close()
            self.report.write()

    # Table 1: alone, serial, overlapped

    def solo(self) -> None:
        from rlprof.taskgraph import Threads
        from rlprof.workloads.embodied.contracts import GlobalStep

        trainer, gpu, step, times = self.trainer, self.gpu, GlobalStep(10_000), self.args.times
        state: dict[str, Any] = {}
        threads = Threads()  # kept, as those of a graph's workers are

        def reset() -> None:
            state["seen"] = trainer.env.bootstrap_step(step, 0)

        def predict() -> None:
            state["answer"] = trainer.rollout.predict(state["seen"], step, 0, 0)

        def simulate() -> None:
            trainer.env.env_interact_step(state["answer"].actions)

        def serial() -> None:
            predict()
            simulate()

        def overlapped() -> None:
            both(predict, simulate)

        def both(*calls: Callable[[], None]) -> None:
            ended: dict[str, float] = {}
            failed: list[BaseException] = []
            began = time.perf_counter()

            def work(call: Callable[[], None]) -> None:
                try:
                    call()
                except BaseException as error:
                    failed.append(error)
                ended[getattr(call, "__name__", "part")] = time.perf_counter() - began

            for join in [threads.start(str(k), functools.partial(work, c)) for k, c in enumerate(calls)]:
                join()
            if failed:
                raise failed[0]
            state.setdefault("ended", []).append(ended)

        halves = np.array_split(np.arange(trainer.env.spec.envs), 2)
        groups: dict[Any, Any] = {}

        def two_groups() -> None:
            """A chunk of all environments: one half is answered while the other is simulated."""

            def answer(g: int) -> None:
                groups[g, "answer"] = trainer.rollout.predict(groups[g, "seen"], step, 0, 0, halves[g])

            def move(g: int) -> None:
                result = trainer.env.env_interact_step(groups[g, "answer"].actions, halves[g])
                groups[g, "seen"] = result.observation

            both(functools.partial(answer, 0), functools.partial(move, 1))
            both(functools.partial(answer, 1), functools.partial(move, 0))

        for name, call in (
            ("reset", reset),
            ("inference", predict),
            ("simulation", simulate),
            ("captured", predict),
            ("serial", serial),
            ("overlapped", overlapped),
            ("two_groups", two_groups),
        ):
            if name == "captured" and (not gpu.cuda or not trainer.rollout.policy.spec.denoise_steps):
                continue
            if name == "captured" and self.config.rollout_process:
                continue
            if time.monotonic() + self.args.reserve > self.ends:
                print(f"   solo_{name}: LEFT OUT, no time", flush=True)
                continue
            with self.report.step(f"solo_{name}") as found:
                self._set_graph(self.config.cuda_graph or name == "captured")
                if name == "two_groups":
                    for g in (0, 1):
                        groups[g, "seen"] = trainer.env.bootstrap_step(step, 0, halves[g])
                        groups[g, "answer"] = trainer.rollout.predict(
                            groups[g, "seen"], step, 0, 0, halves[g]
                        )
                elif name not in ("reset", "inference"):
                    reset()
                found.update(gpu.timed(call, 1 if name == "reset" else times, most_s=5.0))
                found["activity"] = means(self.activity, {name: tuple(found.pop("span_ns"))})
                if name == "overlapped":
                    found["ended_s"] = state.pop("ended")[1:]
        taken = self.report.document["steps"]
        with self.report.step("table1") as found:  # what there was no time for is an error of this step alone
            of = {k.removeprefix("solo_"): v.get("median_s") for k, v in taken.items() if "solo" in k}
            found.update({f"{k}_s": v for k, v in of.items()})
            found["speedup"] = of["serial"] / of["overlapped"]
            found["speedup_two_groups"] = of["serial"] / of["two_groups"]
        threads.close()

    # iterations

    def schedules(self) -> None:
        order = self.args.schedules.split(",")
        longest: dict[str, float] = {}
        for turn in range(self.args.rounds + 1):
            for k, name in enumerate(order):
                # warming up: one complete iteration, and short ones of the same batches for the others
                short = turn == 0 and k > 0
                known = longest.get(name, max(longest.values(), default=0.0))
                need_s = (0.3 if short else 1.1) * known + self.args.reserve
                if time.monotonic() + need_s > self.ends:
                    print(f"   {name}: LEFT OUT, {need_s:.0f} s are not left", flush=True)
                    continue
                began = time.monotonic()
                if self._iteration(name, turn, short=short) is not None and not short:
                    longest[name] = time.monotonic() - began

    def asynchronous(self) -> None:
        """Several iterations at a stretch: rollouts go on between them."""
        self._iteration("async", 0, several=self.args.rounds + 1)

    def _iteration(self, spec: str, turn: int, *, several: int = 1, short: bool = False) -> Any:
        """Run iterations of a schedule with switches: ``colocated-pipe+graph+prefetch``."""
        from rlprof.workloads.embodied.contracts import GlobalStep
        from rlprof.workloads.embodied.drivers import GraphDriver, make_driver
        from rlprof.workloads.embodied.record import replay_answers, watch
        from rlprof.workloads.embodied.runner import measured_iteration

        schedule, *switches = spec.split("+")
        measured: Any = None
        with self.report.step(f"{spec}_{turn}") as found, self._shortened(short):
            config = replace(self.config, schedule=schedule, env_prefetch="prefetch" in switches)
            self._take_parts(config)
            self._set_graph(config.cuda_graph or "graph" in switches)
            driver = self.drivers.pop(spec, None) or make_driver(self.trainer, config, self.index)
            try:
                seen = watch(self.trainer)
                for k in range(several):
                    if k and time.monotonic() + measured.row["wall_s"] * 1.2 > self.ends:
                        break
                    measured = measured_iteration(self.trainer, driver, config, seen, self.index)
                    row = {**measured.row, "variant": spec, "round": turn + k, "warm_up": turn + k == 0}
                    row["short"] = short
                    row["activity"] = means(self.activity, {n: tuple(s) for n, s in measured.spans.items()})
                    row |= {**self.gpu.memory(), "gpu": self.gpu.state(), "cuda_graph": self._graph_state()}
                    self.report.document["iterations"].append(row)
                    self.report.write()
                    self.index += 1
            except Exception:
                self._recover()
                raise
            finally:
                if isinstance(driver, GraphDriver) and not short:
                    self.drivers[spec] = driver  # its workers keep their threads
                else:
                    driver.close()
                if config.stage_schedule.offload:  # the next schedule finds the weights on the device
                    self.trainer.rollout.reload(config.rollout_device or config.device)
                    self.trainer.actor.reload(config.device)
            found["wall_s"] = round(measured.row["wall_s"], 3)
            found["steps_per_s"] = round(measured.row["simulator_steps_per_s"], 2)
            found.update({k: round(v, 3) for k, v in measured.row["phases_s"].items()})
            found["moves_s"] = measured.row.get("moves_s")
            found["active"] = str(row["activity"])
            found["differences"] = str(measured.row.get("semantic_differences"))
        if measured is not None and turn == 1 and schedule != "async":
            with self.report.step(f"{spec}_replay") as found:
                step = GlobalStep(self.index - 1)
                again = replay_answers(self.trainer, measured.result["trajectories"], step, most_calls=4)
                found.update(replay_facts(again))
        return measured

    @contextmanager
    def _shortened(self, short: bool) -> Iterator[None]:
        """One epoch of two chunks with the same batches of rollouts; one optimiser step."""
        trainer, actor = self.trainer, self.trainer.actor
        was = trainer.epochs, trainer.chunks, actor.global_batch, actor.micro_batch
        if short:
            trainer.epochs, trainer.chunks = 1, min(2, trainer.chunks)
            actor.global_batch = trainer.env.spec.envs * trainer.chunks
            actor.micro_batch = math.gcd(actor.global_batch, actor.micro_batch)
        try:
            yield
        finally:
            trainer.epochs, trainer.chunks, actor.global_batch, actor.micro_batch = was

    def _set_graph(self, wanted: bool) -> None:
        policy = self.trainer.rollout.policy
        if self.config.rollout_process:  # which was started with them or without
            if wanted != self.config.cuda_graph:
                raise RuntimeError("CUDA graphs of a rollout process are switched with SET=cuda_graph=True")
            return
        if wanted and policy.captured is None:
            policy.capture()
        elif not wanted:
            policy.captured = None

    def _graph_state(self) -> Any:
        if self.config.rollout_process:
            return {"refused": self.trainer.rollout.refused} if self.config.cuda_graph else None
        captured = getattr(self.trainer.rollout.policy, "captured", None)
        return None if captured is None else {"graphs": captured.graphs, "refused": captured.refused}

    def _take_parts(self, config: Any) -> None:
        """Simulator and rollout worker; second ones with MPS shares if the schedule asks for shares."""
        from rlprof.workloads.embodied.build import make_rollout_worker, make_simulator
        from rlprof.workloads.embodied.sharing import sharing

        found, trainer = sharing(config), self.trainer
        if found.simulator_percent not in self.simulators:
            self.simulators[found.simulator_percent] = make_simulator(config)
        trainer.env.simulator = self.simulators[found.simulator_percent]
        if found.rollout_percent not in self.rollouts:
            fresh = make_rollout_worker(config, trainer.env.simulator, trainer.actor)
            self.rollouts[found.rollout_percent] = fresh
        trainer.rollout = self.rollouts[found.rollout_percent]

    def _recover(self) -> None:
        """Make the simulators anew after a failure: one that failed is no more. Twice at most."""
        from rlprof.workloads.embodied.build import make_simulator

        if self.rebuilt >= 2:
            return
        self.rebuilt += 1
        for simulator in self.simulators.values():
            simulator.close()
        self.simulators = {None: make_simulator(self.config)}
        self.trainer.env.simulator = self.simulators[None]

    def summary(self) -> None:
        """Medians over the counted iterations of each schedule."""
        table: dict[str, Any] = {}
        for row in self.report.document["iterations"]:
            if not row["warm_up"]:
                table.setdefault(row["variant"], []).append(row)
        self.report.document["summary"] = summary = {}
        for name, rows in table.items():
            rates = [r["simulator_steps_per_s"] for r in rows]
            active = [r["activity"]["iteration"] for r in rows if isinstance(r["activity"], dict)]
            phases = {p: statistics.median(r["phases_s"][p] for r in rows) for p in rows[0]["phases_s"]}
            summary[name] = {
                "iterations": len(rows),
                "steps_per_s": round(statistics.median(rates), 3),
                "steps_per_s_range": [round(min(rates), 3), round(max(rates), 3)],
                "wall_s": round(statistics.median(r["wall_s"] for r in rows), 3),
                "activity_frac": round(statistics.mean(active), 4) if active else None,
                "phases_s": {k: round(v, 3) for k, v in phases.items()},
                "placement": rows[0]["placement"],
            }
            print(f"== {name}: {summary[name]}", flush=True)
        self.report.write()


def _argv(args: argparse.Namespace) -> dict[str, Any]:
    return {k: str(v) for k, v in vars(args).items() if k not in ("out", "call")}
