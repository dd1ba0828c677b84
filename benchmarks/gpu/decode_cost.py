"""What reading the counters costs a sample, and which way of reading keeps up with 20 us.

    python -m benchmarks.gpu.decode_cost --out FOLDER

Each case samples an idle GPU for some seconds in a process of its own that has as many cores as threads, and
says where the time went, how many records came and how many are missing. *One thread* decodes and evaluates
in turns; *two* is what the sampler does: a thread decodes while the other evaluates.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import ROOT, environment, machine, save

Facts = dict[str, Any]
FIRST_CORE = 3
#: name -> period in us, threads, seconds for which nothing is read once in the middle.
CASES: dict[str, tuple[int, int, float]] = {
    "100 us, one thread": (100, 1, 0.0),
    "100 us, two threads": (100, 2, 0.0),
    "40 us, one thread": (40, 1, 0.0),
    "25 us, one thread": (25, 1, 0.0),
    "25 us, two threads": (25, 2, 0.0),
    "20 us, one thread": (20, 1, 0.0),
    "20 us, two threads": (20, 2, 0.0),
    # a backlog: the hardware's buffer holds 1.2 s at 100 us and 0.4 s at 20 us
    "100 us, not read for 0.5 s": (100, 1, 0.5),
    "20 us, not read for 0.15 s": (20, 2, 0.15),
}
TIMED = ("pm_sampling_counter_data_image_initialize", "pm_sampling_decode_data")


class Timed:
    """CUPTI's calls, with the time that those in `TIMED` took."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.spent = dict.fromkeys(TIMED, 0.0)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if name not in TIMED:
            return found

        def timed(block: Any) -> Any:
            began = time.perf_counter()
            try:
                return found(block)
            finally:
                self.spent[name] += time.perf_counter() - began

        return timed


def measure(period_us: int, threads: int, stall_s: float, seconds: float) -> Facts:
    """One case, in this process."""
    from rlprof.capture.samplers import cupti_library
    from rlprof.capture.samplers.cupti import MAX_BUFFER, METRIC, RECORD_BYTES
    from rlprof.capture.samplers.gpu_clock import load_driver
    from rlprof.capture.samplers.pm_counters import PmCounters

    load_driver()
    api = Timed(cupti_library.load())
    setattr(cupti_library, "load", lambda: api)  # noqa: B010
    period_ns = period_us * 1000
    poll_ns = max(20_000_000, 500 * period_ns)
    buffer = min(MAX_BUFFER, 1_000_000_000 // period_ns * RECORD_BYTES)
    counters = PmCounters(0, [METRIC], period_ns, buffer, poll_ns)
    counters.open()
    reader = counters._reader
    assert reader is not None
    if threads == 1:
        reader.finish()
    starts, ends, slots, overflows = [], [], {0}, 0
    evaluated, stalled = 0.0, False
    cpu, began = time.process_time(), time.perf_counter()
    due = began
    while (now := time.perf_counter()) - began < seconds:
        due = max(due + poll_ns / 1e9, now)
        time.sleep(due - now)
        if not stalled and due - began > seconds / 2:
            stalled = True
            time.sleep(stall_s)
        if threads == 1:
            reader.read()
        at = time.perf_counter()
        decoded = counters.decode()
        evaluated += time.perf_counter() - at
        slots.add(len(decoded.start_ns))
        good = decoded.start_ns > 0
        starts.append(decoded.start_ns[good])
        ends.append(decoded.end_ns[good])
        if decoded.overflow:
            overflows += 1
            counters.restart()
            reader = counters._reader
            assert reader is not None
            if threads == 1:
                reader.finish()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    counters.close()
    start, end = np.concatenate(starts), np.concatenate(ends)
    gaps = start[1:] - end[:-1]
    wide = gaps[gaps > period_ns // 2]
    lost, n = int(np.rint(wide / period_ns).sum()), len(start)
    spent = {**api.spent, "evaluate": evaluated}
    return {
        "samples": n,
        "lost": lost,
        "lost_frac": lost / max(1, lost + n),
        "gaps": len(wide),
        "twice": int((gaps < -period_ns // 2).sum()),
        "overflows": overflows,
        "largest_pass": max(slots),
        "cpu_share": round(cpu / wall, 3),
        "cpu_us_per_sample": round(cpu / max(1, n) * 1e6, 2),
        "us_per_sample": {name: round(s / max(1, n) * 1e6, 2) for name, s in spent.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--case")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(*CASES[options.case], options.seconds)))
        return
    result: Facts = {"command": "python -m benchmarks.gpu.decode_cost", "machine": machine(), "cases": {}}
    cores = sorted(os.sched_getaffinity(0))
    for name, (_, threads, _) in CASES.items():
        mine = cores[min(FIRST_CORE, len(cores) - threads) :][:threads]
        command = [sys.executable, "-m", "benchmarks.gpu.decode_cost", "--case", name]
        done = subprocess.run(
            ["taskset", "-c", ",".join(map(str, mine)), *command, "--seconds", str(options.seconds)],
            cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        try:
            result["cases"][name] = json.loads(done.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError):
            result["cases"][name] = {"error": done.stderr[-1500:]}
        save(options.out / "decode_cost.json", result)
        print(name, json.dumps(result["cases"][name])[:600], flush=True)


if __name__ == "__main__":
    main()
