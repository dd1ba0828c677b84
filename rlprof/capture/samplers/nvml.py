"""SM activity by NVML's GPM (``SM_UTIL``): Hopper and newer, no counters taken, at most ten samples a second.

GPM answers for the time between two looks. On an H200 (driver 580) the answers are right at 100 ms and mostly
zero or not a number at 20 ms, which is why shorter periods are refused.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlprof.capture.samplers.base import Device, Losses, SamplerError, Samples, Source, check_period


@dataclass
class _Watched:
    device: int
    handle: Any
    last: Any
    spare: Any
    at_ns: int = 0


class NvmlSampler:
    """NVML's GPM on some GPUs; see `rlprof.capture.samplers.base.Sampler`.

    Parameters
    ----------
    devices : sequence of int or None
        Numbers of the GPUs; None is all of them.
    period_ns : int
        100 ms to 10 s.
    nvml : module, optional
        `pynvml`, by default imported.
    now : function giving int
        The clock.

    Raises
    ------
    UsageError
        If the period is out of range.
    """

    source: Source = "sm_counters"

    def __init__(
        self,
        devices: Sequence[int] | None,
        period_ns: int,
        nvml: Any = None,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        check_period("nvml", period_ns)
        self.period_ns = self.poll_ns = period_ns
        self._devices, self._nvml, self._now = devices, nvml, now
        self._watched: list[_Watched] = []
        self._losses = Losses()
        self._bracket_ns = 0
        self._open = False

    def start(self) -> Sequence[Device]:
        """Take the first look at every GPU.

        Raises
        ------
        SamplerError
            No package, no driver, a GPU before Hopper, no permission.
        """
        if self._nvml is None:
            self._nvml = _import()
        nvml = self._nvml
        try:
            nvml.nvmlInit()
            self._open = True
            count = nvml.nvmlDeviceGetCount()
            chosen = range(count) if self._devices is None else self._devices
            found = [self._watch(d, count) for d in chosen]
            for watched in self._watched:
                watched.at_ns = self._look(watched.handle, watched.last)
        except nvml.NVMLError as error:
            self._close()
            raise _explain(nvml, error) from error
        except BaseException:
            self._close()
            raise
        return found

    def drain(self) -> Sequence[Samples]:
        """One sample of every GPU since the last look."""
        import numpy as np

        samples = []
        for watched in self._watched:
            at = self._look(watched.handle, watched.spare)
            share = self._share(watched.last, watched.spare)
            if share is None:
                self._losses.invalid += 1
                self._losses.gap(at - watched.at_ns, self.period_ns)
            else:
                samples.append(
                    Samples(
                        watched.device,
                        np.array([watched.at_ns], np.int64),
                        np.array([at], np.int64),
                        np.array([share], np.float64),
                    )
                )
            watched.last, watched.spare, watched.at_ns = watched.spare, watched.last, at
        return samples

    def stop(self) -> Sequence[Samples]:
        """End; what is left is less than a period and no answer can be had for it."""
        self._close()
        return []

    def losses(self) -> Losses:
        """Answers that were no number."""
        return self._losses

    def clock(self) -> dict[str, Any]:
        """The looks bear the host's own clock; how long the longest took."""
        return {"host": {"method": "own clock", "offset_ns": 0, "uncertainty_ns": self._bracket_ns // 2}}

    def _watch(self, device: int, count: int) -> Device:
        nvml = self._nvml
        if not 0 <= device < count:
            raise SamplerError(
                f"there is no GPU {device}: this machine shows {count}",
                hint="number them from 0 in the order of nvidia-smi",
            )
        handle = nvml.nvmlDeviceGetHandleByIndex(device)
        name = nvml.nvmlDeviceGetName(handle)
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise SamplerError(
                f"GPU {device} ({name}) has no GPM: NVML reads SM activity on Hopper and newer chips only",
                hint="use --backend cupti or host",
            )
        self._watched.append(_Watched(device, handle, nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()))
        return Device(device, name, uuid=nvml.nvmlDeviceGetUUID(handle))  # NVML does not tell SMs

    def _look(self, handle: Any, place: Any) -> int:
        before = self._now()
        self._nvml.nvmlGpmSampleGet(handle, place)
        after = self._now()
        self._bracket_ns = max(self._bracket_ns, after - before)
        return (before + after) // 2

    def _share(self, before: Any, after: Any) -> float | None:
        nvml = self._nvml
        ask = nvml.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        ask.sample1, ask.sample2 = before, after
        ask.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        nvml.nvmlGpmMetricsGet(ask)
        answer = ask.metrics[0]
        if answer.nvmlReturn != 0 or not math.isfinite(answer.value):
            return None
        return min(1.0, max(0.0, float(answer.value) / 100.0))

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        for watched in self._watched:
            self._nvml.nvmlGpmSampleFree(watched.last)
            self._nvml.nvmlGpmSampleFree(watched.spare)
        self._watched = []
        self._nvml.nvmlShutdown()


def _import() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise SamplerError("nvidia-ml-py is not installed", hint="pip install 'rlprof[capture]'") from None


def _explain(nvml: Any, error: Any) -> SamplerError:
    if isinstance(error, nvml.NVMLError_LibraryNotFound | nvml.NVMLError_DriverNotLoaded):
        return SamplerError("no NVIDIA driver is installed here", hint="use --backend host")
    if isinstance(error, nvml.NVMLError_NoPermission):
        from rlprof.capture.samplers.pm_counters import PERMISSION

        return SamplerError(PERMISSION)
    if isinstance(error, nvml.NVMLError_NotSupported | nvml.NVMLError_FunctionNotFound):
        return SamplerError("this driver or GPU has no GPM (Hopper and newer)", hint="use --backend host")
    return SamplerError(f"NVML refused: {error}", hint="see that nvidia-smi works")
