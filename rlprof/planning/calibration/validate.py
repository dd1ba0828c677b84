"""Predicted against measured: whole operators, on configurations that no fit has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.observation import Observation, Split, observe, split_of
from rlprof.planning.calibration.predict import predicted_peak_bytes, predicted_time
from rlprof.planning.calibration.raw import Raw
from rlprof.planning.calibration.sweeps import VALIDATED
from rlprof.planning.cluster import Hardware
from rlprof.unavailable import Unavailable


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration, predicted and measured.

    Parameters
    ----------
    role, model : str
        What was done, by which model.
    sequences, prompt_tokens, response_tokens : int
        B R, L_p, L_r.
    tensor, data : int
        P_t and P_d.
    split : {"fit", "held_out"}
        Whether a fit to operators may use it.
    measured_s, spread_frac, predicted_s : float
        Median, half its interquartile distance over it, and what the cost model says.
    prefill_measured_s, prefill_predicted_s : float or None
        Of generation: all but the decode steps.
    optimizer_measured_s, optimizer_predicted_s : float or None
        Of training: Adam alone.
    measured_peak_bytes : int or None
        None where memory was not measured.
    predicted_peak_bytes : float
        What the cost model says.
    samples : int
        Times behind the median.
    date : str
        Of the last one.
    """

    role: str
    model: str
    sequences: int
    prompt_tokens: int
    response_tokens: int
    tensor: int
    data: int
    split: Split
    measured_s: float
    spread_frac: float
    predicted_s: float
    prefill_measured_s: float | None
    prefill_predicted_s: float | None
    optimizer_measured_s: float | None
    optimizer_predicted_s: float | None
    measured_peak_bytes: int | None
    predicted_peak_bytes: float
    samples: int
    date: str

    @property
    def error_frac(self) -> float:
        """Of the prediction, relative to the measurement."""
        return self.predicted_s / self.measured_s - 1

    @property
    def memory_error_frac(self) -> float | None:
        """The same of the peak memory."""
        return self.predicted_peak_bytes / self.measured_peak_bytes - 1 if self.measured_peak_bytes else None


@dataclass(frozen=True)
class Accuracy:
    """How well predictions agree with measurements.

    Parameters
    ----------
    configurations : int
        Compared.
    mape, bias : float
        Mean of the absolute relative errors, and of the relative errors.
    spearman : float or Unavailable
        Rank correlation; Unavailable below three configurations.
    ordered_pairs_frac : float or Unavailable
        Share of pairs that are predicted in the order measured.
    memory_mape : float or Unavailable
        Of peak memory.
    """

    configurations: int
    mape: float
    bias: float
    spearman: float | Unavailable
    ordered_pairs_frac: float | Unavailable
    memory_mape: float | Unavailable


def compare(raw: Raw, hardware: Hardware, *, seed: int = 0) -> list[Comparison]:
    """Return every operator that was measured beside its prediction.

    Parameters
    ----------
    raw : Raw
        Measurements.
    hardware : Hardware
        Constants to predict with.
    seed : int
        Of the split.

    Raises
    ------
    CalibrationError
        If no operator was measured.
    """
    observed = observe(raw, *VALIDATED)
    if not observed:
        raise CalibrationError(
            "no operator was measured: there is nothing to compare with",
            hint="measure the part training, or all",
        )
    return [_compared(o, raw.machine.scalar_bytes, hardware, seed) for o in observed]


def _compared(o: Observation, scalar_bytes: int, hardware: Hardware, seed: int) -> Comparison:
    time = predicted_time(o, hardware, scalar_bytes)
    generates, trains = o.kind == "generation", o.kind == "training"
    return Comparison(
        role=o.kind,
        model=o.shape.name,
        sequences=int(o.key["sequences"]),
        prompt_tokens=int(o.key["prompt_tokens"]),
        response_tokens=int(o.key["response_tokens"]),
        tensor=int(o.key.get("tensor", 1)),
        data=int(o.key.get("data", 1)),
        split=split_of(o, seed),
        measured_s=o.seconds,
        spread_frac=o.spread_frac,
        predicted_s=time.total_s,
        prefill_measured_s=o.parts_s.get("prefill_s"),
        prefill_predicted_s=time.prefill_s if generates else None,
        optimizer_measured_s=o.parts_s.get("optimizer_s"),
        optimizer_predicted_s=time.optimizer_s if trains else None,
        measured_peak_bytes=o.peak_bytes,
        predicted_peak_bytes=predicted_peak_bytes(o, scalar_bytes),
        samples=o.samples,
        date=o.date,
    )


def accuracy(compared: Sequence[Comparison]) -> Accuracy:
    """Sum up how well predictions agree.

    Raises
    ------
    CalibrationError
        If nothing was compared.
    """
    if not compared:
        raise CalibrationError("nothing was compared", hint="measure the part training, or all")
    errors = [c.error_frac for c in compared]
    memory = [c.memory_error_frac for c in compared if c.memory_error_frac is not None]
    few = Unavailable("fewer than three configurations have no order to speak of")
    measured, predicted = [c.measured_s for c in compared], [c.predicted_s for c in compared]
    enough = len(compared) >= 3
    return Accuracy(
        len(compared),
        fmean(map(abs, errors)),
        fmean(errors),
        _spearman(measured, predicted) if enough else few,
        _ordered(measured, predicted) if enough else few,
        fmean(map(abs, memory)) if memory else Unavailable("peak memory was not measured"),
    )


def _spearman(a: Sequence[float], b: Sequence[float]) -> float | Unavailable:
    from scipy.stats import spearmanr

    if len(set(a)) < 2 or len(set(b)) < 2:
        return Unavailable("all values are equal: they have no order")
    return float(spearmanr(a, b).statistic)


def _ordered(a: Sequence[float], b: Sequence[float]) -> float:
    pairs = [(i, j) for i in range(len(a)) for j in range(i) if a[i] != a[j]]
    return fmean((a[i] > a[j]) == (b[i] > b[j]) for i, j in pairs) if pairs else 1.0
