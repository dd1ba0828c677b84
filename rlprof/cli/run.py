"""`rlprof run`: run a workload and measure it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Run a training workload and measure it.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Run a training workload and measure it."""


class Policy(StrEnum):
    """Vision-language-action policies."""

    PI0 = "pi0"
    PI05 = "pi05"
    OPENVLA_OFT = "openvla_oft"
    GR00T = "gr00t"


class Simulator(StrEnum):
    """Robot simulators."""

    MUJOCO_ARM = "mujoco_arm"
    MUJOCO_WARP = "mujoco_warp"
    LIBERO = "libero"


class Rendering(StrEnum):
    """Who draws the images of libero."""

    EGL = "egl"
    EGL_ONE = "egl-one"
    OSMESA = "osmesa"


class Algorithm(StrEnum):
    """Algorithms."""

    PPO = "ppo"
    GRPO = "grpo"


class Schedule(StrEnum):
    """What runs where and when."""

    COLOCATED = "colocated"
    COLOCATED_PIPE = "colocated-pipe"
    HYBRID = "hybrid"
    HYBRID_PIPE = "hybrid-pipe"
    ASYNC = "async"


class Preset(StrEnum):
    """Sizes."""

    TINY = "tiny"
    EXACT = "exact"
    H200 = "h200"


class Scope(StrEnum):
    """Over what samples are shuffled and advantages normalised."""

    ROLLOUT = "rollout"
    EPOCH = "epoch"


class SmActivity(StrEnum):
    """Whether SM activity is measured."""

    AUTO = "auto"
    OFF = "off"


class Train(StrEnum):
    """What is trained."""

    FULL = "full"
    EXPERT = "expert"
    LORA = "lora"


def _number(meaning: str, least: int = 1) -> Any:
    return typer.Option(metavar="N", min=least, help=meaning, show_default="of the preset")


