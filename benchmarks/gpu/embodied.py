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
import signal
import time
from contextlib import nullcontext
from typing import Any

import numpy as np

from benchmarks.gpu.embodied_report import (
    Gpu,
    Report,
    configuration,
    means,
    mps_daemon,
    sampler,
    workload_options,
)
from benchmarks.gpu.embodied_run import Run

SYNCHRONOUS = ("colocated", "colocated-pipe", "hybrid", "hybrid-pipe")


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

    def twice(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.concatenate([array, array])

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
    answered: dict[int, Any] = {}
    for batch in (envs, max(1, envs // 2)):
        with report.step(f"act_{batch}") as found:
            observation = seen(batch)
            noise = policy.noise(observation, GlobalStep(0), 0, 0)
            found["act"] = gpu.timed(functools.partial(policy.act, observation, noise), 4)
            answered[batch] = (observation, noise)
            found["finite"] = bool(np.isfinite(policy.act(observation, noise).log_prob).all())
            sent, drawn = policy.upload(observation, noise)
            features = policy.vision(sent)
            prefix = policy.backbone(features)
            point = policy.start(drawn)
            found["noise_s"] = gpu.timed(lambda: policy.noise(observation, GlobalStep(0), 0, 0))["median_s"]  # noqa: B023
            found["upload"] = gpu.timed(functools.partial(policy.upload, observation, noise))
            found["vision"] = gpu.timed(functools.partial(policy.vision, sent))
            found["backbone"] = gpu.timed(functools.partial(policy.backbone, features))
            if policy.spec.denoise_steps:
                one = functools.partial(policy.denoise_step, point, prefix, features, drawn, 0)
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
        images = None if observation.images is None else twice(observation.images)
        seen_twice = Observation(twice(observation.state), images, twice(observation.task))
        zeros = np.zeros(2 * micro, np.float32)
        batch_ = Batch(seen_twice, twice(answer.chain), twice(answer.log_prob), zeros, zeros + 1, zeros)
        order = np.arange(2 * micro)
        found["training_step"] = gpu.timed(lambda: actor.training_step(batch_, order, 0), 2)
        found["log"] = actor.training_step(batch_, order, 0)
        found.update(gpu.memory())

        def move() -> None:
            actor.offload("cpu")
            actor.reload(config.device)

        found["offload"] = gpu.timed(move, 2)
        found["after_reload"] = actor.training_step(batch_, order, 0)["grad_norm"]
    if gpu.cuda and policy.spec.denoise_steps:
        with report.step("captured") as found:
            eager = {batch: policy.act(*given) for batch, given in answered.items()}
            policy.capture()
            for batch, answer in eager.items():
                given = answered[batch]
                found[f"act_{batch}"] = gpu.timed(functools.partial(policy.act, *given), 4)
                again = policy.act(*given)
                found[f"max_abs_{batch}"] = {
                    name: float(np.abs(a - b).max())
                    for name, a, b in zip(answer._fields, answer, again, strict=True)
                }
            found["graphs"], found["refused"] = policy.captured.graphs, policy.captured.refused
            found.update(gpu.memory())
        policy.captured = None
    with report.step("activity") as found:
        activity = sampler(args, config)
        try:
            began_ns = time.monotonic_ns()
            for _ in range(3):
                policy.act(observation, noise)
            found["means"] = means(activity, {"act": (began_ns, time.monotonic_ns())})
            found["source"] = activity.source
        finally:
            activity.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    for name, call in (("selftest", selftest), ("run", lambda a: Run(a).all())):
        sub = commands.add_parser(name)
        sub.set_defaults(call=call)
        workload_options(sub, "mujoco_arm")
        sub.add_argument("--backend", default="auto", help="of the sampler")
        if name == "run":
            sub.add_argument("--parts", default="solo,schedules")
            sub.add_argument("--schedules", default=",".join(SYNCHRONOUS))
            sub.add_argument("--rounds", type=int, default=5, help="counted iterations of each schedule")
            sub.add_argument("--seconds", type=float, default=400.0)
            sub.add_argument("--reserve", type=float, default=4.0, help="seconds to leave at the end")
            sub.add_argument("--mps", action="store_true", help="start an MPS daemon for the run")
            sub.add_argument("--name", default="", help="added to the name of the result")
            sub.add_argument("--times", type=int, default=5, help="of each solo measurement")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    def interrupt(*_: Any) -> None:
        """As Ctrl-C: what was measured is summed up and written, and processes are ended."""
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    with mps_daemon() if getattr(args, "mps", False) else nullcontext():
        args.call(args)


if __name__ == "__main__":
    main()
