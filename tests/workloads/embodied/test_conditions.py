"""What a measurement depends on: it is told, and another one means another key."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")

import torch

import rlprof
from rlprof.overlap.optimize.store import Store
from rlprof.workloads.embodied import conditions as module
from rlprof.workloads.embodied import sharing
from rlprof.workloads.embodied.conditions import (
    MEASURED,
    conditions,
    digest,
    driver,
    hardware,
    source_digest,
    versions,
)
from rlprof.workloads.embodied.config import Config, configure
from rlprof.workloads.embodied.optimize import key_of
from rlprof.workloads.embodied.sharing import PERCENTAGE, PIPE, mps
from rlprof.workloads.embodied.simulators.libero_start import PYTHON_VARIABLE


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Config:
    """A configuration of a GPU that PyTorch says is there."""
    there = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: there)
    monkeypatch.setattr(module, "driver", lambda: "575.57.08")
    monkeypatch.delenv(PIPE, raising=False)
    monkeypatch.delenv(PERCENTAGE, raising=False)
    monkeypatch.setattr(sharing, "DEFAULT_PIPE", "/nowhere")
    return replace(configure("tiny"), device="cuda:0")


def test_they_are_a_document_and_the_same_each_time() -> None:
    config = configure("exact")
    found = conditions(config)
    assert json.loads(json.dumps(found)) == conditions(config)
    assert key_of(config) == key_of(config)
    assert found["versions"]["torch"] == torch.__version__ == found["torch"]
    assert found["processor"]
    assert "driver" not in found  # there is no GPU in it


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("mps", "mps on was off"),
        ("percentage", "mps_percentage 40 was none"),
        ("driver", "driver 580.65.06 was 575.57.08"),
        ("quota of the daemon", "sms 66 was 132"),
        ("processor", "processor EPYC was "),
        ("source", "source 0123 was "),
        ("simulator", "mujoco 9.9 was "),
        ("rendering", "MUJOCO_GL osmesa was none"),
        ("option", "workers 2 was "),
    ],
)
def test_what_changes_is_measured_again_and_why_is_said(
    what: str, said: str, on_gpu: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    path = tmp_path / "measurements.jsonl"
    before = key_of(on_gpu)
    Store(path).begin(conditions(on_gpu))
    if what == "mps":
        (tmp_path / "control").touch()
        monkeypatch.setenv(PIPE, str(tmp_path))
    elif what == "percentage":
        monkeypatch.setenv(PERCENTAGE, "40")
    elif what == "driver":
        monkeypatch.setattr(module, "driver", lambda: "580.65.06")
    elif what == "quota of the daemon":
        fewer = SimpleNamespace(name="NVIDIA H200", multi_processor_count=66)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: fewer)
    elif what == "processor":
        monkeypatch.setattr(module, "processor", lambda: "EPYC")
    elif what == "source":
        monkeypatch.setattr(module, "source_digest", lambda: "0123")
    elif what == "simulator":
        known = module._version
        monkeypatch.setattr(module, "_version", lambda name: "9.9" if name == "mujoco" else known(name))
    elif what == "rendering":
        monkeypatch.setenv("MUJOCO_GL", "osmesa")
    else:
        on_gpu = replace(on_gpu, workers=2)
    assert key_of(on_gpu) != before
    store = Store(path)
    store.begin(conditions(on_gpu))
    (line,) = store.not_reused
    assert line.startswith(f"measurements of session 1 are not reused: {said}")
    assert ";" not in line


def test_a_daemon_that_no_variable_names_is_at_its_usual_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "DEFAULT_PIPE", str(tmp_path))
    assert not mps({})
    (tmp_path / "control").touch()
    assert mps({})
    assert not mps({PIPE: "/nowhere"})


def test_a_gpu_says_its_driver_and_the_sms_that_are_to_be_had(on_gpu: Config) -> None:
    found = hardware(on_gpu)
    assert (found["gpu"], found["sms"], found["driver"]) == ("NVIDIA H200", 132, "575.57.08")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Wed May  7 09:12:57 UTC 2025\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (dvs)\n",
    ],
)
def test_the_driver_is_that_of_the_kernel(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_text(line + "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1)\n")
    monkeypatch.setattr(module, "Path", lambda _: tmp_path / "version")
    driver.cache_clear()
    try:
        assert driver() == "575.57.08"
    finally:
        driver.cache_clear()


def test_the_source_is_what_runs_while_it_is_measured(tmp_path: Path) -> None:
    package = Path(rlprof.__file__).parent
    assert source_digest() == digest(package, MEASURED)
    for name in ("taskgraph", "report"):
        shutil.copytree(package / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    names = ("taskgraph",)
    before = digest(tmp_path, names)
    (tmp_path / "report" / "html.py").write_text("")
    assert digest(tmp_path, names) == before
    (tmp_path / "taskgraph" / "dispatch.py").rename(tmp_path / "taskgraph" / "dispatched.py")
    renamed = digest(tmp_path, names)
    assert renamed != before
    (tmp_path / "taskgraph" / "dispatched.py").write_text("")
    assert digest(tmp_path, names) not in (before, renamed)


def test_versions_of_a_simulator_in_another_python_are_asked_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    monkeypatch.setitem(module.SIMULATORS, "libero", ("numpy", "no-such-package"))
    config = replace(configure("tiny"), simulator="libero")
    here = versions(config)
    assert here["numpy"]
    assert here["no-such-package"] is None
    monkeypatch.setenv(PYTHON_VARIABLE, str(other))
    monkeypatch.setattr(module, "_version", lambda _: "of this one")
    assert versions(config)["numpy"] == here["numpy"]
    monkeypatch.setenv(PYTHON_VARIABLE, str(tmp_path / "none"))
    assert versions(config)["numpy"] is None
