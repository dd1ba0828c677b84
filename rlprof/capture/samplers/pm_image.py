"""Images of counter data: what CUPTI decodes the hardware's records into, and what values come out of them.

What was seen of CUPTI 13.4 (driver 580, H200) and is not in its documentation:

* a decode takes what the hardware had recorded when it began; of records that the image has no room for it
  keeps neither start nor value, and sometimes nothing comes any more after that;
* a second decode into the same image appends, and may change the times of the records before by a nanosecond;
* the first record of a run carries start 0; records can have no length.

So an image is emptied before every decode, and has room for all that can be waiting (`Image.slots`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlprof.capture.samplers.base import SamplerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
        The hardware's buffer or the image was full: nothing may come any more until the next `restart`.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    values: NDArray[np.float64]
    overflow: bool = False


def joined(pieces: Sequence[Decoded], metrics: int) -> Decoded:
    """Several decodes, one after the other.

    Parameters
    ----------
    pieces : sequence of Decoded
        Possibly none.
    metrics : int
        Number of metrics.

    Returns
    -------
    Decoded
    """
    import numpy as np

    if len(pieces) == 1:
        return pieces[0]
    none = Decoded(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, metrics)))
    every = [none, *pieces]
    return Decoded(
        np.concatenate([p.start_ns for p in every]),
        np.concatenate([p.end_ns for p in every]),
        np.concatenate([p.values for p in every]),
        any(p.overflow for p in pieces),
    )


@dataclass(frozen=True)
class Source:
    """What an image is made for.

    Parameters
    ----------
    api : module
        cupti-python's low-level calls.
    sampling, host : int
        CUPTI's objects of the sampled GPU and of the evaluator.
    names : ctypes array of char pointers
        The metrics' names; CUPTI reads them at every evaluation.
    explain : function (function's name, error) -> SamplerError
        Says what an error of CUPTI means.
    """

    api: Any
    sampling: Any
    host: Any
    names: Any
    explain: Callable[[str, Any], SamplerError]


class Image:
    """Room for some records, with one parameter block for each call that names it.

    Parameters
    ----------
    source : Source
        What is decoded.
    slots : int
        Records that it has room for; 7 KB each with one metric.
    """

    def __init__(self, source: Source, slots: int) -> None:
        import numpy as np

        api, address = source.api, ctypes.addressof(source.names)
        self._source, self._api, self.slots = source, api, slots
        self.overflow, self._count = False, 0
        size = params(api, "PmSamplingGetCounterDataSize")
        size.p_pm_sampling_object, size.p_metric_names = source.sampling, address
        size.num_metrics, size.max_samples = len(source.names), slots
        self._call("pm_sampling_get_counter_data_size", size)
        self._data = np.zeros(size.counter_data_size, dtype=np.uint8)
        data, self.nbytes = self._data.ctypes.data, len(self._data)

        self._init = params(api, "PmSamplingCounterDataImageInitialize")
        self._init.p_pm_sampling_object = source.sampling
        self._init.counter_data_size, self._init.p_counter_data = self.nbytes, data
        self._decode = params(api, "PmSamplingDecodeData")
        self._info = params(api, "PmSamplingGetCounterDataInfo")
        self._sample = params(api, "PmSamplingCounterDataGetSampleInfo")
        self._evaluate = params(api, "ProfilerHostEvaluateToGpuValues")
        for block in (self._decode, self._info, self._sample, self._evaluate):
            block.p_counter_data_image, block.counter_data_image_size = data, self.nbytes
        self._decode.p_pm_sampling_object = self._sample.p_pm_sampling_object = source.sampling
        self._evaluate.p_host_object, self._evaluate.pp_metric_names = source.host, address
        self._evaluate.num_metrics = len(source.names)

    def empty(self) -> None:
        """Make room; costs 2 us for each slot."""
        self._call("pm_sampling_counter_data_image_initialize", self._init)

    def decode(self) -> None:
        """Take what the hardware has recorded since the last decode into the empty image.

        Raises
        ------
        SamplerError
            If CUPTI refuses, but for a full buffer: that is `overflow`.
        """
        api, block = self._api, self._decode
        try:
            api.pm_sampling_decode_data(block.ptr)
            full = block.decode_stop_reason == api.PmSamplingDecodeStopReason.COUNTER_DATA_FULL
            self.overflow = bool(block.overflow) or full
        except api.cuptiError as error:
            if error.status != api.Result.ERROR_OUT_OF_MEMORY:
                raise self._source.explain("pm_sampling_decode_data", error) from error
            self.overflow = True
        self._call("pm_sampling_get_counter_data_info", self._info)
        self._count = int(self._info.num_completed_samples)

    def evaluated(self) -> Decoded:
        """Times and values of what it holds."""
        import numpy as np

        api, n, m = self._api, self._count, len(self._source.names)
        start, end = [0] * n, [0] * n
        values = np.empty((n, m), np.float64)
        # the loop that most of the sampler's own time goes into: nothing is looked up or made in it
        sample, look = self._sample, api.pm_sampling_counter_data_get_sample_info
        ask, evaluate = self._evaluate, api.profiler_host_evaluate_to_gpu_values
        sample_ptr, ask_ptr = sample.ptr, ask.ptr
        where, row = values.ctypes.data, values.itemsize * m
        try:
            for i in range(n):
                sample.sample_index = ask.range_index = i
                ask.p_metric_values = where + row * i
                look(sample_ptr)
                evaluate(ask_ptr)
                start[i] = sample.start_timestamp
                end[i] = sample.end_timestamp
        except api.cuptiError as error:
            raise self._source.explain("profiler_host_evaluate_to_gpu_values", error) from error
        return Decoded(np.array(start, np.int64), np.array(end, np.int64), values, self.overflow)

    def _call(self, function: str, block: Any) -> None:
        try:
            getattr(self._api, function)(block.ptr)
        except self._api.cuptiError as error:
            raise self._source.explain(function, error) from error


def params(api: Any, name: str) -> Any:
    """A parameter block of CUPTI with its size set; it must outlive the call.

    Parameters
    ----------
    api : module
        cupti-python's low-level calls.
    name : str
        For example ``PmSamplingStart``.
    """
    block = getattr(api, f"{name}Params")()
    words = name.replace("DeInit", "Deinit")
    snake = "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(words)).upper()
    block.struct_size = getattr(api, f"{snake}_PARAMS_STRUCT_SIZE")
    return block
