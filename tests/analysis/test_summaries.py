"""Range and kernel summaries equal those of ``nsys stats``, to the nanosecond."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from rlprof.analysis.summaries import kernel_summary, range_summary
from rlprof.trace.nsys_sqlite import read_sqlite
from rlprof.unavailable import Unavailable

from . import nsys_stats
from .made import trace_of


def frame(result: pl.DataFrame | Unavailable) -> pl.DataFrame:
    assert isinstance(result, pl.DataFrame), result
    return result


def same_ranges(capture: str, sqlite: Path, expected: Path) -> None:
    got = frame(range_summary(read_sqlite(sqlite))).filter(pl.col("style") == "push_pop")
    want = nsys_stats.printed(expected / f"{capture}.nvtx_pushpop_sum.csv", "Range", nsys_stats.SUMMARY)
    nsys_stats.assert_equal(capture, nsys_stats.ours(got, "label", nsys_stats.SUMMARY), want)


def same_kernels(capture: str, sqlite: Path, expected: Path) -> None:
    got = frame(kernel_summary(read_sqlite(sqlite)))
    want = nsys_stats.printed(expected / f"{capture}.cuda_gpu_kern_sum.csv", "Name", nsys_stats.SUMMARY)
    nsys_stats.assert_equal(capture, nsys_stats.ours(got, "name", nsys_stats.SUMMARY), want)


@pytest.mark.parametrize("capture", nsys_stats.CAPTURES)
def test_range_summary_equals_nvtx_pushpop_sum(shared_traces: Path, capture: str) -> None:
    same_ranges(capture, shared_traces / "nsys" / f"{capture}.sqlite", shared_traces / "expected")


@pytest.mark.parametrize("capture", nsys_stats.CAPTURES)
def test_kernel_summary_equals_cuda_gpu_kern_sum(shared_traces: Path, capture: str) -> None:
    same_kernels(capture, shared_traces / "nsys" / f"{capture}.sqlite", shared_traces / "expected")


def test_own_capture_equals_nsys_stats(data: Path) -> None:
    sqlite, expected = data / "nsys" / f"{nsys_stats.OWN}.sqlite", data / "nsys" / "expected"
    same_ranges(nsys_stats.OWN, sqlite, expected)
    same_kernels(nsys_stats.OWN, sqlite, expected)


def test_nameless_ranges_have_a_row_of_their_own(shared_traces: Path) -> None:
    summary = frame(range_summary(read_sqlite(shared_traces / "nsys" / "ranges_without_names.sqlite")))
    nameless = summary.filter(pl.col("label").is_null())
    assert nameless["count"].to_list() == [1998]


def test_no_ranges_is_unavailable_not_empty(shared_traces: Path) -> None:
    trace = read_sqlite(shared_traces / "nsys" / "nvtx_rows_without_ranges.sqlite")
    assert isinstance(range_summary(trace), Unavailable)
    assert isinstance(kernel_summary(trace), Unavailable)


def test_only_whole_graph_launches_is_unavailable_not_empty() -> None:
    kernels = pl.DataFrame({"start_ns": [0], "end_ns": [5], "kind": ["graph"]})
    result = kernel_summary(trace_of(kernels=kernels))
    assert isinstance(result, Unavailable)
    assert "--cuda-graph-trace=node" in result.reason


def test_graph_launches_are_not_counted_as_kernels() -> None:
    kernels = pl.DataFrame(
        {"start_ns": [0, 10], "end_ns": [5, 12], "kind": ["graph", "kernel"], "full_name": [None, "k()"]}
    )
    summary = frame(kernel_summary(trace_of(kernels=kernels)))
    assert summary.select("name", "total_ns", "count").rows() == [("k()", 2, 1)]


def test_one_label_from_two_spellings_is_one_row() -> None:
    """A default-domain range named ``MPI:send`` and ``send`` in domain ``MPI`` are one label."""
    ranges = pl.DataFrame(
        {
            "start_ns": [0, 10, 20],
            "end_ns": [4, 16, 21],
            "name": ["MPI:send", "send", "send"],
            "domain": ["", "MPI", ""],
            "style": ["push_pop"] * 3,
        }
    )
    summary = frame(range_summary(trace_of(ranges=ranges)))
    assert summary.select("label", "total_ns", "count", "median_ns", "std_ns").rows() == [
        ("MPI:send", 10, 2, 5.0, pytest.approx(2**0.5)),
        ("send", 1, 1, 1.0, 0.0),
    ]


def test_styles_are_kept_apart() -> None:
    ranges = pl.DataFrame(
        {
            "start_ns": [0, 0],
            "end_ns": [4, 7],
            "name": ["step", "step"],
            "domain": ["", ""],
            "style": ["push_pop", "start_end"],
        }
    )
    summary = frame(range_summary(trace_of(ranges=ranges)))
    assert summary.select("label", "style", "total_ns").rows() == [
        ("step", "start_end", 7),
        ("step", "push_pop", 4),
    ]
