"""Attribution by time: GPU work in flight while a range was open, whichever thread launched it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.analysis.attribution import window_attribution
from rlprof.analysis.projection import gpu_projection
from rlprof.trace.nsys_sqlite import read_sqlite
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

from .made import trace_of


def frame(result: pl.DataFrame | Unavailable) -> pl.DataFrame:
    assert isinstance(result, pl.DataFrame), result
    return result


def node(trace: Trace, path: str) -> dict[str, object]:
    rows = frame(window_attribution(trace)).filter(pl.col("node") == path).to_dicts()
    assert len(rows) == 1, rows
    return rows[0]


def test_backward_shows_the_kernels_of_autograds_thread(data: Path) -> None:
    """Its own thread launched 4 operations; 1,456 were in flight while it was open."""
    trace = read_sqlite(data / "nsys" / "vla_chunk_and_training.sqlite")
    own = frame(gpu_projection(trace)).filter(pl.col("label") == "backward")
    assert own.select("operations", "projected_ns").rows() == [(4, 2944)]
    backward = node(trace, "iteration/training/minibatch/backward")
    assert (backward["count"], backward["operations"]) == (4, 1456)
    assert 0.75 < float(str(backward["busy_frac"])) < 0.76


def test_backward_of_training_autograd_thread(shared_traces: Path) -> None:
    trace = read_sqlite(shared_traces / "nsys" / "training_autograd_thread.sqlite")
    own = frame(gpu_projection(trace)).filter(pl.col("label") == "backward")
    assert own["operations"].to_list() == [9]
    backward = node(trace, "step/backward")
    assert (backward["total_ns"], backward["operations"]) == (447_993_190, 11_943)


def test_other_processes_of_a_device_are_told_apart(data: Path) -> None:
    """The simulator renders on the policy's GPU: that is the device's work, not the chunk's own."""
    trace = read_sqlite(data / "nsys" / "vla_chunk_and_training.sqlite")
    chunk, render = node(trace, "iteration/rollout/epoch/chunk"), node(trace, "simulator.step/render")
    assert (chunk["operations"], chunk["device_operations"]) == (1724, 1744)
    assert render["operations"] == 20


def made(
    ranges: list[tuple[str, int, int]], work: list[tuple[int, int, int, int]], **more: pl.DataFrame
) -> Trace:
    """Ranges (name, start, end) of process 0, work (process, device, start, end)."""
    return trace_of(
        ranges=pl.DataFrame(
            [(n, s, e, 0, 1, "", "push_pop", False) for n, s, e in ranges],
            schema=["name", "start_ns", "end_ns", "process", "thread", "domain", "style", "cut"],
            orient="row",
        ),
        kernels=pl.DataFrame(
            [(p, d, s, e, "kernel") for p, d, s, e in work],
            schema=["process", "device", "start_ns", "end_ns", "kind"],
            orient="row",
        ),
        **more,
    )


def test_each_device_has_a_row() -> None:
    trace = made([("r", 0, 10)], [(0, 0, 2, 4), (0, 3, 5, 20)])
    rows = frame(window_attribution(trace)).select("device", "busy_ns", "operations", "busy_frac").rows()
    assert rows == [(0, 2, 1, 0.2), (3, 5, 1, 0.5)]


def test_device_of_the_process_without_work_is_idle_not_unknown() -> None:
    processes = pl.DataFrame({"process": [0], "devices": [[1]]})
    row = node(made([("r", 0, 10)], [(1, 1, 2, 4)], processes=processes), "r")
    assert (row["device"], row["busy_ns"], row["device_busy_ns"]) == (1, 0, 2)


def test_no_known_device_is_null_not_zero() -> None:
    row = node(made([("r", 0, 10)], [(1, 1, 2, 4)]), "r")
    assert (row["device"], row["busy_ns"], row["operations"], row["busy_frac"]) == (None, None, None, None)
    assert (row["count"], row["total_ns"]) == (1, 10)


def test_graph_launch_without_device_record_is_null_not_zero() -> None:
    api = pl.DataFrame(
        {
            "start_ns": [3],
            "end_ns": [4],
            "process": [0],
            "thread": [1],
            "correlation_id": [9],
            "name": ["cudaGraphLaunch_v10000"],
        }
    )
    trace = made([("blind", 0, 10), ("seen", 20, 30)], [(0, 0, 22, 24)], api=api)
    assert node(trace, "blind")["busy_ns"] is None
    assert node(trace, "seen")["busy_ns"] == 2


def test_capture_without_gpu_work_is_unavailable() -> None:
    trace = made([("r", 0, 10)], [])
    without = Trace(trace.meta, {"ranges": trace.loaders["ranges"]}, {"kernels": "not traced"})
    result = window_attribution(without)
    assert isinstance(result, Unavailable)
    assert result.reason == "not traced"


times = st.integers(0, 30)


@settings(max_examples=150, deadline=None)
@given(
    ranges=st.lists(st.tuples(st.sampled_from("abc"), times, st.integers(1, 10)), min_size=1, max_size=6),
    work=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), times, st.integers(0, 8)), max_size=12),
)
def test_equals_brute_force(
    ranges: list[tuple[str, int, int]], work: list[tuple[int, int, int, int]]
) -> None:
    # one after another, so that every range is a root
    placed, clock = [], 0
    for name, gap, length in ranges:
        clock += gap
        placed.append((name, clock, clock + length))
        clock += length
    pieces = [(p, d, s, s + n) for p, d, s, n in work]
    real = [w for w in pieces if w[3] > w[2]]
    want = {}
    for name in {n for n, _, _ in placed}:
        spans = [(s, e) for n, s, e in placed if n == name]
        for device in {d for p, d, _, _ in real if p == 0} or {None}:

            def during(
                rows: list[tuple[int, int, int, int]], spans: list[tuple[int, int]] = spans
            ) -> tuple[int, int]:
                busy = sum(any(a <= t < b for _, _, a, b in rows) for s, e in spans for t in range(s, e))
                return busy, sum(a < e and b > s for _, _, a, b in rows for s, e in spans)

            on_device = [w for w in real if w[1] == device]
            own, every = during([w for w in on_device if w[0] == 0]), during(on_device)
            values = (*own, *every) if device is not None else (None,) * 4
            want[name, device] = (len(spans), sum(e - s for s, e in spans), *values)
    got = frame(window_attribution(made(placed, pieces)))
    columns = ["count", "total_ns", "busy_ns", "operations", "device_busy_ns", "device_operations"]
    keys = zip(got["node"], got["device"], strict=True)
    assert dict(zip(keys, got.select(columns).iter_rows(), strict=True)) == want
