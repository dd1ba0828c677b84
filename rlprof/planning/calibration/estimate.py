"""A number that was fitted: its value, its interval, and how far the measurements lie from the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlprof.planning.calibration.errors import CalibrationError

Vector = NDArray[np.float64]
#: Relative residual beyond which a measurement counts less: about the noise of a time.
ROBUST_FRAC = 0.1


def need_scipy() -> None:
    """Check that constants can be fitted here, before minutes of measuring.

    Raises
    ------
    CalibrationError
        If scipy is not installed.
    """
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as error:
        raise CalibrationError(
            f"fits need scipy ({error})", hint="pip install 'rlprof[calibrate]'"
        ) from error


@dataclass(frozen=True, slots=True)
class Estimate:
    """One fitted number.

    Parameters
    ----------
    value : float
        Fitted to all measurements.
    low, high : float
        Bounds of its 95 % interval: fits to times whose deviations are drawn anew, see `refitted`.
    samples, points : int
        Times, and sizes, that it rests on.
    """

    value: float
    low: float
    high: float
    samples: int
    points: int

    @property
    def error_frac(self) -> float:
        """Half the width of the interval over the value."""
        return (self.high - self.low) / 2 / self.value if self.value else float("inf")


@dataclass(frozen=True, slots=True)
class Residual:
    """One measurement beside what the fit says of it, in seconds."""

    kind: str
    label: str
    measured_s: float
    fitted_s: float

    @property
    def error_frac(self) -> float:
        """Of the fit, relative to the measurement; above 0 where the fit is too slow."""
        return self.fitted_s / self.measured_s - 1


def typical_error_frac(residuals: Sequence[Residual]) -> float:
    """Median of the absolute relative residuals."""
    return median(abs(r.error_frac) for r in residuals)


def robust_fit(
    residuals: Callable[[Vector], Vector],
    starts: Sequence[Vector],
    *,
    weight: Vector | float = 1.0,
    **options: Any,
) -> Vector:
    """Least squares in which what lies far off counts little, from the best of several starts.

    First with a loss that grows linearly beyond `ROBUST_FRAC`, then, from there, with one that grows like a
    logarithm: times that a disturbance made several times too long, all on one side, no longer pull. Where
    most measurements lie off, as they do if the model is too simple, far off is further: twice the typical
    residual.

    Parameters
    ----------
    residuals : callable
        Of the parameters: logarithms of fitted over measured times.
    starts : sequence of array
        Where to begin.
    weight : array or float
        Of each residual. It does not change what counts as far off.
    **options
        As of `scipy.optimize.least_squares`.

    Raises
    ------
    CalibrationError
        If scipy is not installed, or no start leads anywhere.
    """
    need_scipy()
    from scipy.optimize import least_squares

    def soft_l1(z: Vector) -> Vector:
        return np.asarray(2 * (np.sqrt(1 + z) - 1))

    def losses(loss: Callable[[Vector], Vector], scale: float) -> Callable[[Vector], Vector]:
        def rooted(parameters: Vector) -> Vector:  # its squares are the losses
            r = residuals(parameters)
            return np.asarray(weight * np.sign(r) * scale * np.sqrt(loss((r / scale) ** 2)))

        return rooted

    best: Any = None
    for start in starts:
        found = least_squares(losses(soft_l1, ROBUST_FRAC), start, **options)
        if np.all(np.isfinite(found.x)) and (best is None or found.cost < best.cost):
            best = found
    if best is None:
        raise CalibrationError(
            "the fit does not converge", hint="measure more sizes: rlprof calibrate without --quick"
        )
    far = max(ROBUST_FRAC, 2 * float(np.median(np.abs(residuals(best.x)))))
    found = least_squares(losses(np.log1p, far), best.x, **options)
    return np.asarray(found.x if np.all(np.isfinite(found.x)) else best.x, dtype=np.float64)


def resampled(
    count: int, fit: Callable[[NDArray[np.intp]], Vector], draws: int, seed: int, groups: Sequence[str] = ()
) -> NDArray[np.float64]:
    """Fit to points drawn anew with replacement, within each group; returns (draws, parameters).

    Parameters
    ----------
    count : int
        Points.
    fit : callable
        Fits to the points of these positions.
    draws : int
        How often.
    seed : int
        Of the draws.
    groups : sequence of str, optional
        Group of each point: each keeps its number of points.
    """
    random = np.random.default_rng(seed)
    names = np.asarray(groups if groups else [""] * count)
    inside = [np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())]
    made = [
        fit(np.concatenate([random.choice(members, len(members)) for members in inside]))
        for _ in range(draws)
    ]
    return np.asarray(made)


def refitted(
    measured: Vector,
    fitted: Vector,
    fit: Callable[[Vector], Vector],
    parameters: int,
    draws: int,
    seed: int,
    groups: Sequence[str],
) -> NDArray[np.float64]:
    """Fit again to times that have the deviations of other points; returns (draws, parameters).

    Deviations (logarithms) are drawn with replacement within each group, and widened for the parameters that
    the fit had to choose. All sizes stay: a sweep without its large sizes would say nothing about a
    bandwidth.

    Parameters
    ----------
    measured, fitted : array
        Times, in seconds.
    fit : callable
        Fits to other times of the same points.
    parameters : int
        That are fitted.
    draws, seed : int
        How often, and the seed.
    groups : sequence of str
        Group of each point.
    """
    count = len(measured)
    widened = np.log(measured / fitted) * np.sqrt(count / max(count - parameters, 1))

    def once(at: NDArray[np.intp]) -> Vector:
        return fit(fitted * np.exp(widened[at]))

    order = np.argsort(np.unique(groups, return_inverse=True)[1], kind="stable")
    back = np.argsort(order)
    # positions come group by group; each point takes the deviation drawn at its place in its group
    ordered = [groups[n] for n in order]
    return resampled(count, lambda at: once(order[at][back]), draws, seed, ordered)


def interval(values: Vector, center: float) -> tuple[float, float]:
    """Bounds of 95 % of the values; `center` lies within."""
    low, high = np.quantile(values, (0.025, 0.975))
    return min(float(low), center), max(float(high), center)
