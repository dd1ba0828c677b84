"""Quota searches: rows of a document of `rlprof quota`, wherever it lies in a file."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

from rlprof.reproduce.errors import ReproduceError
from rlprof.reproduce.papers import read_paper
from rlprof.reproduce.rose import quota
from rlprof.reproduce.study import obtain
from rlprof.unavailable import Unavailable
from tests.conftest import ROOT
from tests.reproduce.rose import made

PAPER = read_paper(ROOT / "datasets" / "papers" / "rose.csv")


def test_the_minimum_of_a_sweep(tmp_path: Path) -> None:
    times = {100: 5.0, 90: 4.0, 50: 5.5, 30: None}
    there = made.checkout(
        tmp_path, mps={"quota": {"result": made.tuning(times=times)}}, nice=made.tuning("nice")
    )
    frame = obtain(quota.study("h200", 0, there), tmp_path / "out").table.frame
    assert frame["kind"].value_counts(sort=True).row(0) == ("trial", 3)
    assert set(frame["waits"]) == {"B"}
    table = quota.sweep(frame)
    assert table["percent"].to_list() == [100.0, 90.0, 50.0]
    assert table["over_all"].to_list() == [1.0, 0.8, 1.1]
    least, shape, _ = made.told(quota.compare_sweep({"quota": frame}, PAPER))
    assert (least.ours, least.paper, shape.ours) == (90.0, 95.0, "yes")
    assert "within 3 % of the least time: 90 %" in least.cause
    off, best = quota.compare_best({"quota": frame}, PAPER)
    assert off.ours == pytest.approx(1.2)
    assert best.ours == pytest.approx(0.8)
    assert best.paper == pytest.approx(5.716 / 7.192)


def test_levels_of_a_sweep_count_once(tmp_path: Path) -> None:
    document = made.tuning(times={100: 5.0, 90: 4.0})
    document["sweep"] = [
        {"order": 0, "k": 45, "setting": 90, "amount": 90, "time_s": 4.1},
        {"order": 1, "k": 10, "setting": 20, "amount": 20, "time_s": 9.0},
    ]
    rows = quota.trial_rows("f", document)
    assert [(r["percent"], r["seconds"]) for r in rows if r["kind"] == "trial"] == [
        (100.0, 5.0),
        (90.0, 4.0),
        (20.0, 9.0),
    ]


def test_a_minimum_at_all_is_no_u(tmp_path: Path) -> None:
    there = made.checkout(tmp_path, mps=made.tuning(times={100: 5.0, 90: 5.2}))
    frame = obtain(quota.study("h200", 0, there), tmp_path / "out").table.frame
    assert quota.compare_sweep({"quota": frame}, PAPER)[1].ours == "no"


def test_a_search_that_was_not_reached_is_not_zero(tmp_path: Path) -> None:
    there = made.checkout(tmp_path, mps=made.tuning())
    frame = obtain(quota.study("h200", 0, there), tmp_path / "out").table.frame
    least, shape, _ = made.told(quota.compare_sweep({"quota": frame}, PAPER))
    assert isinstance(least.ours, Unavailable)
    assert shape.ours == "not measured"


def test_cores_of_a_processor_are_shares_and_no_measurement_of_a_gpu(tmp_path: Path) -> None:
    document = made.tuning("cores", times={4: 5.0, 3: 4.0}) | {
        "unit": "cores",
        "levels": [{"amount": n, "setting": n} for n in (1, 2, 3, 4)],
        "unmanaged": {"unavailable": "there is no such difference"},
        "machine": {"cores": 4, "date": "2026-11-30"},
        "reason": "complete runs are faster",
    }
    frame = pl.DataFrame(quota.trial_rows("here", document), infer_schema_length=None)
    assert quota.sweep(frame)["percent"].to_list() == [100.0, 75.0]
    assert set(frame["unit"]) == {"cores"}
    off, best = quota.compare_best({"quota": frame}, PAPER)
    assert isinstance(off.ours, Unavailable)
    assert off.cause == "a processor has no MPS"
    assert best.ours == pytest.approx(0.8)
    assert "4 cores of a processor" in best.cause
    assert quota.joins(frame)["how"].to_list() == ["all cores for both", "75 % for the one that waits"]
    there = made.checkout(tmp_path, cores=document, mps=made.tuning(times={100: 5.0}))
    assert list(quota.study("h200", 0, there).cases) == ["mps.json"]


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core leaves no number of cores to choose")
def test_the_small_search_runs_here(tmp_path: Path) -> None:
    table = obtain(quota.study("smoke", 0, ROOT), tmp_path).table
    assert {"alone", "ready", "together"} <= set(table.frame["kind"])
    assert all(seconds > 0 for seconds in table.frame["seconds"])
    assert "/" not in table.frame["branches"][0]


def test_what_measured_a_table_is_told_beside_it(tmp_path: Path) -> None:
    there = made.checkout(tmp_path, mps=made.tuning(times={100: 5.0}) | {"machine": made.run()["machine"]})
    table = obtain(quota.study("h200", 0, there), tmp_path / "out").table
    (run,) = table.about["measured"].values()
    assert (run["gpu"], run["driver"], run["date"]) == ("NVIDIA H200", "580.1", "2026-11-30")
    assert [str(driver) for driver in set(table.frame["driver"])] == ["580.1"]
    assert "measured on NVIDIA H200, driver 580.1, torch 2.11.0; 2026-11-30 (1 run)" in table.origin
    assert "computed" not in table.origin  # who read it is another matter
    assert set(table.about["read"]) >= {"machine", "ended"}


def test_nothing_stored_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ReproduceError, match="no measurements for rose/quota are stored"):
        quota.study("h200", 0, made.checkout(tmp_path, nice=made.tuning("nice")))


def test_levels_with_which_products_are_wrong_are_told(tmp_path: Path) -> None:
    mps = made.tuning(times={100: 5.0, 90: 4.0, 70: 4.2, 50: 5.5})
    looked = {
        "rows": [
            {"percent": 100, "way": "as they are", "sms": 100, "tried": 36, "wrong": []},
            {"percent": 90, "way": "as they are", "sms": 90, "tried": 36, "wrong": []},
            {"percent": 90, "way": "captured", "sms": 90, "tried": 36, "wrong": [{"rows": 1}]},
            {"percent": 60, "way": "as they are", "failed": "killed"},
        ]
    }
    frame = obtain(quota.study("h200", 0, made.checkout(tmp_path, mps=mps, looked=looked)), tmp_path / "out")
    table = frame.table.frame
    assert list(table["case"].unique()) == ["mps.json"]
    told = quota.cause(table)
    assert "matrix products are wrong with 90 %" in told
    assert "nobody looked at 70, 50 %" in told
    without = made.checkout(tmp_path / "without", mps=mps)
    other = obtain(quota.study("h200", 0, without), tmp_path / "out")  # what was found makes another table
    assert "products" not in quota.cause(other.table.frame)
    assert other.table.frame["products"].to_list() != table["products"].to_list()
