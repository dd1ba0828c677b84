"""Four numbers that are all called GPU use, measured at once on five kinds of work.

    python -m benchmarks.gpu.four_numbers --out FOLDER

*Utilisation* is NVML's (what nvidia-smi shows), *busy* the share of time with a kernel in flight (torch's
profiler), *SM activity* and *occupancy* are CUPTI's counters, of the whole device.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import machine, sampling, save

OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_elapsed"


def kinds() -> dict[str, Callable[[], object]]:
    """What is run, each for a few seconds."""
    import torch

    row = torch.rand(1, 1 << 22, device="cuda")
    small = torch.rand(1 << 12, device="cuda")
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    big = torch.rand(1 << 28, device="cuda")
    return {
        "one block for long": lambda: torch.softmax(row, 1),
        "many small kernels": lambda: small.add_(1.0),
        "matrix products": lambda: torch.mm(matrix, matrix),
        "elementwise on much memory": lambda: big.add_(1.0),
        "half of the time idle": lambda: _then_idle(lambda: torch.mm(matrix, matrix)),
    }


def _then_idle(work: Callable[[], object]) -> None:
    import torch

    work()
    torch.cuda.synchronize()
    time.sleep(0.0016)


def watch(stop: threading.Event, seen: list[tuple[int, float]]) -> None:
    """Ask NVML for its utilisation."""
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    while not stop.wait(0.1):
        seen.append((time.monotonic_ns(), pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100))


def run(work: Callable[[], object], seconds: float) -> tuple[int, int]:
    import torch

    work()
    torch.cuda.synchronize()
    began = time.monotonic_ns()
    while time.monotonic_ns() - began < seconds * 1e9:
        for _ in range(10):
            work()
        torch.cuda.synchronize()
    return began, time.monotonic_ns()


def busy_frac(work: Callable[[], object]) -> float:
    """Share of time with a kernel in flight, over half a second under torch's profiler."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run(work, 0.5)
    spans: list[tuple[int, int]] = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns())
        for e in profiler.profiler.kineto_results.events()
        if e.device_type() == DeviceType.CUDA
    )
    total, reached = 0, spans[0][0]
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total / (reached - spans[0][0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    utilisation: list[tuple[int, float]] = []
    spans: dict[str, tuple[int, int]] = {}
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(stop, utilisation))
    works = kinds()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with sampling(folder, "cupti", 1000, "--metrics", OCCUPANCY) as sampler:
            if not sampler.ready:
                raise SystemExit(sampler.line)
            watcher.start()
            for name, work in works.items():
                spans[name] = run(work, options.seconds)
                time.sleep(1.0)
            stop.set()
            watcher.join()
            said = sampler.stop()
        rows = [_row(name, span, folder, utilisation) for name, span in spans.items()]
    for row in rows:
        row["busy"] = busy_frac(works[row["work"]])
    document = {
        "command": "python -m benchmarks.gpu.four_numbers",
        "machine": machine(),
        "seconds": options.seconds,
        "rows": rows,
        "sampler": {k: said.get(k) for k in ("line", "losses", "stderr")},
    }
    save(options.out / "four_numbers.json", document)
    for row in rows:
        print(row)


def _row(
    name: str, span: tuple[int, int], folder: Path, utilisation: list[tuple[int, float]]
) -> dict[str, Any]:
    from rlprof.capture.part_reader import read_parts

    # NVML looks back over up to a second, so the first second of each kind is left out
    lo, hi = span[0] + 10**9, span[1]
    part = next(p for p in read_parts(folder) if "activity" in p.tables)

    def mean(table: Any, column: str) -> float:
        start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
        return float(np.mean(table[column].to_numpy()[(start >= lo) & (end <= hi)]))

    counters = part.tables["counters"]
    return {
        "work": name,
        "utilisation": float(np.mean([u for t, u in utilisation if lo <= t <= hi])),
        "sm_activity": mean(part.tables["activity"], "active_frac"),
        "occupancy": mean(counters, "value") / 100,
        "samples": len(counters),
    }


if __name__ == "__main__":
    main()
