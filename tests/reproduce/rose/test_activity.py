"""Low time of the shipped captures: the same shares as the analysis gives."""

from __future__ import annotations

import polars as pl
import pytest

import rlprof
from rlprof.analysis.activity import NodeActivity
from rlprof.reproduce.papers import read_paper
from rlprof.reproduce.rose import activity
from rlprof.reproduce.study import obtain
from tests.conftest import ROOT


def test_shares_are_those_of_the_analysis(tmp_path: object) -> None:
    table = obtain(activity.study("smoke", 0, ROOT), tmp_path).table  # type: ignore[arg-type]
    (name,) = table.frame["case"].unique()
    trace = rlprof.read(ROOT / "datasets" / name)
    found = {r["part"]: r for r in activity.shares(table.frame).iter_rows(named=True)}
    assert set(found) == {"iteration", "interaction loop"}
    for row in found.values():
        told = trace.activity(row["scope"])
        assert isinstance(told, NodeActivity)
        assert row["below_half"] == pytest.approx(dict(told.below_frac)[0.5], abs=1e-6)
    bins = activity.over_time(table.frame)
    assert bins.height == activity.BINS
    (iteration,) = trace.windows().low_activity.filter(
        pl.col("scope") == "iteration", pl.col("threshold") == 0.5
    )["fraction"]
    assert iteration == pytest.approx(found["iteration"]["below_half"])
    rows = activity.compare({"activity": table.frame}, read_paper(ROOT / "datasets" / "papers" / "rose.csv"))
    assert [r.paper for r in rows] == [59.7, 38.8]
