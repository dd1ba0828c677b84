"""State of a GPU, with a stand-in for nvidia-smi."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlprof.overlap.quota.machine import gpu_state
from rlprof.unavailable import Unavailable


def stand_in(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("known", ["clocks_event_reasons", "clocks_throttle_reasons"])
def test_clocks_temperature_and_power_of_new_and_old_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    script = (
        f'case "$*" in *{known}.active*"-i GPU-1") echo "1980, 2619, 41, [N/A], 0x0000000000000004";;\n'
        '*) echo "Field is not a valid field to query"; exit 2;; esac'
    )
    stand_in(tmp_path, script, monkeypatch)
    assert gpu_state("GPU-1") == {
        "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 2619.0,
        "temperature_c": 41.0,
        "power_w": "[N/A]",
        "slowed_by": "0x0000000000000004",
    }


def test_why_there_is_no_state_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, 'echo "No devices were found"; exit 6', monkeypatch)
    found = gpu_state("GPU-1")
    assert isinstance(found, Unavailable)
    assert found.reason == "No devices were found"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    absent = gpu_state("GPU-1")
    assert isinstance(absent, Unavailable)
    assert "nvidia-smi cannot be asked" in absent.reason
