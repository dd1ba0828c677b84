"""The shipped raw tables are those of this version's cost model, and a change of it is told."""

from __future__ import annotations

import polars as pl
import pytest

from rlprof.reproduce.raw import RawTable, read_raw
from rlprof.reproduce.registry import FIGURES
from rlprof.reproduce.rpeg import ablation, validation
from rlprof.reproduce.study import shipped_path, stored_table
from tests.conftest import ROOT


def test_a_change_of_the_cost_model_shows_in_predicted_operators() -> None:
    study = validation.study("full", 0, ROOT)
    frame = read_raw(shipped_path(ROOT, study)).frame
    one = frame.filter(pl.col("way") == frame["way"][0])
    assert study.stale(one) is None
    other = one.with_columns(
        pl.when(pl.int_range(pl.len()) == 7)
        .then(pl.col("predicted_bytes") * 1.01)
        .otherwise("predicted_bytes")
        .alias("predicted_bytes")
    )
    said = study.stale(other)
    assert said is not None
    assert "predicted_bytes" in said


def test_a_table_of_another_fit_than_the_shipped_hardware_is_told() -> None:
    """By a constant that no operator of the table depends on: its predictions are the same."""
    study = validation.study("full", 0, ROOT)
    frame = read_raw(shipped_path(ROOT, study)).frame
    assert study.stale(frame) is None
    before = '"p2p.intra_node.bandwidth":{"value":'
    found = frame.with_columns(pl.col("hardware").str.replace(before, f"{before}1", literal=True))
    said = study.stale(found)
    assert said is not None
    assert "the fit has changed since: p2p.intra_node.bandwidth" in said


def test_plans_of_a_search_by_other_means_are_worth_the_same_in_the_full_system() -> None:
    frame = read_raw(shipped_path(ROOT, ablation.study("full", 0, ROOT))).frame
    worth = ablation.in_full_system(frame)
    assert set(worth["change"]) == set(ablation.CHANGES) - {ablation.FULL}
    same = worth.filter(~pl.col("change").is_in(["A1", "A2"]))
    assert same["there"].to_list() == pytest.approx(same["tokens_per_s"].to_list())


@pytest.mark.slow
def test_no_shipped_table_is_stale() -> None:
    studies = {s.name: s for f in FIGURES for s in f.make_studies(f.presets[-1], 0, ROOT).values()}
    found = {name: stored_table(study, ROOT) for name, study in studies.items()}
    assert {name: str(table) for name, table in found.items() if not isinstance(table, RawTable)} == {}
