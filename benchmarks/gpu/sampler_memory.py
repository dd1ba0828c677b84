"""Where the memory of the counter sampler goes, step by step, in several variants.

    python -m benchmarks.gpu.sampler_memory --out FOLDER

Each variant is a process of its own that does what the sampler does: load, take the counters, look at the
GPU's clock, decode for two seconds at 10 kHz.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import ROOT, environment, machine, save

Facts = dict[str, Any]
#: What is different from the sampler as it is.
VARIANTS: dict[str, Facts] = {
    "as shipped": {},
    "zeros kept": {"zeros": False},
    "no clock of the GPU": {"clock": False},
    "clock, no kernel": {"clock": "context"},
    "nothing tuned": {"zeros": False, "tuned": False},
}


def memory() -> dict[str, float]:
    """Megabytes of this process: resident by kind, and proportional to sharing."""
    found = {}
    for name in ("status", "smaps_rollup"):
        for line in Path(f"/proc/self/{name}").read_text().splitlines():
            key = line.split(":")[0]
            if key in ("RssAnon", "RssFile", "RssShmem", "VmRSS", "Pss", "AnonHugePages"):
                found[key] = round(int(line.split()[1]) * 1024 / 1e6, 1)
    return found


def by_file(least_mb: float = 2.0) -> dict[str, float]:
    """Resident megabytes by mapped file, the largest first; names without folders."""
    total: Counter[str] = Counter()
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"^[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \S+\s*(.*)$", line):
            name = f"{Path(found[2]).name or 'anonymous'} {found[1]}"
        elif line.startswith("Rss:"):
            total[name] += int(line.split()[1]) * 1024
    return {n: round(b / 1e6, 1) for n, b in total.most_common() if b > least_mb * 1e6}


def measure(variant: Facts) -> Facts:
    """One variant, in this process."""
    facts: Facts = {"memory_mb": {}}
    mark = facts["memory_mb"]
    mark["python"] = memory()
    from rlprof.capture.samplers import cupti_library, process_memory

    if variant.get("tuned", True):
        process_memory.keep_small()
    import numpy  # noqa: F401

    mark["numpy"] = memory()
    import pyarrow  # noqa: F401

    mark["pyarrow"] = memory()
    from rlprof.capture.samplers.cupti import METRIC
    from rlprof.capture.samplers.gpu_clock import GpuClock, load_driver
    from rlprof.capture.samplers.pm_counters import PmCounters

    if not variant.get("zeros", True):
        setattr(cupti_library, "give_back_zeros_of", lambda _library: 0)  # noqa: B010
    driver = load_driver()
    mark["driver initialised"] = memory()
    clock = None
    if variant.get("clock", True) == "context":
        context, device = ctypes.c_void_p(), ctypes.c_int(0)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        mark["CUDA context"] = memory()
    elif variant.get("clock", True):
        clock = GpuClock(driver, 0)
        clock.burst(10)
        mark["clock of the GPU"] = memory()
    counters = PmCounters(0, [METRIC], 100_000, variant.get("buffer_mb", 51) << 20, 2000)
    api = cupti_library.load()
    mark["CUPTI loaded"] = memory()
    counters.open()
    mark["counters open"] = memory()
    if clock is None:
        facts["without_context"] = _without_context(api)
    cpu, samples = time.process_time(), 0
    for _ in range(40):
        time.sleep(0.05)
        samples += len(counters.decode().start_ns)
    facts["decode_cpu_us_per_sample"] = (time.process_time() - cpu) / max(1, samples) * 1e6
    facts["samples_in_2_s"] = samples
    mark["after two seconds"] = memory()
    facts["by_file_mb"] = by_file()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    mark["trimmed"] = memory()
    counters.close()
    if clock is not None:
        clock.close()
    mark["closed"] = memory()
    return facts


def _without_context(api: Any) -> Facts:
    """What CUPTI itself says of the time, and how close that is to the host's."""
    readings = []
    for _ in range(200):
        before = time.monotonic_ns()
        stamp = api.get_timestamp()
        readings.append((time.monotonic_ns() - before, stamp - before))
    best = min(readings)
    return {"cupti_timestamp_bracket_ns": best[0], "cupti_timestamp_minus_host_ns": best[1]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--variant")
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(measure(VARIANTS[options.variant])))
        return
    result: Facts = {"command": "python -m benchmarks.gpu.sampler_memory", "machine": machine()}
    result["variants"] = {}
    for name in VARIANTS:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.sampler_memory", "--variant", name],
            cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        try:
            result["variants"][name] = json.loads(done.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError):
            result["variants"][name] = {"error": done.stderr[-1500:]}
        save(options.out / "sampler_memory.json", result)
        seen = result["variants"][name]
        print(name, json.dumps(seen.get("memory_mb", {}).get("after two seconds", seen))[:500], flush=True)


if __name__ == "__main__":
    main()
