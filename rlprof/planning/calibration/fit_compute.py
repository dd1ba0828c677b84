"""F_peak, BW_mem, gamma_M, gamma_K and what real machines need besides: fitted as the cost model uses them.

The products of the sweep and the transformer have peaks of their own (a transformer also normalises, rotates
and attends) and share gammas and bandwidth. F_peak is the transformer's. As eta is part of what is fitted,
F_peak is what the rate would be without it, and no effect counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from rlprof.planning.calibration.sweeps import LAUNCHED
from rlprof.planning.cluster import EXTRA_UNITS

#: Where BW_mem comes from: copies alone, as the paper has it, or all that is bound by memory, decode steps
#: above all.
Bandwidth = Literal["copies", "everything"]
#: The printed formulas alone, or with what real machines need (`EXTRA_UNITS`).
Formulas = Literal["printed", "extended"]
#: Copies of less than this share of the largest one may fit into a cache.
LARGE_COPY_FRAC = 1 / 16
#: Passes whose operands come from memory are no faster than this many times the copies.
MOST_OVER_COPIES = 10.0
#: Times that differ by less are the same: measurements scatter by a hundred times as much and more.
SAME_FRAC = 1e-5
#: Logarithms of rates beyond this are taken for this: no machine is near it.
MOST_LOG = 100.0
#: Gammas are looked for up to this, in rows and columns: no product that is measured has more.
MOST_GAMMA = 65_536.0
#: What is fitted: a first guess, the least and the most, and the size of a step. The first three as
#: logarithms; `product_s` is the fixed time of one product of the sweep, which no operator has.
PARAMETERS: dict[str, tuple[float, float, float, float]] = {
    "peak_flops": (0.0, -np.inf, np.inf, 0.1),
    "gemm_peak_flops": (0.0, -np.inf, np.inf, 0.1),
    "memory_bandwidth": (0.0, -np.inf, np.inf, 0.1),
    "gamma_m": (0.0, 0.0, MOST_GAMMA, 30.0),
    "gamma_k": (0.0, 0.0, MOST_GAMMA, 30.0),
    "layer_s": (1e-5, 0.0, 1.0, 1e-5),
    "elementwise_vectors": (10.0, 0.0, 1e4, 10.0),
    "logits_moves": (4.0, 0.0, 1e3, 1.0),
    "kv_reads_factor": (1.1, 0.1, 100.0, 0.1),
    "launch_s": (1e-4, 0.0, 1.0, 1e-5),
    "training_launch_s": (1e-3, 0.0, 1.0, 1e-4),
    "product_s": (1e-6, 0.0, 1.0, 1e-6),
}
#: What passes take beside their products, and how many sizes of decode steps tell these apart.
BESIDE = {"layer_s", "elementwise_vectors", "logits_moves", "kv_reads_factor"}
LEAST_STEPS = 3
_NAMES = tuple(PARAMETERS)
_LOGS = 3
#: Of each parameter that is not fitted: what leaves the formulas as printed.
NEUTRAL = {name: value for name, (_, value) in EXTRA_UNITS.items()} | {"product_s": 0.0}


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
        Where BW_mem comes from: "copies" also where "everything" was asked for and does not tell it.
    residuals : tuple of Residual
        Of all measurements behind it.
    extras : dict of str to Estimate
        Constants of `EXTRA_UNITS` that were fitted.
    """

    peak_flops: Estimate
    gemm_peak_flops: Estimate
    memory_bandwidth: Estimate
    gamma_m: Estimate
    gamma_k: Estimate
    bandwidth: Bandwidth
    residuals: tuple[Residual, ...]
    extras: Mapping[str, Estimate] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        """By the names of the hardware file."""
        names = ("peak_flops", "memory_bandwidth", "gamma_m", "gamma_k")
        return {name: getattr(self, name).value for name in names}


