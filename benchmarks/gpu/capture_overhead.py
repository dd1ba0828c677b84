"""What capturing costs a program that launches 10^4 kernels a second: alone against captured.

    python -m benchmarks.gpu.capture_overhead --out FOLDER [--libraries FOLDER_WITH_LIBDW] [--no-nsys]

Every back end is measured in several rounds, each between two measurements of the program alone, on one and
the same process of the program, which is pinned to one core; the sampler may use the others. nsys has to
start the program itself: it is measured as often within one run of a program that does the same work. One
measurement is the fastest of eight stretches of 3,000 kernels, and the overhead of a round compares it with
the mean of its two neighbours: machines that are shared run at different speeds for seconds at a time.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import Program, clean_environment, find_nsys, machine, sampling, save

ORDER = "launch 24000 8"
CORE = 2
BACKENDS = (("cupti", 1_000), ("cupti", 10_000), ("nvml", 10), ("host", 20))


def by_samplers(program: Program, rounds: int, scratch: Path) -> dict[str, Any]:
    """Walls of the program alone and captured, in turns, and each round's overhead."""
    names = [f"{b} {r} Hz" for b, r in BACKENDS]
    alone = [program.ask(ORDER)["wall_s"]]
    walls: dict[str, list[float]] = {n: [] for n in names}
    overhead: dict[str, list[float]] = {n: [] for n in names}
    samplers: dict[str, Any] = {}
    for i in range(rounds):
        for name, (backend, rate) in zip(names, BACKENDS, strict=True):
            with sampling(scratch / f"{backend}{rate}-{i}.parts", backend, rate, avoid=CORE) as sampler:
                wall_s = program.ask(ORDER)["wall_s"] if sampler.ready else None
                samplers[name] = sampler.stop()
            alone.append(program.ask(ORDER)["wall_s"])
            if wall_s is not None:
                walls[name].append(wall_s)
                overhead[name].append(wall_s / ((alone[-2] + alone[-1]) / 2) - 1)
    return {"walls_s": {"alone": alone, **walls}, "overhead_by_round": overhead, "samplers": samplers}


def by_nsys(work: int, repeats: int, scratch: Path, libraries: str) -> dict[str, Any]:
    from rlprof.capture.samplers.nsys import profile_arguments

    nsys = find_nsys()
    if nsys is None:
        return {"error": "nsys is not installed"}
    walls: dict[str, Any] = {}
    for rate in (1_000, 10_000):
        report = scratch / f"nsys{rate}.nsys-rep"
        arguments = [str(nsys), *profile_arguments(report, rate_hz=rate)]
        program = Program(arguments, clean_environment(scratch, libraries), core=CORE)
        program.ask(f"work {work}")
        program.ask(ORDER)
        walls[f"nsys {rate} Hz"] = [program.ask(ORDER)["wall_s"] for _ in range(repeats)]
        code = program.quit(120)
        walls[f"nsys {rate} Hz report"] = {
            "code": code,
            "bytes": report.stat().st_size if report.exists() else None,
        }
    return walls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--libraries", default="", help="folder with libdw.so.1 and libelf.so.1, for nsys")
    parser.add_argument("--no-nsys", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "command": "python -m benchmarks.gpu.capture_overhead",
        "machine": machine(),
        "program": f"{ORDER}: fastest of 8 stretches of 3,000 small kernels, host-bound",
    }
    program = Program(core=CORE)
    program.ask(ORDER)  # warm
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        result |= by_samplers(program, options.rounds, scratch)
        result["kernels_per_s"] = program.ask(ORDER)["kernels_per_s"]
        save(options.out / "capture_overhead.json", result)
        if not options.no_nsys:
            try:
                result["nsys"] = by_nsys(program.greeting["work"], options.rounds, scratch, options.libraries)
            except (RuntimeError, TimeoutError) as error:
                result["nsys"] = {"error": str(error)}
            for name, walls in result["nsys"].items():
                if isinstance(walls, list):
                    result["walls_s"][name] = walls
    program.quit()
    result["overhead"] = {name: summary(result, name) for name, walls in result["walls_s"].items() if walls}
    save(options.out / "capture_overhead.json", result)
    for name, seen in result["overhead"].items():
        print(f"{name:16}", *(f"{key} {value:+.2%}" for key, value in seen.items()))


def summary(result: dict[str, Any], name: str) -> dict[str, float]:
    """Overhead from the fastest measurements, and, where there are rounds, their median and spread."""
    alone = result["walls_s"]["alone"]
    found = {"fastest": min(result["walls_s"][name]) / min(alone) - 1}
    rounds = result["overhead_by_round"].get(name) or [
        w / np.median(alone) - 1 for w in result["walls_s"][name]
    ]
    low, median, high = np.quantile(rounds, [0.25, 0.5, 0.75])
    return {**found, "median": float(median), "lower_quartile": float(low), "upper_quartile": float(high)}


if __name__ == "__main__":
    main()
