"""How far the clocks of two captures differ, judged by the collectives that both took part in.

A collective that every rank waits in (all-reduce, all-gather, reduce-scatter) cannot end on one rank before
it has started on all others. Each one that two captures share so bounds the offset between their clocks,
whatever their wall clocks say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

# In a broadcast, reduce or send one side may leave early: those bound nothing in one direction.
_WAITS_FOR_ALL = re.compile(r"(all_?reduce|all_?gather|reduce_?scatter)", re.IGNORECASE)
_NCCL = r"(?i)nccl|rccl"
MIN_MATCHES = 3
#: Bounds that contradict each other by more than this come of collectives that do not belong together.
MAX_CONTRADICTION_NS = 1_000_000


@dataclass(frozen=True)
class Collectives:
    """The collectives of one capture, stream by stream in the order in which they started.

    Parameters
    ----------
    kind : tuple of (int, str)
        Stream, and ``allreduce``, ``allgather`` or ``reducescatter``. One stream serves one communicator, and
        frameworks number them alike on every rank.
    start_ns, end_ns : ndarray of int64
        In the common clock.
    """

    kind: tuple[tuple[int, str], ...]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class Skew:
    """What common collectives tell about the offset between two clocks.

    Parameters
    ----------
    matched : int
        Collectives compared.
    ahead_ns : int
        Median of how much later the second clock shows the end of the same collective.
    low_ns, high_ns : int
        Bounds of what must be subtracted from the second clock.
    """

    matched: int
    ahead_ns: int
    low_ns: int
    high_ns: int

    @property
    def bound_ns(self) -> int:
        """Largest error that the two clocks can have against each other."""
        return max(abs(self.low_ns), abs(self.high_ns))


def collectives(kernels: pl.DataFrame) -> Collectives:
    """Find the collectives that every rank waits in.

    Parameters
    ----------
    kernels : polars.DataFrame
        Columns ``start_ns``, ``end_ns``, ``stream``, ``name``.

    Returns
    -------
    Collectives
        May be empty.
    """
    name = pl.col("name").cast(pl.String)
    rows = (
        kernels.select("start_ns", "end_ns", "stream", name)
        .filter(
            pl.col("name").str.contains(_NCCL) & pl.col("name").str.contains(f"(?i){_WAITS_FOR_ALL.pattern}")
        )
        .sort("stream", "start_ns", "end_ns")
    )
    kinds = []
    for stream, text in rows.select("stream", "name").iter_rows():
        found = _WAITS_FOR_ALL.search(text)
        kinds.append((stream, found.group(1).lower().replace("_", "") if found else ""))
    return Collectives(tuple(kinds), rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())


def skew(first: Collectives, second: Collectives) -> Skew | None:
    """Bound the offset between two clocks.

    The n-th collective on a stream of one capture is taken for the n-th on that stream of the other, which
    holds when both show the same sequences; otherwise nothing can be said.

    Parameters
    ----------
    first, second : Collectives
        Of two captures of one run.

    Returns
    -------
    Skew or None
        None if fewer than `MIN_MATCHES` are common, the sequences differ, or the bounds contradict each
        other (then they are not the same collectives).
    """
    if len(first) < MIN_MATCHES or first.kind != second.kind:
        return None
    low = int((second.start_ns - first.end_ns).max())
    high = int((second.end_ns - first.start_ns).min())
    if low > high + MAX_CONTRADICTION_NS:
        return None
    return Skew(
        matched=len(first),
        ahead_ns=int(np.median(second.end_ns - first.end_ns)),
        low_ns=min(low, high),
        high_ns=max(low, high),
    )
