"""`benchmarks.gpu.mps` on stand-ins, and what is kept of it: nothing of a machine or of people."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import mps, mps_report, private
from benchmarks.gpu.common import ROOT


def test_what_names_a_card_a_user_or_a_folder_is_not_kept() -> None:
    made: dict[str, Any] = {
        "gpu": {"ordinal": 0, "uuid": "GPU-01234567-89ab-cdef-0123-456789abcdef", "sm_count": 132},
        "processes": [
            {
                "pid": 7,
                "command": "/usr/local/nvidia/bin/nvidia-cuda-mps-control -d",
                "environment": {"CUDA_HOME": "/opt/x", "RLPROF_MPS": "m"},
            },
            {"pid": 8, "command": "nvidia-cuda-mps-server", "environment": {}},
        ],
        "said": "process 7 of user somebody at /tmp/theirs",
        "status": "GPU-01234567: /tmp/rlprof-mps-1000/01234567/pipe",
        "run": "/opt/somewhere/.venv/bin/python3 -m x; written: /home/somebody/out/quota.json",
        "variables": {"SECRET": "value"},
    }
    assert mps_report.public(made) == {
        "gpu": {"ordinal": 0, "sm_count": 132},
        "processes": [
            {"pid": 7, "command": "nvidia-cuda-mps-control -d", "marked": True},
            {"pid": 8, "command": "nvidia-cuda-mps-server", "marked": False},
        ],
        "said": "process 7 at /tmp/theirs",
        "status": "GPU-x: /tmp/rlprof-mps/x/pipe",
        "run": "python3 -m x; written: OUT/quota.json",
    }


@pytest.mark.parametrize("name", ["mps", "mps_quota"])
def test_kept_results_tell_of_nobody(name: str) -> None:
    data = (mps_report.RESULTS / f"{name}.json").read_bytes()
    assert list(private.suspicious(private.text_of(data))) == []
    assert mps_report.public(json.loads(data)) == json.loads(data)


def test_tables_say_what_the_results_hold(tmp_path: Path) -> None:
    life = json.loads((mps_report.RESULTS / "mps.json").read_text())
    assert "| processes of the daemon that carry its mark | 2 of 2 |" in mps_report.mps_table(life)
    life["life"]["processes"][1]["marked"] = False
    life["life"]["contexts"][0]["context_sm_count"] += 2
    changed = mps_report.mps_table(life)
    assert "| processes of the daemon that carry its mark | 1 of 2 |" in changed
    assert "| equal for 5 of 6 percentages |" in changed
    quota = json.loads((mps_report.RESULTS / "mps_quota.json").read_text())
    assert "q0 is kept (" in mps_report.quota_table(quota)
    quota |= {"quotas": {"A": {"amount": 66, "setting": 50}}, "reason": "complete runs gain 4.0%"}
    assert "Decision: A gets 66 SMs, complete runs gain 4.0%." in mps_report.quota_table(quota)
    # what was not reached has a reason, and no table
    quota |= {"pair": {"unavailable": "x"}, "search": {"unavailable": "x"}, "unmanaged": {"unavailable": "x"}}
    assert "Slack" not in mps_report.quota_table(quota)


def run(out: Path, steps: str, seconds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu.mps", "run", "--out", str(out), "--steps", steps]
    done = subprocess.run(
        [*command, "--seconds", str(seconds)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("MPS processes left: none\n")
    found: dict[str, Any] = json.loads((out / "mps.json").read_text())
    return found


def test_each_step_has_a_limit() -> None:
    assert {*mps.STEPS, "quota"} == {*mps.LIMITS}


def test_a_step_is_a_process_that_writes_down_what_it_finds(fake_mps: Path, tmp_path: Path) -> None:
    found = run(tmp_path, "probe", 60)
    assert (*found,) == ("probe",)
    assert found["probe"]["ended"] == 0
    assert found["probe"]["gpus"][0]["name"] == "Stand-in"
    assert found["probe"]["processes"] == []
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".json"] == ["mps.json"]


@pytest.mark.slow
def test_the_life_of_a_daemon(fake_mps: Path, tmp_path: Path) -> None:
    found = run(tmp_path, "life,foreign", 100)
    life, foreign = found["life"], found["foreign"]
    assert (life["ended"], life["start"]["code"], life["left"]) == (0, 0, [])
    assert {p["pid"] for p in life["processes"]} == set(life["ours"])
    assert (foreign["ended"], foreign["refused"], foreign["left"]) == (0, True, [])
    assert foreign["still_there"]["code"] == 0


@pytest.mark.slow
def test_the_step_of_two_commands_is_rehearsed_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.mps", "step", "--name", "quota", "--out", str(tmp_path)]
    command += ["--seconds", "15", "--device", "cpu", "--mechanism", "cores"]
    subprocess.run(command, cwd=ROOT, check=True)
    found = json.loads((tmp_path / ".quota.json").read_text())
    assert found["run"]["code"] == 0, found["run"]["err"]
    assert found["result"] == json.loads((tmp_path / "quota.json").read_text())
    assert "--kind products --count" in found["result"]["branches"]["A"]
