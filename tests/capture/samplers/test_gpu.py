"""The samplers on a real GPU; skipped where there is none."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rlprof.capture.part_reader import read_parts
from rlprof.capture.samplers.base import LIMITS, MS, Backend
from rlprof.capture.samplers.choose import obstacle, try_out
from tests.conftest import ROOT

pytestmark = pytest.mark.gpu


def need(backend: Backend) -> None:
    reason = obstacle(backend)
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")


def sample(folder: Path, backend: str, rate_hz: float, seconds: float) -> dict[str, object]:
    """Run a sampler process for some seconds.

    Returns its description and its samples; these follow one another, each time once.
    """
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
    for device in set(found.tables["activity"]["device"].to_pylist()):
        of_it = found.tables["activity"]["device"].to_numpy() == device
        start, end = (found.tables["activity"][c].to_numpy()[of_it] for c in ("start_ns", "end_ns"))
        assert (start[1:] - end[:-1]).min() > -1e9 / rate_hz / 10, "a time came twice"
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


def probe(environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "rlprof.capture.sampler", "--probe", "--backend", "cupti"]
    done = subprocess.run(
        command,
        cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_cupti_python_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """Where PyTorch pins an older CUPTI, `RLPROF_CUPTI` names the folder that has the newer one."""
    need("cupti")
    spec = importlib.util.find_spec("cupti")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations))).parent
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p) != folder]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *others])}
    environment.pop("RLPROF_CUPTI", None)
    apart = subprocess.run(
        [sys.executable, "-c", "import cupti"], env=environment, capture_output=True, check=False
    ).returncode
    if not apart:
        pytest.skip("cupti-python is installed in this environment itself")
    assert probe(environment).startswith("failed")
    assert probe({**environment, "RLPROF_CUPTI": str(folder)}).startswith("ready")


def test_counters_at_the_shortest_period_are_complete(tmp_path: Path) -> None:
    need("cupti")
    rate_hz = 1e9 / LIMITS["cupti"].min_period_ns
    found = sample(tmp_path, "cupti", rate_hz, 5.0)
    samples, losses = found["activity"].num_rows, found["losses"]  # type: ignore[attr-defined]
    assert losses["lost_samples"] <= samples / 1000, losses  # type: ignore[index]


def test_the_sampler_stays_under_300_mb(tmp_path: Path) -> None:
    need("cupti")
    found = sample(tmp_path, "cupti", 10_000, 3.0)
    assert found["memory_bytes"]["private"] < 300e6, found["memory_bytes"]  # type: ignore[index]


def test_a_further_metric_comes_with_the_activity(tmp_path: Path) -> None:
    need("cupti")
    metric = "sm__warps_active.avg.pct_of_peak_sustained_active"
    out = tmp_path / "run.rlprof"
    command = [sys.executable, "-m", "rlprof", "capture", "--backend", "cupti", "--metrics", metric]
    command += ["-o", str(out), "--", sys.executable, "-c", "import time; time.sleep(1)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(out) as archive:
        names = archive.namelist()
    assert "counters.parquet" in names, names


def test_two_gpus_are_sampled_at_once(tmp_path: Path) -> None:
    need("cupti")
    from rlprof.capture.samplers.gpu_clock import device_count, load_driver

    if device_count(load_driver()) < 2:
        pytest.skip("one GPU here")
    found = sample(tmp_path, "cupti", 10_000, 2.0)
    assert set(found["activity"]["device"].to_pylist()) >= {0, 1}  # type: ignore[index]
    assert found["losses"]["lost_samples"] == 0  # type: ignore[index]
