"""The memory that a simulator's (or the rollout's) process shares with its driver: all arrays of its calls.

It has no name (`memfd_create`): the kernel frees it when the last process that has it ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

import numpy as np

from rlprof.workloads.embodied.contracts import Array, SimulatorSpec

_ALIGN = 64


def layout(spec: SimulatorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every array in the block of a simulator."""
    n, chunk = spec.envs, spec.chunk_steps
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {
        "rows": ("int64", (n,)),
        "actions": ("float32", (n, chunk, spec.action_dim)),
        "state": ("float32", (n, spec.state_dim)),
        "task": ("int64", (n,)),
        "rewards": ("float32", (n, chunk)),
        "dones": ("bool", (n,)),
        "success": ("bool", (n,)),
    }
    if spec.cameras:
        arrays["images"] = ("uint8", (n, spec.cameras, spec.height, spec.width, 3))
    if spec.view_dim:
        arrays["views"] = ("float64", (n, spec.view_dim))
    return arrays


Layout = Mapping[str, tuple[str, tuple[int, ...]]]


def size_bytes(spec: SimulatorSpec | Layout) -> int:
    """Size of the block of a simulator, or of arrays of any types and shapes."""
    return _offsets(_layout(spec))[1]


def _layout(spec: SimulatorSpec | Layout) -> Layout:
    return layout(spec) if isinstance(spec, SimulatorSpec) else spec


def _offsets(arrays: Layout) -> tuple[dict[str, int], int]:
    at, offsets = 0, {}
    for name, (dtype, shape) in arrays.items():
        offsets[name] = at
        at += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // _ALIGN) * _ALIGN
    return offsets, max(at, _ALIGN)


def make(spec: SimulatorSpec | Layout) -> int:
    """Make a block; its file descriptor, which the caller closes.

    Raises
    ------
    OSError
        If there is not enough memory.
    """
    block = os.memfd_create("rlprof simulator")
    try:
        os.posix_fallocate(block, 0, size_bytes(spec))
    except OSError:
        os.close(block)
        raise
    return block


def arrays(block: int, spec: SimulatorSpec | Layout) -> Mapping[str, Array]:
    """Map a block: arrays by name, shared with whoever else maps it."""
    memory, chosen = mmap.mmap(block, size_bytes(spec)), _layout(spec)
    offsets, _ = _offsets(chosen)
    return {
        name: np.frombuffer(memory, dtype, int(np.prod(shape)), offsets[name]).reshape(shape)
        for name, (dtype, shape) in chosen.items()
    }
