"""Numbers of GPUs: what a program calls ``cuda:0`` is not always the first one of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rlprof.unavailable import Unavailable


def gpu_number(device: str, environ: Mapping[str, str] = os.environ) -> int | Unavailable:
    """Return the number that `nvidia-smi`, NVML and samplers know a CUDA device of this process by.

    Parameters
    ----------
    device : str
        As PyTorch names it: ``"cuda"`` or ``"cuda:1"``.
    environ : mapping of str to str
        Of the process. ``CUDA_VISIBLE_DEVICES`` says which GPUs it sees, in which order; numbers there are
        taken as those of `nvidia-smi`, which they are if ``CUDA_DEVICE_ORDER`` is PCI_BUS_ID or all GPUs are
        alike.

    Returns
    -------
    int or Unavailable
        The number; unavailable if GPUs are named by UUID and NVML does not know the name.
    """
    index = int(device.partition(":")[2] or 0)
    listed = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if not any(listed) or index >= len(listed):
        return index
    name = listed[index]
    return int(name) if name.isdigit() else _number_of_uuid(name)


def _number_of_uuid(name: str) -> int | Unavailable:
    try:
        import pynvml

        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            known = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number))
            if (known.decode() if isinstance(known, bytes) else known).startswith(name):
                return number
    except Exception as error:  # no library, no driver: it cannot be told
        return Unavailable(f"CUDA_VISIBLE_DEVICES names {name[:12]}, and NVML does not answer ({error})")
    return Unavailable(f"CUDA_VISIBLE_DEVICES names {name[:12]}, which NVML does not know")
