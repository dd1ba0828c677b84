"""Which devices a training run may have, and how they may be shared: checks of its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlprof.workloads.embodied.errors import ConfigurationError

if TYPE_CHECKING:
    from rlprof.workloads.embodied.config import Config


def check_devices(config: Config) -> None:
    """See that devices, and shares of their SMs, fit the schedule and the processes of a run.

    Raises
    ------
    ConfigurationError
        If they do not.
    """
    answers = config.rollout_device or config.device
    if config.cuda_graph and not answers.startswith("cuda"):
        raise ConfigurationError(
            f"CUDA graphs need a CUDA device, and rollouts compute on {answers}",
            hint="leave --cuda-graph away, or use --device cuda:0",
        )
    if config.compile_policy and not config.policy_size.transformers:
        raise ConfigurationError(
            f"layers of {config.policy} are not compiled in the preset {config.preset}",
            hint="leave --compile-policy away, or use --policy pi0 --preset h200",
        )
    for name, share in (
        ("simulator", config.simulator_sm_percent),
        ("rollout", config.rollout_sm_percent),
    ):
        if share is not None and not 1 <= share <= 100:
            raise ConfigurationError(f"a share of {share} % for the {name}", hint="give 1 to 100")
    if config.rollout_sm_percent is not None and not answers.startswith("cuda"):
        raise ConfigurationError(
            f"{answers} has no SMs of which rollouts could have a share",
            hint="leave --rollout-sm-percent (or --quotas) away, or use --device cuda:0",
        )
    if answers != config.device and config.schedule.startswith("colocated"):
        raise ConfigurationError(
            f"the schedule {config.schedule} has rollouts and training on the same GPU,"
            f" not on {config.rollout_device} and {config.device}",
            hint="leave --rollout-device away, or use hybrid, hybrid-pipe or async",
        )
    _check_train_devices(config, answers)


def _check_train_devices(config: Config, answers: str) -> None:
    if config.train_devices is None:
        return
    devices = config.actor_devices
    if devices[0] != config.device:
        raise ConfigurationError(
            f"training computes on {config.device} first, and --train-devices begins with {devices[0]}",
            hint=f"let it begin with {config.device}, or change --device",
        )
    gpus = [d for d in devices if d.startswith("cuda")]
    if len(gpus) != len(set(gpus)):
        raise ConfigurationError(
            f"a GPU is twice in --train-devices {config.train_devices}", hint="name each once"
        )
    if len(devices) > 1 and len(devices) * config.micro_batch > config.global_batch:
        raise ConfigurationError(
            f"a global batch of {config.global_batch} has no micro batch of {config.micro_batch} for each of"
            f" {len(devices)} devices",
            hint="use smaller micro batches, or fewer devices",
        )
    if config.schedule == "async" and answers != config.device and answers in devices:
        raise ConfigurationError(
            f"with async rollouts never stop, so that training has no time of its own on {answers}",
            hint="leave it out of --train-devices, or use hybrid",
        )
