"""Time and memory of `rlprof analyze` from process start, on a large capture and on a real one.

Each case is a fresh process, repeated; time and peak memory are what the operating system says of it. Beside
it: reading the same rows through the standard sqlite3 module alone, and `nsys stats` on the same file.

    python -m benchmarks.read_speed --work /some/folder [--repeats 5]

Nothing heavy is imported here: a child's peak memory is at least what its parent held when it began.
The generated files stay under --work (700 MB), which is to be outside of the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("rlprof", "polars", "numpy", "pyarrow")
#: The columns that `rlprof analyze` needs, read with the standard library and thrown away.
PLAIN_READ = """
import sqlite3, sys
con = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
for table, columns in {
    "NVTX_EVENTS": "start, end, eventType, globalTid, domainId, text, textId",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, globalPid",
    "GPU_METRICS": "timestamp, typeId, metricId, value",
}.items():
    quoted = columns.replace("end", '"end"')
    con.execute(f"SELECT {quoted} FROM {table}").fetchall()
"""


@dataclass(frozen=True)
class Run:
    """One process: wall time, processor time (user and system), peak resident memory."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Case:
    """What was run, how often, and what came out; `note` says why there is no measurement."""

    name: str
    command: str
    runs: tuple[Run, ...] = ()
    target_s: float | None = None
    note: str = ""

    def median(self, of: Callable[[Run], float]) -> float:
        return statistics.median(of(r) for r in self.runs)

    def summary(self) -> dict[str, object]:
        out: dict[str, object] = {"name": self.name, "command": self.command, "target_s": self.target_s}
        if self.note:
            out["note"] = self.note
        if self.runs:
            walls = [r.wall_s for r in self.runs]
            out |= {
                "wall_s": {
                    "median": round(self.median(lambda r: r.wall_s), 3),
                    "min": round(min(walls), 3),
                    "max": round(max(walls), 3),
                },
                "cpu_s_median": round(self.median(lambda r: r.cpu_s), 3),
                "peak_mb": round(max(r.peak_bytes for r in self.runs) / 1e6),
                "runs": [asdict(r) for r in self.runs],
            }
        return out


def run_once(command: list[str], limit_s: float, cwd: Path) -> Run | None:
    """Run a command to its end; None if it was stopped at the limit.

    Raises
    ------
    subprocess.CalledProcessError
        If it fails.
    """
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=cwd, start_new_session=True
    )
    pid, status, usage = 0, 0, None
    try:
        while pid == 0:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid == 0 and time.perf_counter() - begun > limit_s:
                return None
            time.sleep(0.002)
    finally:
        if pid == 0:  # too slow, or interrupted: it and what it started are ours to end
            os.killpg(process.pid, signal.SIGKILL)
            os.wait4(process.pid, 0)
            process.returncode = -signal.SIGKILL
    wall = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    assert usage is not None
    if process.returncode:
        assert process.stderr is not None
        raise subprocess.CalledProcessError(
            process.returncode, command, stderr=process.stderr.read().decode()
        )
    # the children that a process waited for are counted in what it used
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def measure(
    name: str,
    command: list[str],
    shown: str,
    *,
    repeats: int,
    cwd: Path,
    target_s: float | None = None,
    limit_s: float = 600,
) -> Case:
    """Run a command several times, after once to fill the file cache if it is to be run more than once."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    runs = []
    for i in range(repeats + (repeats > 1)):
        done = run_once(command, limit_s, cwd)
        if done is None:
            return Case(name, shown, target_s=target_s, note=f"stopped after {limit_s:.0f} s")
        if i > 0 or repeats == 1:
            runs.append(done)
    case = Case(name, shown, tuple(runs), target_s)
    print(f"  {case.median(lambda r: r.wall_s):.2f} s", file=sys.stderr, flush=True)
    return case


def machine() -> dict[str, object]:
    """What the numbers depend on; nothing that names the machine or its user."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "unknown")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{p: version(p) for p in PACKAGES},
    }


def nsys_version(nsys: str) -> str:
    text = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=True).stdout
    return text.strip().rsplit(" ", 1)[-1].split("-")[0]


def synthetic_files(work: Path, rows: dict[str, int]) -> dict[str, Path]:
    """The large capture in its three forms, made by a process of its own."""
    sizes = [x for kind, n in rows.items() for x in (f"--{kind}", str(n))]
    command = [sys.executable, "-m", "benchmarks.synthetic", "--work", str(work), *sizes]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {kind: work / name for kind, name in (line.split(": ", 1) for line in text.splitlines())}


def cases(work: Path, rows: dict[str, int], repeats: int, nsys_limit_s: float) -> list[Case]:
    files = synthetic_files(work, rows)
    python, rlprof = sys.executable, str(Path(sys.executable).parent / "rlprof")
    nsys = shutil.which("nsys")

    def analyze(name: str, path: Path, target_s: float) -> Case:
        command = [rlprof, "analyze", path.name]
        shown = f"rlprof analyze {path.name}"
        return measure(name, command, shown, repeats=repeats, cwd=work, target_s=target_s)

    importing = [python, "-c", "import rlprof"]
    out = [
        measure("import rlprof", importing, " ".join(importing[1:]), repeats=repeats, cwd=work, target_s=0.3)
    ]
    real = ROOT.parent / "shared" / "traces" / "nsys" / "h200_vla.sqlite"
    if real.exists():
        copy = work / real.name
        shutil.copyfile(real, copy)
        out.append(analyze("h200_vla.sqlite", copy, 1.5))
        if nsys:
            out.append(nsys_case("h200_vla.sqlite", nsys, copy, repeats, nsys_limit_s))
    for kind, target_s in (("rlprof", 10.0), ("parquetdir", 10.0), ("sqlite", 30.0)):
        out.append(analyze(f"synthetic, {kind}", files[kind], target_s))
    plain = [python, "-c", PLAIN_READ, files["sqlite"].name]
    shown = "the same columns through fetchall() of the standard sqlite3 module"
    out.append(measure("synthetic, sqlite3 module alone", plain, shown, repeats=repeats, cwd=work))
    if nsys:
        out.append(nsys_case("synthetic, sqlite", nsys, files["sqlite"], 1, nsys_limit_s))
    else:
        out.append(Case("synthetic, nsys stats", "nsys stats", note="nsys is not installed"))
    return out


def nsys_case(what: str, nsys: str, path: Path, repeats: int, limit_s: float) -> Case:
    report = "nvtx_gpu_proj_sum"
    command = [nsys, "stats", "--report", report, "--format", "csv", path.name]
    shown = f"nsys stats --report {report} {path.name}"
    name = f"{what}, nsys stats {report} ({nsys_version(nsys)})"
    return measure(name, command, shown, repeats=repeats, cwd=path.parent, limit_s=limit_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for the generated files")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--ranges", type=int, default=5_000_000)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument(
        "--nsys-limit", type=float, default=600, metavar="S", help="stop nsys stats after this"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "read_speed.json")
    args = parser.parse_args()
    rows = {"kernels": args.kernels, "ranges": args.ranges, "samples": args.samples}
    about = machine()
    found = cases(args.work.resolve(), rows, args.repeats, args.nsys_limit)
    result = {
        "benchmark": "read_speed",
        "command": "python -m benchmarks.read_speed",
        "rows": rows,
        "repeats": args.repeats,
        **about,
        "cases": [c.summary() for c in found],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
