"""Calibration of a GPU machine, and predictions of the cost model beside measurements.

`measure` runs where the GPUs are and needs PyTorch alone; it may be repeated, and goes on where it ended.
`fit` runs anywhere: hardware file, one row for each operator, and accuracy for three ways to fit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Share of the time left that each step may take. In processes of their own: a device that is lost in one
#: of them leaves the others. The last one takes up what was left out.
STEPS: tuple[tuple[str, float], ...] = (
    ("links", 0.2),
    ("kernels,forward", 0.35),
    ("validation", 0.9),
    ("links,kernels,forward,validation", 1.0),
)
#: A process needs this long to begin and to end.
MARGIN_S = 10.0
WAYS: dict[str, dict[str, Any]] = {
    "copies": {"bandwidth": "copies"},
    "everything": {"bandwidth": "everything"},
    "operators": {"bandwidth": "everything", "operators": True},
}


def measure(raw: Path, seconds: float, preset: str, devices: str | None) -> int:
    """Run every step within its share of the time; what one could not do is left to the next."""
    ends_at = time.monotonic() + seconds
    worst = 0
    for parts, share in STEPS:
        left = ends_at - time.monotonic() - MARGIN_S
        if left < 5:
            print(f"== {parts}: LEFT OUT, no time")
            continue
        limit = left * share
        command = [sys.executable, "-m", "rlprof.planning.calibration.measure", "--raw", str(raw)]
        command += ["--preset", preset, "--parts", parts, "--seconds", f"{limit:.0f}"]
        command += ["--devices", devices] if devices else []
        print(f"== {parts}: up to {limit:.0f} s")
        began = time.monotonic()
        try:
            # one visit may begin just before the limit: the slowest takes some seconds
            code = subprocess.run(command, timeout=limit + 60, check=False).returncode
        except subprocess.TimeoutExpired:
            code = 124
        worst = worst or code
        print(f"== {parts}: code {code}, {time.monotonic() - began:.0f} s")
    return worst


def fit(raw: Path, out: Path, name: str, base: str | None) -> dict[str, Any]:
    """Fit in every way; the hardware file is of the one that predicts the half best that it may see."""
    from rlprof.planning.calibration import tables
    from rlprof.planning.calibration.calibrate import calibrate
    from rlprof.planning.calibration.raw import read_raw
    from rlprof.planning.calibration.validate import compare
    from rlprof.planning.hardware_file import read_hardware, write_hardware

    measured = read_raw(raw)
    taken = read_hardware(base) if base else None
    made = {way: calibrate(measured, name=name, base=taken, **options) for way, options in WAYS.items()}
    rows = {way: compare(measured, c.hardware) for way, c in made.items()}
    parts = {way: tables.by_part(there) for way, there in rows.items()}
    best = min(WAYS, key=lambda way: parts[way]["fit half"].mape)
    out.mkdir(parents=True, exist_ok=True)
    write_hardware(made[best].hardware, out / f"{name}.toml")
    tables.write_comparisons(rows[best], out / f"{name}_operators.csv", force=True)
    document = {
        "machine": vars(measured.machine),
        "way": best,
        "chosen_by": "time MAPE of the half of the operators that a fit may see",
        "accuracy": {way: tables.accuracy_document(there) for way, there in parts.items()},
        "calibration": tables.calibration_document(made[best]),
    }
    (out / f"{name}_fit.json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    for way, there in parts.items():
        print(f"fit to {way}{' (chosen)' if way == best else ''}\n{tables.accuracy_table(there)}\n")
    print(f"{tables.constants_table(made[best])}\n\n{tables.residuals_table(made[best].residuals)}")
    for note in made[best].notes:
        print(f"note: {note}")
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("measure")
    one.add_argument("--raw", type=Path, required=True)
    one.add_argument("--seconds", type=float, default=520)
    one.add_argument("--preset", default="full", choices=("smoke", "quick", "full"))
    one.add_argument("--devices")
    two = verbs.add_parser("fit")
    two.add_argument("--raw", type=Path, required=True)
    two.add_argument("--out", type=Path, required=True)
    two.add_argument("--name", required=True, help="of the hardware, like h200-measured")
    two.add_argument("--base", help="hardware that has what was not measured")
    given = parser.parse_args(arguments)
    if given.verb == "measure":
        return measure(given.raw, given.seconds, given.preset, given.devices)
    fit(given.raw, given.out, given.name, given.base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
