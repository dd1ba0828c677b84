"""Numbers of GPUs: what a program calls ``cuda:0`` is not always the first one of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import takewhile

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
        The number; unavailable if the variable has no such GPU, or names it by a UUID that NVML does not know
        or that is no one GPU's, or a MIG instance.
    """
    index = int(device.partition(":")[2] or 0)
    text = environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if not text:
        return index
    listed = [name.strip() for name in text.split(",")]
    # what CUDA cannot read as a GPU ends its list
    seen = list(takewhile(lambda name: name.isdecimal() or name.startswith(("GPU-", "MIG-")), listed))
    if index >= len(seen):
        return Unavailable(f"CUDA_VISIBLE_DEVICES is {text[:60]!r}, which has no GPU for {device}")
    name = seen[index]
    if name.startswith("MIG-"):
        return Unavailable(f"{device} is a MIG instance: what is read is of the whole GPU around it")
    return int(name) if name.isdecimal() else _number_of_uuid(name)


def _number_of_uuid(name: str) -> int | Unavailable:
    try:
        import pynvml

        pynvml.nvmlInit()
        known = [
            pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number))
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
    except Exception as error:  # no library, no driver: it cannot be told
        return Unavailable(f"CUDA_VISIBLE_DEVICES names {name[:12]}, and NVML does not answer ({error})")
    found = [
        number
        for number, uuid in enumerate(known)
        if (uuid.decode() if isinstance(uuid, bytes) else uuid).startswith(name)
    ]
    if len(found) > 1:
        return Unavailable(f"CUDA_VISIBLE_DEVICES names {name[:12]}, which is more than one GPU")
    if not found:
        return Unavailable(f"CUDA_VISIBLE_DEVICES names {name[:12]}, which NVML does not know")
    return found[0]
