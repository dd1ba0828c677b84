"""The tutorial on learning: draws the kept curves, and trains for real."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from papermill.exceptions import PapermillExecutionError

from rlprof.workloads.embodied import metrics
from tests.conftest import ROOT, python_path
from tests.notebooks.execute import execute, mime_types, printed

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

NOTEBOOK = ROOT / "notebooks" / "05_learning_curve.ipynb"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())


def test_it_shows_the_kept_curves_with_their_seeds_and_trains(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = execute(NOTEBOOK, tmp_path, repository=str(ROOT), out_dir=str(out), seed=5)
    text = printed(done)
    for name in ("ppo", "grpo"):
        kept = json.loads((ROOT / f"benchmarks/results/workloads/learning_{name}_pi0.json").read_text())
        last = kept["success_frac_of_last_10"]
        seeds = kept["configuration"]["seed"]
        assert f"{name.upper()}: pi0 on mujoco_arm, seeds {seeds}" in text
        assert f"{name.upper()}: mean {last['mean']:.0%}, seeds {last['min']:.0%} to " in text
    assert re.search(r"PPO, seed 5: 4 iterations, \d+ updates", text)
    rows = metrics.read(out / "run" / metrics.NAME)
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    assert all(row["updates"] > 0 and row["grad_norm"] > 0 for row in rows)
    assert json.loads((out / "run" / "config.json").read_text())["seed"] == 5
    assert sum("image/svg+xml" in kinds for kinds in mime_types(done)) == 1
    assert {p.name for p in out.iterdir()} == {"run", "learning.svg"}


def test_a_preset_that_it_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PapermillExecutionError, match="preset is 'huge'"):
        execute(NOTEBOOK, tmp_path, preset="huge", repository=str(ROOT))
    assert {p.name for p in tmp_path.iterdir()} == {NOTEBOOK.name}