@dataclass(frozen=True)
class _Table:
    """All passes of all measurements, as columns."""

    owner: NDArray[np.intp]
    times_each: Vector
    work: Vector
    moved_bytes: Vector
    head_bytes: Vector
    kv_bytes: Vector
    rows: Vector
    width: Vector
    layers: Vector
    vector_bytes: Vector
    logits_bytes: Vector
    launched: Vector
    launched_training: Vector
    single: NDArray[np.bool_]
    other_bytes: Vector
    updated: Vector
    measured_s: Vector
    weight: Vector
    head_reads_frac: float
    update_s: float | None

    def times(self, parameters: Vector) -> Vector:
        """Seconds of each measurement; parameters in the order of `PARAMETERS`."""
        # a rate that nothing tells runs away
        peak, single_peak, memory = np.exp(np.clip(parameters[:_LOGS], -MOST_LOG, MOST_LOG))
        gamma_m, gamma_k, layer_s, vectors, logits, kv, *host = parameters[_LOGS:]
        launch_s, training_launch_s, product_s = host
        eta = self.rows / (self.rows + gamma_m) * self.width / (self.width + gamma_k)
        moved = self.moved_bytes + self.head_reads_frac * self.head_bytes + kv * self.kv_bytes
        products = np.maximum(self.work / (np.where(self.single, single_peak, peak) * eta), moved / memory)
        beside = vectors * self.vector_bytes + logits * self.logits_bytes
        busy = products + self.layers * layer_s + beside / memory
        busy = self.times_each * busy + np.where(self.single, product_s, 0.0)
        least = self.layers * (self.launched * launch_s + self.launched_training * training_launch_s)
        total = np.bincount(self.owner, np.maximum(busy, least), len(self.measured_s))
        update_s = 18.0 / memory if self.update_s is None else self.update_s
        return np.asarray(total + self.other_bytes / memory + update_s * self.updated)


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


def update_s(observed: Sequence[Observation], *, draws: int = 100, seed: int = 0) -> Estimate | None:
    """Seconds in which the optimizer updates one parameter, of large updates; None if none was measured."""
    found = [o for o in observed if o.kind == "optimizer"]
    most = max((int(o.key["parameters"]) for o in found), default=0)
    large = [o for o in found if int(o.key["parameters"]) >= most / 4]
    if not large:
        return None
    each = np.array([o.seconds / int(o.key["parameters"]) for o in large])
    value = float(np.median(each))
    drawn = resampled(len(each), lambda at: np.array([np.median(each[at])]), draws, seed)
    widest = float(np.median([o.spread_frac for o in large])) * value
    low, high = interval(drawn[:, 0], value)
    return Estimate(
        value, min(low, value - widest), max(high, value + widest), sum(o.samples for o in large), len(large)
    )


