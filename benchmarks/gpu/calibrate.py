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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What one device measures alone, and how it is divided between two that do so at once.
LANES = {
    1: ("kernels,forward,inference,generation,training",),
    2: ("kernels,forward,training", "inference,generation"),
}
#: Most seconds of the steps that come before, in this order; each is a process of its own.
PROBE_S, LINKS_S, PARALLEL_S = 35.0, 40.0, 50.0
#: A process needs this long to begin and to end; one visit may begin just before its limit.
MARGIN_S, GRACE_S = 6.0, 12.0
WAYS: dict[str, dict[str, Any]] = {
    "printed formulas, copies": {"bandwidth": "copies"},
    "printed formulas, everything": {"bandwidth": "everything"},
    "printed formulas, operators": {"bandwidth": "everything", "operators": True},
    "extended formulas": {"bandwidth": "everything", "formulas": "extended"},
    "extended formulas, operators": {"bandwidth": "everything", "formulas": "extended", "operators": True},
}


@dataclass
class Step:
    """A process that measures parts on devices into a file, until it is done or its time is over."""

    name: str
    raw: Path
    parts: str
    devices: str
    preset: str
    ends_at: float
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    starts: int = 0

    def begin(self) -> Step:
        limit = max(self.ends_at - time.monotonic(), 1.0)
        command = [sys.executable, "-m", "rlprof.planning.calibration.measure", "--raw", str(self.raw)]
        command += ["--preset", self.preset, "--parts", self.parts, "--seconds", f"{limit:.0f}"]
        command += ["--devices", self.devices, "--traces"]
        say(f"== {self.name}: {self.parts} on {self.devices}, up to {limit:.0f} s")
        self.began, self.starts = time.monotonic(), self.starts + 1
        self.process = subprocess.Popen(command)
        return self

    def end(self) -> int:
        """Wait; end it by force after its time; start it again if it died and there is time."""
        assert self.process is not None
        while True:
            try:
                code = self.process.wait(max(self.ends_at + GRACE_S - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                self.process.kill()
                code = self.process.wait()
            say(f"== {self.name}: code {code}, {time.monotonic() - self.began:.0f} s")
            if code in (0, 2, 130) or self.starts > 3 or self.ends_at - time.monotonic() < 15:
                return code
            self.begin()


START = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:5.1f} s] {text}", flush=True)


def visits(raw: Path) -> tuple[int, int]:
    """Measurements of a file that succeeded, and that failed."""
    if not raw.exists():
        return 0, 0
    lines = [line for line in raw.read_text().splitlines()[1:] if line.endswith("}")]
    failed = sum('"failed":' in line for line in lines)
    return len(lines) - failed, failed


def counted(raw: Path) -> str:
    """The same for people."""
    return "{} visits measured, {} FAILED".format(*visits(raw))


def every_device(given: str | None) -> list[str]:
    """Names of the devices, one by one, without loading PyTorch into this process."""
    if given is not None and given.startswith("cpu"):
        return ["cpu"] * int(given.partition(":")[2] or 1)
    if given is not None:
        return given.split(",")
    count = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    out = subprocess.run(
        [sys.executable, "-c", count], capture_output=True, text=True, timeout=90, check=False
    )
    print(out.stderr, end="")
    return [str(n) for n in range(int(out.stdout.split()[-1] if out.stdout.split() else 0))] or ["cpu"] * 2


def measure(folder: Path, seconds: float, preset: str, given: str | None) -> int:
    """Run every step within its share of the time: a probe, what needs all devices, then the rest."""
    ends_at = START + seconds - MARGIN_S
    devices = every_device(given)
    together = f"cpu:{len(devices)}" if devices[0] == "cpu" else ",".join(devices)
    say(f"{len(devices)} devices: {together}; {seconds:.0f} s in all")
    first, probe = folder / "calibration.raw.jsonl", folder / "probe.raw.jsonl"
    probe_ends = min(time.monotonic() + PROBE_S, ends_at)
    steps = [Step("probe", probe, LANES[1][0], devices[0], "smoke", probe_ends).begin()]
    if len(devices) > 1:
        name = folder / "probe_together.raw.jsonl"
        steps.append(Step("probe together", name, "links,parallel", together, "smoke", probe_ends).begin())
    for step in steps:
        step.starts = 9  # once
        step.end()
        say(f"== {step.name}: {counted(step.raw)}")
    if not any(visits(step.raw)[0] for step in steps):
        say("nothing can be measured here: see above")
        return 1
    worst = 0
    if len(devices) > 1:
        for part, most in (("links", LINKS_S), ("parallel", PARALLEL_S)):
            left = (ends_at - time.monotonic()) / 3
            limit = time.monotonic() + min(most, left)
            worst = Step(part, first, part, together, preset, limit).begin().end() or worst
            say(f"in the file: {counted(first)}")
    lanes = LANES[min(len(devices), 2)]
    files = [first, folder / "calibration_1.raw.jsonl"]
    running = [
        Step(f"lane {n}", files[n], parts, devices[n], preset, ends_at).begin()
        for n, parts in enumerate(lanes)
    ]
    for step in running:
        worst = step.end() or worst
        say(f"{step.name}: {counted(step.raw)}")
    return worst


def fit(raws: Sequence[Path], out: Path, name: str, base: str | None) -> dict[str, Any]:
    """Fit in every way; the hardware file is of the one that predicts the half best that it may see."""
    from rlprof.planning.calibration import tables
    from rlprof.planning.calibration.calibrate import calibrate
    from rlprof.planning.calibration.raw import merged, read_raw
    from rlprof.planning.calibration.validate import compare
    from rlprof.planning.hardware_file import read_hardware, write_hardware

    measured = merged([read_raw(raw) for raw in raws])
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
        "calibration": {
            key: value
            for key, value in tables.calibration_document(made[best]).items()
            if key != "residuals"  # of every single point: the notebook draws them
        },
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
    one.add_argument("--out", type=Path, required=True, help="folder of the raw measurements")
    one.add_argument("--seconds", type=float, default=240)
    one.add_argument("--preset", default="full", choices=("smoke", "quick", "full"))
    one.add_argument("--devices")
    two = verbs.add_parser("fit")
    two.add_argument("--raw", type=Path, required=True, nargs="+")
    two.add_argument("--out", type=Path, required=True)
    two.add_argument("--name", required=True, help="of the hardware, like h200-measured")
    two.add_argument("--base", help="hardware that has what was not measured")
    given = parser.parse_args(arguments)
    if given.verb == "measure":
        return measure(given.out, given.seconds, given.preset, given.devices)
    fit(given.raw, given.out, given.name, given.base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
