"""What is kept of `benchmarks.gpu.mps`: nothing of a machine or of people; tables that say what it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import mps_report, private


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
