"""Makes the parts of a training run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rlprof.workloads.embodied.actor import Actor
from rlprof.workloads.embodied.algorithms import Grpo, Ppo
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.contracts import Algorithm, Simulator
from rlprof.workloads.embodied.env_worker import EnvWorker
from rlprof.workloads.embodied.errors import ConfigurationError, DeviceError, need
from rlprof.workloads.embodied.policies import make as make_policy
from rlprof.workloads.embodied.rollout_share import RolloutShare
from rlprof.workloads.embodied.rollout_worker import RolloutWorker
from rlprof.workloads.embodied.sharing import check_share, sharing
from rlprof.workloads.embodied.simulators.core_turns import CoreTurns
from rlprof.workloads.embodied.trainer import Trainer

if TYPE_CHECKING:
    from rlprof.workloads.embodied.rollout_process import RolloutProcess

_SIMULATORS = {
    "mujoco_arm": ("rlprof.workloads.embodied.simulators.mujoco_arm", "MujocoArm"),
    "mujoco_warp": ("rlprof.workloads.embodied.simulators.mujoco_warp", "MujocoWarp"),
}


def make_simulator(config: Config, cores: CoreTurns | None = None) -> Simulator:
    """Make the simulator, in this process or in processes of its own; the caller closes it.

    Parameters
    ----------
    config : Config
        Of the run.
    cores : CoreTurns, optional
        Places for the processes of all simulators of a run; see `core_turns`.

    Raises
    ------
    WorkloadError
        If it cannot be made: a package or GL is missing, a process does not start.
    """
    options: dict[str, Any] = {
        "seed": config.seed,
        "chunk_steps": config.chunk_steps,
        "episode_steps": config.episode_steps,
        "group": config.group,
        "cameras": config.cameras,
        "image": config.image,
        "auto_reset": config.auto_reset,
        "staggered": config.staggered,
        **({} if config.reward is None else {"reward": config.reward}),
    }
    if config.simulator == "libero":
        return _libero(config, options, cores)
    module, name = _SIMULATORS[config.simulator]
    if config.simulator == "mujoco_warp":
        return _mujoco_warp(f"{module}:{name}", config, options)
    if config.workers:
        from rlprof.workloads.embodied.simulators.processes import SimulatorProcesses

        return SimulatorProcesses(
            f"{module}:{name}",
            config.envs,
            workers=min(config.workers, config.envs),
            timeout_s=config.timeout_s,
            nice=config.simulator_nice,
            cores=cores,
            **options,
        )
    from importlib import import_module

    made: Simulator = getattr(import_module(module), name)(config.envs, **options)
    return made


def _libero(config: Config, options: dict[str, Any], cores: CoreTurns | None) -> Simulator:
    """In processes of another Python, always: LIBERO wants an older MuJoCo."""
    from rlprof.workloads.embodied.simulators import libero_start

    names = ("rendering", "painters", "shadows", "every_action", "tasks")
    chosen = {name: getattr(config, name) for name in names}
    return libero_start.start(
        config.envs,
        workers=min(max(config.workers, 1), config.envs),
        timeout_s=config.timeout_s,
        nice=config.simulator_nice,
        cores=cores,
        **{k: v for k, v in chosen.items() if v is not None},
        **options,
    )


def _mujoco_warp(make: str, config: Config, options: dict[str, Any]) -> Simulator:
    """All environments in one process, so that CUDA context and quota are the simulator's own."""
    from rlprof.workloads.embodied.simulators.processes import SimulatorProcesses

    chosen: dict[str, Any] = {"substeps": config.substeps, "objects": config.objects}
    return SimulatorProcesses(
        make,
        config.envs,
        workers=1,
        timeout_s=config.timeout_s,
        start_timeout_s=900.0,  # the first start compiles kernels
        python=os.environ.get("RLPROF_WARP_PYTHON"),
        # mujoco-warp renders without GL, which may be missing
        environment={"MUJOCO_GL": "disable", **sharing(config).simulator_environment},
        nice=config.simulator_nice,
        device=config.device,
        **{k: v for k, v in chosen.items() if v is not None},
        **options,
    )


