"""Generators of random numbers: where they are, and putting them back there.

Those that objects hold, and those that belong to everybody: of the modules of Python, numpy and torch. Each
has a position that every draw moves, so whoever draws from one updates it, declared or not.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rlprof.overlap.values import torch_module

_KINDS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
#: Generators of numpy whose state is a few numbers.
_NUMBERED = frozenset({"PCG64", "PCG64DXSM"})


def is_generator(value: Any) -> bool:
    """Whether a value is a generator of random numbers, of Python, numpy or torch."""
    if isinstance(value, _KINDS):
        return True
    torch = torch_module()
    return torch is not None and isinstance(value, torch.Generator)


def bit_generator(value: Any) -> Any:
    """Return what keeps the state of a generator of numpy."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator
    return value._bit_generator if isinstance(value, np.random.RandomState) else value


def state_of(value: Any) -> Any:
    """Return a copy of the state of a generator."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, np.random.Generator | np.random.BitGenerator):
        return copy.deepcopy(bit_generator(value).state)
    return _packed(value.get_state())


def set_state(value: Any, state: Any) -> None:
    """Put a generator into a state that `state_of` returned."""
    if isinstance(value, random.Random):
        value.setstate(state)
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)
    elif isinstance(value, np.random.Generator | np.random.BitGenerator):
        bit_generator(value).state = state
    else:
        value.set_state(_unpacked(state))


def position_of(value: Any) -> Any:
    """Return what changes when a generator is drawn from: equal for equal states."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.RandomState):
        return pickle.dumps(value.get_state())
    if isinstance(value, np.random.Generator | np.random.BitGenerator):
        state = bit_generator(value).state
        return state if state["bit_generator"] in _NUMBERED else pickle.dumps(state)
    return _packed(value.get_state())


def _packed(state: Any) -> bytes:
    return bytes(state.numpy().tobytes())


def _unpacked(state: bytes) -> Any:
    torch = torch_module()
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


# those that belong to everybody; None: torch, or CUDA, is not there yet


def _numpy() -> Any:
    state: Any = np.random.get_state()
    return state[0], state[1].tobytes(), *state[2:]


def _set_numpy(state: Any) -> None:
    np.random.set_state((state[0], np.frombuffer(state[1], dtype=np.uint32), *state[2:]))


def _torch() -> bytes | None:
    torch = torch_module()
    return None if torch is None else _packed(torch.get_rng_state())


def _set_torch(state: bytes) -> None:
    torch_module().set_rng_state(_unpacked(state))


def _cuda() -> tuple[bytes, ...] | None:
    torch = torch_module()
    if torch is None or not torch.cuda.is_initialized():
        return None
    return tuple(map(_packed, torch.cuda.get_rng_state_all()))


def _set_cuda(states: tuple[bytes, ...]) -> None:
    torch_module().cuda.set_rng_state_all([_unpacked(state) for state in states])


_SOURCES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "random": (random.getstate, random.setstate),
    "numpy.random": (_numpy, _set_numpy),
    "torch": (_torch, _set_torch),
    "torch.cuda": (_cuda, _set_cuda),
}


class GlobalRandom:
    """Positions of the generators that belong to everybody, at one time.

    Parameters
    ----------
    names : iterable of str, optional
        Those to look at: "random", "numpy.random", "torch", "torch.cuda"; by default all.
    """

    def __init__(self, names: Iterable[str] | None = None) -> None:
        chosen = _SOURCES if names is None else sorted(names)
        self._seen = {name: _SOURCES[name][0]() for name in chosen}

    def moved(self) -> tuple[str, ...]:
        """Return the names of those from which somebody has drawn since the last look."""
        found = []
        for name, before in self._seen.items():
            now = _SOURCES[name][0]()
            if now != before and before is not None:
                found.append(name)
            self._seen[name] = now
        return tuple(found)

    def restore(self) -> None:
        """Put them where they were at the last look."""
        for name, state in self._seen.items():
            if state is not None:
                _SOURCES[name][1](state)
