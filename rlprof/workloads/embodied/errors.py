"""What can go wrong in a workload; each error says what to install or change."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlprof.errors import RlprofError, UsageError


class WorkloadError(RlprofError):
    """A workload that cannot run as asked."""


class MissingPackageError(WorkloadError):
    """A package that a workload needs is not installed, or does not load."""


class RenderError(WorkloadError):
    """Camera images are asked for and cannot be made on this machine."""


class SimulatorError(WorkloadError):
    """A simulator failed."""


class SimulatorDeviceError(SimulatorError):
    """The device of a simulator is not there, or has too little memory."""


class SimulatorDiedError(SimulatorError):
    """A process of a simulator ended by itself."""


class SimulatorTimeoutError(SimulatorError):
    """A process of a simulator did not answer in time; it was ended."""


class RolloutError(WorkloadError):
    """The process of the rollout worker failed."""


class RolloutDiedError(RolloutError):
    """The process of the rollout worker ended by itself."""


class RolloutTimeoutError(RolloutError):
    """The process of the rollout worker did not answer in time; it was ended."""


class DeviceError(WorkloadError):
    """A device of training or rollouts is not there, or has too little memory."""


class CheckpointError(WorkloadError):
    """A checkpoint cannot be read, or belongs to another run."""


class ConfigurationError(UsageError, WorkloadError):
    """Sizes or options that do not fit together."""


#: What is said of memory that there is not, besides torch's own error: of CUDA's context, cuBLAS, the host.
_NO_MEMORY = ("out of memory", "ALLOC_FAILED", "can't allocate memory")


def no_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a device, or of the host, is too small."""
    told = isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
    return told or isinstance(error, MemoryError)


@contextmanager
def memory_of(where: str) -> Iterator[None]:
    """Turn a failure for want of memory in the block into one that says what to change.

    Parameters
    ----------
    where : str
        Devices that the block computes on.

    Raises
    ------
    DeviceError
        In place of what torch, CUDA or numpy raise then.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not no_memory(error):
            raise
        first = (str(error).splitlines() or [""])[0][:200]
        raise DeviceError(
            f"the memory of {where} is too small ({first})",
            hint="use fewer environments, smaller images, micro batches or policies; what else uses the"
            " device is shown by nvidia-smi",
        ) from error


def need(module: str, *, package: str = "rlprof[workloads]", why: str = "") -> Any:
    """Import a module that a workload needs.

    Parameters
    ----------
    module : str
        Its name.
    package : str
        What to install.
    why : str
        What needs it.

    Raises
    ------
    MissingPackageError
        If it is not installed, or fails to load.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        purpose = f", which {why} needs," if why else ""
        raise MissingPackageError(
            f"the module {module}{purpose} does not load ({error})", hint=f'pip install "{package}"'
        ) from error
