"""What is kept of an iteration's activity samples: its course, how high it is how often, how long it is low.

By numpy alone: the machine that measures may have no polars. Reports of an optimisation and the figures of
Rose draw it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rlprof.analysis.intervals import F64, I64, StepIntegral

#: Steps of equal length that the course of an iteration is kept in, at most.
BINS = 400
#: Steps of the distribution: 0 to 5 %, 5 to 10 %, ...
LEVELS = 20
#: Activity below which time is low, as in the paper, and below which the optimiser fills it.
HALF, MOST = 0.5, 0.8
#: A span of which less than this share is covered by samples has no activity.
MIN_COVERAGE_FRAC = 0.5
DECIMALS = 4


class Samples(Protocol):
    """Disjoint, sorted steps of activity, such as `rlprof.overlap.optimize.windows.Activity`."""

    @property
    def start_ns(self) -> I64:
        """From when on each holds."""
        ...

    @property
    def end_ns(self) -> I64:
        """Until when each holds."""
        ...

    @property
    def active_frac(self) -> F64:
        """0..1, or NaN."""
        ...

    @property
    def source(self) -> str:
        """Where they come from."""
        ...


def summary(
    samples: Samples, spans: Mapping[str, tuple[int, int]], *, bins: int | None = BINS
) -> dict[str, Any]:
    """Return what is kept of the samples of one iteration.

    Parameters
    ----------
    samples : Samples
        Of one device.
    spans : mapping of str to (int, int)
        From when to when, on the clock of the samples, nanoseconds: ``"iteration"``, and parts of it.
    bins : int, optional
        Steps of the course; None: as many as the iteration has samples, at most `BINS`, so that it has no
        finer steps than were sampled.

    Returns
    -------
    dict
        Plain values: ``source``; ``period_s``, the median time from one sample to the next; ``course``, mean
        activity in `bins` steps of equal length, None where no sample is; and for each span in ``parts``
        its ``seconds``, ``covered_frac``, ``active_frac``, ``below_half`` and ``below_most`` (shares of its
        covered time below `HALF` and `MOST`) and ``levels`` (shares of it in `LEVELS` steps of activity). A
        part of which less than half is covered has None for all but the first two.

    Raises
    ------
    KeyError
        If there is no span ``"iteration"``.
    """
    known = np.isfinite(samples.active_frac) & (samples.end_ns > samples.start_ns)
    start, end = samples.start_ns[known], samples.end_ns[known]
    active = np.clip(samples.active_frac[known], 0.0, 1.0)
    lo, hi = spans["iteration"]
    if bins is None:
        within = int(((end > lo) & (start < hi)).sum())
        bins = min(BINS, max(1, within))
    edges = np.linspace(lo, hi, bins + 1).astype(np.int64)
    covered, sums = StepIntegral.of(start, end, np.ones(len(start)), active).over(edges[:-1], edges[1:])
    course = [round(float(s / c), DECIMALS) if c > 0 else None for s, c in zip(sums, covered, strict=True)]
    period = float(np.median(np.diff(start))) / 1e9 if len(start) > 1 else None
    return {
        "source": samples.source,
        "period_s": None if period is None else round(period, 9),
        "course": course,
        "parts": {name: _part(start, end, active, *span) for name, span in spans.items()},
    }


def _part(start: I64, end: I64, active: F64, lo: int, hi: int) -> dict[str, Any]:
    inside = np.maximum(np.minimum(end, hi) - np.maximum(start, lo), 0).astype(np.float64)
    total, seconds = float(inside.sum()), (hi - lo) / 1e9
    covered_frac = total / max(hi - lo, 1)
    row: dict[str, Any] = {"seconds": seconds, "covered_frac": round(covered_frac, DECIMALS)}
    if covered_frac < MIN_COVERAGE_FRAC:
        return row | dict.fromkeys(("active_frac", "below_half", "below_most", "levels"))
    weight = inside / total
    levels, _ = np.histogram(active, bins=np.linspace(0.0, 1.0, LEVELS + 1), weights=weight)
    return row | {
        "active_frac": round(float((weight * active).sum()), DECIMALS),
        "below_half": round(float(weight[active < HALF].sum()), DECIMALS),
        "below_most": round(float(weight[active < MOST].sum()), DECIMALS),
        "levels": [round(float(share), DECIMALS) for share in levels],
    }
