"""What really shares which GPU in a run, and what has to be done for it: the label of its placement.

MPS divides SMs among processes that compute with CUDA: graphics contexts are outside it. Rollout and training
are one process (the driver) unless the rollout has one of its own. In one process the rollout's share is by
green contexts, and training has all SMs (`rlprof.workloads.embodied.rollout_share`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.errors import ConfigurationError, DeviceError, memory_of

if TYPE_CHECKING:
    from rlprof.overlap.quota.products import Products

#: Simulators that are CUDA clients; the others draw through a graphics context, or use no GPU.
CUDA_SIMULATORS = ("mujoco_warp",)
#: Share of simulator and of rollout where a hybrid schedule has one GPU: RLinf gives each half of the GPUs.
HALF_PERCENT = 50
PIPE, PERCENTAGE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#: Where clients look for a daemon that no variable names.
DEFAULT_PIPE = "/tmp/nvidia-mps"
#: Of a client, from its start: 0 is normal, 1 below that. There is none above normal.
PRIORITY, NORMAL, BELOW_NORMAL = "CUDA_MPS_CLIENT_PRIORITY", "0", "1"


@dataclass(frozen=True)
class Sharing:
    """See the module.

    Parameters
    ----------
    label : str
        For people and for metrics.
    simulator_percent, rollout_percent : int or None
        Shares of the SMs; None: all of them.
    simulator_low_priority : bool
        The simulator is a client of MPS of a priority below normal.
    """

    label: str
    simulator_percent: int | None = None
    rollout_percent: int | None = None
    simulator_low_priority: bool = False

    @property
    def simulator_environment(self) -> Mapping[str, str]:
        """Variables for the simulator's processes."""
        found = dict(_environment(self.simulator_percent))
        if self.simulator_low_priority:
            found[PRIORITY] = BELOW_NORMAL
        elif PRIORITY in os.environ:  # that of this process is no reason for the simulator to have it
            found[PRIORITY] = NORMAL
        return found

    @property
    def rollout_environment(self) -> Mapping[str, str]:
        """Variables for the rollout's process, if it has one of its own."""
        return _environment(self.rollout_percent)


def _environment(percent: int | None) -> Mapping[str, str]:
    return {} if percent is None else {PERCENTAGE: str(percent)}


def sharing(config: Config, environ: Mapping[str, str] = os.environ) -> Sharing:
    """Return how a run shares GPUs; parameters and errors as of `shares_of`."""
    found = shares_of(config, environ)
    if not config.simulator_low_priority:
        return found
    why = no_client_priority(config, environ)
    if why is not None:
        raise ConfigurationError(
            f"the simulator cannot have a low priority: {why}", hint="leave --simulator-low-priority away"
        )
    return replace(
        found, label=f"{found.label}; simulator below normal priority", simulator_low_priority=True
    )


def no_client_priority(config: Config, environ: Mapping[str, str] = os.environ) -> str | None:
    """Say why the simulator can have no priority among the clients of MPS; None if it can."""
    if config.simulator not in CUDA_SIMULATORS:
        return f"{config.simulator} is no CUDA client of MPS"
    return _why_none(config, environ)


def shares_of(config: Config, environ: Mapping[str, str] = os.environ) -> Sharing:
    """Return how a run shares GPUs.

    Parameters
    ----------
    config : Config
        Of the run.
    environ : mapping of str to str
        Of this process: says whether it is a client of an MPS daemon.

    Raises
    ------
    ConfigurationError
        If a share is asked for where there is none to be had.
    """
    kind, rollout = config.stage_schedule.placement, config.rollout_device or config.device
    why = _why_none(config, environ)
    simulator, answers = config.simulator_sm_percent, config.rollout_sm_percent
    asked = simulator is not None or answers is not None
    if why is not None and (simulator is not None or (answers is not None and config.rollout_process)):
        raise ConfigurationError(f"a share of the SMs cannot be given: {why}", hint="see rlprof mps start")
    if simulator is not None and config.simulator not in CUDA_SIMULATORS:
        raise ConfigurationError(
            f"{config.simulator} is no CUDA client, so MPS cannot limit it",
            hint=f"leave --simulator-sm-percent away, or use {', '.join(CUDA_SIMULATORS)}",
        )
    if kind != "colocated" and not config.device.startswith("cuda"):
        return Sharing(f"{kind}, sharing the processor")
    gpus = [d for d in config.devices if d.startswith("cuda")]
    if len(gpus) > 1:
        count = {2: "two"}.get(len(gpus), str(len(gpus)))
        label = (
            f"{kind} on {count} GPUs: simulator on {_simulator_place(config, environ)}, rollout on {rollout},"
            f" training on {' and '.join(config.actor_devices)}"
        )
        return Sharing(label + _shares(config, simulator, answers), simulator, answers)
    if kind == "colocated":
        label = "colocated" + (_shares(config, simulator, answers) if asked else "")
        return Sharing(label, simulator, answers)
    if why is None:
        if simulator is None and config.simulator in CUDA_SIMULATORS:
            simulator = HALF_PERCENT
        if answers is None and config.rollout_process:
            answers = HALF_PERCENT
        if simulator is None and not (answers is not None and config.rollout_process):
            why = f"{config.simulator} is no CUDA client, and rollout and training are one process"
    if why is not None:
        label = f"{kind}, time-sharing one GPU ({why})"
        return Sharing(label + _shares(config, simulator, answers), simulator, answers)
    label = f"{kind} on one GPU divided by MPS" + _shares(config, simulator, answers)
    return Sharing(label, simulator, answers)


