"""Decoding counters: how the image is filled, emptied and read; CUPTI is faked."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlprof.capture.samplers import cupti_library
from rlprof.capture.samplers.base import SamplerError
from rlprof.capture.samplers.pm_counters import MAX_IMAGES, Decoded, PmCounters

PERIOD = 100
T0 = 1_000_000


class CuptiError(Exception):
    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class Block(SimpleNamespace):
    """A parameter block; its address stands for itself."""

    @property
    def ptr(self) -> Block:
        return self


class FakeApi:
    """Records wait until decoded into the image.

    `manner`: what a decode does to an image that holds samples already: "append", "overwrite" or "refuse".
    """

    cuptiError = CuptiError
    Result = SimpleNamespace(
        ERROR_OUT_OF_MEMORY="memory", ERROR_INSUFFICIENT_PRIVILEGES="rights",
        ERROR_INVALID_METRIC_NAME="name", ERROR_HARDWARE_BUSY="busy", ERROR_INVALID_OPERATION="operation",
        ERROR_NOT_SUPPORTED="unsupported", ERROR_NOT_INITIALIZED="uninitialised",
    )  # fmt: skip
    ProfilerType = SimpleNamespace(PM_SAMPLING=1)
    PmSamplingTriggerMode = SimpleNamespace(GPU_TIME_INTERVAL=1)
    PmSamplingHardwareBufferAppendMode = SimpleNamespace(KEEP_OLDEST=0)

    def __init__(self, manner: str = "append") -> None:
        self.manner = manner
        self.recorded = self.decoded = 0
        self.image: list[int] = []
        self.emptied = 0
        self.full = False
        self.slots = 0
        self.moved_ns = 0  # by which all times of an image are off
        self.refused_after: int | None = None  # decodes that succeed before CUPTI refuses

    def __getattr__(self, name: str) -> Any:
        if name.endswith("STRUCT_SIZE"):
            return 0
        if name.endswith("Params"):
            defaults = {"p_chip_name": "GH100", "p_pm_sampling_object": 1, "p_host_object": 2}
            sizes = {"config_image_size": 8, "counter_data_size": 64, "overflow": 0}
            return lambda: Block(**defaults, **sizes)
        if name.startswith(("profiler_", "pm_sampling_", "device_")):
            return lambda _block: None
        raise AttributeError(name)

    def pm_sampling_get_counter_data_size(self, block: Block) -> None:
        self.slots = block.max_samples

    def pm_sampling_counter_data_image_initialize(self, _block: Block) -> None:
        self.image = []
        self.emptied += 1

    def pm_sampling_decode_data(self, block: Block) -> None:
        if self.refused_after is not None:
            if not self.refused_after:
                raise CuptiError("rights")
            self.refused_after -= 1
        if self.image and self.manner == "refuse":
            raise CuptiError("operation")
        if self.image and self.manner == "overwrite":
            self.image = []
        room = self.slots - len(self.image)
        take = min(room, self.recorded - self.decoded)
        self.image += range(self.decoded, self.decoded + take)
        self.decoded += take
        block.overflow = int(self.full)

    def pm_sampling_get_counter_data_info(self, block: Block) -> None:
        block.num_completed_samples = len(self.image)

    def pm_sampling_counter_data_get_sample_info(self, block: Block) -> None:
        number = self.image[block.sample_index]
        at = T0 + PERIOD * number + self.moved_ns
        block.start_timestamp, block.end_timestamp = at, at + PERIOD

    def profiler_host_evaluate_to_gpu_values(self, block: Block) -> None:
        ctypes.c_double.from_address(block.p_metric_values).value = self.image[block.range_index] % 101


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(manner: str = "append", slots: int = 100) -> tuple[PmCounters, FakeApi]:
        api = FakeApi(manner)
        monkeypatch.setattr(cupti_library, "load", lambda: api)
        counters = PmCounters(0, ["a_metric"], PERIOD, 1 << 20, slots)
        assert counters.open() == "GH100"
        return counters, api

    return make


def check(decoded: Decoded, first: int, last: int) -> None:
    number = np.arange(first, last)
    assert decoded.start_ns.tolist() == (T0 + PERIOD * number).tolist()
    assert decoded.end_ns.tolist() == (T0 + PERIOD * (number + 1)).tolist()
    assert decoded.values[:, 0].tolist() == (number % 101).tolist()


@pytest.mark.parametrize("manner", ["append", "overwrite", "refuse"])
def test_every_record_comes_once_whatever_a_second_decode_does_to_the_image(opened: Any, manner: str) -> None:
    counters, api = opened(manner)
    read = 0
    for more in (20, 20, 0, 30, 20, 7, 20):
        api.recorded += more
        check(counters.decode(), read, api.recorded)
        read = api.recorded


def test_the_image_is_emptied_when_half_full_only(opened: Any) -> None:
    counters, api = opened(slots=100)
    began = api.emptied
    for _ in range(9):
        api.recorded += 20
        counters.decode()
    assert api.emptied - began == 3 - 1  # after 60 of 100 each time, the first image was empty


def test_a_backlog_is_read_with_several_images(opened: Any) -> None:
    counters, api = opened(slots=100)
    api.recorded = 10
    counters.decode()
    api.recorded += 350
    check(counters.decode(), 10, 360)


def test_a_backlog_without_end_does_not_hold_the_sampler_for_ever(opened: Any) -> None:
    counters, api = opened(slots=100)
    api.recorded = 10_000
    check(counters.decode(), 0, 100 * MAX_IMAGES)
    check(counters.decode(), 100 * MAX_IMAGES, 200 * MAX_IMAGES)


def test_times_that_moved_by_a_nanosecond_give_an_image_again_but_once_only(opened: Any) -> None:
    """Whoever takes the records drops those that it has: `test_cupti`."""
    counters, api = opened(slots=100)
    api.recorded = 20
    check(counters.decode(), 0, 20)
    api.recorded, api.moved_ns = 40, 1
    again = counters.decode()
    assert again.start_ns.tolist() == [T0 + PERIOD * n + 1 for n in range(40)]
    api.moved_ns = 0
    for read in (40, 60, 80):
        api.recorded = read + 20
        check(counters.decode(), read, read + 20)


def test_a_refusal_amid_a_backlog_keeps_what_was_read(opened: Any) -> None:
    counters, api = opened(slots=100)
    api.recorded, api.refused_after = 350, 2
    check(counters.decode(), 0, 200)
    with pytest.raises(SamplerError, match="reserved for administrators"):
        counters.decode()


def test_a_full_buffer_is_told_at_once(opened: Any) -> None:
    counters, api = opened(slots=100)
    api.recorded, api.full = 1000, True
    decoded = counters.decode()
    assert decoded.overflow
    check(decoded, 0, 100)


def test_a_refusal_on_an_empty_image_is_an_error(opened: Any) -> None:
    counters, api = opened()

    def refuse(_block: Block) -> None:
        raise CuptiError("rights")

    api.pm_sampling_decode_data = refuse
    with pytest.raises(SamplerError, match="reserved for administrators"):
        counters.decode()
