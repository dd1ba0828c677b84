"""The same program captured by CUPTI and by nsys, both at 10 kHz: SM activity per node side by side.

On the GPU machine (no polars needed), then where rlprof is whole:

    python -m benchmarks.gpu.cupti_vs_nsys capture --out FOLDER [--libraries FOLDER_WITH_LIBDW] [--seconds 15]
    python -m benchmarks.gpu.cupti_vs_nsys compare --captures FOLDER --out FOLDER

CUPTI is run twice, which tells what two runs of the program differ by. So is nsys: with NVTX and counters
alone, and with the tracing of CUDA that its reports usually have. Tracing slows launches down, so that
launch-bound nodes really are less active under it. So the instruments are compared where a node takes the
same time under both (within `SAME_TIME`), and everywhere by SM time per call: activity times duration, which
a longer wait does not change. The program is pinned to one core. The captures themselves are kept.
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

PROGRAM = ["taskset", "-c", "2", sys.executable, "-m", "benchmarks.gpu.program", "load"]
CUPTI_RUNS = ("cupti", "cupti_again")
NSYS_RUNS = {"nsys_nvtx": ("nvtx",), "nsys_cuda": ("cuda", "nvtx")}
#: Two durations of a node that differ by no more are the same: a share of the shorter.
SAME_TIME = 0.02


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
    for name in CUPTI_RUNS:
        command = [sys.executable, "-m", "rlprof", "capture", "--backend", "cupti", "--rate", str(rate_hz)]
        command += ["--force", "-o", str(out / f"{name}.rlprof"), "--", *program]
        facts[name] = run(command, environment())
        save(out / "captures.json", facts)
    nsys = find_nsys()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name, traces in NSYS_RUNS.items():
            if nsys is None:
                facts[name] = {"error": "nsys is not installed"}
                continue
            report = scratch / f"{name}.nsys-rep"
            arguments = profile_arguments(report, rate_hz=rate_hz, devices=[0], traces=traces)
            env = clean_environment(scratch, libraries)
            facts[name] = run([str(nsys), *arguments, *program], env)
            if report.exists():
                facts[name]["report_bytes"] = report.stat().st_size
                tables = scratch / name
                export = [str(nsys), "export", "--type", "parquetdir", "--output", str(tables), str(report)]
                facts[name]["export"] = run(export, env)
                pack(tables, out / f"{name}.zip")
            save(out / "captures.json", facts)
    print(json.dumps({k: facts[k] for k in (*CUPTI_RUNS, *NSYS_RUNS)}, indent=1)[:3000])


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
        for name in (*CUPTI_RUNS, *NSYS_RUNS):
            path = captures / f"{name}.rlprof"
            if name in NSYS_RUNS:
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
    rows = [_node(node, frames, 1 / facts["rate_hz"]) for node in frames["cupti"]]
    document = {
        "command": "python -m benchmarks.gpu.cupti_vs_nsys compare",
        "machine": facts["machine"],
        "rate_hz": facts["rate_hz"],
        "seconds": facts["seconds"],
        "same_time_frac": SAME_TIME,
        "nodes": rows,
        "largest_difference": {name: _largest(rows, name) for name in frames if name != "cupti"},
    }
    save(out / "cupti_vs_nsys.json", document)
    for r in rows:
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in r.items()})
    print(json.dumps(document["largest_difference"], indent=1))


def _node(node: str, frames: dict[str, dict[str, dict[str, Any]]], period_s: float) -> dict[str, Any]:
    """One node in every run, and what each run differs by from the first of CUPTI."""
    base = frames["cupti"][node]
    row: dict[str, Any] = {"node": node, "samples": round(base["total_s"] / period_s)}
    for name, frame in frames.items():
        if (seen := frame.get(node)) is None:
            continue
        sm_s = seen["sm_activity"] * seen["mean_s"]
        row |= {name: seen["sm_activity"], f"{name}_mean_s": seen["mean_s"], f"{name}_sm_s": sm_s}
        row[f"rank_{name}"] = seen["rank"]
        if name != "cupti":
            row[f"{name}_points"] = 100 * (seen["sm_activity"] - base["sm_activity"])
            row[f"{name}_longer_frac"] = seen["mean_s"] / base["mean_s"] - 1
            if base["sm_activity"] > 0.001:
                row[f"{name}_sm_s_more_frac"] = sm_s / (base["sm_activity"] * base["mean_s"]) - 1
    return row


def _largest(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Largest differences of a run on nodes of at least 1,000 samples, and whether it ranks them equally."""
    counted = [r for r in rows if r["samples"] >= 1000 and name in r]
    same = [r for r in counted if abs(r[f"{name}_longer_frac"]) <= SAME_TIME]
    more = [abs(r[f"{name}_sm_s_more_frac"]) for r in counted if f"{name}_sm_s_more_frac" in r]
    ranked = [r for r in counted if r["rank_cupti"] is not None and r[f"rank_{name}"] is not None]
    orders = [[r["node"] for r in sorted(ranked, key=lambda r: r[f"rank_{run}"])] for run in ("cupti", name)]
    return {
        "points": max((abs(r[f"{name}_points"]) for r in counted), default=None),
        "points_at_same_duration": max((abs(r[f"{name}_points"]) for r in same), default=None),
        "nodes": len(counted),
        "nodes_of_same_duration": len(same),
        "sm_time_frac": max(more, default=None),
        "same_ranking": orders[0] == orders[1],
    }


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
