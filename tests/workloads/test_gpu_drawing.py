"""`benchmarks/gpu/drawing` with whichever GL there is: what a GPU machine runs once must work."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from rlprof.workloads.embodied.simulators.libero_start import PYTHON_VARIABLE
from tests.conftest import ROOT


@pytest.mark.slow
def test_all_ways_are_timed_and_compared(tmp_path: Path) -> None:
    python = os.environ.get(PYTHON_VARIABLE)
    if not python:
        pytest.skip(f"{PYTHON_VARIABLE} names no Python with LIBERO: tools/setup_libero.sh makes one")
    sizes = ["--processes", "2", "--image", "32", "--rounds", "3", "--seconds", "1", "--plain"]
    done = subprocess.run(
        [python, "-m", "benchmarks.gpu.drawing", "--out", str(tmp_path), *sizes],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "makes no images here" in done.stderr:
        pytest.skip("no GL here")
    assert done.returncode == 0, done.stderr[-2000:]
    steps = list(json.loads((tmp_path / "drawing.json").read_text())["steps"].values())
    assert [(s["processes"], s["envs_of_each"]) for s in steps] == [(1, 1), (1, 16), (2, 1)]
    for step in steps:
        assert step["images_equal"]
        assert all(told["distinct"] == told["of"] == 17 for told in step["compared"])
        assert step["alone"]["reading_ms_per_env"]["max"] == 0 < step["sparing"]["reading_ms_per_env"]["min"]
        for way in ("alone", "together", "sparing", "nothing"):
            assert step[way]["rounds"] == 2
            assert step[way]["own_ms_per_env"]["max"] <= step[way]["round_ms"]["max"]
    assert done.stdout.count("-- ") == 4
