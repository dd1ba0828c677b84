"""PM sampling of one GPU through cupti-python's low-level calls.

Its high-level `Collector` makes a new image and several Python objects for every decode and every sample; at
10 kHz that is most of a core. Here one image, one parameter block per call and one evaluator live as long as
the run does, and an image is emptied only when it is nearly full, since that costs time for every slot. No
CUDA context is needed, only an initialised driver.

What was seen of CUPTI 13.4 (driver 580, H200) and is not in its documentation:

* a decode that finds more records than the image has room for gives records without a start time instead;
* a hardware buffer that was full once gives no more records until the counters are given back (stopping and
  starting does not help);
* the first record of a run carries start 0; records can have no length;
* now and then records that were read come again (1,000 of 1,827,624 in three minutes at 10 kHz), probably
  since their times were rounded anew, which looks as if the image had been written from its start: whoever
  takes the records has to know what it has.

One thread does everything. A second one that empties images and decodes into them, while this one evaluates,
made the library fail: ERROR_UNKNOWN from ``pm_sampling_counter_data_image_initialize`` in the first second,
and lost samples at 50 kHz. A record costs 24 to 30 us in one thread, hence the floor in `base.LIMITS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rlprof.capture.samplers import cupti_library
from rlprof.capture.samplers.base import SamplerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PERMISSION = (
    "reading GPU counters is reserved for administrators here; allow everybody with the driver option "
    "NVreg_RestrictProfilingToAdminUsers=0 (then RmProfilingAdminOnly in /proc/driver/nvidia/params is 0), "
    "or run as root"
)
#: Images that one call of `decode` fills at most, when the sampler has fallen behind.
MAX_IMAGES = 8


@dataclass(frozen=True)
class Decoded:
    """Records that one decode gave, in the device's clock.

    Parameters
    ----------
    start_ns, end_ns : ndarray of int64, shape (n,)
        As recorded; start can be 0.
    values : ndarray of float64, shape (n, m)
        One column per metric.
    overflow : bool
        The hardware's buffer was full: nothing comes any more until the next `restart`.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    values: NDArray[np.float64]
    overflow: bool = False