def core_turns(config: Config) -> CoreTurns | None:
    """Places for the processes of all simulators of a run; None: no physics of theirs runs on the cores."""
    if config.simulator == "mujoco_warp" or not config.own_processes:
        return None
    return CoreTurns(config.simulator_cores)


def make_algorithm(config: Config) -> Algorithm:
    """Make the algorithm."""
    if config.algorithm == "grpo":
        return Grpo(config.group, config.clip)
    return Ppo(config.gamma, config.lam, config.clip)


def check_devices(config: Config) -> None:
    """Refuse devices that are not there, before anything is started.

    Raises
    ------
    ConfigurationError
        If a name is none of a processor or of a CUDA device.
    DeviceError
        If there is no such CUDA device.
    """
    torch = need("torch", why="a policy")
    for name in config.devices:
        kind, _, number = name.partition(":")
        if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
            raise ConfigurationError(f"{name!r} is no device", hint="use cpu or cuda:0")
        there = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
        if kind == "cuda" and int(number or 0) >= there:
            raise DeviceError(
                f"there is no device {name}: torch {torch.__version__} finds {there or 'no'} CUDA"
                f" device{'' if there == 1 else 's'}",
                hint="look at nvidia-smi and CUDA_VISIBLE_DEVICES, install torch for CUDA, use --device cpu",
            )


def make_trainer(config: Config) -> Trainer:
    """Make simulator, rollout worker and actor; the caller closes ``env.simulator``.

    Raises
    ------
    WorkloadError
        If a part cannot be made.
    """
    check_devices(config)
    sharing(config)  # refuses shares and priorities that nothing can have
    for device in config.devices:
        check_share(device)
    cores = core_turns(config)
    simulator = make_simulator(config, cores)
    try:
        size = config.policy_size
        if config.cuda_graph and not size.denoise_steps:
            raise ConfigurationError(
                f"{config.policy} has no denoise steps to capture", hint="leave --cuda-graph away"
            )
        own = make_policy(size, simulator.spec, seed=config.seed, device=config.device)
        actor = Actor(
            own,
            make_algorithm(config),
            learning_rate=config.learning_rate,
            global_batch=config.global_batch,
            micro_batch=config.micro_batch,
            seed=config.seed,
            others=[
                make_policy(size, simulator.spec, seed=config.seed, device=device)
                for device in config.actor_devices[1:]
            ],
        )
        env = EnvWorker(simulator, phases=config.phases, auto_reset=config.auto_reset, cores=cores)
        return Trainer(
            env,
            make_rollout_worker(config, simulator, actor),
            actor,
            config.rollout_epochs,
            config.chunks,
            config.update_epochs,
            config.minibatch_scope,
        )
    except BaseException:
        simulator.close()
        raise


def make_rollout_worker(config: Config, simulator: Simulator, actor: Actor) -> RolloutWorker | RolloutProcess:
    """Make a rollout worker, in a process of its own if the configuration says so; the caller closes it.

    It has the actor's weights, whatever its device makes of their seed.

    Raises
    ------
    WorkloadError
        If there is no memory for it, its process does not start, or its share of the SMs makes products of
        matrices wrong.
    GreenContextError
        If there is no share of the SMs within a process.
    """
    if config.rollout_process:
        from rlprof.workloads.embodied.rollout_process import RolloutProcess

        environment = sharing(config).rollout_environment
        return RolloutProcess(config, simulator.spec, actor, environment=environment)
    device = config.rollout_device or config.device
    policy = make_policy(config.policy_size, simulator.spec, seed=config.seed, device=device)
    share = RolloutShare.of(policy, device, config.rollout_sm_percent)
    policy.keeps_prefix = config.keep_prefix
    if config.compile_policy:
        policy.compile_layers()
    if config.cuda_graph:
        policy.capture()
    worker = RolloutWorker(policy, whole=config.whole_answers, apart=config.prefix_worker, share=share)
    worker.take_all(actor)  # random numbers of devices of two kinds differ
    return worker