@app.command()
def embodied(
    *,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for configuration, metrics and checkpoint.")
    ],
    policy: Annotated[Policy, typer.Option(help="The policy.")] = Policy.PI0,
    simulator: Annotated[Simulator, typer.Option(help="The simulator.")] = Simulator.MUJOCO_ARM,
    algorithm: Annotated[Algorithm, typer.Option(help="The algorithm.")] = Algorithm.PPO,
    schedule: Annotated[Schedule, typer.Option(help="What runs where and when.")] = Schedule.COLOCATED,
    preset: Annotated[Preset, typer.Option(help="tiny: learns on a CPU. exact: same bits.")] = Preset.TINY,
    iterations: Annotated[int, typer.Option(metavar="N", min=1, help="To have done in the end.")] = 10,
    seed: Annotated[int, typer.Option(metavar="N", help="Of all random choices.")] = 0,
    envs: Annotated[int | None, _number("Environments.")] = None,
    rollout_epochs: Annotated[int | None, _number("Rollout epochs of an iteration.")] = None,
    chunks: Annotated[int | None, _number("Chunks of an epoch.")] = None,
    chunk_steps: Annotated[int | None, _number("Actions of a chunk.")] = None,
    episode_steps: Annotated[int | None, _number("Actions of an episode.")] = None,
    group: Annotated[int | None, _number("Environments that start alike.")] = None,
    update_epochs: Annotated[int | None, _number("Passes over the samples.")] = None,
    global_batch: Annotated[int | None, _number("Samples of an optimiser step.")] = None,
    micro_batch: Annotated[int | None, _number("Samples of one forward and backward pass.")] = None,
    denoise_steps: Annotated[int | None, _number("Denoise steps of a flow head.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="RATE", help="Of Adam.", show_default="of the preset")
    ] = None,
    minibatch_scope: Annotated[
        Scope | None, typer.Option(help="Over what samples are shuffled.", show_default="rollout")
    ] = None,
    train: Annotated[
        Train | None, typer.Option(help="What is trained.", show_default="of the preset")
    ] = None,
    workers: Annotated[int | None, _number("Processes of the simulator; 0: in this one.", 0)] = None,
    cameras: Annotated[int | None, _number("Cameras.", 0)] = None,
    image: Annotated[int | None, typer.Option(metavar="PIXELS", min=1, help="Size of images.")] = None,
    substeps: Annotated[
        int | None, typer.Option(metavar="N", min=5, help="Physics steps of an action (mujoco_warp).")
    ] = None,
    objects: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Loose objects of the scene (mujoco_warp).")
    ] = None,
    rendering: Annotated[
        Rendering | None,
        typer.Option(
            help="Who draws (libero): a GL context for each environment, one process for all, or the CPU.",
            show_default="egl",
        ),
    ] = None,
    shadows: Annotated[
        bool | None,
        typer.Option("--shadows/--no-shadows", help="Shadows, multisampling (libero).", show_default="by GL"),
    ] = None,
    every_action: Annotated[
        bool | None,
        typer.Option("--every-action", help="Draw after every action, not every chunk (libero)."),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=10, help="Tasks (libero).", show_default="3")
    ] = None,
    auto_reset: Annotated[
        bool | None, typer.Option("--auto-reset", help="Environments reset by themselves.")
    ] = None,
    staggered: Annotated[
        bool | None, typer.Option("--staggered", help="First episodes begin at random phases.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Like cuda:0.", show_default="of the preset")
    ] = None,
    rollout_device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="A GPU of the rollouts' own.", show_default="as --device"),
    ] = None,
    rollout_process: Annotated[
        bool | None, typer.Option("--rollout-process", help="Rollouts in a process of their own.")
    ] = None,
    simulator_sm_percent: Annotated[
        int | None,
        typer.Option(metavar="PERCENT", min=1, max=100, help="The simulator's share of the SMs, by MPS."),
    ] = None,
    rollout_sm_percent: Annotated[
        int | None,
        typer.Option(metavar="PERCENT", min=1, max=100, help="The rollout process' share, by MPS."),
    ] = None,
    cuda_graph: Annotated[
        bool | None, typer.Option("--cuda-graph", help="Denoise steps run as CUDA graphs.")
    ] = None,
    train_pipe: Annotated[
        bool | None,
        typer.Option("--train-pipe", help="Train on an epoch before the next one is there."),
    ] = None,
    env_prefetch: Annotated[
        bool | None,
        typer.Option("--env-prefetch", help="Begin the next episodes while training runs."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.01, help="Longest time of a call of the simulator."),
    ] = None,
    sm_activity: Annotated[
        SmActivity, typer.Option(help="Measure SM activity; without a GPU the share of busy cores.")
    ] = SmActivity.AUTO,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Iterations between checkpoints.")
    ] = 10,
    graph: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A graph.json that rlprof optimize has selected.")
    ] = None,
    quotas: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A quotas.json that rlprof optimize has written.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in DIR.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there.")] = False,
    capture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The .rlprof file to record the iterations into.")
    ] = None,
) -> None:
    """Train a vision-language-action policy in a robot simulator.

    DIR/metrics.jsonl has a line for each iteration; a run that was ended goes on with --resume.
    """
    from rlprof.cli.console import progress_bar, write
    from rlprof.workloads.embodied.config import configure
    from rlprof.workloads.embodied.runner import run

    config = configure(
        preset.value,
        policy=policy.value,
        simulator=simulator.value,
        algorithm=algorithm.value,
        schedule=schedule.value,
        seed=seed,
        envs=envs,
        rollout_epochs=rollout_epochs,
        chunks=chunks,
        chunk_steps=chunk_steps,
        episode_steps=episode_steps,
        group=group,
        update_epochs=update_epochs,
        global_batch=global_batch,
        micro_batch=micro_batch,
        denoise_steps=denoise_steps,
        learning_rate=learning_rate,
        minibatch_scope=None if minibatch_scope is None else minibatch_scope.value,
        train=None if train is None else train.value,
        workers=workers,
        cameras=cameras,
        image=image,
        substeps=substeps,
        objects=objects,
        rendering=None if rendering is None else rendering.value,
        shadows=shadows,
        every_action=every_action,
        tasks=tasks,
        auto_reset=auto_reset,
        staggered=staggered,
        device=device,
        rollout_device=rollout_device,
        rollout_process=rollout_process,
        simulator_sm_percent=simulator_sm_percent,
        rollout_sm_percent=rollout_sm_percent,
        cuda_graph=cuda_graph,
        train_pipe=train_pipe,
        env_prefetch=env_prefetch,
        timeout_s=timeout,
    )
    if quotas is not None:
        from rlprof.workloads.embodied.quota_file import QuotaFile

        config = QuotaFile.read(quotas).apply(config)
    with progress_bar() as progress:
        summary = run(
            config,
            out,
            iterations,
            resume=resume,
            force=force,
            checkpoint_every=checkpoint_every,
            capture=capture,
            graph=graph,
            activity=sm_activity.value,
            progress=progress,
        )
    if not summary.rows:
        write(f"{out}: {summary.iterations} iterations are done already")
        return
    last = summary.rows[-1]
    rate = sum(r["simulator_steps"] for r in summary.rows) / sum(r["wall_s"] for r in summary.rows)
    write(
        f"{out}: {summary.iterations} iterations, return {last['return_mean']:.3f},"
        f" success {last['success_frac']:.1%}, {rate:,.0f} simulator steps/s"
    )
