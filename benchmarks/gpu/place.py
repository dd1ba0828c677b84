"""Put what a GPU run brought back where it belongs, and its numbers into the tables.

    python -m benchmarks.gpu.place FOLDER [--dataset]

FOLDER is what `all.sh` wrote. Results go to `benchmarks/results/gpu`, the comparison with nsys is computed
from the captures, the tables of `benchmarks/README.md` are made again. With ``--dataset`` the report of the
VLA program goes to `datasets/`, with a `.rlprof` of its tables, if it is small enough and tells nothing of
the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu import private
from benchmarks.gpu.common import ROOT, save
from benchmarks.gpu.cupti_vs_nsys import compare

RESULTS = ROOT / "benchmarks" / "results" / "gpu"
AS_THEY_ARE = ("sampler_memory", "decode_cost", "four_numbers", "sampler_soak", "sampler_rates")
DATASETS = ROOT / "datasets"
MAX_REPORT = 5_000_000


def place_results(unpacked: Path) -> None:
    """JSON results; what a run left out stays as it was."""
    for name in AS_THEY_ARE:
        if not (path := unpacked / f"{name}.json").exists():
            continue
        if failed := failures(json.loads(path.read_text())):
            print(f"{path.name} NOT placed: {'; '.join(failed)}")
        else:
            shutil.copyfile(path, RESULTS / path.name)
            print("placed", path.name)
    if (path := unpacked / "capture_overhead.json").exists():
        new = json.loads(path.read_text())
        # with nsys and without it are two results: one does not stand for the other
        name = "capture_overhead" if "nsys" in new else "capture_overhead_no_nsys"
        save(RESULTS / f"{name}.json", new)
        print("placed", f"{name}.json")


def failures(result: Any, where: str = "") -> list[str]:
    """The parts of a result that are an error instead of a measurement."""
    if not isinstance(result, dict):
        return []
    if "error" in result:
        return [f"{where.lstrip('/')}: {str(result['error']).splitlines()[-1][:100]}"]
    if result.get("finished") is False:
        return [f"{where.lstrip('/')}: {'; '.join(result.get('notes', ['not finished']))[:200]}"]
    return [line for name, part in result.items() for line in failures(part, f"{where}/{name}")]


def place_comparison(folder: Path, unpacked: Path) -> None:
    """Activity per node by CUPTI and by nsys, computed from the captures."""
    if not (unpacked / "captures.json").exists():
        return
    shutil.copyfile(unpacked / "captures.json", folder / "captures.json")
    compare(folder, RESULTS)
    print("placed cupti_vs_nsys.json")


def place_dataset(folder: Path, unpacked: Path) -> None:
    """The report, a `.rlprof` of the tables that nsys exported where it was made, and their rows."""
    import rlprof
    from rlprof.trace.native import write_rlprof

    report = folder / "vla.nsys-rep"
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(folder / "vla_tables.zip") as packed:
            packed.extractall(scratch)
        tables = Path(scratch) / "vla_tables"
        trace = rlprof.read(tables)
        made = write_rlprof(trace, Path(scratch) / "vla.rlprof")
        code = private.main([report, made], anywhere=True, tables=tables)
        if code or report.stat().st_size > MAX_REPORT:
            raise SystemExit("not placed: it tells of the machine, or is larger than 5 MB")
        for path, name in ((report, "vla_small_h200.nsys-rep"), (made, "vla_small_h200_nsys.rlprof")):
            shutil.copyfile(path, DATASETS / name)
            add_row(DATASETS / name, trace, machine_of(unpacked))
            print("placed", name)


#: For `datasets/README.md`, once the report is there.
ABOUT_THE_REPORT = """
## `vla_small_h200.nsys-rep`

The report that `vla_small_h200_nsys.rlprof` was made from: `rlprof analyze vla_small_h200.nsys-rep` reads it
where Nsight Systems 2025.3.1 or newer is installed, and says so where it is older. Without nsys, read the
`.rlprof`.

It was taken by `benchmarks/gpu/all.sh` in an environment made for it: four variables (`PATH`, `HOME`, `LANG`,
`LD_LIBRARY_PATH`) and those that nsys sets for itself, processes of its own alone, `gpu-machine` for a host
name, `/opt/run` for a working folder, no user. What follows the version in the kernel's release was
overwritten with x, at equal length, before the tables were exported. It states model, UUID and bus of the
GPU, model and number of the cores, the operating system, folders of nsys and temporary ones.
`python -m benchmarks.gpu.private --anywhere --tables FOLDER vla_small_h200.nsys-rep`, FOLDER being its
tables, unpacks it and finds nothing else; `tests/test_private.py` looks again.
"""


def machine_of(unpacked: Path) -> dict[str, Any]:
    """What the results of the same run say of the machine."""
    for path in sorted(unpacked.glob("*.json")):
        if (machine := json.loads(path.read_text()).get("machine")) is not None:
            return dict(machine)
    raise SystemExit("no result of this run tells GPU and versions")


def add_row(capture: Path, trace: Any, machine: dict[str, Any]) -> None:
    """Write the row of a capture by nsys into `datasets/README.md`, in place of the one it had."""
    gpu, driver, *_ = machine["gpu"].split(", ")
    sms = trace.table("devices")["sm_count"][0]
    what = (
        f"one {gpu} ({sms} SMs), driver {driver}; {trace.meta.product.removesuffix('.0')}, SM activity at"
        f" {trace.meta.sampling_hz / 1000:g} kHz, CUDA graphs by {trace.meta.graph_mode}; torch"
        f" {machine['torch']}, Python {machine['python']}"
    )
    at = datetime.fromtimestamp(trace.meta.utc_origin_ns / 1e9, UTC)
    data = capture.read_bytes()
    row = (
        f"| `{capture.name}` | see below | {what} | {at:%Y-%m-%d %H:%M} UTC | {len(data):,} bytes"
        f" | `{hashlib.sha256(data).hexdigest()}` |"
    )
    page = DATASETS / "README.md"
    lines = [line for line in page.read_text().splitlines() if not line.startswith(f"| `{capture.name}`")]
    last = max(n for n, line in enumerate(lines) if line.startswith("| `"))
    text = "\n".join([*lines[: last + 1], row, *lines[last + 1 :]]) + "\n"
    if capture.suffix == ".nsys-rep" and ABOUT_THE_REPORT not in text:
        text += ABOUT_THE_REPORT
    page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dataset", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        # what came back may be read-only
        folder = Path(scratch) / "run"
        folder.mkdir()
        for path in options.folder.iterdir():
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
        unpacked = folder / "rest"
        with tarfile.open(folder / "rest.tar.gz") as packed:
            packed.extractall(unpacked, filter="data")
        place_results(unpacked)
        place_comparison(folder, unpacked)
        subprocess.run([sys.executable, "-m", "benchmarks.readme_tables"], cwd=ROOT, check=True)
        if options.dataset:
            place_dataset(folder, unpacked)


if __name__ == "__main__":
    main()
