"""`benchmarks/gpu/overlap_probe` on the processor: what a GPU machine runs for the first time must work."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu import common, overlap_probe
from benchmarks.gpu.overlap_pair import Variant, variant_of

pytest.importorskip("torch")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")
SIZES = [
    *("--preset", "exact", "--device", "cpu", "--workers", "2", "--simulator", "mujoco_arm"),
    *(
        "--set",
        "envs=4",
        "chunks=2",
        "episode_steps=10",
        "denoise_steps=2",
        "global_batch=8",
        "micro_batch=4",
    ),
]


def test_names_of_variants() -> None:
    plain = {"rendering": "osmesa", "shadows": False}
    assert variant_of("osmesa+plain+nice10+w8", "libero") == Variant(
        "osmesa+plain+nice10+w8", "osmesa+plain+w8", 10, {**plain, "workers": 8}
    )
    assert variant_of("egl", "libero").changes == {"rendering": "egl", "shadows": True}
    assert variant_of("none+nice3", "libero") == Variant("none+nice3", "none", 3, {"cameras": 0})
    assert variant_of("here", "mujoco_arm").changes == {}
    for name, simulator in (("egl", "mujoco_arm"), ("egl+nice", "libero"), ("egl+ten", "libero")):
        with pytest.raises(ValueError, match=name.partition("+")[0]):
            variant_of(name, simulator)


@pytest.mark.slow
def test_variants_of_a_kind_share_processes_and_one_that_fails_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = "here,here+nice3,here+w0+nice3,here+w0+nice4,none+nice2"
    more = ("--variants", variants, "--cycles", "3", "--times", "2", "--seconds", "120")
    monkeypatch.setattr(sys, "argv", ["probe", "--out", str(tmp_path), *SIZES, *more])
    monkeypatch.setattr(common, "BEGAN_S", time.monotonic())  # as if it were a process of its own
    overlap_probe.main()
    found = json.loads((tmp_path / "overlap_probe.json").read_text())
    steps, mine = found["steps"], os.getpriority(os.PRIO_PROCESS, 0)
    assert list(steps) == ["here", "here+nice3", "here+w0+nice3", "none+nice2"]
    assert "the simulator is in this process" in steps.pop("here+w0+nice3")["error"]
    assert [s["nice"] for s in steps.values()] == [[mine], [mine + 3], [mine + 2]]
    assert ["start_s" in s for s in steps.values()] == [True, False, True]
    for step in steps.values():
        assert step["ok"], step
        assert step["answer_beside"]["n"] == step["step_beside"]["n"] == step["cycle"]["n"] == 6
        assert step["answer_alone_phases"]["denoise_step, called"]["n"] == 4
        assert {"core", "wake"} == set(step["gauges_alone"]) == set(step["gauges_beside_steps"])
        assert step["gauges_beside_steps"]["wake"]["min_s"] >= 0.001
        # an answer and a step make a cycle, whatever runs beside them
        parts = step["answer_beside"]["min_s"] + step["step_beside"]["min_s"]
        assert step["cycle"]["min_s"] >= 0.99 * parts
        assert step["cycle_at_best_s"] >= 2 * step["answer_alone"]["median_s"] - 1e-5
    shown = capsys.readouterr().out
    assert "here+w0+nice4: LEFT OUT, it did not start" in shown
    assert shown.rstrip().splitlines()[-1].startswith("none+nice2 | ")
