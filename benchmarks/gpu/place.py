"""Put what a GPU run brought back where it belongs, and its numbers into the tables.

    python -m benchmarks.gpu.place FOLDER [--dataset]

FOLDER is what `all.sh` wrote. Results go to `benchmarks/results/gpu`, the comparison with nsys is computed
from the captures, the tables of `benchmarks/README.md` are made again. With ``--dataset`` the report of the
VLA program goes to `datasets/`, if it is small enough and tells nothing of the machine.
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
from pathlib import Path
from typing import Any

from benchmarks.gpu import private
from benchmarks.gpu.common import ROOT, save
from benchmarks.gpu.cupti_vs_nsys import compare

RESULTS = ROOT / "benchmarks" / "results" / "gpu"
AS_THEY_ARE = ("capture_overhead", "sampler_memory", "decode_cost", "four_numbers")
MAX_REPORT = 5_000_000


def place_results(folder: Path, unpacked: Path) -> None:
    """JSON results that are whole, and the two of the samplers as one."""
    for name in AS_THEY_ARE:
        if (path := unpacked / f"{name}.json").exists():
            shutil.copyfile(path, RESULTS / path.name)
            print("placed", path.name)
    together: dict[str, Any] = {}
    for part in ("soak", "rates"):
        if (path := unpacked / f"sampler_{part}.json").exists():
            together |= json.loads(path.read_text())
    if together:
        save(RESULTS / "sampler_soak.json", together)
        print("placed sampler_soak.json:", ", ".join(together))
    if (unpacked / "captures.json").exists():
        shutil.copyfile(unpacked / "captures.json", folder / "captures.json")
        compare(folder, RESULTS)


def place_dataset(folder: Path) -> None:
    """The report, and a `.rlprof` of the tables that nsys exported where it was made."""
    import rlprof
    from rlprof.trace.native import write_rlprof

    report = folder / "vla.nsys-rep"
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(folder / "vla_tables.zip") as packed:
            packed.extractall(scratch)
        trace = rlprof.read(Path(scratch) / "vla_tables")
        made = write_rlprof(trace, Path(scratch) / "vla.rlprof")
        code = private.main([report, made], anywhere=True)
        if code or report.stat().st_size > MAX_REPORT:
            raise SystemExit("not placed: it tells of the machine, or is larger than 5 MB")
        for path, name in ((report, "vla_small_h200.nsys-rep"), (made, "vla_small_h200_nsys.rlprof")):
            shutil.copyfile(path, ROOT / "datasets" / name)
            data = path.read_bytes()
            print(f"| `{name}` | {len(data):,} bytes | `{hashlib.sha256(data).hexdigest()}` |")
    print(trace)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dataset", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        # what came back may be read-only
        folder = Path(scratch) / "run"
        shutil.copytree(options.folder, folder)
        for path in folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        unpacked = folder / "rest"
        with tarfile.open(folder / "rest.tar.gz") as packed:
            packed.extractall(unpacked, filter="data")
        place_results(folder, unpacked)
        if options.dataset:
            place_dataset(folder)
    subprocess.run([sys.executable, "-m", "benchmarks.readme_tables"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
