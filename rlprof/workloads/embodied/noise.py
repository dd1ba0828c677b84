"""Random numbers keyed by what they are for, so that order and grouping of calls never change them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from rlprof.workloads.embodied.contracts import Floats, Samples


def rows(batch: int, samples: Samples) -> npt.NDArray[np.int64]:
    """Indices of the rows of a batch: `samples`, or 0, 1, ..."""
    return np.arange(batch) if samples is None else np.asarray(samples, dtype=np.int64)


def generator(*key: int | str) -> np.random.Generator:
    """Return a generator (Philox) for a key; equal keys give equal numbers."""
    digest = hashlib.blake2b("\0".join(map(str, key)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def normal(key: tuple[int | str, ...], samples: npt.NDArray[np.int64], shape: tuple[int, ...]) -> Floats:
    """Draw standard normal float32 numbers, shape ``(len(samples), *shape)``, each sample by its own key."""
    out: npt.NDArray[Any] = np.empty((len(samples), *shape), dtype=np.float32)
    for row, sample in enumerate(samples):
        generator(*key, int(sample)).standard_normal(out=out[row], dtype=np.float32)
    return out


def permutation(key: tuple[int | str, ...], size: int) -> npt.NDArray[np.int64]:
    """Return a random order of ``0 .. size - 1``."""
    return generator(*key).permutation(size)
