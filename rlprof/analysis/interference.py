"""How much longer nodes take while others run beside them, fitted to recorded runs, with residuals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rlprof.unavailable import Unavailable

#: Share of the progress that is lost from which on a factor says nothing: more than fifty times as long.
NOTHING = 0.98
#: Fewer calls beside another say nothing: two may be alike by chance.
LEAST_CALLS = 3
#: A node that runs beside less than this share of a call is left out of its account: what a call takes more
#: for other reasons (a thread that is woken, a wait for the interpreter) is as long as that.
LEAST_SHARE_FRAC = 0.05
#: Twice the standard error of a factor may be this share of it; beyond, it is not told.
MOST_ERROR_FRAC = 0.25
#: A call runs alone if others run for less than this share of it.
ALONE_FRAC = 0.01

Floats = npt.NDArray[np.float64]


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
class Factor:
    """How much longer a node takes while others run.

    Parameters
    ----------
    node : str
        Which.
    beside : tuple of str
        While one of these runs; several where they cannot be told apart, since they run beside it in the same
        proportion in every call.
    factor : float
        At least 1: it gets on at the rate 1 over the factor.
    error_frac : float
        Twice the standard error, as a share of the factor.
    calls : int
        Calls of the node that ran beside one of them.
    beside_frac : float
        Share of these calls' time.
    """

    node: str
    beside: tuple[str, ...]
    factor: float
    error_frac: float
    calls: int
    beside_frac: float


@dataclass(frozen=True)
class Interference:
    """Factors of pairs of nodes.

    Parameters
    ----------
    found : tuple of Factor
        Those that can be told.
    untold : mapping of (str, str) to Unavailable
        Pairs that ran beside each other, and why their factor cannot be told.
    alone_s : mapping of (str, int) to float
        Median duration with nothing beside it, by node and size.
    residual_frac : mapping of str to float
        By node: median of |duration - model| as a share of the duration, over the calls that were fitted.
    """

    found: tuple[Factor, ...]
    untold: Mapping[tuple[str, str], Unavailable] = field(default_factory=dict)
    alone_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    residual_frac: Mapping[str, float] = field(default_factory=dict)

    @property
    def factors(self) -> dict[tuple[str, str], float]:
        """Factors by (node, other), where the other can be told from all others."""
        return {(f.node, f.beside[0]): f.factor for f in self.found if len(f.beside) == 1}

    @property
    def calls(self) -> dict[tuple[str, str], int]:
        """Calls of the node that ran beside the other, likewise."""
        return {(f.node, f.beside[0]): f.calls for f in self.found if len(f.beside) == 1}


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
        Unavailable if no call of a node and size that is known alone ran beside another, or no factor can be
        told.

    Notes
    -----
    While others run, a call loses the share ``s`` of its progress: ``duration = alone + sum over others of
    s(other) overlap(other)``, by least squares with every s between 0 and 1; the factor is ``1 / (1 - s)``.
    The standard error of s is that of least squares without bounds, with the error of the median of what is
    known alone. An other whose factor is not known to `MOST_ERROR_FRAC` is put together with the one that
    runs beside in the most similar proportion, until what is left can be told. A wait that is part of a call
    is taken for lost progress.
    """
    base: dict[tuple[str, int], list[float]] = {}
    for call in alone:
        base.setdefault((call.node, call.size), []).append(call.end_s - call.start_s)
    alone_s = {key: float(np.median(times)) for key, times in base.items()}
    rows: dict[str, list[_Row]] = {}
    for run in together:
        for call, overlaps in beside(tuple(run)):
            key = call.node, call.size
            if key in alone_s and overlaps:
                rows.setdefault(call.node, []).append(
                    _Row(call.end_s - call.start_s, alone_s[key], _error(base[key]), overlaps)
                )
    if not rows:
        return Unavailable("no call that is known alone ran beside another")
    found: list[Factor] = []
    untold: dict[tuple[str, str], Unavailable] = {}
    residual: dict[str, float] = {}
    for node, calls in rows.items():
        told, left, rest = _fit(node, calls)
        found += told
        untold.update(rest)
        if left is not None:
            residual[node] = left
    if not found:
        # one that ran beside for long enough, if there is one
        (node, other), why = max(untold.items(), key=lambda item: item[1].reason.startswith("the calls"))
        return Unavailable(f"no factor can be told, as of {node} beside {other}: {why.reason}")
    return Interference(tuple(found), untold, alone_s, residual)


def without_others(run: Sequence[Ran]) -> tuple[Ran, ...]:
    """Calls of a run with nothing beside them, but for `ALONE_FRAC` of their time."""
    return tuple(
        call
        for call, others in beside(tuple(run))
        if sum(others.values()) <= ALONE_FRAC * (call.end_s - call.start_s)
    )