def check_share(
    device: str,
    environ: Mapping[str, str] = os.environ,
    look: Callable[[str], Products] | None = None,
) -> None:
    """Refuse to compute with SMs by which matrix products are wrong; nothing is done without MPS.

    Parameters
    ----------
    device : str
        Where this process has a policy.
    environ : mapping of str to str
        Of this process: says whether it is a client of an MPS daemon.
    look : callable, optional
        Finds what is wrong; by default `rlprof.overlap.quota.products.check_products`.

    Raises
    ------
    DeviceError
        If some product is wrong, or cannot be computed. Its share is that of the process, from its start.
    """
    if not device.startswith("cuda") or not mps(environ):
        return
    from rlprof.overlap.quota.products import check_products

    found = looked_at(device, look or check_products)
    if found.wrong:
        raise DeviceError(
            f"a policy on {device} would compute other numbers than with all SMs: {found.told()}",
            hint="give it another share, or none: rlprof mps levels --check-products says which are right",
        )


def looked_at(device: str, look: Callable[[str], Products]) -> Products:
    """What is wrong with products of this process, or of the current stream.

    Raises
    ------
    DeviceError
        If they cannot be computed.
    """
    try:
        with memory_of(device):
            return look(device)
    except RuntimeError as error:  # of CUDA or cuBLAS
        first = (str(error).splitlines() or [""])[0][:200]
        raise DeviceError(
            f"whether matrix products on {device} are right with its share of the SMs cannot be told: they"
            f" cannot be computed ({first})",
            hint="give it another share, or none; look at rlprof mps status and nvidia-smi",
        ) from error


def _simulator_place(config: Config, environ: Mapping[str, str]) -> str:
    """Where the simulator works; graphics number GPUs in an order of their own, which may be another one."""
    if config.simulator in CUDA_SIMULATORS:
        return config.device
    backend = "egl" if config.simulator == "libero" else environ.get("MUJOCO_GL", "egl")
    if config.cameras and (config.rendering or backend).startswith("egl"):
        return f"the CPU, images by EGL device {environ.get('MUJOCO_EGL_DEVICE_ID', '0')}"
    return "the CPU"


def _shares(config: Config, simulator: int | None, answers: int | None) -> str:
    if simulator is None and answers is None:
        return ""
    world = "time-shared" if config.simulator not in CUDA_SIMULATORS else _share(simulator)
    if config.rollout_process:
        rest = f"rollout {_share(answers)}, training on all SMs"
    elif answers is None:
        rest = "rollout and training (one process) on all SMs"
    else:
        rest = f"rollout {_share(answers)} (a green context), training in its process on all SMs"
    return f": simulator {world}, {rest}"


def _share(percent: int | None) -> str:
    return "on all SMs" if percent is None else f"on {percent} % of the SMs"


def _why_none(config: Config, environ: Mapping[str, str]) -> str | None:
    if not config.device.startswith("cuda"):
        return "there is no GPU to divide"
    if not environ.get(PIPE) or not mps(environ):  # nobody meant a daemon that no variable names
        return "no MPS daemon"
    return None


def mps(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a daemon makes this process a client; one that no variable names is at its usual place."""
    return os.access(Path(environ.get(PIPE) or DEFAULT_PIPE) / "control", os.F_OK)  # never raises
