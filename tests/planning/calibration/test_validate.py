"""Predicted against measured: numbers worked by hand, halves that stay, files that hold every row."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlprof.errors import OutputError, UsageError
from rlprof.planning.calibration.calibrate import calibrate
from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.observation import split_of
from rlprof.planning.calibration.predict import hardware_of, predicted_peak_bytes
from rlprof.planning.calibration.raw import Point, read_raw
from rlprof.planning.calibration.sweeps import validation_points
from rlprof.planning.calibration.tables import accuracy_document, accuracy_table, by_part, write_comparisons
from rlprof.planning.calibration.validate import (
    Comparison,
    accuracy,
    compare,
)
from rlprof.planning.hardware_file import read_hardware
from rlprof.unavailable import Unavailable
from tests.conftest import ROOT
from tests.planning.calibration.made import TRUE, as_dict, observation, raw
from tests.planning.made import TINY

ONE = Comparison(
    "inference",
    "tiny",
    4,
    8,
    8,
    1,
    1,
    "held_out",
    1.0,
    0.01,
    1.1,
    None,
    None,
    None,
    None,
    100,
    120.0,
    5,
    "2026",
)
MEASURED = raw(operators=True)


def test_errors_bias_and_order_are_those_worked_by_hand() -> None:
    rows = [ONE, replace(ONE, measured_s=2.0, predicted_s=1.0), replace(ONE, measured_s=4.0, predicted_s=4.4)]
    a = accuracy(rows)
    assert a.configurations == 3
    assert a.mape == pytest.approx((0.1 + 0.5 + 0.1) / 3)
    assert a.bias == pytest.approx((0.1 - 0.5 + 0.1) / 3)
    assert a.spearman == pytest.approx(0.5)  # ranks 1 2 3 against 2 1 3
    assert a.ordered_pairs_frac == pytest.approx(2 / 3)
    assert a.memory_mape == pytest.approx(0.2)


def test_what_cannot_be_told_is_unavailable_and_not_0() -> None:
    a = accuracy([replace(ONE, measured_peak_bytes=None)])
    assert isinstance(a.memory_mape, Unavailable)
    assert isinstance(a.spearman, Unavailable)
    document = accuracy_document({"all": a})["all"]
    assert document["spearman"] is None
    assert "three" in document["spearman_unavailable"]
    assert "-" in accuracy_table({"all": a})
    with pytest.raises(CalibrationError):
        accuracy([])


def test_the_true_constants_predict_what_the_invented_machine_does() -> None:
    rows = compare(MEASURED, hardware_of(TRUE))
    assert len(rows) >= 60
    assert accuracy(rows).mape < 1e-9
    assert accuracy(rows).spearman == pytest.approx(1)
    assert accuracy(rows).memory_mape == pytest.approx(1 - 1 / 1.05, abs=1e-6)
    assert {r.role for r in rows if r.prefill_predicted_s is not None} == {"generation"}
    assert {r.role for r in rows if r.optimizer_predicted_s is not None} == {"training"}
    assert accuracy(compare(MEASURED, hardware_of(TRUE | {"peak_flops": 200e12}))).bias > 0.2


def test_a_fit_to_one_half_predicts_the_other() -> None:
    fitted = calibrate(MEASURED, name="x", bandwidth="everything", operators=True, draws=2).hardware
    held = [r for r in compare(MEASURED, fitted) if r.split == "held_out"]
    assert accuracy(held).mape < 0.01


def test_the_half_of_a_configuration_depends_on_nothing_else() -> None:
    points = validation_points("cuda", "full")
    alone = {p.identity: split_of(observation(p)) for p in points}
    assert alone == {p.identity: split_of(observation(p, seconds=9.0)) for p in reversed(points)}
    assert {r.split for r in compare(MEASURED, hardware_of(TRUE))} == {"fit", "held_out"}
    assert any(split_of(observation(p), seed=1) != alone[p.identity] for p in points)


def test_peak_memory_of_training_is_weights_gradients_optimizer_and_activations() -> None:
    key = {"shape": as_dict(TINY), "sequences": 2, "prompt_tokens": 8, "response_tokens": 8}
    held = predicted_peak_bytes(observation(Point("training", key)), 2)
    parameters = TINY.parameters("lm")
    # chunk round(sqrt 8) = 3; kept ceil(8 / 3) 64 + 3 max(8 64, 2 64 + 3 128)
    activations = 2 * 2 * 16 * (3 * 64 + 3 * 512)
    assert held == pytest.approx(16 * parameters + activations)


def test_every_configuration_is_in_the_files(tmp_path: Path) -> None:
    rows = compare(MEASURED, hardware_of(TRUE))
    write_comparisons(rows, tmp_path / "rows.csv")
    write_comparisons(rows, tmp_path / "rows.json")
    table = list(csv.DictReader((tmp_path / "rows.csv").open()))
    document = json.loads((tmp_path / "rows.json").read_text())
    assert len(table) == len(document["configurations"]) == len(rows)
    assert float(table[0]["measured_s"]) == rows[0].measured_s
    assert document["accuracy"]["all"]["configurations"] == len(rows)
    assert set(by_part(rows)) >= {"all", "held out", "held out, training"}
    with pytest.raises(OutputError):
        write_comparisons(rows, tmp_path / "rows.csv")
    with pytest.raises(UsageError):
        write_comparisons(rows, tmp_path / "rows.txt")


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="no operator"):
        compare(raw(), hardware_of(TRUE))


def test_the_shipped_h200_predicts_what_was_measured_on_h200s() -> None:
    """On configurations that the fit did not see: the targets, and two GPUs besides."""
    rows = compare(read_raw(ROOT / "datasets/calibration/h200.raw.jsonl"), read_hardware("h200"))
    parts = by_part(rows)
    held = parts["held out"]
    assert len(rows) >= 60
    assert held.configurations >= 30
    assert held.mape <= 0.12
    assert isinstance(held.spearman, float)
    assert held.spearman >= 0.99
    assert isinstance(held.memory_mape, float)
    assert held.memory_mape <= 0.10
    assert parts["several devices, held out"].mape <= 0.12
