"""The same program captured by CUPTI and by nsys, both at 10 kHz: SM activity per node side by side.

On the GPU machine (no polars needed), then where rlprof is whole:

    python -m benchmarks.gpu.cupti_vs_nsys capture --out FOLDER [--libraries FOLDER_WITH_LIBDW] [--seconds 15]
    python -m benchmarks.gpu.cupti_vs_nsys compare --captures FOLDER --out FOLDER

nsys is run twice: with the tracing of CUDA that its reports usually have, and with NVTX and counters alone.
Tracing slows launches down, so that launch-bound nodes really are less active under it: only the second tells
whether the two instruments agree.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import ROOT, clean_environment, environment, find_nsys, machine, save

PROGRAM = [sys.executable, "-m", "benchmarks.gpu.program", "load"]
NSYS_RUNS = {"nsys_cuda": ("cuda", "nvtx"), "nsys_nvtx": ("nvtx",)}


def run(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    said = {"code": done.returncode, "stdout": done.stdout[-600:], "stderr": done.stderr[-600:]}
    return {k: v for k, v in said.items() if v or k == "code"}


def capture(out: Path, seconds: float, rate_hz: float, libraries: str) -> None:
    from rlprof.capture.samplers.nsys import profile_arguments

    out.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {
        "command": "python -m benchmarks.gpu.cupti_vs_nsys capture",
        "machine": machine(),
        "seconds": seconds,
        "rate_hz": rate_hz,
    }
    program = [*PROGRAM, str(seconds)]
    command = [sys.executable, "-m", "rlprof", "capture", "--backend", "cupti", "--rate", str(rate_hz)]
    command += ["--force", "-o", str(out / "cupti.rlprof"), "--", *program]
    facts["cupti"] = run(command, environment())
    save(out / "captures.json", facts)
    nsys = find_nsys()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name, traces in NSYS_RUNS.items():
            if nsys is None:
                facts[name] = {"error": "nsys is not installed"}
                continue
            report = scratch / f"{name}.nsys-rep"
            arguments = profile_arguments(report, rate_hz=rate_hz, traces=traces)
            env = clean_environment(scratch, libraries)
            facts[name] = run([str(nsys), *arguments, *program], env)
            if report.exists():
                facts[name]["report_bytes"] = report.stat().st_size
                tables = scratch / name
                export = [str(nsys), "export", "--type", "parquetdir", "--output", str(tables), str(report)]
                facts[name]["export"] = run(export, env)
                pack(tables, out / f"{name}.zip")
            save(out / "captures.json", facts)
    print(json.dumps({k: facts[k] for k in ("cupti", *NSYS_RUNS)}, indent=1)[:3000])


#: Tables that the comparison reads; the traced kernels and calls are left where they are.
WANTED = (
    "NVTX",
    "GPU_METRICS",
    "StringIds",
    "TARGET",
    "ThreadNames",
    "PROCESSES",
    "META",
    "ANALYSIS",
    "ENUM",
)


def pack(tables: Path, archive: Path) -> None:
    """A zip of the tables that are wanted."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(tables.rglob("*")):
            if path.is_file() and path.name.startswith(WANTED):
                packed.write(path, path.relative_to(tables))


def compare(captures: Path, out: Path) -> None:
    import rlprof
    from rlprof.unavailable import Unavailable

    facts = json.loads((captures / "captures.json").read_text())
    frames: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cupti", *NSYS_RUNS):
            path = captures / f"{name}.rlprof"
            if name != "cupti":
                if not (captures / f"{name}.zip").exists():
                    continue
                path = Path(folder) / name
                shutil.unpack_archive(captures / f"{name}.zip", path)
            report = rlprof.read(path).windows()
            if isinstance(report, Unavailable):
                raise SystemExit(f"{name}: {report}")
            # one GPU: its rows and those over all GPUs say the same
            known = [row for row in report.frame.to_dicts() if row["sm_activity"] is not None]
            frames[name] = {str(row["node"]): row for row in known}
    period_s = 1 / facts["rate_hz"]
    rows = []
    for node, base in frames["cupti"].items():
        row = {
            "node": node,
            "samples": round(base["total_s"] / period_s),
            "cupti": base["sm_activity"],
            "rank_cupti": base["rank"],
        }
        for name in NSYS_RUNS:
            if (other := frames.get(name, {}).get(node)) is not None:
                row |= {
                    name: other["sm_activity"],
                    f"{name}_minus_cupti_points": 100 * (other["sm_activity"] - base["sm_activity"]),
                    f"rank_{name}": other["rank"],
                    f"{name}_mean_s": other["mean_s"],
                }
        rows.append(row | {"cupti_mean_s": base["mean_s"]})
    counted = [r for r in rows if r["samples"] >= 1000]
    largest = {
        name: max((abs(r[f"{name}_minus_cupti_points"]) for r in counted if name in r), default=None)
        for name in NSYS_RUNS
    }
    document = {
        "command": "python -m benchmarks.gpu.cupti_vs_nsys compare",
        "machine": facts["machine"],
        "rate_hz": facts["rate_hz"],
        "seconds": facts["seconds"],
        "nodes": rows,
        "largest_difference_points_at_1000_samples": largest,
    }
    save(out / "cupti_vs_nsys.json", document)
    for r in rows:
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in r.items()})
    print("largest difference in points:", largest)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["capture", "compare"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--captures", type=Path)
    parser.add_argument("--libraries", default="", help="folder with libdw.so.1 and libelf.so.1, for nsys")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rate-hz", type=float, default=10_000)
    options = parser.parse_args()
    if options.what == "capture":
        capture(options.out, options.seconds, options.rate_hz, options.libraries)
    else:
        compare(options.captures or options.out, options.out)


if __name__ == "__main__":
    main()
