"""What is said before a capture: sizes against what was measured."""

from __future__ import annotations

import json

import pytest

from rlprof.capture.preflight import BackendCheck, Preflight
from tests.conftest import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def said(backend, rate_hz: float, device_count: int) -> Preflight:
    checks = (
        BackendCheck("cupti", False, rate_hz, 0, "no driver"),
        BackendCheck(backend, True, rate_hz, device_count),
    )
    return Preflight(checks, nsys="no", nvtx="no", output="can be written", free_bytes=10**9)


def test_the_growth_stated_at_10_khz_is_that_of_the_three_minutes_measured():
    measured = json.loads((RESULTS / "gpu" / "sampler_soak.json").read_text())["soak"]["sampler"]
    rate_hz = 1e9 / measured["period_ns"]
    stated = said("cupti", rate_hz, 1).size_bytes_per_minute()
    assert stated == pytest.approx(measured["bytes_per_minute"], rel=0.3)
    assert stated < 10e6


def test_the_growth_stated_for_the_host_is_that_of_the_ten_minutes_measured():
    measured = json.loads((RESULTS / "host_soak.json").read_text())
    samplers_bytes = said("host", 20, 0).size_bytes_per_minute()
    ranges = 60 * measured["ranges"] / measured["seconds"]
    assert 5 * ranges < measured["parts_bytes_per_minute"] - samplers_bytes < 25 * ranges


def test_two_gpus_take_twice_the_samples_and_one_write():
    one, two = (said("nvml", 10, n).size_bytes_per_minute() for n in (1, 2))
    assert one < two < 2 * one


def test_text_names_the_sampler_and_the_reasons():
    text = said("host", 20, 0).text()
    assert "cupti  no: no driver" in text
    assert "--backend auto takes host: about 0.084 MB a minute" in text


def test_without_a_sampler_nothing_is_said_of_sizes():
    check = BackendCheck("host", False, 20, 0, "there is no /proc/stat")
    empty = Preflight((check,), nsys="no", nvtx="no", output="no", free_bytes=None)
    assert empty.size_bytes_per_minute() is None
    assert "MB a minute" not in empty.text()
