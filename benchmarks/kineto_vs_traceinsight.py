"""rlprof against traceinsight (once HolisticTraceAnalysis): read a PyTorch trace, give the GPU's busy time.

Each run is a fresh process, so interpreter start and imports count; runs of the two alternate. Wall time, CPU
time and peak resident memory are measured from outside (wait4). Both must give the same union of intervals of
kernels, copies and memsets. traceinsight needs an environment of its own (it wants other versions):

    python -m venv /tmp/peer && /tmp/peer/bin/pip install traceinsight
    python -m benchmarks.kineto_vs_traceinsight --peer-python /tmp/peer/bin/python TRACE.json.gz...
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

OURS = """
import sys
from pathlib import Path
import polars as pl
from rlprof.trace.device_events import covered_ns
from rlprof.trace.kineto import read_kineto
trace = read_kineto(Path(sys.argv[1]))
columns = ["start_ns", "end_ns"]
work = pl.concat([trace.table(t, columns) for t in ("kernels", "copies")])
print("RESULT", covered_ns(work), len(work))
"""
# rounding to microseconds is switched off, and the last profiler step kept, so that both see the same events
PEER = """
import os, sys, logging
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis
import numpy as np
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True)
frame = analysis.t.get_trace(0)
work = frame[frame["stream"].ne(-1)].sort_values("ts")
start = work["ts"].to_numpy()
end = start + work["dur"].to_numpy()
reached = np.maximum.accumulate(np.concatenate([start[:1], end]))[:-1]
busy_us = np.clip(end - np.maximum(start, reached), 0, None).sum()
print("RESULT", round(float(busy_us) * 1000), len(work))
"""
IMPORTS = {
    "rlprof": "import rlprof.trace.kineto",
    "traceinsight": "import hta.trace_analysis",
}
#: traceinsight keeps times as float64 microseconds, which resolve 0.25 us in 2024: sums may differ a little.
TOLERANCE_NS = 1000


@dataclass(frozen=True)
class Run:
    """One process: wall and CPU time, peak memory, and what it printed."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    busy_ns: int | None
    events: int | None


def run(python: str, code: str, *arguments: str) -> Run:
    """Run `code` in a fresh process and measure it from outside."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        child = subprocess.Popen([python, "-c", code, *arguments], stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if child.returncode:
            raise SystemExit(f"{python} failed:\n{err.read().decode(errors='replace')[-2000:]}")
        result = [line.split() for line in out.read().decode().splitlines() if line.startswith("RESULT")]
    busy, events = (int(result[0][1]), int(result[0][2])) if result else (None, None)
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, busy, events)


def summary(runs: list[Run]) -> dict[str, float | int | None]:
    """Median and range of the runs of one tool on one file."""
    walls, peaks = [r.wall_s for r in runs], [r.peak_mb for r in runs]
    return {
        "wall_s": round(statistics.median(walls), 3),
        "wall_min_s": round(min(walls), 3),
        "wall_max_s": round(max(walls), 3),
        "cpu_s": round(statistics.median(r.cpu_s for r in runs), 3),
        "peak_mb": round(statistics.median(peaks), 1),
        "peak_max_mb": round(max(peaks), 1),
        "busy_ns": runs[0].busy_ns,
        "events": runs[0].events,
    }


def version(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def measure(path: Path, peer_python: str, repeats: int) -> dict[str, object]:
    """Runs of both tools on one file, alternating; the first of each is not counted."""
    ours: list[Run] = []
    peer: list[Run] = []
    for _ in range(repeats + 1):
        ours.append(run(sys.executable, OURS, str(path)))
        peer.append(run(peer_python, PEER, str(path)))
    ours, peer = ours[1:], peer[1:]
    a, b = ours[0], peer[0]
    assert a.busy_ns is not None
    assert b.busy_ns is not None
    if abs(a.busy_ns - b.busy_ns) > TOLERANCE_NS or a.events != b.events:
        raise SystemExit(f"{path.name}: busy time differs: rlprof {a}, traceinsight {b}")

    def faster(spent_s: Callable[[Run], float]) -> float:
        mine, theirs = ([spent_s(r) for r in runs] for runs in (ours, peer))
        return round(statistics.median(theirs) / statistics.median(mine), 2)

    return {
        "file": path.name,
        "size_mb": round(path.stat().st_size / 1e6, 2),
        "rlprof": summary(ours),
        "traceinsight": summary(peer),
        "busy_difference_ns": b.busy_ns - a.busy_ns,
        "times_faster_wall": faster(lambda r: r.wall_s),
        "times_faster_cpu": faster(lambda r: r.cpu_s),
        "runs": {"rlprof": [asdict(r) for r in ours], "traceinsight": [asdict(r) for r in peer]},
    }


def imports(peer_python: str, repeats: int) -> dict[str, float]:
    """Median wall time of a process that only imports, seconds."""
    pythons = {"rlprof": sys.executable, "traceinsight": peer_python}
    return {
        tool: round(statistics.median(run(pythons[tool], code).wall_s for _ in range(repeats)), 3)
        for tool, code in IMPORTS.items()
    }


def markdown(report: dict[str, object]) -> str:
    """The table for people."""
    lines = [
        "| file | tool | wall s (min..max) | CPU s | peak MB | busy ms | times faster (wall, CPU) |",
        "|---|---|---|---|---|---|---|",
    ]
    files = report["files"]
    assert isinstance(files, list)
    for entry in files:
        faster = f"{entry['times_faster_wall']:.1f}, {entry['times_faster_cpu']:.1f}"
        for tool in ("rlprof", "traceinsight"):
            s = entry[tool]
            wall = f"{s['wall_s']:.2f} ({s['wall_min_s']:.2f}..{s['wall_max_s']:.2f})"
            lines.append(
                f"| {entry['file']} | {tool} | {wall} | {s['cpu_s']:.2f} | {s['peak_mb']:.0f}"
                f" | {s['busy_ns'] / 1e6:.6f} | {faster if tool == 'rlprof' else ''} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", nargs="+", type=lambda p: Path(p).resolve())
    parser.add_argument("--peer-python", required=True, help="interpreter that has traceinsight installed")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    options = parser.parse_args()
    packages = ("polars", "orjson", "numpy")
    report: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "cpu_count": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "repeats": options.repeats,
        # another program on the machine stretches wall times of both; CPU times tell then
        "load_1min_before": round(os.getloadavg()[0], 2),
        "versions": {
            "rlprof": version(sys.executable, "rlprof"),
            "traceinsight": version(options.peer_python, "traceinsight"),
            **{p: version(sys.executable, p) for p in packages},
            "pandas (traceinsight's)": version(options.peer_python, "pandas"),
        },
        "import_s": imports(options.peer_python, options.repeats),
        "files": [measure(path, options.peer_python, options.repeats) for path in options.traces],
    }
    print(markdown(report))
    if options.out is not None:
        partial = options.out.with_name(options.out.name + ".part")
        partial.write_text(json.dumps(report, indent=1) + "\n")
        partial.replace(options.out)


if __name__ == "__main__":
    main()
