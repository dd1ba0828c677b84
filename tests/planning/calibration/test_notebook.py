"""The notebook that compares predictions with measurements runs, and draws what the raw measurements say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlprof.planning.calibration.raw import read_raw
from rlprof.planning.hardware_file import read_hardware
from tests.conftest import ROOT
from tests.notebooks.execute import execute, printed
from tests.planning.calibration import made

NOTEBOOK = ROOT / "reproductions/rpeg/calibration.ipynb"


@pytest.mark.slow
def test_it_draws_any_raw_measurements_again(tmp_path: Path) -> None:
    made.write(tmp_path / "raw.jsonl", made.raw(0.02, operators=True))
    run = execute(
        NOTEBOOK, tmp_path, raw=str(tmp_path / "raw.jsonl"), out_dir=str(tmp_path / "out"), base="h200"
    )
    assert "from here on: fit to" in printed(run)
    document = json.loads((tmp_path / "out/operators.json").read_text())
    assert document["accuracy"]["held out"]["mape"] < 0.1
    assert (tmp_path / "out/fit.svg").read_text().startswith("<svg")
    assert read_hardware(str(tmp_path / "out/measured.toml")).gpu == "Invented GPU"


@pytest.mark.slow
def test_it_draws_the_shipped_measurements(tmp_path: Path) -> None:
    run = execute(NOTEBOOK, tmp_path, repository=str(ROOT), out_dir=str(tmp_path / "out"))
    machine = read_raw(ROOT / "datasets/calibration/h200.raw.jsonl").machine
    assert machine.name in printed(run)
    assert "from here on: fit to extended, operators" in printed(run)
    accuracy = json.loads((tmp_path / "out/operators.json").read_text())["accuracy"]
    assert accuracy["all"]["configurations"] >= 60
    held = accuracy["held out"]
    assert (held["mape"] <= 0.12, held["spearman"] >= 0.99, held["memory_mape"] <= 0.10) == (True, True, True)
