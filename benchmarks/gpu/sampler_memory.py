"""Where the memory of the counter sampler goes, what a decode costs, and whether an overflow can be cleared.

python -m benchmarks.gpu.sampler_memory > sampler_memory.json
"""

from __future__ import annotations

import ctypes
import json
import resource
import time
from pathlib import Path
from typing import Any

Facts = dict[str, Any]


def memory() -> dict[str, int]:
    """Resident megabytes of this process: anonymous, of files, shared; and proportional ones."""
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(("RssAnon", "RssFile", "RssShmem", "VmRSS")):
            found[line.split(":")[0]] = int(line.split()[1]) // 1024
    return found


def trim() -> int:
    return int(ctypes.CDLL("libc.so.6").malloc_trim(0))


def again(counters: Any) -> None:
    counters._end()
    counters._configure()
    counters._start()


def anew(counters: Any) -> None:
    counters._end()
    counters._release_object()
    enable = counters._api.PmSamplingEnableParams()
    enable.struct_size = counters._api.PM_SAMPLING_ENABLE_PARAMS_STRUCT_SIZE
    enable.device_index = counters.device
    counters._call("pm_sampling_enable", enable)
    counters._object = enable.p_pm_sampling_object
    counters._configure()
    counters._prepare_decode()
    counters._start()


def main() -> None:
    facts: Facts = {"memory_mb": {}}
    mark = facts["memory_mb"]
    mark["python"] = memory()
    import numpy as np

    mark["numpy"] = memory()
    import pyarrow  # noqa: F401

    mark["pyarrow"] = memory()
    from rlprof.capture.samplers import cupti_library
    from rlprof.capture.samplers.cupti import METRIC
    from rlprof.capture.samplers.gpu_clock import GpuClock, load_driver
    from rlprof.capture.samplers.pm_counters import PmCounters

    driver = load_driver()
    mark["cuInit"] = memory()
    clock = GpuClock(driver, 0)
    clock.burst(10)
    mark["context"] = memory()
    counters = PmCounters(0, [METRIC], 100_000, 16 << 20, 1250)
    counters._api = cupti_library.load()
    mark["cupti loaded"] = memory()
    for step in (counters._take, counters._schedule, counters._configure, counters._prepare_decode):
        step()
        mark[step.__name__] = memory()
    trim()
    mark["trimmed"] = memory()
    counters._start()
    time.sleep(0.05)
    counters.decode()
    mark["first decode"] = memory()
    trim()
    mark["trimmed again"] = memory()
    facts["startup_cpu_s"] = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])

    cpu, count = time.process_time(), 0
    for _ in range(40):
        time.sleep(0.05)
        count += len(counters.decode().start_ns)
    facts["decode_cpu_us_per_sample"] = (time.process_time() - cpu) / count * 1e6
    facts["samples_in_2_s"] = count
    pristine = counters._image.copy()
    began = time.perf_counter()
    for _ in range(10):
        np.copyto(counters._image, pristine)
    facts["image_copy_us"] = (time.perf_counter() - began) * 1e5
    began = time.perf_counter()
    for _ in range(10):
        counters._call("pm_sampling_counter_data_image_initialize", counters._init)
    facts["image_initialise_us"] = (time.perf_counter() - began) * 1e5

    filled = []
    for wait in (0.2, 0.4, 0.6, 0.8):  # 16 MB: how many samples fit
        time.sleep(wait)
        decoded = counters.decode()
        filled.append([wait, len(decoded.start_ns), decoded.overflow, int((decoded.start_ns > 0).sum())])
    time.sleep(3)
    decoded = counters.decode()
    facts["passes_of_16_mb"] = filled
    facts["after_3_s"] = [len(decoded.start_ns), decoded.overflow]
    facts["restarts"] = {}
    for name, restart in (
        ("stop and start", again),
        ("disable and enable", anew),
        ("all", PmCounters.restart),
    ):
        began = time.perf_counter()
        try:
            restart(counters)
            took = time.perf_counter() - began
            time.sleep(0.05)
            decoded = counters.decode()
            good = int((decoded.start_ns > 0).sum())
            facts["restarts"][name] = [took, len(decoded.start_ns), good, decoded.overflow]
        except Exception as error:
            facts["restarts"][name] = f"{type(error).__name__}: {error}"
    mark["after restart"] = memory()
    counters.close()
    clock.close()
    trim()
    mark["closed"] = memory()
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
