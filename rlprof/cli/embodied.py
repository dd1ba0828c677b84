"""Options of embodied RL that several commands take: what is trained, and where it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlprof.cli.values import Seed

if TYPE_CHECKING:
    from rlprof.workloads.embodied.config import Config


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


class Reward(StrEnum):
    """What is rewarded."""

    SPARSE = "sparse"
    DENSE = "dense"


class Train(StrEnum):
    """What is trained."""

    FULL = "full"
    EXPERT = "expert"
    LORA = "lora"


def _number(meaning: str, least: int = 1) -> Any:
    return typer.Option(metavar="N", min=least, help=meaning, show_default="of the preset")


def options(
    *,
    policy: Annotated[Policy, typer.Option(help="The policy.")] = Policy.PI0,
    simulator: Annotated[Simulator, typer.Option(help="The simulator.")] = Simulator.MUJOCO_ARM,
    algorithm: Annotated[Algorithm, typer.Option(help="The algorithm.")] = Algorithm.PPO,
    schedule: Annotated[Schedule, typer.Option(help="What runs where and when.")] = Schedule.COLOCATED,
    preset: Annotated[Preset, typer.Option(help="tiny: learns on a CPU. exact: same bits.")] = Preset.TINY,
    seed: Seed = 0,
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
    phases: Annotated[
        bool | None,
        typer.Option("--phases", help="Physics, reward and rendering of a chunk are nodes of their own."),
    ] = None,
    cameras: Annotated[int | None, _number("Cameras.", 0)] = None,
    image: Annotated[int | None, typer.Option(metavar="PIXELS", min=1, help="Size of images.")] = None,
    reward: Annotated[
        Reward | None,
        typer.Option(help="Success alone, or progress too.", show_default="dense; libero: sparse"),
    ] = None,
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
    painters: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Processes that draw with egl-one.", show_default="1"),
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
    train_devices: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICES",
            help="Where training computes, like cuda:0,cuda:1.",
            show_default="--device; hybrid: the rollouts' too",
        ),
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
        typer.Option(
            metavar="PERCENT",
            min=1,
            max=100,
            help="The rollout's share of the SMs: of its process by MPS, else by green contexts.",
        ),
    ] = None,
    simulator_low_priority: Annotated[
        bool | None,
        typer.Option(
            "--simulator-low-priority/--no-simulator-low-priority",
            help="The simulator's processes are MPS clients of a priority below normal.",
        ),
    ] = None,
    simulator_nice: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=19,
            help="How much nicer the simulator's processes are: they leave the cores to the policy.",
            show_default="0",
        ),
    ] = None,
    simulator_cores: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="How many processes of all simulators do physics at a time, as of two in a graph; 0: all.",
            show_default="0",
        ),
    ] = None,
    cuda_graph: Annotated[
        bool | None,
        typer.Option("--cuda-graph/--no-cuda-graph", help="Denoise steps run as CUDA graphs."),
    ] = None,
    compile_policy: Annotated[
        bool | None,
        typer.Option(
            "--compile-policy/--no-compile-policy",
            help="Layers of answers are compiled by TorchInductor (pi0 of transformers).",
        ),
    ] = None,
    whole_answers: Annotated[
        bool | None,
        typer.Option("--whole-answers", help="What follows the vision tower in an answer is one node."),
    ] = None,
    prefix_worker: Annotated[
        bool | None,
        typer.Option(
            "--prefix-worker", help="The backbone is a node apart, beside another group's denoise steps."
        ),
    ] = None,
    keep_prefix: Annotated[
        bool | None,
        typer.Option("--keep-prefix", help="Training uses what the frozen backbone made for the answers."),
    ] = None,
    reset_ahead: Annotated[
        bool | None,
        typer.Option("--reset-ahead", help="By a graph: begin the next episodes while training runs."),
    ] = None,
    train_pipe: Annotated[
        bool | None,
        typer.Option("--train-pipe", help="Train on an epoch before the next one is there."),
    ] = None,
    env_prefetch: Annotated[
        bool | None,
        typer.Option("--env-prefetch", help="Begin the next episodes while training runs."),
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.01, help="Longest time of a call of the simulator."
        ),
    ] = None,
) -> None:
    """Carry the options: names are those of `Config`, None leaves a value to the preset."""


@dataclass(frozen=True)
class Given:
    """Values of the options that are of the workload.

    Parameters
    ----------
    preset : str
        Name.
    values : mapping of str to value
        Of `rlprof.workloads.embodied.config.Config`; those that were not given are not there.
    """

    preset: str
    values: Mapping[str, Any]

    def config(self, **further: Any) -> Config:
        """Return the configuration.

        Parameters
        ----------
        **further
            Values for what was not given.

        Raises
        ------
        ConfigurationError
            If values do not fit together, or one that was given would do nothing.
        """
        from rlprof.workloads.embodied.config import configure
        from rlprof.workloads.embodied.option_effects import check_options

        made = configure(self.preset, **{**further, **self.values})
        check_options(made, self.values)
        return made


def with_workload(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the workload to a command, behind its first one; it gets them as ``given``.

    Parameters
    ----------
    command : callable
        Its further parameters are options of its own.
    """
    shared = inspect.signature(options, eval_str=True).parameters
    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own["given"]
    first, *rest = own.values()
    parameters = [first, *shared.values(), *rest]

    def run(**values: Any) -> None:
        taken = {name: values.pop(name) for name in shared}
        named = {
            name: value.value if isinstance(value, StrEnum) else value
            for name, value in taken.items()
            if value is not None
        }
        command(given=Given(named.pop("preset"), named), **values)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    # typer asks for both
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
