"""What capturing costs a program that launches 10^4 kernels a second: alone against captured.

    python -m benchmarks.gpu.capture_overhead --out FOLDER [--libraries FOLDER_WITH_LIBDW] [--no-nsys]

Two programs of fixed work, in one process that is pinned to a core while samplers may use the others:
`gpu` launches kernels of about 95 us ahead, so that its time is the GPU's; `host` launches small kernels
with work in between, so that its time is the host's. Each round measures both alone and under each
sampler, right after each other; the overhead of a round compares a measurement with the mean of the two
alone before and after it. nsys has to start the program itself: two processes, one of them under nsys,
then take turns. All walls are kept.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import Program, clean_environment, find_nsys, machine, sampling, save

#: Order of each program: kernels and segments; a wall is the mean of its segments.
ORDERS = {"gpu": "queue 6000 3", "host": "launch 6000 3"}
CORE = 2
SAMPLERS = (("cupti", 1_000), ("cupti", 10_000))
#: Slow samplers, in fewer rounds: they were never above what can be told apart.
SLOW = (("nvml", 10), ("host", 20))
NSYS = {"CUDA and NVTX": ("cuda", "nvtx"), "NVTX": ("nvtx",)}

Walls = dict[str, dict[str, list[float]]]


def walls(program: Program) -> dict[str, float]:
    """Both programs once: seconds."""
    return {name: float(np.mean(program.ask(order)["walls_s"])) for name, order in ORDERS.items()}


class Rounds:
    """Measurements in turns, each kept with those alone before and after it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.alone = [walls(program)]
        self.found: dict[str, list[dict[str, float]]] = {}

    def add(self, name: str, measured: dict[str, float]) -> None:
        """Take a measurement in, and measure alone again."""
        before = self.alone[-1]
        self.alone.append(after := walls(self.program))
        row = dict(measured)
        for which in ORDERS:
            row[f"{which}_overhead"] = measured[which] / ((before[which] + after[which]) / 2) - 1
        self.found.setdefault(name, []).append(row)

    def result(self) -> dict[str, Any]:
        """Walls and overheads of every round, and their medians and quartiles."""
        summary = {}
        for name, rows in self.found.items():
            for which in ORDERS:
                over = [r[f"{which}_overhead"] for r in rows]
                low, median, high = np.quantile(over, [0.25, 0.5, 0.75])
                fastest = min(r[which] for r in rows) / min(a[which] for a in self.alone) - 1
                summary[f"{name}, {which}"] = {
                    "median": float(median), "lower_quartile": float(low), "upper_quartile": float(high),
                    "fastest": fastest, "rounds": len(over),
                }  # fmt: skip
        for which in ORDERS:
            # what two measurements of the program alone, right after each other, differ by
            pairs = [b[which] / a[which] - 1 for a, b in zip(self.alone, self.alone[1:], strict=False)]
            low, median, high = np.quantile(pairs, [0.25, 0.5, 0.75])
            summary[f"alone, {which}"] = {
                "median": float(median), "lower_quartile": float(low), "upper_quartile": float(high),
                "fastest": 0.0, "rounds": len(pairs),
            }  # fmt: skip
        return {"overhead": summary, "rounds": self.found, "alone": self.alone}


def by_samplers(rounds: Rounds, count: int, until_s: float, scratch: Path) -> dict[str, Any]:
    """Every sampler `count` times, in turns; returns what the samplers said of themselves.

    After `until_s` (of `time.monotonic`) no further round begins, but five are measured in any case.
    """
    said: dict[str, Any] = {}
    for i in range(count):
        if i >= 5 and time.monotonic() > until_s:
            break
        # every other round backwards, so that a drift of the machine favours nobody
        for backend, rate in (SAMPLERS if i % 2 == 0 else SAMPLERS[::-1]) + (SLOW if i in (1, 3, 5) else ()):
            name = f"{backend} {rate} Hz"
            with sampling(scratch / f"{backend}{rate}-{i}.parts", backend, rate, avoid=CORE) as sampler:
                measured = walls(rounds.program) if sampler.ready else None
                said[name] = sampler.stop()
            if measured is not None:
                rounds.add(name, measured)
    return said


def by_nsys(rounds: Rounds, work: int, until_s: float, scratch: Path, libraries: str) -> dict[str, Any]:
    """A program under nsys and the one alone, taking turns; nsys samples the GPU at 10 kHz all the while.

    The second kind of tracing is left out after `until_s` (of `time.monotonic`).
    """
    from rlprof.capture.samplers.nsys import profile_arguments

    nsys = find_nsys()
    if nsys is None:
        return {"error": "nsys is not installed"}
    facts: dict[str, Any] = {}
    for name, traces in NSYS.items():
        if facts and time.monotonic() > until_s:
            facts[name] = {"error": "not measured: no time was left"}
            continue
        report = scratch / f"{'-'.join(traces)}.nsys-rep"
        arguments = [str(nsys), *profile_arguments(report, rate_hz=10_000, devices=[0], traces=traces)]
        try:
            # the program alone is pinned: nsys may use the other cores, as the samplers may
            pinned = [*arguments, "taskset", "-c", str(CORE)]
            program = Program(pinned, clean_environment(scratch, libraries))
            program.ask(f"work {work}")
            walls(program)
            for _ in range(5):
                rounds.add(f"nsys 10000 Hz, {name}", walls(program))
            code = program.quit(120)
        except (RuntimeError, TimeoutError) as error:
            facts[name] = {"error": str(error)}
            continue
        size = report.stat().st_size if report.exists() else None
        facts[name] = {"code": code, "report_bytes": size}
    return facts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=150, help="after which no further round begins")
    parser.add_argument("--libraries", default="", help="folder with libdw.so.1 and libelf.so.1, for nsys")
    parser.add_argument("--no-nsys", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    result: dict[str, Any] = {
        "command": "python -m benchmarks.gpu.capture_overhead",
        "machine": machine(),
        "orders": ORDERS,
    }
    program = Program(core=CORE)
    walls(program)  # warm
    result["kernels_per_s"] = {n: program.ask(order)["kernels_per_s"] for n, order in ORDERS.items()}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        rounds = Rounds(program)
        result["samplers"] = by_samplers(rounds, options.rounds, began + options.seconds, scratch)
        save(options.out / "capture_overhead.json", result | rounds.result())
        if not options.no_nsys:
            work = program.greeting["work"]
            result["nsys"] = by_nsys(rounds, work, began + options.seconds, scratch, options.libraries)
    program.quit()
    result |= rounds.result()
    save(options.out / "capture_overhead.json", result)
    for name, seen in result["overhead"].items():
        print(
            f"{name:36}", *(f"{key} {v:+.2%}" for key, v in seen.items() if key != "rounds"), seen["rounds"]
        )


if __name__ == "__main__":
    main()
