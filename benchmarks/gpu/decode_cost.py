"""What reading the counters costs a sample, and which way of reading keeps up with which period.

    python -m benchmarks.gpu.decode_cost --out FOLDER

Each case samples an idle GPU for some seconds in a process of its own, pinned to one core, and says where
the time went, how many records came and how many are missing. Raw passes are kept. Periods below what the
sampler accepts are here to show why it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import ROOT, environment, machine, save

Facts = dict[str, Any]
CORE = 3
#: period, poll, room of the image and ways of reading.
CASES: dict[str, Facts] = {
    "100 us, emptied each time": {"period_us": 100, "poll_ms": 50, "slots": 2000, "appends": False},
    "100 us, emptied when half full": {"period_us": 100, "poll_ms": 50, "slots": 2000, "appends": True},
    "20 us, emptied each time": {"period_us": 20, "poll_ms": 20, "slots": 4000, "appends": False},
    "20 us, emptied when half full": {"period_us": 20, "poll_ms": 20, "slots": 4000, "appends": True},
    "20 us, short passes": {"period_us": 20, "poll_ms": 5, "slots": 1000, "appends": True},
    "20 us, two threads": {"period_us": 20, "poll_ms": 20, "slots": 2500, "threads": True},
    "25 us": {"period_us": 25, "poll_ms": 20, "slots": 3200, "appends": True},
    "40 us": {"period_us": 40, "poll_ms": 20, "slots": 2000, "appends": True},
    "50 us": {"period_us": 50, "poll_ms": 25, "slots": 2000, "appends": True},
    # an image that is too small for what waits: what becomes of the rest?
    "100 us, image too small": {"period_us": 100, "poll_ms": 100, "slots": 300, "appends": True, "raw": 40},
    "100 us, image too small, emptied": {
        "period_us": 100, "poll_ms": 100, "slots": 300, "appends": False, "raw": 40,
    },
    # and a backlog of half a second
    "20 us, stalled once": {"period_us": 20, "poll_ms": 20, "slots": 4000, "appends": True, "stall_s": 0.3},
}  # fmt: skip


class Timed:
    """CUPTI's calls with the time that each took."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.spent: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if name not in (
            "pm_sampling_counter_data_image_initialize",
            "pm_sampling_decode_data",
            "pm_sampling_get_counter_data_info",
        ):
            return found

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return found(*arguments)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - began
                self.calls[name] = self.calls.get(name, 0) + 1

        return timed


def measure(case: Facts, seconds: float) -> Facts:
    """One case, in this process."""
    from rlprof.capture.samplers.cupti import MAX_BUFFER, METRIC
    from rlprof.capture.samplers.gpu_clock import load_driver
    from rlprof.capture.samplers.pm_counters import PmCounters

    load_driver()
    period_ns = case["period_us"] * 1000
    counters = PmCounters(
        0, [METRIC], period_ns, MAX_BUFFER, case["slots"], appends=case.get("appends", False)
    )
    counters.open()
    api = counters._api = Timed(counters._api)
    if case.get("threads"):
        return _in_two_threads(counters, case, seconds)
    passes: list[list[float]] = []
    raw: list[Any] = []
    starts, ends = [], []
    cpu, began = time.process_time(), time.perf_counter()
    stalled = "stall_s" not in case
    due = began
    while time.perf_counter() - began < seconds:
        due = max(due + case["poll_ms"] / 1e3, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))
        if not stalled and time.perf_counter() - began > seconds / 2:
            time.sleep(case["stall_s"])
            stalled = True
        at = time.perf_counter()
        decoded = counters.decode()
        took = time.perf_counter() - at
        info, stop = counters._info, counters._decode.decode_stop_reason
        good = decoded.start_ns > 0
        passes.append(
            [
                len(good), int(good.sum()), int(info.num_populated_samples), int(info.num_completed_samples),
                int(stop), int(decoded.overflow), round(took * 1e3, 2),
            ]
        )  # fmt: skip
        if len(raw) < 6 and "raw" in case:
            rows = zip(decoded.start_ns.tolist(), decoded.end_ns.tolist(), decoded.values[:, 0], strict=True)
            every = [[a, b, float(v)] for a, b, v in rows]
            raw.append([every[: case["raw"]], every[-case["raw"] :]])
        starts.append(decoded.start_ns[good])
        ends.append(decoded.end_ns[good])
        if decoded.overflow:
            counters.restart()
            counters._api = api
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    counters.close()
    found = _counted(np.concatenate(starts), np.concatenate(ends), period_ns)
    spent = {n: round(s / max(1, found["samples"]) * 1e6, 3) for n, s in api.spent.items()}
    return {
        **found,
        "cpu_share": round(cpu / wall, 3),
        "cpu_us_per_sample": round(cpu / max(1, found["samples"]) * 1e6, 2),
        "us_per_sample": spent,
        "calls": api.calls,
        "appends_in_the_end": counters._appends,
        "overflows": sum(p[5] for p in passes),
        "columns": "records, with a start, populated, completed, stop reason, overflow, ms",
        "passes": passes[:40] + passes[-10:],
        "raw": raw,
    }


