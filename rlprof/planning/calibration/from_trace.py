"""What a capture tells of the constants: copies of known size; and why not the rest."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.estimate import Estimate
from rlprof.planning.calibration.fit_compute import fit_copies
from rlprof.planning.calibration.fit_links import fit_link
from rlprof.planning.calibration.observation import Observation
from rlprof.planning.cluster import UNITS
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

    from rlprof.trace.trace import Trace

#: Smaller copies may stay within a cache of the GPU (50 MB on the largest of today), and say nothing of its
#: memory.
LEAST_COPY_BYTES = 128 * 2**20
#: Fewer copies than this are no measurement.
LEAST_COPIES = 5


@dataclass(frozen=True)
class TraceConstants:
    """What one capture says of each constant.

    Parameters
    ----------
    gpu, date : str
        Full name of the GPU, and the day of the capture (ISO 8601).
    found : dict of str to (Estimate or Unavailable)
        By constant: a number, or why the capture does not tell it.
    """

    gpu: str
    date: str
    found: dict[str, Estimate | Unavailable]

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Those that the capture tells."""
        return {name: e for name, e in self.found.items() if isinstance(e, Estimate)}


def from_trace(trace: Trace) -> TraceConstants:
    """Look for constants in a capture.

    Parameters
    ----------
    trace : Trace
        With copies.

    Raises
    ------
    CalibrationError
        If the capture does not say which GPU it is of, or is of several kinds of GPU, or does not say when
        it was
        made: then nothing in it can be called calibrated.
    """
    devices = trace.devices
    names = [] if isinstance(devices, Unavailable) else devices["name"].drop_nulls().unique().to_list()
    if len(names) != 1:
        raise CalibrationError(
            f"the capture names {'no GPU' if not names else ' and '.join(sorted(names))}",
            hint="constants are those of one kind of GPU: calibrate from a capture of one",
        )
    if trace.meta.utc_origin_ns is None:
        raise CalibrationError(
            "the capture does not say when it was made", hint="calibrate from one that does, or measure"
        )
    when = datetime.datetime.fromtimestamp(trace.meta.utc_origin_ns / 1e9, datetime.UTC)
    shapes = "a capture has the times of matrix products, but not their shapes, so no rate in FLOP/s"
    found: dict[str, Estimate | Unavailable] = {
        "peak_flops": Unavailable(shapes),
        "memory_bandwidth": _memory_bandwidth(trace),
        "gamma_m": Unavailable(shapes),
        "gamma_k": Unavailable(shapes),
        "nongemm_s": Unavailable(
            "a capture has the times of norms and activations, but not the sizes of model and batch"
        ),
    }
    found |= {f"p2p.intra_node.{what}": value for what, value in _p2p(trace).items()}
    reason = Unavailable("a capture has the times of collectives, but not how many bytes they move")
    found |= {f"collective.intra_node.{what}": reason for what in ("alpha_s", "bandwidth")}
    rest = [name for name in UNITS if name not in found]
    found |= dict.fromkeys(rest, Unavailable("no capture tells this"))
    return TraceConstants(names[0], when.date().isoformat(), found)


def _memory_bandwidth(trace: Trace) -> Estimate | Unavailable:
    observed = _copies(trace, "DtoD", "copy", LEAST_COPY_BYTES)
    return observed if isinstance(observed, Unavailable) else fit_copies(observed)


def _p2p(trace: Trace) -> dict[str, Estimate | Unavailable]:
    observed = _copies(trace, "PtoP", "p2p", 0)
    if not isinstance(observed, Unavailable):
        try:
            fit = fit_link(observed)
        except CalibrationError as error:
            observed = Unavailable(error.what)
        else:
            return {"alpha_s": fit.alpha_s, "bandwidth": fit.bandwidth}
    return {"alpha_s": observed, "bandwidth": observed}


def _copies(trace: Trace, kind: str, called: str, least_bytes: int) -> list[Observation] | Unavailable:
    """Copies of a kind by size, but for those that ran beside other work of their GPU."""
    import polars as pl

    if not trace.has("copies"):
        return Unavailable("the capture holds no copies")
    copies = trace.table("copies", ["start_ns", "end_ns", "device", "kind", "size_bytes"])
    copies = copies.with_columns(pl.col("kind").cast(pl.String))
    there = copies.filter((pl.col("kind") == kind) & (pl.col("end_ns") > pl.col("start_ns")))
    if there.is_empty():
        return Unavailable(f"the capture holds no {kind} copy")
    sized = there.filter(pl.col("size_bytes") > 0)
    if sized.is_empty():
        return Unavailable(f"the capture does not say how many bytes its {there.height:,} {kind} copies move")
    large = sized.filter(pl.col("size_bytes") >= least_bytes)
    if large.is_empty():
        most = int(np.asarray(sized["size_bytes"]).max())
        return Unavailable(
            f"the largest of {sized.height:,} {kind} copies moves {most / 2**20:.0f} MiB: below"
            f" {least_bytes / 2**20:.0f} MiB a copy may stay within a cache"
        )
    alone = _alone(large, _busy(trace, copies))
    if alone.height < LEAST_COPIES:
        return Unavailable(
            f"{alone.height} {kind} copies are large enough and ran beside no other work:"
            f" {LEAST_COPIES} are needed"
        )
    return [
        _observed(called, int(size[0]), rows)
        for size, rows in alone.group_by("size_bytes", maintain_order=True)
    ]


def _observed(kind: str, size: int, rows: pl.DataFrame) -> Observation:
    times = np.asarray(rows["end_ns"] - rows["start_ns"], dtype=np.float64) / 1e9
    middle = float(np.median(times))
    low, high = np.quantile(times, (0.25, 0.75))
    key = {"bytes": size} | ({"ranks": 2, "tier": "intra_node"} if kind == "p2p" else {})
    return Observation(kind, key, middle, float(high - low) / 2 / middle, len(times), 1, {}, None, "")


def _busy(trace: Trace, copies: pl.DataFrame) -> pl.DataFrame:
    """All work of all GPUs."""
    import polars as pl

    columns = ["device", "start_ns", "end_ns"]
    parts = [copies.select(columns)]
    if trace.has("kernels"):
        parts.append(trace.table("kernels", columns).select(columns))
    return pl.concat(parts)


def _alone(copies: pl.DataFrame, busy: pl.DataFrame) -> pl.DataFrame:
    """Copies beside which nothing else ran on their GPU."""
    import polars as pl

    kept = []
    for (device,), rows in copies.group_by("device", maintain_order=True):
        work = busy.filter(pl.col("device") == device)
        starts, ends = np.sort(np.asarray(work["start_ns"])), np.sort(np.asarray(work["end_ns"]))
        begun = np.searchsorted(starts, np.asarray(rows["end_ns"]), side="left")
        ended = np.searchsorted(ends, np.asarray(rows["start_ns"]), side="right")
        kept.append(rows.filter(pl.Series(begun - ended == 1)))  # itself
    return pl.concat(kept)
