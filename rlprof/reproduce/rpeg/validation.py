"""Figs 4 and 5: predicted beside measured operators, time and peak memory."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.errors import ReproduceError
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.study import Study
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

    from rlprof.planning.calibration.raw import Raw
    from rlprof.planning.cluster import Hardware

PRESETS = ("smoke", "full")
#: Options of the fit by its name, as in `benchmarks.gpu.calibrate`: the formulas that the paper prints, and
#: those with what real machines need beside.
WAYS: dict[str, dict[str, Any]] = {
    "printed formulas, copies": {"bandwidth": "copies"},
    "printed formulas, everything": {"bandwidth": "everything"},
    "printed formulas, operators": {"bandwidth": "everything", "operators": True},
    "extended formulas": {"bandwidth": "everything", "formulas": "extended"},
    "extended formulas, operators": {"bandwidth": "everything", "formulas": "extended", "operators": True},
}
HELD_OUT = "held_out"
#: How far a stored prediction may lie from one made now, relative.
TOLERANCE = 1e-9


def raw_file(checkout: Path) -> Path:
    """Return the raw measurements that are shipped: of a GPU if there are such, else of a processor.

    Raises
    ------
    ReproduceError
        If there are none.
    """
    folder = checkout / "datasets" / "calibration"
    files = sorted(folder.glob("*.raw.jsonl"), key=lambda p: (p.name.startswith("cpu"), p.name))
    if not files:
        raise ReproduceError(
            "no raw measurements are shipped", where=folder, hint="rlprof calibrate measures a machine"
        )
    return files[0]


def _rows(path: Path, way: str) -> list[dict[str, Any]]:
    from rlprof.planning.calibration.calibrate import calibrate
    from rlprof.planning.calibration.raw import read_raw
    from rlprof.planning.hardware_file import hardware_to_document

    measured = read_raw(path)
    fit = calibrate(measured, name="measured", base=None, **WAYS[way])
    rows = _compared(measured, fit.hardware, way)
    constants = json.dumps(hardware_to_document(fit.hardware), separators=(",", ":"))
    return [{**row, "hardware": None if n else constants} for n, row in enumerate(rows)]


def _compared(measured: Raw, hardware: Hardware, way: str) -> list[dict[str, Any]]:
    from rlprof.planning.calibration.validate import compare as compared

    return [
        {
            "way": way,
            "machine": measured.machine.name,
            "role": c.role,
            "model": c.model,
            "sequences": c.sequences,
            "prompt_tokens": c.prompt_tokens,
            "response_tokens": c.response_tokens,
            "split": c.split,
            "measured_s": c.measured_s,
            "predicted_s": c.predicted_s,
            "spread_frac": c.spread_frac,
            "measured_bytes": c.measured_peak_bytes,
            "predicted_bytes": float(c.predicted_peak_bytes),
        }
        for c in compared(measured, hardware)
    ]


def stale(frame: pl.DataFrame, path: Path) -> str | None:
    """Say whether stored predictions are no longer those of this version's cost model, or of its fits.

    To fit takes long. The hardware file that is shipped for a machine is the best of these fits, and tells
    whether the table was made with the same.
    """
    import polars as pl

    from rlprof.planning.calibration.raw import read_raw
    from rlprof.planning.hardware_file import hardware_from_document, read_hardware, shipped_hardware

    measured = read_raw(path)
    fits = {}
    for way in frame["way"].unique(maintain_order=True):
        there = frame.filter(pl.col("way") == way)
        hardware = fits[way] = hardware_from_document(json.loads(there["hardware"][0]), "raw table")
        now = _compared(measured, hardware, way)
        for row, stored in zip(now, there.iter_rows(named=True), strict=True):
            for key in ("predicted_s", "predicted_bytes"):
                if not math.isclose(row[key], stored[key], rel_tol=TOLERANCE):
                    return (
                        f"the cost model has changed since: {key} of {row['role']}, {row['model']} is"
                        f" {row[key]:.6g} now, {stored[key]:.6g} there"
                    )
    name = path.name.removesuffix(".raw.jsonl")
    if name in shipped_hardware() and set(fits) == set(WAYS):
        shipped = read_hardware(name)
        fit = fits[best_way(frame)].constants
        for key, constant in shipped.constants.items():
            if constant.status == "calibrated" and (key not in fit or fit[key].value != constant.value):
                return f"the fit has changed since: {key} of the shipped {name} is none of this table"
    return None


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study: constants fitted to raw measurements in one way (smoke) or in all."""
    path = raw_file(checkout)
    ways = list(WAYS)[:1] if preset == "smoke" else list(WAYS)
    cases: dict[str, Callable[[], list[dict[str, Any]]]] = {
        f"fit to {way}": partial(_rows, path, way) for way in ways
    }
    parameters = {
        "raw": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        "ways": {way: WAYS[way] for way in ways},
    }
    return Study("rpeg/validation", preset, seed, parameters, cases, stale=partial(stale, path=path))


