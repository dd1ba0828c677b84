"""Random draws that do not depend on order or grouping.

Every sample of every call has a stream of its own, keyed by the seed, the node, the iterations around it, the
sample and the number of the draw within the call. So a batch may be cut, its parts run in any order, and
iterations overlap, and every sample still gets the same numbers (Rose is silent on randomness; the key by
*sample* is what makes a spatial split exact).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlprof.overlap.context import _current
from rlprof.overlap.errors import OverlapError
from rlprof.text import counted

Floats = npt.NDArray[np.floating[Any]]


def _axes(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Shape of one sample: a number is one axis, as for numpy."""
    return (shape,) if isinstance(shape, int) else tuple(shape)


class Draws:
    """Keyed random numbers, a row for each sample.

    Parameters
    ----------
    seed : int
        Of the whole program.
    name : str
        Tells several `Draws` of one seed apart.

    Notes
    -----
    Within a node the key of a draw is (seed, name, label of the call, sample, number of the draw in the
    call). Outside of every node it is the number of draws so far, as with an ordinary generator; such draws
    depend on the order in which they are made.
    """

    def __init__(self, seed: int, name: str = "") -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise OverlapError(f"a seed of type {type(seed).__name__}", hint="give a whole number")
        self.seed = seed
        self.name = name
        self._outside = itertools.count()

    def keys(self, batch_size: int, samples: Sequence[int] | npt.NDArray[Any] | None = None) -> list[bytes]:
        """Return a 16-byte key for each sample; counts as one draw of the running call.

        Parameters
        ----------
        batch_size : int
            Rows wanted.
        samples : sequence of int, optional
            Positions of the rows in the native batch. By default those of the running call, or 0, 1, ...

        Raises
        ------
        OverlapError
            If the number of samples is not `batch_size`.
        """
        context = _current.get()
        if context is None:
            label, draw = "", next(self._outside)
        else:
            label, draw = context.label, context.draws
            context.draws += 1
            if samples is None:
                samples = context.samples
        rows = range(batch_size) if samples is None else [int(s) for s in samples]
        if len(rows) != batch_size:
            where = f"call {label}" if label else "a draw outside of every node"
            raise OverlapError(
                f"{where} draws for {counted(batch_size, 'sample')} and works on {len(rows)}",
                hint="pass the samples that the rows belong to",
            )
        text = f"{self.seed}\0{self.name}\0{label}\0{draw}\0"
        base = hashlib.blake2b(text.encode(), digest_size=16)
        keys = []
        for sample in rows:
            one = base.copy()
            one.update(str(sample).encode())
            keys.append(one.digest())
        return keys

    def generators(
        self, batch_size: int, samples: Sequence[int] | npt.NDArray[Any] | None = None
    ) -> list[np.random.Generator]:
        """Return one numpy generator (Philox) for each sample; arguments as for `keys`."""
        return [
            np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
            for key in self.keys(batch_size, samples)
        ]

    def normal(
        self,
        batch_size: int,
        shape: int | tuple[int, ...] = (),
        *,
        samples: Sequence[int] | npt.NDArray[Any] | None = None,
    ) -> Floats:
        """Standard normal numbers, shape ``(batch_size, *shape)``; arguments as for `keys`."""
        out = np.empty((batch_size, *_axes(shape)))
        for row, generator in enumerate(self.generators(batch_size, samples)):
            out[row] = generator.standard_normal(shape)
        return out

    def uniform(
        self,
        batch_size: int,
        shape: int | tuple[int, ...] = (),
        *,
        samples: Sequence[int] | npt.NDArray[Any] | None = None,
    ) -> Floats:
        """Numbers in [0, 1), shape ``(batch_size, *shape)``; arguments as for `keys`."""
        out = np.empty((batch_size, *_axes(shape)))
        for row, generator in enumerate(self.generators(batch_size, samples)):
            out[row] = generator.random(shape)
        return out

    def integers(
        self,
        batch_size: int,
        low: int,
        high: int,
        shape: int | tuple[int, ...] = (),
        *,
        samples: Sequence[int] | npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Whole numbers in [low, high), shape ``(batch_size, *shape)``; arguments as for `keys`."""
        out = np.empty((batch_size, *_axes(shape)), dtype=np.int64)
        for row, generator in enumerate(self.generators(batch_size, samples)):
            out[row] = generator.integers(low, high, shape)
        return out

    def torch_generators(
        self,
        batch_size: int,
        samples: Sequence[int] | npt.NDArray[Any] | None = None,
        *,
        device: str = "cpu",
    ) -> list[Any]:
        """Return one ``torch.Generator`` for each sample; other arguments as for `keys`.

        Parameters
        ----------
        device : str
            Of the generators. Numbers of different devices differ; those of GPUs of one kind also where
            their processes have different numbers of SMs, under quotas of MPS: CPU generators do not.
        """
        import torch

        made = []
        for key in self.keys(batch_size, samples):
            generator = torch.Generator(device=device)
            generator.manual_seed(int.from_bytes(key[:8], "little") >> 1)  # torch takes 63 bits
            made.append(generator)
        return made

    def torch_normal(
        self,
        batch_size: int,
        shape: int | tuple[int, ...] = (),
        *,
        samples: Sequence[int] | npt.NDArray[Any] | None = None,
        device: str = "cpu",
    ) -> Any:
        """Standard normal numbers as a float32 tensor, shape ``(batch_size, *shape)``.

        Arguments as for `torch_generators`.
        """
        import torch

        generators = self.torch_generators(batch_size, samples, device=device)
        rows = [torch.randn(_axes(shape), generator=g, device=device) for g in generators]
        return torch.stack(rows) if rows else torch.empty((0, *_axes(shape)), device=device)