def _counted(start_ns: Any, end_ns: Any, period_ns: int) -> Facts:
    gaps = start_ns[1:] - end_ns[:-1]
    wide = gaps[gaps > period_ns // 2]
    lost = int(np.rint(wide / period_ns).sum())
    return {
        "samples": len(start_ns),
        "lost": lost,
        "lost_frac": lost / max(1, lost + len(start_ns)),
        "gaps": len(wide),
        "twice": int((gaps < -period_ns // 2).sum()),
    }


def _in_two_threads(counters: Any, case: Facts, seconds: float) -> Facts:
    """Decode into one image while the other is evaluated."""
    from queue import Queue

    sides = []
    for _ in range(2):
        counters._prepare_decode()
        names = ("_image", "_init", "_decode", "_info", "_sample", "_evaluate")
        sides.append({n: getattr(counters, n) for n in names})
    empty: Queue[Any] = Queue()
    full: Queue[Any] = Queue()
    for side in sides:
        empty.put(side)
    starts, ends, overflows = [], [], [0]
    api, clock = counters._api, time.perf_counter

    def decode() -> None:
        began = due = clock()
        while clock() - began < seconds:
            due = max(due + case["poll_ms"] / 1e3, clock())
            time.sleep(max(0.0, due - clock()))
            side = empty.get()
            api.pm_sampling_counter_data_image_initialize(side["_init"].ptr)
            api.pm_sampling_decode_data(side["_decode"].ptr)
            overflows[0] += bool(side["_decode"].overflow)
            full.put(side)
        full.put(None)

    cpu, began = time.process_time(), clock()
    thread = threading.Thread(target=decode)
    thread.start()
    while (side := full.get()) is not None:
        for name, value in side.items():
            setattr(counters, name, value)
        api.pm_sampling_get_counter_data_info(side["_info"].ptr)
        new = counters._evaluated(0, int(side["_info"].num_completed_samples))
        empty.put(side)
        starts.append(new.start_ns[new.start_ns > 0])
        ends.append(new.end_ns[new.start_ns > 0])
    thread.join()
    wall, cpu = clock() - began, time.process_time() - cpu
    counters.close()
    found = _counted(np.concatenate(starts), np.concatenate(ends), case["period_us"] * 1000)
    spent = {n: round(s / max(1, found["samples"]) * 1e6, 3) for n, s in api.spent.items()}
    return {**found, "cpu_share": round(cpu / wall, 3), "us_per_sample": spent, "overflows": overflows[0]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--case")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(CASES[options.case], options.seconds)))
        return
    result: Facts = {"command": "python -m benchmarks.gpu.decode_cost", "machine": machine(), "cases": {}}
    cores = sorted(os.sched_getaffinity(0))
    for name, case in CASES.items():
        # two threads need two cores
        mine = cores[1:3] if case.get("threads") else cores[min(CORE, len(cores) - 1) :][:1]
        command = [
            "taskset",
            "-c",
            ",".join(map(str, mine)),
            sys.executable,
            "-m",
            "benchmarks.gpu.decode_cost",
        ]
        done = subprocess.run(
            [*command, "--case", name, "--seconds", str(options.seconds)],
            cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        try:
            result["cases"][name] = json.loads(done.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError):
            result["cases"][name] = {"error": done.stderr[-1500:]}
        save(options.out / "decode_cost.json", result)
        shown = {k: v for k, v in result["cases"][name].items() if k not in ("passes", "raw", "columns")}
        print(name, json.dumps(shown)[:600], flush=True)


if __name__ == "__main__":
    main()