@dataclass(frozen=True)
class _Row:
    """One call beside others: its duration, that alone and its error, overlaps by node; seconds."""

    time_s: float
    alone_s: float
    error_s: float
    overlaps: Mapping[str, float]


def _error(times: Sequence[float]) -> float:
    """Standard error of the median; 0 where one time leaves it unknown."""
    return 0.0 if len(times) < 2 else float(1.25 * np.std(times, ddof=1) / np.sqrt(len(times)))


def _fit(
    node: str, rows: Sequence[_Row]
) -> tuple[list[Factor], float | None, dict[tuple[str, str], Unavailable]]:
    """Factors of one node that can be told, its residual if anything was fitted, and why others cannot."""
    untold: dict[tuple[str, str], Unavailable] = {}
    taken = np.array([row.time_s for row in rows])
    extra = np.array([row.time_s - row.alone_s for row in rows])
    errors = np.array([row.error_s for row in rows])
    columns: dict[tuple[str, ...], Floats] = {}
    for other in sorted({name for row in rows for name in row.overlaps}):
        column = np.array([row.overlaps.get(other, 0.0) for row in rows])
        calls, share = int((column > 0).sum()), float(column.sum() / max(taken[column > 0].sum(), 1e-12))
        if share < LEAST_SHARE_FRAC:
            untold[node, other] = Unavailable(f"it ran for too short a time beside: {share:.1%} of the calls")
        elif calls < LEAST_CALLS:
            untold[node, other] = Unavailable(f"{calls} calls ran beside it; {LEAST_CALLS} are needed")
        else:
            columns[other,] = column
    # a call beside what is not told may be longer because of it
    hidden = [o for n, o in untold]
    odd = np.array([sum(row.overlaps.get(o, 0.0) for o in hidden) for row in rows]) > LEAST_SHARE_FRAC * taken
    use = ~odd
    for group in [n for n, c in columns.items() if int((c[use] > 0).sum()) < LEAST_CALLS]:
        untold[node, group[0]] = Unavailable("few calls ran beside it without others that cannot be told")
        del columns[group]
    while columns:
        matrix = np.column_stack([column[use] for column in columns.values()])
        lost = _bounded(matrix, extra[use])
        error, confused = _errors(matrix, extra[use], errors[use])
        error_frac = 2 * error / np.maximum(1 - lost, 1e-12)
        worst = int(np.argmax(error_frac))
        names = list(columns)
        if error_frac[worst] <= MOST_ERROR_FRAC or len(columns) == 1:
            break
        first, second = names[worst], names[int(confused[worst])]
        columns[tuple(sorted((*first, *second)))] = columns.pop(first) + columns.pop(second)
    if not columns:
        return [], None, untold
    left = np.abs(extra[use] - matrix @ lost) / np.maximum(taken[use], 1e-12)
    found = []
    for i, (group, column) in enumerate(columns.items()):
        reason = None
        if lost[i] >= NOTHING:
            reason = "it ran for too short a time beside: the calls lost more than that"
        elif error_frac[i] > MOST_ERROR_FRAC:
            reason = f"the calls differ too much: the factor is known to {error_frac[i]:.0%} only"
        if reason is not None:
            untold.update({(node, other): Unavailable(reason) for other in group})
            continue
        there = use & (column > 0)
        found.append(
            Factor(
                node,
                group,
                float(1 / (1 - lost[i])),
                float(error_frac[i]),
                int(there.sum()),
                float(min(1.0, column[there].sum() / taken[there].sum())),
            )
        )
    return sorted(found, key=lambda f: f.beside), float(np.median(left)), untold


def _errors(matrix: Floats, extra: Floats, alone: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Standard error of each share without bounds, and the column that each is most confused with."""
    count, width = matrix.shape
    square = matrix.T @ matrix
    inverse = np.linalg.pinv(square, hermitian=True)
    nothing = np.diag(square @ inverse) < 1 - 1e-6  # columns that others make up exactly
    free = inverse @ matrix.T @ extra
    spread = float(((extra - matrix @ free) ** 2).sum()) / max(count - width, 1)
    variance = spread * np.diag(inverse) + (inverse @ matrix.T @ alone) ** 2
    error = np.sqrt(np.maximum(variance, 0.0))
    error[nothing] = np.inf
    if count < width:
        error[:] = np.inf
    # by the angle between columns: what runs beside in the same proportion cannot be told apart
    length = np.sqrt(np.diag(square))
    cosine = square / np.outer(length, length)
    np.fill_diagonal(cosine, -1.0)
    return error, np.argmax(cosine, axis=1).astype(np.int64)


def beside(run: tuple[Ran, ...]) -> Iterable[tuple[Ran, dict[str, float]]]:
    """Every call, and for how long each other node ran meanwhile, in seconds."""
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


def _bounded(matrix: Floats, wanted: Floats) -> Floats:
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
