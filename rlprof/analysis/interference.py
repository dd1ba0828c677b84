"""How much longer nodes take while others run beside them, fitted to recorded runs, with residuals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rlprof.unavailable import Unavailable

#: Share of the progress that is lost from which on a factor says nothing: more than fifty times as long.
NOTHING = 0.98


@dataclass(frozen=True)
class Ran:
    """One call of a node.

    Parameters
    ----------
    node : str
        Which.
    size : int
        Samples; calls of other sizes are other work.
    start_s, end_s : float
        When, in seconds.
    """

    node: str
    size: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Interference:
    """Factors of pairs of nodes.

    Parameters
    ----------
    factors : mapping of (str, str) to float
        By (node, other), at least 1: while `other` runs, `node` gets on at the rate 1 over the factor. A pair
        for which the fit says that `node` does not get on at all is left away: it overlaps too little.
    alone_s : mapping of (str, int) to float
        Median duration with nothing beside it, by node and size.
    calls : mapping of (str, str) to int
        Calls of the node that ran beside the other.
    residual_frac : mapping of str to float
        By node: median of |duration - model| as a share of the duration, over calls with something beside.
    """

    factors: Mapping[tuple[str, str], float]
    alone_s: Mapping[tuple[str, int], float]
    calls: Mapping[tuple[str, str], int]
    residual_frac: Mapping[str, float]


def interference(alone: Iterable[Ran], together: Iterable[Iterable[Ran]]) -> Interference | Unavailable:
    """Fit factors.

    Parameters
    ----------
    alone : iterable of Ran
        Calls with nothing beside them.
    together : iterable of iterable of Ran
        Runs in which calls overlap.

    Returns
    -------
    Interference or Unavailable
        Unavailable if no call of a node and size that is known alone ran beside another, or none for long
        enough.

    Notes
    -----
    While others run, a call loses the share ``s`` of its progress: ``duration = alone + sum over others of
    s(other) overlap(other)``, by least squares with every s between 0 and 1; the factor is ``1 / (1 - s)``.
    """
    base: dict[tuple[str, int], list[float]] = {}
    for call in alone:
        base.setdefault((call.node, call.size), []).append(call.end_s - call.start_s)
    alone_s = {key: float(np.median(times)) for key, times in base.items()}
    rows: dict[str, list[tuple[float, float, dict[str, float]]]] = {}
    for run in together:
        for call, overlaps in _beside(tuple(run)):
            known = alone_s.get((call.node, call.size))
            if known is not None and overlaps:
                rows.setdefault(call.node, []).append((call.end_s - call.start_s, known, overlaps))
    if not rows:
        return Unavailable("no call that is known alone ran beside another")
    factors: dict[tuple[str, str], float] = {}
    counts: dict[tuple[str, str], int] = {}
    residual: dict[str, float] = {}
    for node, found in rows.items():
        others = sorted({other for _, _, beside in found for other in beside})
        matrix = np.array([[beside.get(o, 0.0) for o in others] for _, _, beside in found])
        extra = np.array([taken - known for taken, known, _ in found])
        lost = _bounded(matrix, extra)
        durations = np.array([taken for taken, _, _ in found])
        left = np.abs(extra - matrix @ lost) / np.maximum(durations, 1e-12)
        residual[node] = float(np.median(left))
        for column, other in enumerate(others):
            beside = int((matrix[:, column] > 0).sum())
            if not beside or lost[column] >= NOTHING:
                continue
            factors[node, other] = float(1 / (1 - lost[column]))
            counts[node, other] = beside
    if not factors:
        return Unavailable("all calls that ran beside others did so for too short a time to tell")
    return Interference(factors, alone_s, counts, residual)


def _beside(run: tuple[Ran, ...]) -> Iterable[tuple[Ran, dict[str, float]]]:
    """Every call, and for how long each other node ran meanwhile."""
    calls = sorted(run, key=lambda c: c.start_s)
    found: list[dict[str, float]] = [{} for _ in calls]
    alive: list[int] = []
    for i, call in enumerate(calls):
        alive = [j for j in alive if calls[j].end_s > call.start_s]
        for j in alive:
            shared = min(call.end_s, calls[j].end_s) - call.start_s
            found[i][calls[j].node] = found[i].get(calls[j].node, 0.0) + shared
            found[j][call.node] = found[j].get(call.node, 0.0) + shared
        alive.append(i)
    return zip(calls, found, strict=True)


def _bounded(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Least squares with every unknown between 0 and 1, by coordinate descent (the problem is convex)."""
    found = np.zeros(matrix.shape[1])
    squares = (matrix**2).sum(axis=0)
    left = wanted.astype(float).copy()
    for _ in range(200):
        moved = 0.0
        for column in range(len(found)):
            if not squares[column]:
                continue
            new = found[column] + float(matrix[:, column] @ left) / squares[column]
            new = min(max(new, 0.0), 1.0)
            left -= (new - found[column]) * matrix[:, column]
            moved = max(moved, abs(new - found[column]))
            found[column] = new
        if moved < 1e-9:
            break
    return found
