"""PM sampling of one GPU through cupti-python's low-level calls.

Its high-level `Collector` makes a new image and several Python objects for every decode and every sample; at
10 kHz that is most of a core. Here few images, one parameter block per call and one evaluator live as long as
the run does; a thread decodes while the caller evaluates. No CUDA context is needed, only an initialised
driver.

A hardware buffer that was full once gives no more records until the counters are given back; stopping and
starting does not help (CUPTI 13.4, driver 580, H200).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

from rlprof.capture.samplers import cupti_library
from rlprof.capture.samplers.base import SamplerError
from rlprof.capture.samplers.pm_image import Decoded, Image, Source, joined, params
from rlprof.capture.samplers.pm_reader import Reader

PERMISSION = (
    "reading GPU counters is reserved for administrators here; allow everybody with the driver option "
    "NVreg_RestrictProfilingToAdminUsers=0 (then RmProfilingAdminOnly in /proc/driver/nvidia/params is 0), "
    "or run as root"
)
#: Bytes that the hardware writes for each record, at least: 4.2 KB were seen with one metric.
LEAST_RECORD_BYTES = 4 << 10


class Counters(Protocol):
    """Counters of one GPU, sampled at a fixed interval."""

    def open(self) -> str:
        """Take the counters, set them up and start; returns the chip's name."""

    def decode(self) -> Decoded:
        """What was recorded since the last call, as far as it was read."""

    def restart(self) -> None:
        """Start again after an overflow."""

    def stop(self) -> Decoded:
        """Stop recording and read the rest."""

    def close(self) -> None:
        """Give the counters back; safe at any time."""


