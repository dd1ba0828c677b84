"""Tensors that leave an accelerator and come back, through page-locked memory of the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class HostCopies:
    """Page-locked buffers of tensors, made at the first offloading and kept: copies then run at full speed.

    A tensor stays the same object; its storage moves. Nothing is moved that is where it should be.
    """

    def __init__(self) -> None:
        self._host: dict[int, Any] = {}

    def offload(self, tensors: Iterable[Any]) -> None:
        """Move tensors to the host, and give their memory on the device back."""
        import torch

        devices = set()
        for tensor in tensors:
            if tensor.device.type == "cpu":
                continue
            devices.add(tensor.device)
            host = self._host.get(id(tensor))
            if host is None or host.shape != tensor.shape or host.dtype != tensor.dtype:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                self._host[id(tensor)] = host
            host.copy_(tensor.data, non_blocking=True)
            tensor.data = host  # memory of the device is used again only after the copy, in stream order
        for device in devices:
            torch.cuda.synchronize(device)

    def reload(self, tensors: Iterable[Any], device: str) -> None:
        """Move tensors to a device."""
        import torch

        moved = False
        for tensor in tensors:
            if tensor.device == torch.device(device):
                continue
            tensor.data = tensor.data.to(device, non_blocking=True)
            moved = True
        if moved and device.startswith("cuda"):
            torch.cuda.synchronize(device)  # the host's buffers may be written to again


def tensors_of(module: Any) -> list[Any]:
    """Parameters and buffers of a module, each once."""
    return [*module.parameters(), *module.buffers()]
