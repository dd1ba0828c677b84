"""The generator of the large capture: exact sizes, one capture in two forms, and a real nesting."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from benchmarks.synthetic import Size, make
from rlprof.analysis.projection import gpu_projection
from rlprof.trace.hierarchy import hierarchy
from rlprof.trace.nsys_parquet import read_parquetdir
from rlprof.trace.nsys_sqlite import read_sqlite
from rlprof.trace.trace import Trace

SIZE = Size(kernels=501, ranges=10_003, samples=302)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    folder: Path = tmp_path_factory.mktemp("synthetic")
    make(SIZE, sqlite=folder / "s.sqlite", parquet=folder / "p_pqtdir", seed=3)
    return read_sqlite(folder / "s.sqlite"), read_parquetdir(folder / "p_pqtdir")


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
