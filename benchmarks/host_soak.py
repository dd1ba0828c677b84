"""A long session with the host sampler: memory of its processes and growth of its files.

    python -m benchmarks.host_soak --seconds 600 --out benchmarks/results/host_soak.json

The program annotates 200 ranges a second and sleeps otherwise. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

import rlprof
from rlprof.capture.options import Options
from rlprof.capture.session import Session
from rlprof.cores import usable_cores

PROGRAM = """
import sys, time, rlprof
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    with rlprof.annotate("iteration"):
        for _ in range(100):
            with rlprof.annotate("step"):
                time.sleep(0.005)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        session = Session(Path(scratch) / "soak.rlprof", Options(backend="host"))
        session.start()
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(options.seconds)],
            env={**os.environ, **session.environment()},
        )
        sampler = next(
            p for p in psutil.Process().children() if "rlprof.capture.sampler" in " ".join(p.cmdline())
        )
        began = time.monotonic()
        while program.poll() is None:
            time.sleep(min(15.0, options.seconds / 4))
            if program.poll() is None:
                rows.append(
                    {
                        "time_s": round(time.monotonic() - began, 1),
                        "sampler_rss_bytes": sampler.memory_info().rss,
                        "program_rss_bytes": psutil.Process(program.pid).memory_info().rss,
                        "parts_bytes": sum(p.stat().st_size for p in session.folder.iterdir()),
                    }
                )
        cpu_s = sum(sampler.cpu_times()[:2])
        wall_s = time.monotonic() - began
        made = session.stop()
        trace = rlprof.read(made)
        document = {
            "command": f"python -m benchmarks.host_soak --seconds {options.seconds:g}",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "python": platform.python_version(),
            "cores": usable_cores(),
            "seconds": wall_s,
            "sampler_cpu_share": cpu_s / wall_s,
            "samples": len(trace.table("activity")),
            "ranges": len(trace.table("ranges")),
            "capture_bytes": made.stat().st_size,
            "parts_bytes_per_minute": 60 * rows[-1]["parts_bytes"] / rows[-1]["time_s"],
            "peak_sampler_rss_bytes": max(r["sampler_rss_bytes"] for r in rows),
            "peak_program_rss_bytes": max(r["program_rss_bytes"] for r in rows),
            "rows": rows,
        }
    temporary = options.out.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=1))
    temporary.replace(options.out)
    print(json.dumps({k: v for k, v in document.items() if k != "rows"}, indent=1))


if __name__ == "__main__":
    main()
