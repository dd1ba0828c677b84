"""Embodied RL on a GPU: the policy by itself, and complete iterations under each schedule.

    python -m benchmarks.gpu.embodied selftest --out OUT
    python -m benchmarks.gpu.embodied run --out OUT --simulator mujoco_arm --seconds 400

`selftest` needs no simulator. `run` makes one trainer and drives it with one schedule after the other, again
and again: the first round is not counted. Results are written after every step, so that a kill loses nothing,
and a step that fails says so and stops nothing.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import machine, save

SYNCHRONOUS = ("colocated", "colocated-pipe", "hybrid", "hybrid-pipe")


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
    import importlib.metadata

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

    def timed(self, call: Callable[[], Any], times: int = 3) -> dict[str, Any]:
        """Seconds of calls that end when the device has done them; the first one is told apart."""
        taken = []
        for _ in range(times + 1):
            self.wait()
            began = time.perf_counter()
            call()
            self.wait()
            taken.append(time.perf_counter() - began)
        return {
            "first_s": round(taken[0], 5),
            "median_s": round(statistics.median(taken[1:]), 5),
            "each_s": [round(t, 5) for t in taken[1:]],
        }


def configuration(args: argparse.Namespace) -> Any:
    from rlprof.workloads.embodied.config import configure

    more: dict[str, Any] = {}
    for item in args.set or ():
        name, _, value = item.partition("=")
        more[name] = (
            int(value) if value.lstrip("-").isdigit() else {"True": True, "False": False}.get(value, value)
        )
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


# the policy by itself --------------------------------------------------------------------------------------


def selftest(args: argparse.Namespace) -> None:
    """Build, answer, evaluate, train, move: each timed, on made-up observations."""
    from rlprof.workloads.embodied.actor import Actor
    from rlprof.workloads.embodied.algorithms import Ppo
    from rlprof.workloads.embodied.contracts import Batch, GlobalStep, Observation, SimulatorSpec
    from rlprof.workloads.embodied.policies import make

    config = configuration(args)
    report = Report(args.out / "embodied_selftest.json", {"command": "selftest", "config": config.to_dict()})
    gpu = Gpu(config.device)
    cameras, image = config.cameras, config.image
    envs = config.envs
    spec = SimulatorSpec("made", envs, config.chunk_steps, config.episode_steps, 7, 8, cameras, image, image)
    draw = np.random.default_rng(0)

    def seen(batch: int) -> Observation:
        shape = (batch, cameras, image, image, 3)
        images = draw.integers(0, 256, shape, dtype=np.uint8) if cameras else None
        return Observation(
            draw.normal(size=(batch, 8)).astype(np.float32), images, np.zeros(batch, dtype=np.int64)
        )

    policy: Any = None
    with report.step("build") as found:
        began = time.perf_counter()
        policy = make(config.policy_size, spec, seed=0, device=config.device)
        gpu.wait()
        found["build_s"] = round(time.perf_counter() - began, 2)
        found["parameters"] = sum(p.numel() for p in policy.parameters())
        found["trained_parameters"] = sum(p.numel() for p in policy.trainable())
        found.update(gpu.memory())
    if policy is None:
        return
    answers: dict[int, Any] = {}
    for batch in (envs, max(1, envs // 2)):
        with report.step(f"act_{batch}") as found:
            observation = seen(batch)
            noise = policy.noise(observation, GlobalStep(0), 0, 0)
            found["act"] = gpu.timed(functools.partial(policy.act, observation, noise), 4)
            answers[batch] = policy.act(observation, noise)
            found["finite"] = bool(np.isfinite(answers[batch].log_prob).all())
            features = policy.vision(observation)
            prefix = policy.backbone(features)
            point = policy.start(noise)
            found["noise_s"] = gpu.timed(lambda: policy.noise(observation, GlobalStep(0), 0, 0))["median_s"]  # noqa: B023
            found["vision"] = gpu.timed(functools.partial(policy.vision, observation))
            found["backbone"] = gpu.timed(functools.partial(policy.backbone, features))
            if policy.spec.denoise_steps:
                one = functools.partial(policy.denoise_step, point, prefix, features, noise, 0)
                found["denoise_step"] = gpu.timed(one, 5)
            found.update(gpu.memory())
    observation, micro = seen(config.micro_batch), config.micro_batch
    with report.step(f"evaluate_{micro}") as found:
        noise = policy.noise(observation, GlobalStep(0), 0, 1)
        answer = policy.act(observation, noise)
        evaluation = policy.evaluate(observation, answer.chain)
        ratio = (evaluation.log_prob.detach().float().cpu().numpy() - answer.log_prob).tolist()
        found["log_ratio_max"] = float(np.abs(ratio).max())
        found["log_ratio_mean"] = float(np.mean(ratio))

        def both() -> None:
            gpu.torch.autograd.backward(policy.evaluate(observation, answer.chain).log_prob.sum())

        found["forward_backward"] = gpu.timed(both, 2)
        found.update(gpu.memory())
    with report.step("training_step") as found:
        algorithm = Ppo()
        actor = Actor(
            policy, algorithm, learning_rate=1e-6, global_batch=2 * micro, micro_batch=micro, seed=0
        )
        twice = Observation(*(None if a is None else np.concatenate([a, a]) for a in observation))
        zeros = np.zeros(2 * micro, np.float32)
        chain, log_prob = (np.concatenate([a, a]) for a in (answer.chain, answer.log_prob))
        batch_ = Batch(twice, chain, log_prob, zeros, zeros + 1, zeros)
        order = np.arange(2 * micro)
        found["training_step"] = gpu.timed(lambda: actor.training_step(batch_, order, 0), 2)
        found["log"] = actor.training_step(batch_, order, 0)
        found.update(gpu.memory())
        found["offload"] = gpu.timed(lambda: (actor.offload("cpu"), actor.reload(config.device)), 2)
        found["after_reload"] = actor.training_step(batch_, order, 0)["grad_norm"]
    with report.step("activity") as found:
        activity = _activity(args, config)
        try:
            began_ns = time.monotonic_ns()
            for _ in range(3):
                policy.act(observation, noise)
            found["means"] = _means(activity, {"act": (began_ns, time.monotonic_ns())})
            found["source"] = activity.source
        finally:
            activity.close()


def _activity(args: argparse.Namespace, config: Any) -> Any:
    from rlprof.workloads.embodied.activity import Activity

    scratch = args.out / "activity"
    scratch.mkdir(parents=True, exist_ok=True)
    return Activity.start(scratch, config.device, backend=args.backend)


def _means(activity: Any, spans: dict[str, tuple[int, int]]) -> Any:
    from rlprof.workloads.embodied.activity import Span

    means = activity.means({k: Span(*v) for k, v in spans.items()}, wait_s=2.0)
    if not means:
        return str(means)
    return {k: round(v, 4) for k, v in means.items()}


# complete iterations ---------------------------------------------------------------------------------------


class Run:
    """One trainer, driven by one schedule after the other."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.config = args, configuration(args)
        self.ends = time.monotonic() + args.seconds
        name = f"embodied_{args.simulator}.json"
        facts = {"command": "run", "config": self.config.to_dict(), "argv": _argv(args), "iterations": []}
        self.report = Report(args.out / name, facts)
        self.gpu = Gpu(self.config.device)
        self.trainer: Any = None
        self.activity: Any = None
        self.index = 0

    def all(self) -> None:
        from rlprof.workloads.embodied.build import make_trainer

        with self.report.step("build") as found:
            began = time.perf_counter()
            self.trainer = make_trainer(self.config)
            self.gpu.wait()
            found["build_s"] = round(time.perf_counter() - began, 2)
            found["simulator"] = asdict(self.trainer.env.spec)
            found.update(self.gpu.memory())
        if self.trainer is None:
            return
        try:
            self.activity = _activity(self.args, self.config)
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
            self.trainer.env.simulator.close()
            self.report.write()

    # Table 1: alone, serial, overlapped

    def solo(self) -> None:
        from rlprof.workloads.embodied.contracts import GlobalStep

        trainer, gpu, step, times = self.trainer, self.gpu, GlobalStep(10_000), self.args.times
        state: dict[str, Any] = {}

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

            threads = [threading.Thread(target=work, args=(c,)) for c in calls]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            if failed:
                raise failed[0]
            state.setdefault("ended", []).append(ended)

        halves = np.array_split(np.arange(trainer.env.spec.envs), 2)
        groups: dict[int, Any] = {}

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
            ("serial", serial),
            ("overlapped", overlapped),
            ("two_groups", two_groups),
        ):
            with self.report.step(f"solo_{name}") as found:
                if name == "two_groups":
                    for g in (0, 1):
                        groups[g, "seen"] = trainer.env.bootstrap_step(step, 0, halves[g])
                        groups[g, "answer"] = trainer.rollout.predict(
                            groups[g, "seen"], step, 0, 0, halves[g]
                        )
                elif name not in ("reset", "inference"):
                    reset()
                began = time.monotonic_ns()
                found.update(gpu.timed(call, 1 if name == "reset" else times))
                found["activity"] = _means(self.activity, {name: (began, time.monotonic_ns())})
                if name == "overlapped":
                    found["ended_s"] = state.pop("ended")[1:]
        taken = self.report.document["steps"]
        with self.report.step("table1") as found:
            of = {k.removeprefix("solo_"): v.get("median_s") for k, v in taken.items() if "solo" in k}
            found.update({f"{k}_s": v for k, v in of.items()})
            found["speedup"] = of["serial"] / of["overlapped"]
            found["speedup_two_groups"] = of["serial"] / of["two_groups"]

    # iterations

    def schedules(self) -> None:
        order = self.args.schedules.split(",")
        longest: dict[str, float] = {}
        for turn in range(self.args.rounds + 1):
            for name in order:
                # the first iteration of a schedule is slower: it warms up
                need_s = longest.get(name, max(longest.values(), default=0.0)) * 1.15 + self.args.reserve
                if time.monotonic() + need_s > self.ends:
                    print(f"   {name}: LEFT OUT, {need_s:.0f} s are not left", flush=True)
                    continue
                began = time.monotonic()
                if self._iteration(name, turn) is not None:
                    longest[name] = time.monotonic() - began

    def asynchronous(self) -> None:
        """Several iterations at a stretch: rollouts go on between them."""
        self._iteration("async", 0, several=self.args.rounds + 1)

    def _iteration(self, schedule: str, turn: int, several: int = 1) -> Any:
        from rlprof.workloads.embodied.contracts import GlobalStep
        from rlprof.workloads.embodied.drivers import make_driver
        from rlprof.workloads.embodied.record import replay_answers, watch
        from rlprof.workloads.embodied.runner import measured_iteration

        config = replace(self.config, schedule=schedule)
        measured: Any = None
        with self.report.step(f"{schedule}_{turn}") as found:
            driver = make_driver(self.trainer, config, self.index)
            try:
                seen = watch(self.trainer)
                for k in range(several):
                    if k and time.monotonic() + measured.row["wall_s"] * 1.2 > self.ends:
                        break
                    measured = measured_iteration(self.trainer, driver, config, seen, self.index)
                    row = {**measured.row, "round": turn + k, "warm_up": turn + k == 0}
                    row["activity"] = _means(self.activity, {n: tuple(s) for n, s in measured.spans.items()})
                    row |= self.gpu.memory()
                    self.report.document["iterations"].append(row)
                    self.report.write()
                    self.index += 1
            finally:
                driver.close()
            found["wall_s"] = round(measured.row["wall_s"], 3)
            found["steps_per_s"] = round(measured.row["simulator_steps_per_s"], 2)
            found.update({k: round(v, 3) for k, v in measured.row["phases_s"].items()})
            found["activity"] = row["activity"]
            found["differences"] = measured.row.get("semantic_differences")
        if measured is not None and turn == 1 and schedule != "async":
            with self.report.step(f"{schedule}_replay") as found:
                if config.device != "cpu":
                    self.trainer.rollout.reload(config.device)
                again = replay_answers(
                    self.trainer, measured.result["trajectories"], GlobalStep(self.index - 1), most_calls=4
                )
                found.update(asdict(again))
        return measured

    def summary(self) -> None:
        """Medians over the counted iterations of each schedule."""
        table: dict[str, Any] = {}
        for row in self.report.document["iterations"]:
            if not row["warm_up"]:
                table.setdefault(row["schedule"], []).append(row)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    for name, call in (("selftest", selftest), ("run", lambda a: Run(a).all())):
        sub = commands.add_parser(name)
        sub.set_defaults(call=call)
        sub.add_argument("--out", type=Path, required=True)
        sub.add_argument("--preset", default="h200")
        sub.add_argument("--policy", default="pi0")
        sub.add_argument("--simulator", default="mujoco_arm")
        sub.add_argument("--device")
        sub.add_argument("--workers", type=int)
        sub.add_argument("--backend", default="auto", help="of the sampler")
        sub.add_argument("--set", nargs="*", metavar="NAME=VALUE", help="further values of the configuration")
        if name == "run":
            sub.add_argument("--parts", default="solo,schedules")
            sub.add_argument("--schedules", default=",".join(SYNCHRONOUS))
            sub.add_argument("--rounds", type=int, default=5, help="counted iterations of each schedule")
            sub.add_argument("--seconds", type=float, default=400.0)
            sub.add_argument("--reserve", type=float, default=5.0, help="seconds to leave at the end")
            sub.add_argument("--times", type=int, default=5, help="of each solo measurement")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    args.call(args)


if __name__ == "__main__":
    main()
