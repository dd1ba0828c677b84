"""What capturing costs a program that launches 10^4 kernels a second: alone against captured.

    python -m benchmarks.gpu.capture_overhead --out FOLDER [--libraries FOLDER_WITH_LIBDW] [--no-nsys]

Every back end is measured five times, in turns with the program alone, on one and the same process of the
program, which is pinned to one core; the sampler may use the others. nsys has to start the program itself: it
is measured five times within one run. One measurement is the fastest of five stretches of 3,000 kernels.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import Program, clean_environment, find_nsys, machine, sampling, save

ORDER = "launch 15000 5"
CORE = 2
BACKENDS = (("cupti", 1_000), ("cupti", 10_000), ("nvml", 10), ("host", 20))


def by_samplers(repeats: int, scratch: Path) -> dict[str, Any]:
    program = Program(core=CORE)
    names = ["alone", *(f"{b} {r} Hz" for b, r in BACKENDS)]
    walls: dict[str, list[float]] = {n: [] for n in names}
    samplers: dict[str, Any] = {}
    program.ask(ORDER)  # warm
    for i in range(repeats):
        walls["alone"].append(program.ask(ORDER)["wall_s"])
        for backend, rate in BACKENDS:
            name = f"{backend} {rate} Hz"
            with sampling(scratch / f"{backend}{rate}-{i}.parts", backend, rate, avoid=CORE) as sampler:
                if not sampler.ready:
                    samplers[name] = sampler.stop()
                    continue
                answer = program.ask(ORDER)
                walls[name].append(answer["wall_s"])
                samplers[name] = sampler.stop()
    last = program.ask(ORDER)
    program.quit()
    return {"walls_s": walls, "kernels_per_s": last["kernels_per_s"], "samplers": samplers}


def by_nsys(repeats: int, scratch: Path, libraries: str) -> dict[str, Any]:
    from rlprof.capture.samplers.nsys import profile_arguments

    nsys = find_nsys()
    if nsys is None:
        return {"error": "nsys is not installed"}
    walls: dict[str, Any] = {}
    for rate in (1_000, 10_000):
        report = scratch / f"nsys{rate}.nsys-rep"
        arguments = [str(nsys), *profile_arguments(report, rate_hz=rate)]
        program = Program(arguments, clean_environment(scratch, libraries), core=CORE)
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
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--libraries", default="", help="folder with libdw.so.1 and libelf.so.1, for nsys")
    parser.add_argument("--no-nsys", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "command": "python -m benchmarks.gpu.capture_overhead",
        "machine": machine(),
        "program": f"{ORDER}: fastest of 5 stretches of 3,000 small kernels, host-bound",
    }
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        result |= by_samplers(options.repeats, scratch)
        save(options.out / "capture_overhead.json", result)
        if not options.no_nsys:
            try:
                result["nsys"] = by_nsys(options.repeats, scratch, options.libraries)
            except (RuntimeError, TimeoutError) as error:
                result["nsys"] = {"error": str(error)}
            for name, walls in result["nsys"].items():
                if isinstance(walls, list):
                    result["walls_s"][name] = walls
    alone = float(np.median(result["walls_s"]["alone"]))
    result["overhead"] = {
        name: {
            "median": float(np.median(walls)) / alone - 1,
            "lowest": min(walls) / alone - 1,
            "highest": max(walls) / alone - 1,
        }
        for name, walls in result["walls_s"].items()
        if walls
    }
    save(options.out / "capture_overhead.json", result)
    for name, seen in result["overhead"].items():
        print(f"{name:16} {seen['median']:+8.2%}   ({seen['lowest']:+.2%} to {seen['highest']:+.2%})")


if __name__ == "__main__":
    main()
