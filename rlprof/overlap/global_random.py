"""Generators of random numbers that belong to everybody: those of Python, numpy and torch modules.

Each has a position that every draw moves, so whoever draws from one updates it, declared or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rlprof.overlap.values import torch_module


def _numpy() -> Any:
    state: Any = np.random.get_state()
    return state[0], state[1].tobytes(), *state[2:]


def _torch() -> bytes | None:
    torch = torch_module()
    return None if torch is None else bytes(torch.get_rng_state().numpy().tobytes())


def _cuda() -> tuple[bytes, ...]:
    torch = torch_module()
    if torch is None or not torch.cuda.is_initialized():
        return ()
    return tuple(bytes(state.numpy().tobytes()) for state in torch.cuda.get_rng_state_all())


_SOURCES: dict[str, Callable[[], Any]] = {
    "random": random.getstate,
    "numpy.random": _numpy,
    "torch": _torch,
    "torch.cuda": _cuda,
}


class GlobalRandom:
    """Positions of the generators at one time.

    Parameters
    ----------
    names : iterable of str, optional
        Those to look at: "random", "numpy.random", "torch", "torch.cuda"; by default all.
    """

    def __init__(self, names: Iterable[str] | None = None) -> None:
        chosen = _SOURCES if names is None else sorted(names)
        self._seen = {name: _SOURCES[name]() for name in chosen}

    def moved(self) -> tuple[str, ...]:
        """Return the names of those from which somebody has drawn since the last look."""
        found = []
        for name, before in self._seen.items():
            now = _SOURCES[name]()
            if now != before and before not in (None, ()):  # torch, or CUDA, was not there yet
                found.append(name)
            self._seen[name] = now
        return tuple(found)