class PmCounters:
    """`Counters` of a real GPU.

    Parameters
    ----------
    device : int
        CUDA device number in this process.
    metrics : sequence of str
        Metrics to read in one pass.
    period_ns : int
        Sampling interval.
    buffer_bytes : int
        Hardware buffer.
    poll_ns : int
        Time between two decodes.
    """

    def __init__(
        self, device: int, metrics: Sequence[str], period_ns: int, buffer_bytes: int, poll_ns: int
    ) -> None:
        self.device = device
        self.metrics = list(metrics)
        self.period_ns = period_ns
        self.buffer_bytes = buffer_bytes
        self.poll_ns = poll_ns
        self._chip = "?"
        self._object: int | None = None
        self._initialized = False
        self._running = False
        self._host: int | None = None
        self._reader: Reader | None = None

    def open(self) -> str:
        """Take the counters of the GPU, set them up and start.

        Returns
        -------
        str
            Chip, for example ``GH100``.

        Raises
        ------
        SamplerError
            No library, no permission, counters held by another profiler, metric unknown or too many.
        """
        self._api = cupti_library.load()
        try:
            self._take()
            self._schedule()
            self._configure()
            source = Source(self._api, self._object, self._host, self._names, self._explain)
            most = self.buffer_bytes // LEAST_RECORD_BYTES
            self._reader = Reader(lambda slots: Image(source, slots), self.period_ns, self.poll_ns, most)
            self._start()
            self._reader.start()
        except BaseException:
            self.close()
            raise
        return self._chip

    def decode(self) -> Decoded:
        """What was recorded since the last call, as far as it was read."""
        assert self._reader is not None
        pieces = []
        for image in self._reader.take():
            pieces.append(image.evaluated())
            self._reader.give_back(image)
        return joined(pieces, len(self.metrics))

    def restart(self) -> None:
        """Start again after an overflow: a full buffer stays full until the counters are given back."""
        self.close()
        self.open()

    def stop(self) -> Decoded:
        """Stop recording and read the rest."""
        assert self._reader is not None
        self._reader.finish()
        before = self.decode()
        try:
            self._end()
            self._reader.read()
            return joined([before, self.decode()], len(self.metrics))
        except SamplerError:
            if not len(before.start_ns):
                raise
            return before

    def close(self) -> None:
        """Give the counters back."""
        if self._reader is not None:
            self._reader.finish()
            self._reader = None
        for step in (self._end, self._release_host, self._release_object, self._release_profiler):
            # where a step fails nothing more can be done; the process's end releases the rest
            with contextlib.suppress(SamplerError):
                step()

    def _call(self, function: str, block: Any) -> None:
        """Call a function of CUPTI with its parameter block, which must outlive the call."""
        try:
            getattr(self._api, function)(block.ptr)
        except self._api.cuptiError as error:
            raise self._explain(function, error) from error

    def _take(self) -> None:
        api = self._api
        init = params(api, "ProfilerInitialize")
        self._call("profiler_initialize", init)
        self._initialized = True
        chip = params(api, "DeviceGetChipName")
        chip.device_index = self.device
        self._call("device_get_chip_name", chip)
        self._chip = chip.p_chip_name
        enable = params(api, "PmSamplingEnable")
        enable.device_index = self.device
        self._call("pm_sampling_enable", enable)
        self._object = enable.p_pm_sampling_object

    def _schedule(self) -> None:
        """Have the host's evaluator schedule the metrics in one pass."""
        import numpy as np

        api = self._api
        names = (ctypes.c_char_p * len(self.metrics))(*(m.encode() for m in self.metrics))
        self._names, address = names, ctypes.addressof(names)  # CUPTI reads them at every evaluation
        start = params(api, "ProfilerHostInitialize")
        start.profiler_type = api.ProfilerType.PM_SAMPLING
        start.p_chip_name = self._chip
        self._call("profiler_host_initialize", start)
        self._host = start.p_host_object
        add = params(api, "ProfilerHostConfigAddMetrics")
        add.p_host_object, add.pp_metric_names, add.num_metrics = self._host, address, len(self.metrics)
        self._call("profiler_host_config_add_metrics", add)
        size = params(api, "ProfilerHostGetConfigImageSize")
        size.p_host_object = self._host
        self._call("profiler_host_get_config_image_size", size)
        self._config = np.zeros(size.config_image_size, dtype=np.uint8)
        image = params(api, "ProfilerHostGetConfigImage")
        image.p_host_object = self._host
        image.p_config_image, image.config_image_size = self._config.ctypes.data, len(self._config)
        self._call("profiler_host_get_config_image", image)

    def _configure(self) -> None:
        api = self._api
        config = params(api, "PmSamplingSetConfig")
        config.p_pm_sampling_object = self._object
        config.config_size = len(self._config)
        config.p_config = self._config.ctypes.data
        config.hardware_buffer_size = self.buffer_bytes
        config.sampling_interval = self.period_ns
        config.trigger_mode = api.PmSamplingTriggerMode.GPU_TIME_INTERVAL
        config.hw_buffer_append_mode = api.PmSamplingHardwareBufferAppendMode.KEEP_OLDEST
        self._call("pm_sampling_set_config", config)

    def _start(self) -> None:
        block = params(self._api, "PmSamplingStart")
        block.p_pm_sampling_object = self._object
        self._call("pm_sampling_start", block)
        self._running = True

    def _end(self) -> None:
        if self._running:
            self._running = False
            block = params(self._api, "PmSamplingStop")
            block.p_pm_sampling_object = self._object
            self._call("pm_sampling_stop", block)

    def _release_host(self) -> None:
        if self._host is not None:
            block = params(self._api, "ProfilerHostDeinitialize")
            block.p_host_object, self._host = self._host, None
            self._call("profiler_host_deinitialize", block)

    def _release_object(self) -> None:
        if self._object is not None:
            block = params(self._api, "PmSamplingDisable")
            block.p_pm_sampling_object = self._object
            self._object = None
            self._call("pm_sampling_disable", block)

    def _release_profiler(self) -> None:
        if self._initialized:
            self._initialized = False
            block = params(self._api, "ProfilerDeInitialize")  # must live through the call
            self._call("profiler_deinitialize", block)

    def _explain(self, function: str, error: Any) -> SamplerError:
        """Say what an error of CUPTI means here."""
        status, result, device = error.status, self._api.Result, self.device
        if status == result.ERROR_INSUFFICIENT_PRIVILEGES:
            return SamplerError(PERMISSION)
        if status == result.ERROR_INVALID_METRIC_NAME:
            return SamplerError(
                f"the chip {self._chip} of GPU {device} lacks one of {', '.join(self.metrics)}",
                hint="leave --metrics out for SM activity alone",
            )
        if status == result.ERROR_HARDWARE_BUSY or (
            status == result.ERROR_INVALID_OPERATION and function == "pm_sampling_enable"
        ):
            return SamplerError(
                f"the counters of GPU {device} are taken: another profiler is sampling it",
                hint="end nsys, ncu, DCGM profiling or the other capture, then try again",
            )
        if status == result.ERROR_NOT_SUPPORTED and len(self.metrics) > 1:
            return SamplerError(
                f"{len(self.metrics)} metrics cannot be read in one pass on the chip {self._chip}",
                hint="ask for fewer metrics",
            )
        if status == result.ERROR_NOT_SUPPORTED:
            return SamplerError(
                f"GPU {device} cannot be sampled by time: that needs Ampere GA10x, Ada, Hopper or newer"
            )
        if status == result.ERROR_NOT_INITIALIZED:
            return SamplerError(
                "CUPTI did not find its libraries libnvperf_host.so and libnvperf_target.so",
                hint="pip install --force-reinstall nvidia-cuda-cupti",
            )
        return SamplerError(f"CUPTI refused to sample GPU {device}: {error} from {function}")
