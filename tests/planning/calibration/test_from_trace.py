"""Constants from captures: copies alone in memory, and a reason for everything that cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.estimate import Estimate
from rlprof.planning.calibration.from_trace import from_trace
from rlprof.trace.read import read
from rlprof.trace.tables import empty
from rlprof.trace.trace import Loaded, Trace, TraceMeta
from rlprof.unavailable import Unavailable
from tests.conftest import ROOT

RATE = 4e12


def trace(copies: list[dict[str, Any]], kernels: Sequence[tuple[int, int]] = (), **meta: Any) -> Trace:
    """A capture of one GPU with these copies, and kernels by start and end."""

    def table(name: Any, rows: list[dict[str, Any]]) -> Any:
        frame = pl.DataFrame(rows, schema=empty(name).schema) if rows else empty(name)
        return lambda columns: Loaded(frame if columns is None else frame.select(columns))

    gpus = meta.pop("gpus", ["NVIDIA H200"])
    facts = {"utc_origin_ns": 1_795_984_377_550_632_555} | meta
    rows = [{"start_ns": a, "end_ns": b, "device": 0, "name": "gemm"} for a, b in kernels]
    loaders = {
        "copies": table("copies", copies),
        "kernels": table("kernels", rows),
        "devices": table("devices", [{"device": n, "name": name} for n, name in enumerate(gpus)]),
    }
    return Trace(TraceMeta("rlprof", ("made.rlprof",), 0, 10**10, **facts), loaders)  # type: ignore[arg-type]


def copies(
    kind: str, sizes: list[int], rate: float = RATE, moved: int = 2, latency_ns: int = 0
) -> list[dict[str, Any]]:
    found, at = [], 0
    for size in sizes:
        took = latency_ns + round(moved * size / rate * 1e9)
        found.append({"start_ns": at, "end_ns": at + took, "device": 0, "kind": kind, "size_bytes": size})
        at += took + 1000
    return found


def test_large_copies_give_the_bandwidth() -> None:
    told = from_trace(trace(copies("DtoD", [2**28] * 6 + [2**29] * 3)))
    e = told.found["memory_bandwidth"]
    assert isinstance(e, Estimate)
    assert e.value == pytest.approx(RATE, rel=1e-4)
    assert e.samples == 9
    assert (told.gpu, told.date) == ("NVIDIA H200", "2026-11-29")
    assert set(told.estimates) == {"memory_bandwidth"}


def test_copies_beside_other_work_do_not_count() -> None:
    alone = copies("DtoD", [2**28] * 6)
    slow = [c | {"start_ns": c["start_ns"] + 10**9, "end_ns": c["end_ns"] + 10**9 + 10**6} for c in alone]
    busy = [(c["start_ns"] + 5, c["end_ns"]) for c in slow]
    e = from_trace(trace([*alone, *slow], busy)).found["memory_bandwidth"]
    assert isinstance(e, Estimate)
    assert (e.samples, e.value) == (6, pytest.approx(RATE, rel=1e-4))
    nothing = from_trace(trace(slow, busy)).found["memory_bandwidth"]
    assert "beside no other work" in str(nothing)


def test_transfers_between_gpus_give_latency_and_bandwidth() -> None:
    told = from_trace(trace(copies("PtoP", [2**n for n in range(12, 30, 2)], 2e11, 1, 5000)))
    alpha, bandwidth = (told.found[f"p2p.intra_node.{what}"] for what in ("alpha_s", "bandwidth"))
    assert isinstance(alpha, Estimate)
    assert isinstance(bandwidth, Estimate)
    assert alpha.value == pytest.approx(5e-6, rel=0.01)
    assert bandwidth.value == pytest.approx(2e11, rel=0.01)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([], "no DtoD copy"),
        (copies("HtoD", [2**28] * 9), "no DtoD copy"),
        (copies("DtoD", [2**20] * 9), "within a cache"),
        (copies("DtoD", [2**28] * 4), "5 are needed"),
        ([c | {"size_bytes": None} for c in copies("DtoD", [2**28] * 9)], "does not say how many bytes"),
    ],
)
def test_copies_that_tell_nothing_say_why(made: list[dict[str, Any]], said: str) -> None:
    e = from_trace(trace(made)).found["memory_bandwidth"]
    assert isinstance(e, Unavailable)
    assert said in e.reason


def test_shapes_sizes_and_dates_that_a_capture_lacks_are_reasons() -> None:
    found = from_trace(trace([])).found
    for name, said in {
        "peak_flops": "shapes",
        "gamma_m": "shapes",
        "nongemm_s": "sizes",
        "collective.intra_node.bandwidth": "bytes",
        "memory_bytes": "no capture",
    }.items():
        assert said in str(found[name]), name
    with pytest.raises(CalibrationError, match="when it was made"):
        from_trace(trace([], utc_origin_ns=None))
    for gpus in ([], ["NVIDIA H200", "NVIDIA A100"]):
        with pytest.raises(CalibrationError, match="GPU"):
            from_trace(trace([], gpus=gpus))


def test_the_shipped_captures_tell_no_constant_and_say_why() -> None:
    told = from_trace(read(ROOT / "datasets/vla_h200.rlprof"))
    assert told.estimates == {}
    assert "moves 25 MiB" in str(told.found["memory_bandwidth"])
    told = from_trace(read(ROOT / "datasets/vla_small_h200.rlprof"))
    assert "does not say how many bytes its 304 DtoD copies move" in str(told.found["memory_bandwidth"])