def best_way(frame: pl.DataFrame) -> str:
    """Return the way to fit that predicts the half best that a fit may see."""
    import polars as pl

    error = (pl.col("predicted_s") / pl.col("measured_s") - 1).abs().mean().alias("mape")
    seen = frame.filter(pl.col("split") != HELD_OUT).group_by("way", maintain_order=True).agg(error)
    return str(seen.sort("mape")["way"][0])


def chosen(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the best way."""
    import polars as pl

    return frame.filter(pl.col("way") == best_way(frame))


def agreement(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float | Unavailable]:
    """Return how predictions agree with measurements.

    Returns
    -------
    dict
        ``mape`` and ``bias`` (relative), ``spearman``, ``ordered`` (share of pairs in the order measured).
    """
    from itertools import combinations
    from statistics import fmean

    import polars as pl

    both = list(zip(predicted, measured, strict=True))
    if len(both) < 3:
        few = Unavailable("fewer than three configurations")
        return dict.fromkeys(("mape", "bias", "spearman", "ordered"), few)
    errors = [p / m - 1 for p, m in both]
    pairs = [(a, b) for a, b in combinations(both, 2) if a[1] != b[1]]
    table = pl.DataFrame(both, schema=["predicted", "measured"], orient="row")
    return {
        "mape": fmean(map(abs, errors)),
        "bias": fmean(errors),
        "spearman": float(table.select(pl.corr("predicted", "measured", method="spearman")).item()),
        "ordered": fmean((a[0] > b[0]) == (a[1] > b[1]) for a, b in pairs),
    }


def by_role(frame: pl.DataFrame, of: str = "s") -> pl.DataFrame:
    """Return the agreement by half and role.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of one way.
    of : {"s", "bytes"}
        Time, or peak memory.
    """
    import polars as pl

    known = frame.filter(pl.col(f"measured_{of}").is_not_null())
    parts = {"all": known, "held out": known.filter(pl.col("split") == HELD_OUT)}
    parts |= {r: known.filter(pl.col("role") == r) for r in known["role"].unique(maintain_order=True)}
    rows = []
    for name, part in parts.items():
        a = agreement(part[f"predicted_{of}"].to_list(), part[f"measured_{of}"].to_list())
        plain = {k: None if isinstance(v, Unavailable) else v for k, v in a.items()}
        rows.append({"part": name, "configurations": part.height, **plain})
    return pl.DataFrame(rows)


def _compare(frame: pl.DataFrame, of: str, figure: str, mape: str, paper: Paper) -> list[Compared]:
    import polars as pl

    rows = chosen(frame)
    known = rows.filter(pl.col(f"measured_{of}").is_not_null())
    held = known.filter(pl.col("split") == HELD_OUT)
    a = agreement(held[f"predicted_{of}"].to_list(), held[f"measured_{of}"].to_list())
    cause = (
        f"another machine: {rows['machine'][0]} here, GH200 there; held out of the fit: {_by_role(held, of)}"
    )
    if of == "s":
        cause += f"; fit: {best_way(frame)}; {_by_way(frame)}"
    return [
        Compared(
            "configurations",
            "configurations",
            float(known.height),
            paper.value("fig04", "configurations"),
            f"{held.height} of ours are held out of the fit, and those are compared",
        ),
        Compared(mape, "%", _scaled(a["mape"]), paper.value(figure, mape), cause),
        Compared("Spearman", "1", a["spearman"], paper.value(figure, "Spearman"), cause),
        Compared("pairs in order", "%", _scaled(a["ordered"]), paper.value(figure, "pairs in order"), cause),
    ]


def _by_way(frame: pl.DataFrame) -> str:
    """Say what other ways to fit give for the held-out operators, the printed formulas among them."""
    import polars as pl

    best, parts = best_way(frame), []
    for way in frame["way"].unique(maintain_order=True):
        held = frame.filter(pl.col("way") == way, pl.col("split") == HELD_OUT)
        mape = agreement(held["predicted_s"].to_list(), held["measured_s"].to_list())["mape"]
        if way != best and not isinstance(mape, Unavailable):
            parts.append(f"{way} {mape:.1%}")
    return f"MAPE of other ways: {', '.join(parts)}" if parts else "no other way was tried"


def _by_role(held: pl.DataFrame, of: str) -> str:
    """Say which roles the error comes from: MAPE and bias of each."""
    rows = [r for r in by_role(held, of).iter_rows(named=True) if r["part"] not in ("all", "held out")]
    return ", ".join(
        f"{r['part']} {r['mape']:.1%} (bias {r['bias']:+.1%})" for r in rows if r["mape"] is not None
    )


def _scaled(value: float | Unavailable) -> float | Unavailable:
    return value if isinstance(value, Unavailable) else amount(value, 100)


def compare_time(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 4: operator times."""
    return _compare(tables["validation"], "s", "fig04", "time MAPE", paper)


def compare_memory(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 5: peak memory."""
    return _compare(tables["validation"], "bytes", "fig05", "memory MAPE", paper)