def fit_compute(
    observed: Sequence[Observation],
    scalar_bytes: int,
    *,
    bandwidth: Bandwidth = "copies",
    formulas: Formulas = "printed",
    draws: int = 60,
    seed: int = 0,
) -> ComputeFit:
    """Fit the constants of matrix products and memory.

    Parameters
    ----------
    observed : sequence of Observation
        Copies, products, and operators of a transformer; with extended formulas also optimizer updates, and
        passes that were launched otherwise. Each kind weighs as much as another.
    scalar_bytes : int
        s_b.
    bandwidth : {"copies", "everything"}
        Where BW_mem comes from; with extended formulas "everything" leaves copies out, which are of another
        kind than what passes do.
    formulas : {"printed", "extended"}
        Whether constants of `EXTRA_UNITS` are fitted too, those that the measurements tell of.
    draws : int
        Fits behind the intervals.
    seed : int
        Of the draws.

    Raises
    ------
    CalibrationError
        If what was measured does not tell the constants apart; names what is missing.
    """
    extended = formulas == "extended"
    copies = [o for o in observed if o.kind == "copy"]
    updates = update_s(observed, draws=draws, seed=seed) if extended else None
    beside = ("copy", "optimizer", *(() if extended else ("nongemm", *LAUNCHED)))
    rest = [o for o in observed if o.kind not in beside]
    memory = fit_copies(copies, draws=draws, seed=seed)
    _check(rest)
    if bandwidth == "everything" and not extended:
        rest = [*rest, *large_copies(copies)]
    fitted_names = _fitted(rest, bandwidth, extended=extended)
    if not fitted_names & BESIDE:  # nothing in the formulas takes the time of these kernels
        rest = [o for o in rest if o.kind != "nongemm"]
    table = _table(rest, scalar_bytes, head_reads_frac=float(extended), update_s=updates)
    free = np.array([name in fitted_names for name in _NAMES])
    starts = _starts(table, memory.value, free)
    bounds = np.array([PARAMETERS[name][1:3] for name in _NAMES]).T[:, free]
    scale = np.array([PARAMETERS[name][3] for name in _NAMES])[free]

    def whole(parameters: Vector, start: Vector) -> Vector:
        filled = start.copy()
        filled[free] = parameters
        return filled

    def fit(to: Vector, begin: Sequence[Vector]) -> Vector:
        def residuals(p: Vector) -> Vector:
            return np.asarray(np.log(table.times(whole(p, begin[0])) / to))

        inside = [np.clip(s[free], bounds[0] + 1e-12, bounds[1]) for s in begin]
        found = robust_fit(residuals, inside, weight=table.weight, bounds=bounds, x_scale=scale)
        return whole(found, begin[0])

    best = fit(table.measured_s, starts)
    most = np.log(MOST_OVER_COPIES * memory.value)
    faster = np.where(np.array(_NAMES) == "memory_bandwidth", np.maximum(best, most), best)
    if "memory_bandwidth" in fitted_names and np.allclose(
        table.times(faster), table.times(best), rtol=SAME_FRAC, atol=0.0
    ):
        # nothing that was measured is bound by memory, and any large rate fits: where it ends is chance
        return fit_compute(
            observed, scalar_bytes, bandwidth="copies", formulas=formulas, draws=draws, seed=seed
        )
    fitted = table.times(best)
    kinds = [o.kind for o in rest]
    drawn = refitted(
        table.measured_s, fitted, lambda to: fit(to, [best]), int(free.sum()), draws, seed, kinds
    )

    def estimate(name: str, kinds: Sequence[str] | None = None) -> Estimate:
        number = _NAMES.index(name)
        behind = [o for o in rest if kinds is None or o.kind in kinds]
        values, value = drawn[:, number], float(best[number])
        if number < _LOGS:
            values, value = np.exp(values), float(np.exp(value))
        return Estimate(value, *interval(values, value), sum(o.samples for o in behind), len(behind))

    operators = {o.kind for o in rest} - {"gemm", "copy", "nongemm"}
    rate = memory if bandwidth == "copies" else estimate("memory_bandwidth")
    extras = {name: estimate(name) for name in EXTRA_UNITS if name in fitted_names}
    if updates is not None:
        low, value, high = (rate.value * x for x in (updates.low, updates.value, updates.high))
        extras["optimizer_bytes"] = Estimate(value, low, high, updates.samples, updates.points)
    return ComputeFit(
        estimate("peak_flops", sorted(operators)),
        estimate("gemm_peak_flops", ["gemm"]),
        rate,
        estimate("gamma_m"),
        estimate("gamma_k"),
        bandwidth,
        (
            *(Residual(o.kind, o.label, o.seconds, float(t)) for o, t in zip(rest, fitted, strict=True)),
            *(_copy_residual(o, rate.value) for o in copies if o not in rest),
        ),
        extras,
    )


def _fitted(rest: Sequence[Observation], bandwidth: Bandwidth, *, extended: bool) -> set[str]:
    """Names of the parameters that what was measured tells of."""
    names = {"peak_flops", "gemm_peak_flops", "gamma_m", "gamma_k"}
    names |= {"memory_bandwidth"} if bandwidth == "everything" else set()
    if not extended:
        return names
    kinds = {o.kind for o in rest}
    steps = {(o.key["sequences"], o.key["prompt_tokens"]) for o in rest if o.kind == "decode_step"}
    names |= {"product_s"}
    if len(steps) >= LEAST_STEPS:
        names |= BESIDE
    if set(LAUNCHED) & kinds:  # what the host adds is seen beside what it does not
        names |= {"launch_s"} | ({"training_launch_s"} if "training" in kinds else set())
    return names


