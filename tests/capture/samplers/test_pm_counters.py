"""Decoding counters in a thread: images, backlogs, overflows, errors; CUPTI is faked."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlprof.capture.samplers import cupti_library, pm_reader
from rlprof.capture.samplers.base import MS, SamplerError
from rlprof.capture.samplers.pm_counters import PmCounters
from rlprof.capture.samplers.pm_image import Decoded

PERIOD, POLL = 1 * MS, 10 * MS
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


class FakeImage(list[int]):
    """Numbers of the records that it holds."""

    slots = 0


class FakeApi:
    """Records wait in the hardware's buffer until they are decoded into an image, named by its address.

    What an image has no room for comes without a start, as in CUPTI 13.4.
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
    PmSamplingDecodeStopReason = SimpleNamespace(COUNTER_DATA_FULL=1)
    BYTES_PER_SLOT = 7000

    def __init__(self) -> None:
        self.recorded = self.decoded = 0
        self.images: dict[int, FakeImage] = {}
        self.sizes: list[int] = []  # of all images that were made
        self.overflow = False
        self.refusal: str | None = None
        self.go_on = threading.Event()  # cleared: a decode takes until it is set
        self.go_on.set()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.endswith("STRUCT_SIZE"):
            return 0
        if name.endswith("Params"):
            defaults = {"p_chip_name": "GH100", "p_pm_sampling_object": 1, "p_host_object": 2}
            sizes = {"config_image_size": 8, "counter_data_size": 0, "overflow": 0}
            return lambda: Block(**defaults, **sizes, decode_stop_reason=0)
        if name.startswith(("profiler_", "pm_sampling_", "device_")):
            return lambda _block: self.calls.append(name)
        raise AttributeError(name)

    def pm_sampling_get_counter_data_size(self, block: Block) -> None:
        self.sizes.append(block.max_samples)
        block.counter_data_size = block.max_samples * self.BYTES_PER_SLOT

    def pm_sampling_counter_data_image_initialize(self, block: Block) -> None:
        image = self.images[block.p_counter_data] = FakeImage()
        image.slots = block.counter_data_size // self.BYTES_PER_SLOT

    def pm_sampling_decode_data(self, block: Block) -> None:
        waiting = self.recorded  # as long as a decode takes, what comes meanwhile is for the next
        assert self.go_on.wait(10)
        if self.refusal is not None:
            raise CuptiError(self.refusal)
        image = self.images[block.p_counter_data_image]
        assert not image, "an image is emptied before it is filled"
        image += range(self.decoded, min(waiting, self.decoded + image.slots))
        block.decode_stop_reason = int(waiting - self.decoded > image.slots)
        block.overflow = int(self.overflow)
        self.decoded = waiting

    def pm_sampling_get_counter_data_info(self, block: Block) -> None:
        block.num_completed_samples = len(self.images[block.p_counter_data_image])

    def pm_sampling_counter_data_get_sample_info(self, block: Block) -> None:
        number = self.images[block.p_counter_data_image][block.sample_index]
        block.start_timestamp, block.end_timestamp = T0 + PERIOD * number, T0 + PERIOD * (number + 1)

    def profiler_host_evaluate_to_gpu_values(self, block: Block) -> None:
        number = self.images[block.p_counter_data_image][block.range_index]
        ctypes.c_double.from_address(block.p_metric_values).value = number % 101


