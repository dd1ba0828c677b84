"""The tutorial on the optimiser: runs on the CPU, and says what it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.notebooks.execute import execute, mime_types, printed

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

NOTEBOOK = ROOT / "notebooks" / "04_optimize.ipynb"


def test_it_optimises_and_trains_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = tmp_path / "out"
    done = execute(NOTEBOOK, tmp_path, out_dir=str(out))
    text = printed(done)
    assert re.search(r"activity: the program's share of \d+ cores", text)
    # which window comes first depends on how busy the machine is: choices are tested with recorded durations
    target = re.search(r"targets:\n  (iteration/\S+)", text)
    assert target is not None
    assert f"round 1, {target[1].rpartition('/')[2]}:" in text
    assert re.search(r"(refused, |; tried$)", text, re.MULTILINE)
    assert re.search(r"3 more iterations, 1 of them by the graph: the same was trained", text)
    assert sum("image/svg+xml" in kinds for kinds in mime_types(done)) >= 1
    assert {"before.svg", "optimisation"} <= {p.name for p in out.iterdir()}