def _copy_residual(observed: Observation, rate: float) -> Residual:
    return Residual("copy", observed.label, observed.seconds, 2.0 * float(observed.key["bytes"]) / rate)


def _check(rest: Sequence[Observation]) -> None:
    """Refuse what does not determine the constants."""
    gemms = [o for o in rest if o.kind == "gemm"]
    rows = {int(o.key["rows"]) for o in gemms}
    widths = {min(int(o.key["inner"]), int(o.key["columns"])) for o in gemms}
    whole = [o for o in rest if o.kind.startswith("forward")]
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


def _table(
    rest: Sequence[Observation],
    scalar_bytes: int,
    *,
    head_reads_frac: float = 0.0,
    update_s: Estimate | None = None,
) -> _Table:
    owner, passes, others, updated = [], [], [], []
    for n, o in enumerate(rest):
        found, parameters = ([], 0) if o.kind == "copy" else passes_of(o, scalar_bytes)
        owner += [n] * len(found)
        passes += found
        others.append(2.0 * float(o.key["bytes"]) if o.kind == "copy" else 0.0)
        updated.append(float(parameters))
    kinds = [o.kind for o in rest]

    def column(name: str) -> Vector:
        return np.array([float(getattr(p, name)) for p in passes])

    return _Table(
        owner=np.array(owner, dtype=np.intp),
        times_each=column("times"),
        work=column("work_flop"),
        moved_bytes=column("moved_bytes"),
        head_bytes=column("head_bytes"),
        kv_bytes=column("kv_bytes"),
        rows=column("rows"),
        width=column("width"),
        layers=column("layers"),
        vector_bytes=column("vector_bytes"),
        logits_bytes=column("logits_bytes"),
        launched=np.array([float(p.launched == "launch_s") for p in passes]),
        launched_training=np.array([float(p.launched == "training_launch_s") for p in passes]),
        single=np.array([kinds[n] == "gemm" for n in owner]),
        other_bytes=np.array(others),
        updated=np.array(updated),
        measured_s=np.array([o.seconds for o in rest]),
        weight=np.array([1 / np.sqrt(kinds.count(kind)) for kind in kinds]),
        head_reads_frac=head_reads_frac,
        update_s=None if update_s is None else update_s.value,
    )


def _starts(table: _Table, memory: float, free: NDArray[np.bool_]) -> list[Vector]:
    """The best rates seen, with small, usual and large gammas; first guesses of what is fitted besides."""
    total = np.bincount(table.owner, table.times_each * table.work, len(table.measured_s))
    rate = (total / table.measured_s)[table.owner]
    peaks = [float(rate[table.single == single].max()) for single in (False, True)]
    logs = np.log([*peaks, memory])
    rest = [
        PARAMETERS[name][0] if on else NEUTRAL[name]
        for name, on in zip(_NAMES[_LOGS + 2 :], free[_LOGS + 2 :], strict=True)
    ]
    gammas = ((16.0, 16.0), (128.0, 256.0), (1024.0, 64.0))
    # a launch that no pass waits for has no slope: begin also where the shortest passes wait
    least = _least_launches(table, rest)
    return [np.array([*logs, m, k, *r]) for r in (rest, *least) for m, k in gammas]


def _least_launches(table: _Table, rest: Sequence[float]) -> list[list[float]]:
    """First guesses with the launches that the shortest passes allow; none where nothing was launched."""
    changed = list(rest)
    for name, launched in (("launch_s", table.launched), ("training_launch_s", table.launched_training)):
        number = _NAMES.index(name) - _LOGS - 2
        launches = np.bincount(table.owner, table.layers * launched, len(table.measured_s))
        if rest[number] and launches.any():
            some = launches > 0
            changed[number] = float((table.measured_s[some] / launches[some]).min())
    return [] if changed == list(rest) else [changed]
