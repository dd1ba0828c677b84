"""Quota searches: rows of a document of `rlprof quota`, wherever it lies in a file."""

from __future__ import annotations

from pathlib import Path

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
    least, shape = quota.compare_sweep({"quota": frame}, PAPER)
    assert (least.ours, least.paper, shape.ours) == (90.0, 95.0, "yes")
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
    least, shape = quota.compare_sweep({"quota": frame}, PAPER)
    assert isinstance(least.ours, Unavailable)
    assert shape.ours == "not measured"


def test_nothing_stored_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ReproduceError, match="no measurements for rose/quota are stored"):
        quota.study("h200", 0, made.checkout(tmp_path, nice=made.tuning("nice")))