class Rig:
    """Open counters of a faked CUPTI."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.counters = PmCounters(0, ["a_metric"], PERIOD, 64 << 20, POLL)
        self.read = 0

    def take(self, until: int) -> Decoded:
        """Decode until a number of records came; returns the last answer."""
        limit = time.monotonic() + 10
        decoded = self.counters.decode()
        while not decoded.overflow:
            self.check(decoded)
            if self.read >= until:
                break
            assert time.monotonic() < limit, f"{self.read} of {until} records came"
            time.sleep(0.002)
            decoded = self.counters.decode()
        return decoded

    def check(self, decoded: Decoded) -> None:
        number = np.arange(self.read, self.read + len(decoded.start_ns))
        assert decoded.start_ns.tolist() == (T0 + PERIOD * number).tolist()
        assert decoded.end_ns.tolist() == (T0 + PERIOD * (number + 1)).tolist()
        assert decoded.values[:, 0].tolist() == (number % 101).tolist()
        self.read += len(number)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig()
    monkeypatch.setattr(cupti_library, "load", lambda: made.api)
    assert made.counters.open() == "GH100"
    yield made
    made.api.go_on.set()
    made.counters.close()
    assert not [t for t in threading.enumerate() if t.name == "counters"]


def test_every_record_comes_once_and_in_order(rig: Rig) -> None:
    for more in (5, 10, 0, 14, 1, 9):
        rig.api.recorded += more
        rig.take(rig.api.recorded)
        time.sleep(0.005)
    rig.api.recorded += 8
    rig.check(rig.counters.stop())
    assert rig.read == rig.api.recorded
    assert rig.api.calls[-1] == "pm_sampling_stop"
    assert len(set(rig.api.sizes)) == 1, "no image was too small"


def test_a_backlog_gets_an_image_with_room_for_it(rig: Rig) -> None:
    rig.api.go_on.clear()  # a decode that is kept from ending for 0.3 s
    time.sleep(0.3)
    rig.api.recorded = 300
    rig.api.go_on.set()
    assert not rig.take(300).overflow
    assert max(rig.api.sizes) >= 300 > min(rig.api.sizes)
    rig.api.recorded += 10
    rig.take(310)


def test_an_image_that_was_too_small_counts_as_an_overflow(rig: Rig) -> None:
    rig.api.recorded = 5000  # more than time has passed for
    decoded = rig.take(5000)
    assert decoded.overflow
    rig.check(decoded)
    rig.counters.restart()
    rig.read = rig.api.decoded = rig.api.recorded = 6000
    rig.api.recorded += 10
    rig.take(6010)


def test_a_full_buffer_is_told_once_and_nothing_is_decoded_after_it(rig: Rig) -> None:
    rig.api.recorded, rig.api.overflow = 10, True
    limit = time.monotonic() + 10
    while not (decoded := rig.counters.decode()).overflow:
        rig.check(decoded)
        assert time.monotonic() < limit
    rig.api.recorded, made = 20, len(rig.api.sizes)
    time.sleep(5 * POLL / 1e9)
    assert not len(rig.counters.decode().start_ns)
    assert len(rig.api.sizes) == made


def test_memory_is_bounded_while_nobody_evaluates(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pm_reader, "IMAGES_BYTES", 0)
    rig.counters.restart()
    made = len(rig.api.sizes)
    for _ in range(20):
        rig.api.recorded += 10
        time.sleep(POLL / 1e9)
    assert len(rig.api.sizes) - made <= pm_reader.LEAST_IMAGES
    rig.take(rig.api.recorded)


def test_a_refusal_is_an_error_of_the_caller_after_what_came_before(rig: Rig) -> None:
    rig.api.recorded = 10
    rig.take(10)
    rig.api.refusal = "rights"
    with pytest.raises(SamplerError, match="reserved for administrators"):
        rig.take(11)
    with pytest.raises(SamplerError, match="reserved for administrators"):
        rig.counters.stop()


def test_no_memory_for_an_image_is_an_error_too(rig: Rig) -> None:
    def no_memory(_slots: int) -> None:
        raise MemoryError

    rig.counters._reader._make = no_memory  # type: ignore[union-attr, assignment]
    rig.api.go_on.clear()
    time.sleep(0.1)
    rig.api.recorded = 100
    rig.api.go_on.set()
    with pytest.raises(SamplerError, match="MemoryError"):
        rig.take(100)


def test_a_refusal_at_the_end_keeps_what_was_read(rig: Rig) -> None:
    rig.api.recorded = 10
    limit = time.monotonic() + 10
    while rig.api.decoded < 10:  # in an image, and not evaluated so far
        assert time.monotonic() < limit
        time.sleep(0.002)
    rig.counters._reader.finish()  # type: ignore[union-attr]
    rig.api.refusal = "operation"
    rig.check(rig.counters.stop())
    assert rig.read == 10


def test_counters_that_cannot_be_had_leave_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    monkeypatch.setattr(cupti_library, "load", lambda: api)

    def refuse(_block: Block) -> None:
        raise CuptiError("busy")

    api.pm_sampling_start = refuse
    with pytest.raises(SamplerError, match="are taken"):
        PmCounters(0, ["a_metric"], PERIOD, 64 << 20, POLL).open()
    assert not [t for t in threading.enumerate() if t.name == "counters"]
