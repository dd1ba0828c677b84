"""Projection of ranges onto the GPU equals that of ``nsys stats``, and that of a brute-force reference."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.analysis.projection import gpu_projection, project_invocations
from rlprof.errors import DamagedTraceError
from rlprof.trace.nsys_sqlite import read_sqlite
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

from . import nsys_stats
from .made import trace_of


def frame(result: pl.DataFrame | Unavailable) -> pl.DataFrame:
    assert isinstance(result, pl.DataFrame), result
    return result


def same_projection(capture: str, sqlite: Path, expected: Path) -> None:
    got = frame(gpu_projection(read_sqlite(sqlite))).filter(pl.col("label").is_not_null())
    want = nsys_stats.printed(expected / f"{capture}.nvtx_gpu_proj_sum.csv", "Range", nsys_stats.PROJECTION)
    nsys_stats.assert_equal(capture, nsys_stats.ours(got, "label", nsys_stats.PROJECTION), want)


@pytest.mark.parametrize("capture", nsys_stats.CAPTURES)
def test_equals_nvtx_gpu_proj_sum(shared_traces: Path, capture: str) -> None:
    same_projection(capture, shared_traces / "nsys" / f"{capture}.sqlite", shared_traces / "expected")


def test_own_capture_equals_nsys_stats(data: Path) -> None:
    same_projection(nsys_stats.OWN, data / "nsys" / f"{nsys_stats.OWN}.sqlite", data / "nsys" / "expected")


def program(
    ranges: list[tuple[int, int, int, str]],
    calls: list[tuple[int, int, int, int]],
    work: list[tuple[int, int, int, int]],
    process_of_thread: dict[int, int],
) -> Trace:
    """Ranges (thread, start, end, name), calls (thread, start, end, id), work (process, id, start, end)."""
    return trace_of(
        ranges=pl.DataFrame(
            [(t, process_of_thread[t], s, e, n, "", "push_pop") for t, s, e, n in ranges],
            schema=["thread", "process", "start_ns", "end_ns", "name", "domain", "style"],
            orient="row",
        ),
        api=pl.DataFrame(
            [(t, process_of_thread[t], s, e, c) for t, s, e, c in calls],
            schema=["thread", "process", "start_ns", "end_ns", "correlation_id"],
            orient="row",
        ),
        kernels=pl.DataFrame(
            [(p, c, s, e, "kernel") for p, c, s, e in work],
            schema=["process", "correlation_id", "start_ns", "end_ns", "kind"],
            orient="row",
        ),
    )


def test_kernels_of_one_call_count_as_one_operation() -> None:
    trace = program([(1, 0, 10, "r")], [(1, 2, 3, 7)], [(0, 7, 20, 30), (0, 7, 35, 50)], {1: 0})
    row = frame(gpu_projection(trace)).to_dicts()[0]
    assert (row["operations"], row["projected_ns"], row["range_ns"]) == (1, 30, 10)


def test_correlation_ids_repeated_across_processes_are_not_confused() -> None:
    trace = program(
        [(1, 0, 10, "a"), (2, 0, 10, "b")],
        [(1, 2, 3, 7), (2, 2, 3, 7)],
        [(0, 7, 20, 30), (1, 7, 100, 101)],
        {1: 0, 2: 1},
    )
    found = frame(gpu_projection(trace))
    assert dict(found.select("label", "projected_ns").rows()) == {"a": 10, "b": 1}


def test_correlation_id_repeated_in_one_thread_counts_once_where_both_calls_are_inside() -> None:
    trace = program(
        [(1, 0, 10, "both"), (1, 4, 9, "second")],
        [(1, 1, 2, 7), (1, 5, 6, 7)],
        [(0, 7, 20, 30)],
        {1: 0},
    )
    found = frame(gpu_projection(trace))
    assert dict(found.select("label", "operations").rows()) == {"both": 1, "second": 1}


def test_call_inside_a_call_is_found() -> None:
    """A range that ends inside an outer call holds the inner call only."""
    trace = program(
        [(1, 0, 20, "all"), (1, 3, 6, "inner")],
        [(1, 2, 9, 1), (1, 4, 5, 2), (1, 10, 11, 3)],
        [(0, 1, 30, 31), (0, 2, 40, 42), (0, 3, 50, 53)],
        {1: 0},
    )
    found = frame(gpu_projection(trace))
    assert dict(found.select("label", "projected_ns").rows()) == {"all": 23, "inner": 2}


def test_work_launched_from_another_thread_is_not_the_ranges() -> None:
    trace = program([(1, 0, 10, "backward")], [(2, 2, 3, 7)], [(0, 7, 4, 6)], {1: 0, 2: 0})
    assert frame(gpu_projection(trace)).is_empty()


def test_kernels_without_a_call_are_in_no_range() -> None:
    trace = program([(1, 0, 10, "r")], [(1, 2, 3, 7)], [(0, 7, 4, 6), (0, 8, 5, 9)], {1: 0})
    assert frame(gpu_projection(trace))["projected_ns"].to_list() == [2]


def test_capture_without_calls_is_unavailable_not_empty() -> None:
    ranges = pl.DataFrame({"start_ns": [0], "end_ns": [5], "name": ["r"]})
    kernels = pl.DataFrame({"start_ns": [0], "end_ns": [5], "kind": ["kernel"]})
    assert isinstance(gpu_projection(trace_of(ranges=ranges, kernels=kernels)), Unavailable)
    assert isinstance(gpu_projection(trace_of(kernels=kernels)), Unavailable)
    api = pl.DataFrame({"start_ns": [0], "end_ns": [5]})
    assert isinstance(gpu_projection(trace_of(ranges=ranges, api=api)), Unavailable)


def test_times_of_two_epochs_are_refused() -> None:
    trace = program([(1, 0, 1 << 62, "r"), (2, 0, 4, "s")], [(1, 2, 3, 7)], [(0, 7, 4, 6)], {1: 0, 2: 0})
    with pytest.raises(DamagedTraceError, match="days"):
        gpu_projection(trace)


times = st.integers(0, 40)
threads = st.integers(0, 2)


@st.composite
def intervals(draw: st.DrawFn, most: int) -> list[tuple[int, int, int]]:
    """Any intervals on three threads: nested, crossing, equal, empty."""
    raw = draw(st.lists(st.tuples(threads, times, times), max_size=most))
    return [(t, min(a, b), max(a, b)) for t, a, b in raw]


@settings(max_examples=200, deadline=None)
@given(
    ranges=intervals(12),
    calls=intervals(14),
    ids=st.lists(st.integers(0, 9), min_size=14, max_size=14),
    work=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), times, st.integers(1, 9)), max_size=16),
)
def test_equals_brute_force(
    ranges: list[tuple[int, int, int]],
    calls: list[tuple[int, int, int]],
    ids: list[int],
    work: list[tuple[int, int, int, int]],
) -> None:
    process_of_thread = {0: 0, 1: 0, 2: 1}
    named = [(t, s, e, f"r{i}") for i, (t, s, e) in enumerate(ranges)]
    # one id may own several pieces of work, but is used by one call of a process
    launched: list[tuple[int, int, int, int]] = []
    used: set[tuple[int, int]] = set()
    for (t, s, e), c in zip(calls, ids, strict=False):
        if (process_of_thread[t], c) not in used:
            used.add((process_of_thread[t], c))
            launched.append((t, s, e, c))
    pieces = [(p, c, s, s + d) for p, c, s, d in work]
    want = {}
    for t, s, e, n in named:
        inside = [c for u, a, b, c in launched if u == t and s <= a and b <= e]
        held = [(a, b) for p, c, a, b in pieces if p == process_of_thread[t] and c in inside]
        owners = {c for p, c, _, _ in pieces if p == process_of_thread[t] and c in inside}
        if held:
            want[n] = (min(a for a, _ in held), max(b for _, b in held), len(owners))
    got = frame(project_invocations(program(named, launched, pieces, process_of_thread)))
    columns = ["projected_start_ns", "projected_end_ns", "operations"]
    assert dict(zip(got["label"], got.select(columns).iter_rows(), strict=True)) == want