class Counters(Protocol):
    """Counters of one GPU, sampled at a fixed interval."""

    def open(self) -> str:
        """Take the counters, set them up and start; returns the chip's name."""

    def decode(self) -> Decoded:
        """Read what the hardware has recorded since the last call."""

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
    slots : int
        Samples that the image has room for: twice what comes between two decodes, at least.
    appends : bool
        Whether to decode behind what the image holds; given up where CUPTI does not do that.
    """

    def __init__(
        self,
        device: int,
        metrics: Sequence[str],
        period_ns: int,
        buffer_bytes: int,
        slots: int,
        *,
        appends: bool = True,
    ) -> None:
        self.device = device
        self.metrics = list(metrics)
        self.period_ns = period_ns
        self.buffer_bytes = buffer_bytes
        self.slots = slots
        self._chip = "?"
        self._object: int | None = None
        self._initialized = False
        self._running = False
        self._host: int | None = None
        self._appends = appends
        self._used = 0  # samples of the image that were read
        self._first_end = 0  # end of its first one
        self._full = False

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
            self._prepare_decode()
            self._start()
        except BaseException:
            self.close()
            raise
        return self._chip

    def decode(self) -> Decoded:
        """Read what has been recorded since the last call."""
        if not self._appends or 2 * self._used > self.slots:
            self._empty()
        try:
            pieces = [self._decode_once()]
        except SamplerError:
            if not self._used:
                raise
            # this CUPTI wants an empty image every time
            self._appends = False
            self._empty()
            pieces = [self._decode_once()]
        # more came than the image had room for: go on with an empty one
        while self._full and not pieces[-1].overflow and len(pieces) < MAX_IMAGES:
            try:
                self._empty()
                pieces.append(self._decode_once())
            except SamplerError:  # what was read comes first; the next call meets the error again
                break
        return _joined(pieces)

    def _empty(self) -> None:
        self._call("pm_sampling_counter_data_image_initialize", self._init)
        self._used = 0

    def _decode_once(self) -> Decoded:
        """Decode into the image, behind what it holds, and evaluate what came."""
        api = self._api
        try:
            api.pm_sampling_decode_data(self._decode.ptr)
            overflow = bool(self._decode.overflow)
        except api.cuptiError as error:
            if error.status != api.Result.ERROR_OUT_OF_MEMORY:
                raise self._explain("pm_sampling_decode_data", error) from error
            overflow = True
        self._call("pm_sampling_get_counter_data_info", self._info)
        count = int(self._info.num_completed_samples)
        self._full = count >= self.slots
        if self._used and self._first_end != self._end_of_first():
            # the image was written from its start again
            self._appends, self._used = False, 0
        new = self._evaluated(self._used, count)
        if not self._used and count:
            self._first_end = int(new.end_ns[0])
        self._used = count
        return Decoded(new.start_ns, new.end_ns, new.values, overflow)

    def _end_of_first(self) -> int:
        self._sample.sample_index = 0
        self._call("pm_sampling_counter_data_get_sample_info", self._sample)
        return int(self._sample.end_timestamp)

    def _evaluated(self, first: int, last: int) -> Decoded:
        """Times and values of some samples of the image."""
        import numpy as np

        api, n = self._api, max(0, last - first)
        start, end = [0] * n, [0] * n
        values = np.empty((n, len(self.metrics)), np.float64)
        # the loop that most of the sampler's own time goes into: nothing is looked up or made in it
        sample, look = self._sample, api.pm_sampling_counter_data_get_sample_info
        ask, evaluate = self._evaluate, api.profiler_host_evaluate_to_gpu_values
        sample_ptr, ask_ptr = sample.ptr, ask.ptr
        where, row = values.ctypes.data, values.itemsize * len(self.metrics)
        try:
            for i in range(n):
                sample.sample_index = ask.range_index = first + i
                ask.p_metric_values = where + row * i
                look(sample_ptr)
                evaluate(ask_ptr)
                start[i] = sample.start_timestamp
                end[i] = sample.end_timestamp
        except api.cuptiError as error:
            raise self._explain("profiler_host_evaluate_to_gpu_values", error) from error
        return Decoded(np.array(start, np.int64), np.array(end, np.int64), values)

    def restart(self) -> None:
        """Start again after an overflow: a full buffer stays full until the counters are given back."""
        self.close()
        self.open()

    def stop(self) -> Decoded:
        """Stop recording and read the rest."""
        self._end()
        return self.decode()

    def close(self) -> None:
        """Give the counters back."""
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
        init = _params(api, "ProfilerInitialize")
        self._call("profiler_initialize", init)
        self._initialized = True
        chip = _params(api, "DeviceGetChipName")
        chip.device_index = self.device
        self._call("device_get_chip_name", chip)
        self._chip = chip.p_chip_name
        enable = _params(api, "PmSamplingEnable")
        enable.device_index = self.device
        self._call("pm_sampling_enable", enable)
        self._object = enable.p_pm_sampling_object

    def _schedule(self) -> None:
        """Have the host's evaluator schedule the metrics in one pass."""
        import ctypes

        import numpy as np

        api = self._api
        names = (ctypes.c_char_p * len(self.metrics))(*(m.encode() for m in self.metrics))
        self._names, address = names, ctypes.addressof(names)  # CUPTI reads them at every evaluation
        start = _params(api, "ProfilerHostInitialize")
        start.profiler_type = api.ProfilerType.PM_SAMPLING
        start.p_chip_name = self._chip
        self._call("profiler_host_initialize", start)
        self._host = start.p_host_object
        add = _params(api, "ProfilerHostConfigAddMetrics")
        add.p_host_object, add.pp_metric_names, add.num_metrics = self._host, address, len(self.metrics)
        self._call("profiler_host_config_add_metrics", add)
        size = _params(api, "ProfilerHostGetConfigImageSize")
        size.p_host_object = self._host
        self._call("profiler_host_get_config_image_size", size)
        self._config = np.zeros(size.config_image_size, dtype=np.uint8)
        image = _params(api, "ProfilerHostGetConfigImage")
        image.p_host_object = self._host
        image.p_config_image, image.config_image_size = self._config.ctypes.data, len(self._config)
        self._call("profiler_host_get_config_image", image)

    def _configure(self) -> None:
        api = self._api
        config = _params(api, "PmSamplingSetConfig")
        config.p_pm_sampling_object = self._object
        config.config_size = len(self._config)
        config.p_config = self._config.ctypes.data
        config.hardware_buffer_size = self.buffer_bytes
        config.sampling_interval = self.period_ns
        config.trigger_mode = api.PmSamplingTriggerMode.GPU_TIME_INTERVAL
        config.hw_buffer_append_mode = api.PmSamplingHardwareBufferAppendMode.KEEP_OLDEST
        self._call("pm_sampling_set_config", config)

    def _prepare_decode(self) -> None:
        import ctypes

        import numpy as np

        api, address = self._api, ctypes.addressof(self._names)
        size = _params(api, "PmSamplingGetCounterDataSize")
        size.p_pm_sampling_object = self._object
        size.p_metric_names = address
        size.num_metrics = len(self.metrics)
        size.max_samples = self.slots
        self._call("pm_sampling_get_counter_data_size", size)
        self._image = np.zeros(size.counter_data_size, dtype=np.uint8)
        data, length = self._image.ctypes.data, len(self._image)

        self._init = _params(api, "PmSamplingCounterDataImageInitialize")
        self._init.p_pm_sampling_object = self._object
        self._init.counter_data_size = length
        self._init.p_counter_data = data
        self._decode = _params(api, "PmSamplingDecodeData")
        self._info = _params(api, "PmSamplingGetCounterDataInfo")
        self._sample = _params(api, "PmSamplingCounterDataGetSampleInfo")
        self._evaluate = _params(api, "ProfilerHostEvaluateToGpuValues")
        for block in (self._decode, self._info, self._sample, self._evaluate):
            block.p_counter_data_image = data
            block.counter_data_image_size = length
        self._decode.p_pm_sampling_object = self._object
        self._sample.p_pm_sampling_object = self._object
        self._evaluate.p_host_object = self._host
        self._evaluate.pp_metric_names = address
        self._evaluate.num_metrics = len(self.metrics)
        self._empty()

    def _start(self) -> None:
        block = _params(self._api, "PmSamplingStart")
        block.p_pm_sampling_object = self._object
        self._call("pm_sampling_start", block)
        self._running = True

    def _end(self) -> None:
        if self._running:
            self._running = False
            block = _params(self._api, "PmSamplingStop")
            block.p_pm_sampling_object = self._object
            self._call("pm_sampling_stop", block)

    def _release_host(self) -> None:
        if self._host is not None:
            block = _params(self._api, "ProfilerHostDeinitialize")
            block.p_host_object, self._host = self._host, None
            self._call("profiler_host_deinitialize", block)

    def _release_object(self) -> None:
        if self._object is not None:
            block = _params(self._api, "PmSamplingDisable")
            block.p_pm_sampling_object = self._object
            self._object = None
            self._call("pm_sampling_disable", block)

    def _release_profiler(self) -> None:
        if self._initialized:
            self._initialized = False
            block = _params(self._api, "ProfilerDeInitialize")  # must live through the call
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


def _joined(pieces: Sequence[Decoded]) -> Decoded:
    import numpy as np

    if len(pieces) == 1:
        return pieces[0]
    return Decoded(
        np.concatenate([p.start_ns for p in pieces]),
        np.concatenate([p.end_ns for p in pieces]),
        np.concatenate([p.values for p in pieces]),
        any(p.overflow for p in pieces),
    )


def _params(api: Any, name: str) -> Any:
    """A parameter block of CUPTI with its size set."""
    block = getattr(api, f"{name}Params")()
    words = name.replace("DeInit", "Deinit")
    snake = "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(words)).upper()
    block.struct_size = getattr(api, f"{snake}_PARAMS_STRUCT_SIZE")
    return block
