"""Generators of random numbers that objects hold: their states, and putting these back."""

from __future__ import annotations

import copy
import random
import sys
from typing import Any

import numpy as np


def is_generator(value: Any) -> bool:
    """Whether a value is a generator of random numbers, of Python, numpy or torch."""
    if isinstance(
        value, np.random.Generator | np.random.RandomState | np.random.BitGenerator | random.Random
    ):
        return True
    torch = sys.modules.get("torch")
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
    return value.get_state().clone().numpy().tobytes()


def set_state(value: Any, state: Any) -> None:
    """Put a generator into a state that `state_of` returned."""
    if isinstance(value, random.Random):
        value.setstate(state)
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)
    elif isinstance(value, np.random.Generator | np.random.BitGenerator):
        bit_generator(value).state = state
    else:
        torch = sys.modules["torch"]
        value.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
