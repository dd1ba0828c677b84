"""F_peak, BW_mem, gamma_M and gamma_K: fitted through min(F_peak eta, I BW_mem), as the cost model uses them.

The products of the sweep and the transformer have peaks of their own (a transformer also normalises, rotates
and attends) and share gammas and bandwidth. F_peak is the transformer's. As eta is part of what is fitted,
F_peak is what the rate would be without it, and no effect counts twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.estimate import (
    Estimate,
    Residual,
    Vector,
    interval,
    refitted,
    resampled,
    robust_fit,
)
from rlprof.planning.calibration.observation import Observation
from rlprof.planning.calibration.predict import passes_of

#: Where BW_mem comes from: copies alone, as the paper has it, or all that is bound by memory, decode steps
#: above all.
Bandwidth = Literal["copies", "everything"]
#: Copies of less than this share of the largest one may fit into a cache.
LARGE_COPY_FRAC = 1 / 16
#: Gammas are looked for up to this, in rows and columns: no product that is measured has more.
MOST_GAMMA = 65_536.0


@dataclass(frozen=True)
class ComputeFit:
    """Constants of matrix products and memory.

    Parameters
    ----------
    peak_flops, gemm_peak_flops : Estimate
        F_peak of the transformer, and of single products; in FLOP/s.
    memory_bandwidth : Estimate
        BW_mem, in byte/s.
    gamma_m, gamma_k : Estimate
        In rows and columns.
    bandwidth : str
        Where BW_mem comes from.
    residuals : tuple of Residual
        Of all measurements behind it.
    """

    peak_flops: Estimate
    gemm_peak_flops: Estimate
    memory_bandwidth: Estimate
    gamma_m: Estimate
    gamma_k: Estimate
    bandwidth: Bandwidth
    residuals: tuple[Residual, ...]

    @property
    def values(self) -> dict[str, float]:
        """By the names of the hardware file."""
        names = ("peak_flops", "memory_bandwidth", "gamma_m", "gamma_k")
        return {name: getattr(self, name).value for name in names}


@dataclass(frozen=True)
class _Table:
    """All passes of all measurements, as columns."""

    owner: NDArray[np.intp]
    work: Vector
    intensity: Vector
    rows: Vector
    width: Vector
    single: NDArray[np.bool_]
    moved_bytes: Vector
    measured_s: Vector
    weight: Vector

    def times(self, parameters: Vector) -> Vector:
        """Seconds of each measurement; parameters are log F, log F of products, log BW, gamma_M, gamma_K."""
        peak, single_peak, memory = np.exp(parameters[:3])
        gamma_m, gamma_k = parameters[3:]
        eta = self.rows / (self.rows + gamma_m) * self.width / (self.width + gamma_k)
        rate = np.minimum(np.where(self.single, single_peak, peak) * eta, self.intensity * memory)
        total = np.bincount(self.owner, self.work / rate, len(self.measured_s))
        return np.asarray(total + self.moved_bytes / memory)


def copy_rate(observed: Observation) -> float:
    """Bytes read and written per second."""
    return 2.0 * float(observed.key["bytes"]) / observed.seconds


def large_copies(copies: Sequence[Observation]) -> list[Observation]:
    """Those that are too large for a cache."""
    most = max((int(o.key["bytes"]) for o in copies), default=0)
    return [o for o in copies if int(o.key["bytes"]) >= LARGE_COPY_FRAC * most]


def fit_copies(copies: Sequence[Observation], *, draws: int = 100, seed: int = 0) -> Estimate:
    """BW_mem of large copies: the median of their rates.

    Raises
    ------
    CalibrationError
        If there is none.
    """
    if not copies:
        raise CalibrationError(
            "no copy was measured: there is no memory_bandwidth", hint="measure the part kernels"
        )
    large = large_copies(copies)
    rates = np.array([copy_rate(o) for o in large])
    value = float(np.median(rates))
    drawn = resampled(len(rates), lambda at: np.array([np.median(rates[at])]), draws, seed)
    low, high = interval(drawn[:, 0], value)
    widest = (
        float(np.median([o.spread_frac for o in large])) * value
    )  # few sizes say less than their own spread
    return Estimate(
        value, min(low, value - widest), max(high, value + widest), sum(o.samples for o in large), len(large)
    )


def fit_compute(
    observed: Sequence[Observation],
    scalar_bytes: int,
    *,
    bandwidth: Bandwidth = "copies",
    draws: int = 60,
    seed: int = 0,
) -> ComputeFit:
    """Fit the constants of matrix products and memory.

    Parameters
    ----------
    observed : sequence of Observation
        Copies, products, and operators of a transformer. Each kind weighs as much as another.
    scalar_bytes : int
        s_b.
    bandwidth : {"copies", "everything"}
        Where BW_mem comes from.
    draws : int
        Fits behind the intervals.
    seed : int
        Of the draws.

    Raises
    ------
    CalibrationError
        If what was measured does not tell the constants apart; names what is missing.
    """
    copies = [o for o in observed if o.kind == "copy"]
    rest = [o for o in observed if o.kind != "copy"]
    memory = fit_copies(copies, draws=draws, seed=seed)
    _check(rest)
    if bandwidth == "everything":
        rest = [*rest, *large_copies(copies)]
    table = _table(rest, scalar_bytes)
    starts = _starts(table, memory.value)
    free = np.array([True, True, bandwidth == "everything", True, True])
    bounds = np.array([[-np.inf] * 3 + [0.0] * 2, [np.inf] * 3 + [MOST_GAMMA] * 2])[:, free]

    def whole(parameters: Vector, start: Vector) -> Vector:
        filled = start.copy()
        filled[free] = parameters
        return filled

    def fit(to: Vector, begin: Sequence[Vector]) -> Vector:
        def residuals(p: Vector) -> Vector:
            return np.asarray(np.log(table.times(whole(p, begin[0])) / to))

        found = robust_fit(
            residuals, [s[free] for s in begin], weight=table.weight, bounds=bounds, x_scale=_scale(free)
        )
        return whole(found, begin[0])

    best = fit(table.measured_s, starts)
    fitted = table.times(best)
    kinds = [o.kind for o in rest]
    drawn = refitted(
        table.measured_s, fitted, lambda to: fit(to, [best]), int(free.sum()), draws, seed, kinds
    )

    def estimate(number: int, kinds: Sequence[str] | None = None) -> Estimate:
        behind = [o for o in rest if kinds is None or o.kind in kinds]
        values, value = drawn[:, number], float(best[number])
        if number < 3:
            values, value = np.exp(values), float(np.exp(value))
        return Estimate(value, *interval(values, value), sum(o.samples for o in behind), len(behind))

    operators = {o.kind for o in rest} - {"gemm", "copy"}
    return ComputeFit(
        estimate(0, sorted(operators)),
        estimate(1, ["gemm"]),
        memory if bandwidth == "copies" else estimate(2),
        estimate(3),
        estimate(4),
        bandwidth,
        (
            *(Residual(o.kind, o.label, o.seconds, float(t)) for o, t in zip(rest, fitted, strict=True)),
            *(_copy_residual(o, float(np.exp(best[2]))) for o in copies if bandwidth == "copies"),
        ),
    )


def _copy_residual(observed: Observation, rate: float) -> Residual:
    return Residual("copy", observed.label, observed.seconds, 2.0 * float(observed.key["bytes"]) / rate)


def _check(rest: Sequence[Observation]) -> None:
    """Refuse what does not determine the constants."""
    gemms = [o for o in rest if o.kind == "gemm"]
    rows = {int(o.key["rows"]) for o in gemms}
    widths = {min(int(o.key["inner"]), int(o.key["columns"])) for o in gemms}
    whole = [o for o in rest if o.kind not in ("gemm", "decode_step")]
    lacking = [
        *(["products of at least three numbers of rows (gamma_m)"] if len(rows) < 3 else []),
        *(["products of at least two widths (gamma_k)"] if len(widths) < 2 else []),
        *(["at least two transformer forwards (peak_flops)"] if len(whole) < 2 else []),
    ]
    if lacking:
        raise CalibrationError(
            f"not measured: {'; '.join(lacking)}",
            hint="measure the parts kernels and forward: rlprof calibrate",
        )


def _table(rest: Sequence[Observation], scalar_bytes: int) -> _Table:
    owner, passes, moved = [], [], []
    for n, o in enumerate(rest):
        found, extra = ([], 2.0 * float(o.key["bytes"])) if o.kind == "copy" else passes_of(o, scalar_bytes)
        owner += [n] * len(found)
        passes += found
        moved.append(extra)
    kinds = [o.kind for o in rest]
    return _Table(
        np.array(owner, dtype=np.intp),
        np.array([p.work_flop for p in passes]),
        np.array([p.intensity_flop_per_byte for p in passes]),
        np.array([p.rows for p in passes]),
        np.array([p.width for p in passes]),
        np.array([kinds[n] == "gemm" for n in owner]),
        np.array(moved),
        np.array([o.seconds for o in rest]),
        np.array([1 / np.sqrt(kinds.count(kind)) for kind in kinds]),
    )


def _starts(table: _Table, memory: float) -> list[Vector]:
    """The best rates seen, with small, usual and large gammas."""
    total = np.bincount(table.owner, table.work, len(table.measured_s))
    rate = (total / table.measured_s)[table.owner]
    peaks = [float(rate[table.single == single].max()) for single in (False, True)]
    logs = np.log([*peaks, memory])
    return [np.array([*logs, m, k]) for m, k in ((16.0, 16.0), (128.0, 256.0), (1024.0, 64.0))]


def _scale(free: NDArray[np.bool_]) -> Vector:
    """A step in each parameter: 10 % of a rate, a few rows or columns of a gamma."""
    return np.array([0.1, 0.1, 0.1, 30.0, 30.0])[free]
