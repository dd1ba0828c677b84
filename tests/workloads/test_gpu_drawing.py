"""`benchmarks/gpu/drawing` with whichever GL there is: what a GPU machine runs once must work."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu import drawing
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


def test_one_that_dies_keeps_none_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first takes one order, the others go on until there are no more."""
    child = tmp_path / "child"
    child.write_text(
        "#!/bin/sh\necho 1\n"
        f"mkdir {tmp_path}/first 2> /dev/null && read order && exit 3\n"
        "while read order; do echo 2; done\n"
    )
    child.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(child))
    drawers = drawing.Drawers(3, tmp_path, argparse.Namespace(backend="egl", image=8, plain=False))
    assert drawers.answers() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="has ended with code 3"):
        drawers.ask("alone 1")
    with pytest.raises((BrokenPipeError, RuntimeError)):
        drawers.ask("alone 1")
    drawers.close()
    assert sorted(process.returncode for process in drawers.each) == [0, 0, 3]


def test_side_by_side_ends_at_once_where_nothing_draws(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python3").write_text("#!/bin/sh\nexit 1\n")
    (bare / "python3").chmod(0o755)
    done = subprocess.run(
        ["bash", str(ROOT / "benchmarks/gpu/side_by_side.sh"), str(tmp_path / "out")],
        env={
            **os.environ,
            "PATH": f"{bare}{os.pathsep}{os.environ['PATH']}",
            PYTHON_VARIABLE: "/nowhere/python",
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.count("== no EGL device for GPU") == 2
