"""The samplers on a real GPU; skipped where there is none."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rlprof.capture.part_reader import read_parts
from rlprof.capture.samplers.base import MS, Backend
from rlprof.capture.samplers.choose import obstacle, try_out
from tests.conftest import ROOT

pytestmark = pytest.mark.gpu


def need(backend: Backend) -> None:
    reason = obstacle(backend)
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")


def sample(folder: Path, backend: str, rate_hz: float, seconds: float) -> dict[str, object]:
    """Run a sampler process for some seconds; returns its description and its samples."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rlprof.capture.sampler", "--backend", backend),
            *("--rate-hz", str(rate_hz), "--folder", str(folder)),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready")
    time.sleep(seconds)
    process.communicate(timeout=20)
    (found,) = read_parts(folder)
    return {**found.facts["sampler"], "activity": found.tables["activity"]}


def test_counters_at_10_khz_are_complete_and_dated(tmp_path: Path) -> None:
    need("cupti")
    found = sample(tmp_path, "cupti", 10_000, 2.0)
    activity = found["activity"]
    start, end = (activity[c].to_numpy() for c in ("start_ns", "end_ns"))  # type: ignore[index]
    assert len(start) == pytest.approx(20_000, rel=0.1)
    assert np.median(end - start) == pytest.approx(100_000, rel=0.01)
    assert found["losses"]["lost_samples"] == 0  # type: ignore[index]
    assert (start[1:] - end[:-1]).max() < 20_000
    assert abs(int(end[-1]) - time.monotonic_ns()) < 5e9
    clock = found["clock"]["0"]  # type: ignore[index]
    assert clock["method"] == "kernel reading %globaltimer"
    assert clock["uncertainty_ns"] < 100_000


def test_a_second_sampler_of_the_counters_is_told_that_they_are_taken(tmp_path: Path) -> None:
    need("cupti")
    first = subprocess.Popen(
        [sys.executable, "-m", "rlprof.capture.sampler", "--backend", "cupti", "--folder", str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert first.stdout is not None
    assert first.stdout.readline().startswith(b"ready")
    try:
        from rlprof.capture.samplers.base import SamplerError

        with pytest.raises(SamplerError, match="counters of GPU 0 are taken"):
            try_out("cupti", 1 * MS, [0])
    finally:
        first.communicate(timeout=20)


def test_gpm_answers_ten_times_a_second(tmp_path: Path) -> None:
    need("nvml")
    found = sample(tmp_path, "nvml", 10, 1.5)
    active = found["activity"]["active_frac"].to_numpy()  # type: ignore[index]
    assert len(active) >= 10
    assert ((active >= 0) & (active <= 1)).all()
