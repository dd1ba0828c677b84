"""Latency and bandwidth of collectives and transfers, for the formulas of the cost model (section 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.estimate import (
    Estimate,
    Residual,
    Vector,
    interval,
    refitted,
    robust_fit,
)
from rlprof.planning.calibration.observation import Observation
from rlprof.planning.calibration.sweeps import REPLAYED
from rlprof.planning.cluster import LinkRate
from rlprof.planning.cost_time import all_gather_s, all_reduce_s, all_to_all_s, p2p_s, reduce_scatter_s

_FORMULAS: dict[str, Callable[[float, int, LinkRate], float]] = {
    "all_reduce": all_reduce_s,
    REPLAYED: all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "all_to_all": all_to_all_s,
    "p2p": lambda size, _, link: p2p_s(size, link),
}


@dataclass(frozen=True)
class LinkFit:
    """Alpha and bandwidth of one kind of link.

    Parameters
    ----------
    alpha_s, bandwidth : Estimate
        In s and byte/s.
    residuals : tuple of Residual
        Of all measurements behind it.
    """

    alpha_s: Estimate
    bandwidth: Estimate
    residuals: tuple[Residual, ...]


def coefficients(observed: Observation) -> tuple[float, float]:
    """Return a and b of T = a alpha + b beta, as the cost model has them for this collective and size."""
    formula, size, ranks = _FORMULAS[observed.kind], float(observed.key["bytes"]), int(observed.key["ranks"])
    return formula(0.0, ranks, LinkRate(1.0, 0.0)), formula(size, ranks, LinkRate(0.0, 1.0))


def fit_link(observed: Sequence[Observation], *, draws: int = 100, seed: int = 0) -> LinkFit:
    """Fit alpha and beta to times of collectives, or of transfers.

    Parameters
    ----------
    observed : sequence of Observation
        Of one tier; several collectives are fitted together, as the cost model has one pair for all.
    draws : int
        Fits behind the intervals.
    seed : int
        Of the draws.

    Raises
    ------
    CalibrationError
        If there are fewer than three sizes, or they span less than a factor of 16: then latency and
        bandwidth cannot be told apart.
    """
    sizes = {int(o.key["bytes"]) for o in observed}
    if len(sizes) < 3 or max(sizes) < 16 * min(sizes):
        kinds = ", ".join(sorted({o.kind for o in observed})) or "collectives"
        raise CalibrationError(
            f"{len(sizes)} sizes of {kinds} do not tell latency from bandwidth",
            hint="measure at least three sizes, the largest 16 times the smallest",
        )
    a, b = np.array([coefficients(o) for o in observed]).T
    measured = np.array([o.seconds for o in observed])

    def times(parameters: Vector) -> Vector:
        alpha, beta = np.exp(parameters)
        return np.asarray(a * alpha + b * beta)

    def fit(to: Vector, start: Vector) -> Vector:
        return robust_fit(lambda p: np.asarray(np.log(times(p) / to)), [start])

    small, large = int(np.argmin(b)), int(np.argmax(b))
    start = np.log([measured[small] / a[small], measured[large] / b[large]])
    found = fit(measured, start)
    fitted = times(found)
    groups = [f"{o.kind} {o.key['ranks']}" for o in observed]
    drawn = refitted(measured, fitted, lambda to: fit(to, found), 2, draws, seed, groups)
    samples, (alpha, beta) = sum(o.samples for o in observed), np.exp(found)

    def estimate(value: float, values: Vector) -> Estimate:
        return Estimate(value, *interval(values, value), samples, len(measured))

    return LinkFit(
        estimate(float(alpha), np.exp(drawn[:, 0])),
        estimate(float(1 / beta), np.exp(-drawn[:, 1])),
        tuple(Residual(o.kind, o.label, o.seconds, float(t)) for o, t in zip(observed, fitted, strict=True)),
    )
