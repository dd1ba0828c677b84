"""`benchmarks.gpu.levers`: what its table says, what is refused before anything runs, and going on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")

from benchmarks.gpu.levers import NATIVE, ORDER, busy, levers_table
from rlprof.workloads.embodied.levers import LEVERS, wanted_levers
from tests.conftest import ROOT


def compared(*pairs: tuple[float, float]) -> dict[str, Any]:
    from rlprof.analysis.trials import Rule, compare

    return compare(pairs, Rule(confidence=0.9, most_pairs=5)).to_dict()


def row(lever: str, **more: Any) -> dict[str, Any]:
    return {
        "lever": lever, "before": False, "value": True, "outcome": "dropped", "reason": "worse",
        "result": None, "order": "graph", "others_busy_frac": None, **more,
    }  # fmt: skip


def document(*levers: dict[str, Any], **more: Any) -> dict[str, Any]:
    config = {
        "policy": "pi0", "simulator": "libero", "preset": "h200", "envs": 16, "rollout_epochs": 2,
        "chunks": 6, "workers": 16,
    }  # fmt: skip
    machine = {"date": "2026-11-30", "cores": 16, "gpu": "NVIDIA H200, 580, 345 MHz, Default"}
    return {"machine": machine, "config": config, "levers": list(levers), **more}


def test_the_order_has_every_lever_once() -> None:
    assert list(wanted_levers(ORDER, {})) == [part.partition("=")[0] for part in ORDER.split(",")]
    assert set(wanted_levers(ORDER, {})) == set(LEVERS)
    assert set(NATIVE) < set(LEVERS)


def test_the_table_has_times_with_their_spread_and_the_load() -> None:
    pairs = [(2.0, 1.0), (2.2, 1.1), (2.4, 1.2), (2.6, 1.3), (2.8, 1.4)]
    load = {"median": 0.25, "most": 0.5}
    kept = row("nice", before=0, value=10, outcome="kept", result=compared(*pairs), others_busy_frac=load)
    lines = levers_table(document(kept)).splitlines()
    assert "NVIDIA H200, 16 cores, pi0 and libero" in lines[0]
    assert lines[-1] == (
        "| nice | 0 -> 10 | graph | 2.400 (2.200..2.600) | 1.200 (1.100..1.300) | +50.0% | 5 | 25 (50)"
        " | kept: worse |"
    )


def test_the_table_says_what_has_no_times() -> None:
    refused = row(
        "priorities", before=None, value=None, outcome="does not apply", reason="cpu has no streams"
    )
    lines = levers_table(document(refused, left_out=["groups"])).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[-2:]]
    assert cells == [
        ["priorities", *[""] * 7, "does not apply: cpu has no streams"],
        ["groups", *[""] * 7, "left out: no time was left"],
    ]
    heads = next(line for line in lines if line.startswith("| lever"))
    assert all(line.count("|") == heads.count("|") for line in lines if line.startswith("| "))


def test_a_load_that_nobody_saw_is_not_none_at_all() -> None:
    assert busy([]) is None
    assert busy([0.0, 0.5, 0.1]) == {"median": 0.1, "most": 0.5}


def run(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu.levers", "--out", str(out), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_a_lever_that_is_none_is_refused_in_a_line(tmp_path: Path) -> None:
    done = run(tmp_path / "out", "--levers", "tea")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: no lever is called 'tea'")


@pytest.mark.slow
def test_levers_one_by_one_and_a_later_call_that_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("mujoco", reason="mujoco is not installed: pip install 'rlprof[workloads]'")
    tiny = (
        *("--simulator", "mujoco_arm", "--preset", "tiny", "--device", "cpu", "--workers", "1"),
        *("--pairs", "1", "--seconds", "250", "--set", "chunks=2", "episode_steps=10", "envs=4"),
        *("global_batch=8", "micro_batch=4", "update_epochs=1"),
    )
    first = tmp_path / "first"
    done = run(first, *tiny, "--levers", "in-turn,priorities")
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((first / "levers_mujoco_arm.json").read_text())
    assert [(r["lever"], r["order"]) for r in made["levers"]] == [
        ("in-turn", "graph"),
        ("priorities", "graph"),
    ]
    assert len(made["levers"][0]["result"]["pairs"]) == 1
    assert made["levers"][1]["outcome"] == "does not apply"
    again = tmp_path / "again"
    kept = first / "measurements_levers.jsonl"
    done = run(again, *tiny, "--levers", "in-turn,workers=2", "--measured", str(kept))
    assert done.returncode == 0, done.stdout + done.stderr
    went_on = json.loads((again / "levers_mujoco_arm.json").read_text())
    assert went_on["levers"][0]["result"] == made["levers"][0]["result"]
    assert went_on["levers"][0]["reason"].endswith("(measured before)")
    assert went_on["levers"][0]["others_busy_frac"] is None
    assert went_on["levers"][1]["order"] == "native"
    assert levers_table(went_on).count("\n| ") == 3


def test_what_there_is_no_time_for_is_left_out_by_name(capsys: Any, monkeypatch: Any) -> None:
    from types import SimpleNamespace

    from benchmarks.gpu.levers import Levers

    made = object.__new__(Levers)
    made.args, made.ends = SimpleNamespace(pairs=5), 0.0  # type: ignore[assignment]
    facts = {"steps": {"graph": {"native_s": 6.0, "graph_s": 5.0}}, "left_out": []}
    made.report = SimpleNamespace(document=facts, write=lambda: None)  # type: ignore[assignment]
    made.here = made.selected = None
    made.wanted = {"workers": None}
    lever = SimpleNamespace(name="workers", others=lambda: (2,))
    monkeypatch.setattr("rlprof.workloads.embodied.levers.setting_levers", lambda *_: [lever])
    made.one("workers", None)  # type: ignore[arg-type]
    assert facts["left_out"] == ["workers"]
    assert "LEFT OUT, it needs 66 s" in capsys.readouterr().out
