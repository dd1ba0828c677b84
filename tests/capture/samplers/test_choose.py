"""Choosing a sampler: the order, the reasons, and what the trial process says."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlprof.capture.samplers.base import MS, SamplerError, check_period, period_of, rate_text
from rlprof.capture.samplers.choose import (
    Trial,
    choose,
    counters_reserved,
    driver_present,
    obstacle,
    read_answer,
    try_out,
)
from rlprof.errors import UsageError

module = importlib.import_module("rlprof.capture.samplers.choose")

PARAMS = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {}\nOtherThing: 0\n"


def working(*names: str) -> Trial:
    """A trial in which only some back ends work."""

    def trial(backend: str, period_ns: int, devices: Sequence[int] | None) -> dict[str, Any]:
        if backend not in names:
            raise SamplerError(f"{backend} is broken", hint="mend it")
        return {"devices": [{"device": 0}], "period_ns": period_ns}

    return trial


@pytest.fixture
def no_obstacles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "obstacle", lambda backend, root: None)


@pytest.mark.usefixtures("no_obstacles")
def test_the_best_that_works_is_taken_and_the_better_ones_are_explained() -> None:
    choice = choose(trial=working("nvml", "host"))
    assert choice.backend == "nvml"
    assert choice.period_ns == 100 * MS
    assert [(r.backend, r.reason) for r in choice.rejected] == [
        ("cupti", "cupti is broken. Next: mend it"),
        ("dcgm", "dcgm is broken. Next: mend it"),
    ]
    assert choice.text().splitlines()[-1] == "nvml: taken"


@pytest.mark.usefixtures("no_obstacles")
def test_a_rate_that_only_some_can_keep_rejects_the_others() -> None:
    choice = choose(20, trial=working("host"))
    assert choice.backend == "host"
    reasons = {r.backend: r.reason for r in choice.rejected}
    assert set(reasons) == {"cupti", "dcgm", "nvml"}
    assert "outside the range of the cupti sampler (100 Hz to 25 kHz)" in reasons["cupti"]


@pytest.mark.usefixtures("no_obstacles")
def test_one_back_end_out_of_range_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="outside the range of the nvml sampler"):
        choose(1000, backends=["nvml"], trial=working("nvml"))


@pytest.mark.usefixtures("no_obstacles")
def test_when_nothing_works_every_reason_is_given() -> None:
    with pytest.raises(
        SamplerError, match=r"cupti is broken.*dcgm is broken.*nvml is broken.*host is broken"
    ):
        choose(trial=working())


@pytest.mark.parametrize("rate", [0, -5, float("nan"), float("inf")])
def test_rates_that_are_none_are_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="is no rate"):
        choose(rate)


def test_unknown_back_ends_are_refused() -> None:
    with pytest.raises(UsageError, match="no sampler is called magic"):
        choose(backends=["magic"])  # type: ignore[list-item]


def test_files_tell_whether_counters_are_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not counters_reserved(tmp_path)
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "params").write_text(PARAMS.format(0))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not counters_reserved(tmp_path)
    (folder / "params").write_text(PARAMS.format(1))
    assert counters_reserved(tmp_path)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/status").write_text("Name:\tx\nCapEff:\t0000004000000000\n")
    assert not counters_reserved(tmp_path)  # CAP_PERFMON
    (tmp_path / "proc/self/status").write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    assert counters_reserved(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not counters_reserved(tmp_path)


def test_missing_permission_names_the_driver_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text("NVRM version\n")
    (folder / "params").write_text(PARAMS.format(1))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "apart/cupti").mkdir(parents=True)
    monkeypatch.setenv("RLPROF_CUPTI", str(tmp_path / "apart"))
    reason = obstacle("cupti", tmp_path)
    assert reason is not None
    assert "NVreg_RestrictProfilingToAdminUsers=0" in reason
    assert "RmProfilingAdminOnly" in reason


def test_without_a_driver_or_package_that_is_the_reason(tmp_path: Path) -> None:
    assert not driver_present(tmp_path)
    assert obstacle("cupti", tmp_path) == "no NVIDIA driver is installed here"
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text("NVRM version\n")
    assert "pip install" in (obstacle("nvml", tmp_path) or "pip install")
    assert obstacle("host", tmp_path) == "there is no /proc/stat (Linux only)"
    (tmp_path / "proc/stat").write_text("")
    assert obstacle("host", tmp_path) is None


def test_the_trial_process_really_samples() -> None:
    answer = try_out("host", 50 * MS, None)
    assert answer["backend"] == "host"
    assert answer["devices"][0]["cores"] >= 1
    choice = choose(20, backends=["host"])
    assert (choice.backend, choice.rejected) == ("host", ())


def test_what_a_sampler_process_says_is_understood() -> None:
    assert read_answer("cupti", 'noise\nready {"pid": 1}\n', 0) == {"pid": 1}
    with pytest.raises(SamplerError, match=r"taken by nsys. Next: end it"):
        read_answer("cupti", 'failed {"what": "taken by nsys", "hint": "end it"}\n', 2)
    with pytest.raises(SamplerError, match=r"ended without an answer \(exit code -11\)"):
        read_answer("cupti", "Segmentation fault\nready {broken\n", -11)


@pytest.mark.parametrize(
    ("period", "text"), [(100_000, "10 kHz"), (20_000, "50 kHz"), (50 * MS, "20 Hz"), (1_000 * MS, "1 Hz")]
)
def test_rates_for_people(period: int, text: str) -> None:
    assert rate_text(period) == text
    assert period_of(1e9 / period) == period


def test_the_edges_of_a_range_are_inside() -> None:
    for period in (40_000, 10 * MS):
        check_period("cupti", period)
    with pytest.raises(UsageError, match="--rate 25kHz"):
        check_period("cupti", 19_000)
