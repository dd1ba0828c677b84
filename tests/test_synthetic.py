"""The generator of the large capture: exact sizes, one capture in two forms, and a real nesting."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from benchmarks.synthetic import Size, make
from rlprof.analysis.projection import gpu_projection
from rlprof.analysis.summaries import kernel_summary, range_summary
from rlprof.trace.hierarchy import hierarchy
from rlprof.trace.nsys_parquet import read_parquetdir
from rlprof.trace.nsys_sqlite import read_sqlite
from rlprof.trace.trace import Trace
from tests.analysis import nsys_stats

SIZE = Size(kernels=501, ranges=10_003, samples=302)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder: Path = tmp_path_factory.mktemp("synthetic")
    sqlite, parquet = folder / "s.sqlite", folder / "p_pqtdir"
    make(SIZE, sqlite=sqlite, parquet=parquet, seed=3)
    return sqlite, parquet


@pytest.fixture(scope="module")
def traces(files: tuple[Path, Path]) -> tuple[Trace, Trace]:
    return read_sqlite(files[0]), read_parquetdir(files[1])


def test_sizes_are_those_asked_for(traces: tuple[Trace, Trace]) -> None:
    sizes = {n: traces[0].table(n).height for n in ("kernels", "api", "ranges", "activity")}  # type: ignore[arg-type]
    assert sizes == {"kernels": 501, "api": 501, "ranges": 10_003, "activity": 302}


@pytest.mark.parametrize("table", ["ranges", "kernels", "api", "activity", "devices"])
def test_both_forms_hold_the_same(traces: tuple[Trace, Trace], table: str) -> None:
    assert_frame_equal(traces[0].table(table), traces[1].table(table))  # type: ignore[arg-type]


def test_ranges_nest_and_hold_all_launches(traces: tuple[Trace, Trace]) -> None:
    found = hierarchy(traces[0])
    assert int(found.nodes["depth"].max()) == 3  # type: ignore[arg-type]
    assert not found.invocations["crossing"].any()
    projected = gpu_projection(traces[0])
    assert isinstance(projected, pl.DataFrame)
    assert projected.filter(pl.col("label") == "step")["operations"].sum() == 501


@pytest.mark.nsys
@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_nsys_stats_says_the_same(
    traces: tuple[Trace, Trace], tmp_path: Path, files: tuple[Path, Path]
) -> None:
    """Two processes that use the same correlation ids; domain-less labels on two threads."""
    for report, label, columns, ours in (
        ("nvtx_pushpop_sum", "Range", nsys_stats.SUMMARY, range_summary),
        ("cuda_gpu_kern_sum", "Name", nsys_stats.SUMMARY, kernel_summary),
        ("nvtx_gpu_proj_sum", "Range", nsys_stats.PROJECTION, gpu_projection),
    ):
        printed = tmp_path / f"{report}.csv"
        command = ["nsys", "stats", "--quiet", "--report", report, "--format", "csv", str(files[0])]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        printed.write_text(text.strip() + "\n")
        frame = ours(traces[0])
        assert isinstance(frame, pl.DataFrame)
        key = "name" if label == "Name" else "label"
        want = nsys_stats.printed(printed, label, columns)
        assert want
        nsys_stats.assert_equal("synthetic", nsys_stats.ours(frame, key, columns), want)
