"""The arguments of nsys."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlprof.capture.samplers.nsys import profile_arguments
from rlprof.errors import UsageError


def test_graphs_by_node_counters_of_all_gpus_and_no_processor_samples() -> None:
    arguments = profile_arguments(Path("run.nsys-rep"))
    assert arguments[0] == "profile"
    for wanted in (
        "--trace=cuda,nvtx",
        "--cuda-graph-trace=node",
        "--gpu-metrics-devices=all",
        "--gpu-metrics-frequency=10000",
        "--sample=none",
        "--cpuctxsw=none",
        "--output=run.nsys-rep",
    ):
        assert wanted in arguments
    assert not any(a.startswith("--nvtx-capture") for a in arguments)


def test_rate_devices_and_start_are_passed_on() -> None:
    arguments = profile_arguments(
        Path("run.nsys-rep"), rate_hz=2000, devices=[0, 2], start_on="warm", traces=("nvtx",)
    )
    assert "--gpu-metrics-frequency=2000" in arguments
    assert "--gpu-metrics-devices=0,2" in arguments
    assert "--trace=nvtx" in arguments
    assert "--nvtx-capture=warm@rlprof" in arguments
    assert "--capture-range-end=none" in arguments  # its default would end the program with the range


@pytest.mark.parametrize("rate", [9.9, 200_001, 0, -1])
def test_rates_out_of_range_are_refused(rate: float) -> None:
    with pytest.raises(UsageError, match=r"outside the range of nsys \(10 Hz to 200 kHz\)"):
        profile_arguments(Path("run.nsys-rep"), rate_hz=rate)
