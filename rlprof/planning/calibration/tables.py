"""Calibrations and comparisons for people and for other programs: text, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rlprof.errors import UsageError
from rlprof.planning.calibration.calibrate import Calibration
from rlprof.planning.calibration.estimate import Estimate, Residual, typical_error_frac
from rlprof.planning.calibration.sweeps import VALIDATED
from rlprof.planning.calibration.validate import Accuracy, Comparison, accuracy
from rlprof.planning.cluster import unit_of
from rlprof.planning.files import write_text
from rlprof.planning.report import percent, table
from rlprof.unavailable import Unavailable


def constants_table(calibration: Calibration) -> str:
    """One line for each constant: value, interval, measurements behind it, status."""
    rows = []
    for name, constant in calibration.hardware.constants.items():
        e = calibration.estimates.get(name)
        within = f"{e.low:.4g} to {e.high:.4g}" if e else ""
        behind = f"{e.samples:,} of {e.points}" if e else ""
        rows.append((name, f"{constant.value:.4g}", constant.unit, within, behind, constant.status))
    heads = ("constant", "value", "unit", "95 % interval", "times of sizes", "status")
    return table(heads, rows, right=(1, 4))


def residuals_table(residuals: Sequence[Residual]) -> str:
    """How far the measurements of each kind lie from the fit."""
    rows = []
    for kind in dict.fromkeys(r.kind for r in residuals):
        there = [r for r in residuals if r.kind == kind]
        errors = sorted(r.error_frac for r in there)
        rows.append(
            (
                kind,
                str(len(there)),
                f"{typical_error_frac(there):.1%}",
                percent(errors[0]),
                percent(errors[-1]),
            )
        )
    return table(("measured", "sizes", "typical residual", "lowest", "highest"), rows, right=(1, 2, 3, 4))


def collectives_table(calibration: Calibration) -> str:
    """Latency and bandwidth of each collective alone."""
    rows = [
        (
            name,
            f"{1e6 * fit.alpha_s.value:.3g} us",
            f"{1e6 * fit.alpha_s.low:.3g} to {1e6 * fit.alpha_s.high:.3g}",
            f"{fit.bandwidth.value / 1e9:.4g} GB/s",
            f"{fit.bandwidth.low / 1e9:.4g} to {fit.bandwidth.high / 1e9:.4g}",
            f"{typical_error_frac(fit.residuals):.1%}",
        )
        for name, fit in calibration.by_collective.items()
    ]
    if not rows:
        return ""
    heads = ("alone", "alpha", "95 % interval", "1 / beta", "95 % interval", "typical residual")
    return table(heads, rows, right=(1, 3, 5))


def found_table(found: Mapping[str, Estimate | Unavailable]) -> str:
    """What a capture says of each constant."""
    rows = []
    for name, e in found.items():
        if isinstance(e, Estimate):
            rows.append(
                (name, f"{e.value:.4g} {unit_of(name)}", f"{e.low:.4g} to {e.high:.4g}, {e.samples:,} times")
            )
        else:
            rows.append((name, "cannot tell", e.reason))
    return table(("constant", "value", "why, or 95 % interval"), rows)


def by_part(compared: Sequence[Comparison]) -> dict[str, Accuracy]:
    """Accuracy of all, of each half, of each role in the half that is held out, and of several devices."""
    alone = [c for c in compared if c.tensor == c.data == 1]
    held = [c for c in alone if c.split == "held_out"]
    several = [c for c in compared if c.tensor * c.data > 1]
    parts = {"all": list(compared), "fit half": [c for c in compared if c.split == "fit"], "held out": held}
    parts["several devices, held out"] = [c for c in several if c.split == "held_out"]
    parts |= {f"held out, {role}": [c for c in held if c.role == role] for role in VALIDATED}
    return {name: accuracy(there) for name, there in parts.items() if there}


def accuracy_table(parts: Mapping[str, Accuracy]) -> str:
    """One line for each part: errors of time and memory, order."""

    def shown(value: float | Unavailable, form: str) -> str:
        return "-" if isinstance(value, Unavailable) else format(value, form)

    rows = [
        (
            name,
            str(a.configurations),
            f"{a.mape:.1%}",
            percent(a.bias),
            shown(a.spearman, ".3f"),
            shown(a.ordered_pairs_frac, ".1%"),
            shown(a.memory_mape, ".1%"),
        )
        for name, a in parts.items()
    ]
    heads = ("configurations", "number", "time MAPE", "bias", "Spearman", "pairs in order", "memory MAPE")
    return table(heads, rows, right=tuple(range(1, 7)))


def accuracy_document(parts: Mapping[str, Accuracy]) -> dict[str, Any]:
    """The same as plain values; what is not known is null, with the reason beside it."""
    made: dict[str, Any] = {}
    for name, a in parts.items():
        values: dict[str, Any] = {}
        for field in fields(a):
            value = getattr(a, field.name)
            values[field.name] = None if isinstance(value, Unavailable) else value
            if isinstance(value, Unavailable):
                values[f"{field.name}_unavailable"] = value.reason
        made[name] = values
    return made


def calibration_document(calibration: Calibration) -> dict[str, Any]:
    """Everything that is known of a calibration, as plain values."""
    from rlprof.planning.hardware_file import hardware_to_document

    return {
        "hardware": hardware_to_document(calibration.hardware),
        "estimates": {name: asdict(e) | {"unit": unit_of(name)} for name, e in calibration.estimates.items()},
        "residuals": [asdict(r) for r in calibration.residuals],
        "by_collective": {
            name: {"alpha_s": asdict(fit.alpha_s), "bandwidth": asdict(fit.bandwidth)}
            for name, fit in calibration.by_collective.items()
        },
        "notes": list(calibration.notes),
    }


def comparison_rows(compared: Sequence[Comparison]) -> list[dict[str, Any]]:
    """One row for each configuration, errors included."""
    return [
        asdict(c) | {"error_frac": c.error_frac, "memory_error_frac": c.memory_error_frac} for c in compared
    ]


def write_comparisons(compared: Sequence[Comparison], path: str | Path, *, force: bool = False) -> None:
    """Write predictions beside measurements: ``.csv`` one row each, ``.json`` also the accuracy of all parts.

    Raises
    ------
    UsageError
        If the name ends otherwise.
    OutputError
        If the file cannot be written, or is there and `force` is not set.
    """
    path, rows = Path(path), comparison_rows(compared)
    if path.suffix == ".json":
        document = {"accuracy": accuracy_document(by_part(compared)), "configurations": rows}
        write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", path, force=force)
        return
    if path.suffix != ".csv":
        raise UsageError(f"{path}: neither .csv nor .json", hint="name the file so")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(text.getvalue(), path, force=force)
