"""What generated programs are made of: arithmetic in which every order shows, and boxes of state.

Nothing here knows of rlprof. Values are arrays of 64-bit integers that wrap around: elementwise, so the bits
of a sample's result do not depend on the size of its batch, and another input or order gives other bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

#: Columns of every array.
WIDTH = 3
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
_ROW = np.arange(1, WIDTH + 1, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)


class Fault(Exception):
    """Raised by a call of a generated program because it was asked to fail there."""


class Box:
    """A state object: one array, partitioned along its first axis if it has two."""

    def __init__(self, v: np.ndarray) -> None:
        self.v = v


class Pair(NamedTuple):
    """An output with names."""

    first: np.ndarray
    second: np.ndarray


class Probe:
    """Sees each unit of work (call and sample): writes them down, or makes one of them fail.

    Parameters
    ----------
    seen : list of (str, int) or None
        Written down if it is a list.
    armed : (str, int) or None
        The unit that fails.
    restless : bool
        Each call lets other threads go first, between what it reads and what it writes.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] | None = None
        self.armed: tuple[str, int] | None = None
        self.restless = False

    def __call__(self, method: str, values: np.ndarray) -> None:
        if self.restless:
            time.sleep(0)
        if self.seen is not None:
            self.seen += [(method, int(row)) for row in values.reshape(-1, values.shape[-1])[:, 0]]
        if self.armed is not None and method == self.armed[0] and bool((values == self.armed[1]).any()):
            raise Fault(method)


class Log:
    """The semantic record, kept by the program itself.

    Parameters
    ----------
    rollouts : list of (str, int, bytes)
        Method, its sample's input, and the weights that it used; without order.
    updates : list of (str, bytes)
        Method and the contents of its minibatch, in the order of the updates.
    """

    def __init__(self) -> None:
        self.rollouts: list[tuple[str, int, bytes]] = []
        self.updates: list[tuple[str, bytes]] = []

    def rollout(self, method: str, inputs: np.ndarray, weights: Box) -> None:
        used = weights.v.tobytes()
        self.rollouts += [(method, int(row), used) for row in inputs.reshape(-1, WIDTH)[:, 0]]

    def update(self, method: str, inputs: np.ndarray) -> None:
        self.updates.append((method, inputs.tobytes()))


def start(salt: int, *shape: int) -> np.ndarray:
    """First contents of an array of state, shape ``(*shape, WIDTH)``."""
    count = int(np.prod(shape, dtype=int)) * WIDTH
    rows = np.arange(count, dtype=np.uint64).reshape(*shape, WIDTH)
    return mix(salt, rows)


def mix(salt: int, *inputs: np.ndarray) -> np.ndarray:
    """Fold arrays of integers into one, elementwise and in order."""
    value = _ROW + np.uint64(salt)
    for array in inputs:
        value = value * _MULTIPLIER ^ (array + (value >> _SHIFT))
    return value


def plain_loop(iterations: Iterable[int]) -> Iterable[int]:
    """A loop that nobody watches."""
    return iterations


def digest(value: Any) -> Any:
    """Return nested lists, dicts and arrays as something that can be compared; arrays by their bits."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, dict):
        return {key: digest(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [digest(item) for item in value]
    return value


def names() -> dict[str, Any]:
    """Global names of a generated program, new ones for each."""
    exported: tuple[Callable[..., Any] | type, ...] = (Box, Pair, Fault, start, mix, plain_loop)
    return {item.__name__: item for item in exported} | {
        "np": np,
        "boxes": SimpleNamespace(),
        "probe": Probe(),
        "log": Log(),
    }


def rows_of_keys(keys: list[bytes]) -> np.ndarray:
    """Random keys of 16 bytes as numbers, shape (rows, 1)."""
    return np.frombuffer(b"".join(keys), dtype=np.uint64).reshape(-1, 2)[:, :1]
