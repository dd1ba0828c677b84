"""The NVML sampler against a faked library: what it asks, refuses, and gives back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlprof.capture.samplers.base import MS, SamplerError
from rlprof.capture.samplers.nvml import NvmlSampler
from rlprof.errors import UsageError


class NVMLError(Exception):
    """As in `pynvml`."""


class FakeNvml:
    """`pynvml` with two GPUs; `answers` are given in order, (return code, value)."""

    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVMLError = NVMLError
    NVMLError_LibraryNotFound = type("NVMLError_LibraryNotFound", (NVMLError,), {})
    NVMLError_DriverNotLoaded = type("NVMLError_DriverNotLoaded", (NVMLError,), {})
    NVMLError_NoPermission = type("NVMLError_NoPermission", (NVMLError,), {})
    NVMLError_NotSupported = type("NVMLError_NotSupported", (NVMLError,), {})
    NVMLError_FunctionNotFound = type("NVMLError_FunctionNotFound", (NVMLError,), {})

    def __init__(self, answers: list[tuple[int, float]] = (), *, gpm: bool = True) -> None:
        self.answers = list(answers)
        self.gpm = gpm
        self.fail_init: Exception | None = None
        self.allocated = 0
        self.on = False
        self.asked: list[int] = []

    def nvmlInit(self) -> None:
        if self.fail_init:
            raise self.fail_init
        self.on = True

    def nvmlShutdown(self) -> None:
        self.on = False

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:
        return SimpleNamespace(isSupportedDevice=int(self.gpm))

    def nvmlGpmSampleAlloc(self) -> object:
        self.allocated += 1
        return object()

    def nvmlGpmSampleFree(self, sample: object) -> None:
        self.allocated -= 1

    def nvmlGpmSampleGet(self, handle: int, sample: object) -> None:
        pass

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0)])

    def nvmlGpmMetricsGet(self, ask: Any) -> None:
        assert ask.sample1 is not ask.sample2
        self.asked.append(ask.metrics[0].metricId)
        ask.metrics[0].nvmlReturn, ask.metrics[0].value = self.answers.pop(0)


class Ticker:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        self.ns += 1000
        return self.ns


def test_each_answer_covers_the_time_between_two_looks() -> None:
    nvml, now = FakeNvml([(0, 92.0), (0, 7.5)]), Ticker()
    sampler = NvmlSampler([1], 100 * MS, nvml, now)
    (device,) = sampler.start()
    assert (device.device, device.name, device.uuid) == (1, "NVIDIA H200", "GPU-1")
    now.ns += 100 * MS
    (first,) = sampler.drain()
    now.ns += 100 * MS
    (second,) = sampler.drain()
    assert first.active_frac[0] == pytest.approx(0.92)
    assert second.active_frac[0] == pytest.approx(0.075)
    assert second.start_ns[0] == first.end_ns[0]
    assert nvml.asked == [nvml.NVML_GPM_METRIC_SM_UTIL] * 2
    sampler.stop()
    assert (nvml.allocated, nvml.on) == (0, False)


def test_answers_that_are_no_number_are_counted_and_left_out() -> None:
    nvml, now = FakeNvml([(0, float("nan")), (0, 50.0), (3, 0.0), (0, 51.0)]), Ticker()
    sampler = NvmlSampler(None, 100 * MS, nvml, now)
    sampler.start()
    now.ns += 100 * MS
    assert [s.device for s in sampler.drain()] == [1]
    now.ns += 100 * MS
    assert [s.device for s in sampler.drain()] == [1]
    losses = sampler.losses()
    assert (losses.invalid, losses.lost_samples, losses.gaps) == (2, 2, 2)


@pytest.mark.parametrize("period", [99 * MS, 20 * MS])
def test_shorter_periods_are_refused_with_the_reason(period: int) -> None:
    with pytest.raises(UsageError, match="most answers of NVML's GPM are zero or not a number"):
        NvmlSampler(None, period, FakeNvml())


def test_a_gpu_before_hopper_is_refused_and_nothing_is_left_open() -> None:
    nvml = FakeNvml(gpm=False)
    with pytest.raises(SamplerError, match="no GPM"):
        NvmlSampler(None, 100 * MS, nvml).start()
    assert (nvml.allocated, nvml.on) == (0, False)


def test_a_gpu_that_does_not_exist_is_named() -> None:
    with pytest.raises(SamplerError, match="there is no GPU 5: this machine shows 2"):
        NvmlSampler([5], 100 * MS, FakeNvml()).start()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("NVMLError_LibraryNotFound", "no NVIDIA driver"),
        ("NVMLError_DriverNotLoaded", "no NVIDIA driver"),
        ("NVMLError_NoPermission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("NVMLError_NotSupported", "no GPM"),
        ("NVMLError", "NVML refused"),
    ],
)
def test_errors_of_the_library_are_explained(error: str, says: str) -> None:
    nvml = FakeNvml()
    nvml.fail_init = getattr(FakeNvml, error)("broken")
    with pytest.raises(SamplerError, match=says):
        NvmlSampler(None, 100 * MS, nvml).start()


def test_without_the_package_its_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(SamplerError, match=r"pip install 'rlprof\[capture\]'"):
        NvmlSampler(None, 100 * MS).start()
