"""What is run: parts, sizes and options of a training run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from rlprof.expect import expect_seed
from rlprof.workloads.embodied import presets
from rlprof.workloads.embodied.algorithms import ALGORITHMS
from rlprof.workloads.embodied.devices import check_devices
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.policies.sizes import FAMILIES, PolicySize, Train, size_of
from rlprof.workloads.embodied.schedules import StageSchedule, schedule_named
from rlprof.workloads.embodied.simulators.core_turns import MOST_PLACES
from rlprof.workloads.embodied.simulators.rewards import REWARDS
from rlprof.workloads.embodied.value_types import check_value

SIMULATORS = ("mujoco_arm", "mujoco_warp", "libero")
SCHEDULES = ("colocated", "colocated-pipe", "hybrid", "hybrid-pipe", "async")
PRESETS = tuple(presets.VALUES)
Scope = Literal["rollout", "epoch"]


@dataclass(frozen=True)
class Config:
    """A training run.

    Parameters
    ----------
    policy, simulator, algorithm, schedule, preset : str
        Names.
    seed : int
        Of all random choices.
    envs, rollout_epochs, chunks, chunk_steps, episode_steps : int
        Environments; rollout epochs of an iteration; chunks of an epoch; actions of a chunk and an episode.
    group : int
        Environments that start alike.
    update_epochs, global_batch, micro_batch : int
        Passes over the samples; samples of an optimiser step and of one forward and backward pass.
    learning_rate, gamma, lam, clip : float
        Of training.
    minibatch_scope : {"rollout", "epoch"}
        Over what samples are shuffled and advantages normalised.
    auto_reset, staggered : bool
        Environments reset by themselves; their first episodes begin at random phases.
    workers : int
        Processes of the simulator; 0: in this process.
    phases : bool
        A chunk is physics, reward, reset and render, each a call of its own.
    cameras, image : int
        Cameras, and height and width of their images.
    reward : {"sparse", "dense"} or None
        For success alone, or for progress too; None: dense, but with `libero` sparse, as LIBERO has it.
    substeps, objects : int or None
        Of `mujoco_warp`: physics steps of an action, loose objects; None: as the simulator has it.
    rendering : {"egl", "egl-one", "osmesa"} or None
        Of `libero`: who draws, see `simulators.libero_start`; None: egl.
    painters : int or None
        Of `libero` with `egl-one`: how many processes draw; None: 1.
    shadows, every_action : bool or None
        Of `libero`: shadows and multisampling; images after every action of a chunk; None: as it has them.
    tasks : int or None
        Of `libero`: how many of its tasks; None: 3.
    device : str
        Where training computes, and the simulator if it uses a GPU; rollouts too, unless they have a device
        of their own.
    rollout_device : str or None
        A GPU of the rollouts' own: not with the schedules that are colocated.
    train_devices : str or None
        Where training computes, ``device`` first: ``"cuda:0,cuda:1"``; None: on `device`, and with the hybrid
        schedules on the rollouts' too.
    rollout_process : bool
        Rollouts have a process of their own: a CUDA context, and under MPS a share of the SMs, of its own.
    simulator_sm_percent, rollout_sm_percent : int or None
        Shares of the SMs, by MPS; None: half each where a hybrid schedule has one GPU, else all. That of a
        rollout without a process of its own is by green contexts; None: all.
    simulator_low_priority : bool
        The simulator's processes have a priority below normal among the clients of an MPS daemon.
    simulator_nice : int
        How much nicer than this process the simulator's processes are, 0 to 19: they leave the cores to the
        threads that launch kernels and wait for them.
    simulator_cores : int
        How many processes of all simulators of a run do physics at a time, first come, first served; 0: all.
        A graph may have two simulators at work, each with as many processes as there are cores.
    cuda_graph : bool
        Denoise steps run as CUDA graphs.
    compile_policy : bool
        Layers of answers are compiled by TorchInductor: of `pi0` of transformers.
    whole_answers : bool
        What follows the vision tower in an answer is one node in place of one for each phase: a graph of
        calls then waits for the device once, not after each of them. Not with a rollout process.
    prefix_worker : bool
        The backbone's pass over the prefix is a node of the vision tower's worker, not of the answer's: in a
        graph that of one group runs beside the denoise steps of another. Not with a rollout process.
    keep_prefix : bool
        Answers keep what the frozen backbone made (keys and values), and training uses it in place of making
        it anew: where training changes the expert alone.
    reset_ahead : bool
        Where a graph runs, simulators begin the next iteration's episodes while training runs.
    train_pipe : bool
        Training on an epoch may begin before the next one is there; needs the minibatch scope ``epoch``.
    env_prefetch : bool
        The next iteration's first episodes are begun while training runs.
    train : {"full", "expert", "lora"} or None
        What is trained; None: as the policy's size says.
    denoise_steps : int or None
        Of a flow head; None: as the policy's size says.
    timeout_s : float
        Longest time of a call of the simulator, in seconds.
    """

    policy: str = "pi0"
    simulator: str = "mujoco_arm"
    algorithm: str = "ppo"
    schedule: str = "colocated"
    preset: str = "tiny"
    seed: int = 0
    envs: int = 64
    rollout_epochs: int = 2
    chunks: int = 8
    chunk_steps: int = 5
    episode_steps: int = 40
    group: int = 1
    update_epochs: int = 4
    global_batch: int = 256
    micro_batch: int = 256
    learning_rate: float = 3e-4
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    minibatch_scope: Scope = "rollout"
    auto_reset: bool = False
    staggered: bool = False
    workers: int = 0
    phases: bool = False
    cameras: int = 0
    image: int = 64
    reward: str | None = None
    substeps: int | None = None
    objects: int | None = None
    rendering: str | None = None
    painters: int | None = None
    shadows: bool | None = None
    every_action: bool | None = None
    tasks: int | None = None
    device: str = "cpu"
    rollout_device: str | None = None
    train_devices: str | None = None
    rollout_process: bool = False
    simulator_sm_percent: int | None = None
    rollout_sm_percent: int | None = None
    simulator_low_priority: bool = False
    simulator_nice: int = 0
    simulator_cores: int = 0
    cuda_graph: bool = False
    compile_policy: bool = False
    whole_answers: bool = False
    prefix_worker: bool = False
    keep_prefix: bool = False
    reset_ahead: bool = False
    train_pipe: bool = False
    env_prefetch: bool = False
    train: Train | None = None
    denoise_steps: int | None = None
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        expect_seed(self.seed, error=ConfigurationError)
        for name, value in vars(self).items():
            check_value(Config, name, value)
        for name, value, known in (
            ("policy", self.policy, FAMILIES),
            ("simulator", self.simulator, SIMULATORS),
            ("algorithm", self.algorithm, ALGORITHMS),
            ("schedule", self.schedule, SCHEDULES),
            ("preset", self.preset, PRESETS),
            ("minibatch scope", self.minibatch_scope, ("rollout", "epoch")),
            ("reward", self.reward or REWARDS[0], REWARDS),
        ):
            if value not in known:
                raise ConfigurationError(f"no {name} is called {value!r}", hint=f"use {', '.join(known)}")
        if self.simulator != "mujoco_warp" and (self.substeps, self.objects) != (None, None):
            raise ConfigurationError(
                f"the simulator {self.simulator} has no substeps and no objects", hint="use mujoco_warp"
            )
        own = (self.rendering, self.shadows, self.every_action, self.tasks)
        if self.simulator != "libero" and any(value is not None for value in own):
            raise ConfigurationError(
                f"the simulator {self.simulator} has no rendering, shadows, every_action or tasks to choose",
                hint="use libero",
            )
        if self.painters is not None and not (
            self.rendering == "egl-one" and 1 <= self.painters <= self.envs
        ):
            raise ConfigurationError(
                f"{self.painters} painters for {self.envs} environments drawn by {self.rendering or 'egl'}",
                hint="use --rendering egl-one of libero, with 1 painter to as many as there are environments",
            )
        if self.staggered and not self.auto_reset:
            raise ConfigurationError(
                "staggered episodes need environments that reset by themselves",
                hint="use --auto-reset too, or leave --staggered away",
            )
        self._check_nice()
        check_devices(self)
        self._check_schedule()
        self._check_prefix()
        self._check_ahead()
        part = self.samples // (self.rollout_epochs if self.minibatch_scope == "epoch" else 1)
        if part % self.global_batch:
            raise ConfigurationError(
                f"{part} samples (envs x chunks{' x epochs' if self.minibatch_scope == 'rollout' else ''}) do"
                f" not make global batches of {self.global_batch}",
                hint="change envs, chunks or the global batch",
            )
        if self.global_batch % self.micro_batch:
            raise ConfigurationError(
                f"a global batch of {self.global_batch} is no multiple of the micro batch {self.micro_batch}",
                hint="use a multiple",
            )
        if self.stages > 1 and self.envs % (self.stages * self.group):
            raise ConfigurationError(
                f"{self.envs} environments do not make {self.stages} stages of whole groups of {self.group}",
                hint="use a multiple",
            )

    def _check_nice(self) -> None:
        if self.simulator_nice not in range(20):
            raise ConfigurationError(f"a nice value of {self.simulator_nice}", hint="give 0 to 19")
        if self.simulator_nice and not self.own_processes:
            raise ConfigurationError(
                f"the simulator is in this process, and cannot be nicer than it by {self.simulator_nice}",
                hint="leave --simulator-nice away, or give it processes with --workers",
            )
        if not 0 <= self.simulator_cores <= MOST_PLACES:
            raise ConfigurationError(
                f"{self.simulator_cores} cores", hint=f"give 0 for all, or a number up to {MOST_PLACES}"
            )
        if self.simulator_cores and (not self.own_processes or self.simulator == "mujoco_warp"):
            raise ConfigurationError(
                f"no processes of the simulator {self.simulator} do physics on the cores",
                hint="leave --simulator-cores away, or give mujoco_arm processes with --workers",
            )

    def _check_prefix(self) -> None:
        size = self.policy_size
        if self.prefix_worker and self.rollout_process:
            raise ConfigurationError(
                "a rollout process answers as a whole, and has no backbone to give to another worker",
                hint="leave --prefix-worker or --rollout-process away",
            )
        if self.whole_answers and self.rollout_process:
            raise ConfigurationError(
                "a rollout process answers as a whole anyway: its phases are no nodes",
                hint="leave --whole-answers or --rollout-process away",
            )
        if not self.keep_prefix:
            return
        if size.train != "expert" or size.family == "openvla_oft":
            raise ConfigurationError(
                f"a prefix that is kept would be out of date: training {size.train} of {size.family} changes"
                " what makes it",
                hint="leave --keep-prefix away, or train the expert of a flow policy alone (--train expert)",
            )
        if self.rollout_process or self.schedule == "async":
            where = (
                "in another process" if self.rollout_process else "for every epoch that waits for the actor"
            )
            raise ConfigurationError(
                f"prefixes that are kept would lie {where}", hint="leave --keep-prefix away"
            )

    def _check_ahead(self) -> None:
        if not self.reset_ahead:
            return
        if self.auto_reset:
            raise ConfigurationError(
                "environments that reset by themselves have no episodes to begin ahead",
                hint="leave --reset-ahead or --auto-reset away",
            )
        if not self.own_processes:
            raise ConfigurationError(
                "the simulator is in this process, and cannot begin episodes while training runs here",
                hint="leave --reset-ahead away, or give it processes with --workers",
            )

    def _check_schedule(self) -> None:
        schedule = self.stage_schedule
        if self.schedule == "async" and (self.train_pipe or self.env_prefetch):
            raise ConfigurationError(
                "the schedule async has neither a training pipe nor a prefetch: its rollouts never stop",
                hint="use a synchronous schedule",
            )
        if self.train_pipe and self.minibatch_scope != "epoch":
            raise ConfigurationError(
                "training on an epoch before the next one is there needs minibatches of single epochs",
                hint="use --minibatch-scope epoch",
            )
        if self.env_prefetch and schedule.offload:
            raise ConfigurationError(
                f"the schedule {self.schedule} offloads the simulator while training runs",
                hint="leave --env-prefetch away, or use colocated or colocated-pipe",
            )
        if self.env_prefetch and self.auto_reset:
            raise ConfigurationError(
                "environments that reset by themselves have no episodes to begin early",
                hint="leave --env-prefetch or --auto-reset away",
            )

    @property
    def stage_schedule(self) -> StageSchedule:
        """The schedule with its switches."""
        named = schedule_named(self.schedule)
        return replace(named, train_pipe=self.train_pipe, env_prefetch=self.env_prefetch)

    @property
    def own_processes(self) -> bool:
        """Whether the simulator is in processes of its own."""
        return self.workers > 0 or self.simulator in ("mujoco_warp", "libero")

    @property
    def actor_devices(self) -> tuple[str, ...]:
        """Where training computes; the first has the optimiser.

        RLinf's hybrid placement trains on the GPUs of both simulator and rollouts.
        """
        if self.train_devices is not None:
            return tuple(name.strip() for name in self.train_devices.split(","))
        answers = self.rollout_device or self.device
        both = self.stage_schedule.placement == "hybrid" and answers != self.device
        return (
            (self.device, answers) if both and 2 * self.micro_batch <= self.global_batch else (self.device,)
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Where anything computes: training, rollouts, and a simulator that uses CUDA."""
        return tuple(dict.fromkeys((*self.actor_devices, self.rollout_device or self.device)))

    @property
    def samples(self) -> int:
        """Chunks of all environments in an iteration."""
        return self.envs * self.chunks * self.rollout_epochs

    @property
    def simulator_steps(self) -> int:
        """Actions of all environments in an iteration."""
        return self.samples * self.chunk_steps

    @property
    def stages(self) -> int:
        """Pipeline stages: parts of the environments that take turns."""
        return 2 if self.schedule.endswith("pipe") else 1

    @property
    def policy_size(self) -> PolicySize:
        """Size of the policy."""
        size = size_of(self.policy, self.preset)
        steps = size.denoise_steps if self.denoise_steps is None else self.denoise_steps
        return replace(
            size,
            train=self.train or size.train,
            denoise_steps=steps if size.denoise_steps else 0,
            horizon=max(size.horizon, self.chunk_steps),
            image=self.image if self.cameras else size.image,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all values by name."""
        return asdict(self)


def configure(preset: str = "tiny", **values: Any) -> Config:
    """Return the configuration of a preset, with some values changed.

    Parameters
    ----------
    preset : {"tiny", "exact", "h200"}
        Sizes. `tiny` learns on a CPU; in `exact` answers do not depend on batches, so that every synchronous
        schedule gives the same bits; `h200` is for one GPU of 140 GB.
    **values
        Of `Config`; None leaves a value as it is.

    Raises
    ------
    ConfigurationError
        If there is no such preset or value, or values do not fit together.
    """
    if preset not in PRESETS:
        raise ConfigurationError(f"no preset is called {preset!r}", hint=f"use {', '.join(PRESETS)}")
    known = {f.name for f in fields(Config)}
    for name in values:
        if name not in known:
            raise ConfigurationError(f"no option is called {name!r}", hint=f"use {', '.join(sorted(known))}")
    chosen = {**presets.VALUES[preset], **{k: v for k, v in values.items() if v is not None}}
    if chosen.get("algorithm") == "grpo":
        largest = presets.LARGEST_GROUP[preset]
        chosen.setdefault("group", math.gcd(largest, chosen.get("envs", Config.envs) // 2))
    return Config(preset=preset, **chosen)
