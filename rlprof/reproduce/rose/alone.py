"""Table 1 and Fig 4: inference and simulation alone, one after the other, and at the same time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rose.results import (
    PAPER_SIMULATORS,
    Document,
    facts,
    measured_study,
    on_gpu,
    simulator_of,
)
from rlprof.reproduce.study import Study
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

#: Parts by the names of the script's steps.
PARTS = {
    "solo_inference": "inference",
    "solo_captured": "inference, captured steps",
    "solo_simulation": "simulation",
    "solo_serial": "serial",
    "solo_overlapped": "overlapped",
    "solo_two_groups": "two groups, overlapped",
}
ENDED = {"predict": "inference, overlapped", "simulate": "simulation, overlapped"}
#: The paper's workloads, and what stands for them here.
WORKLOADS = {
    "libero": "LIBERO, batch 16, MPS off",
    "mujoco_warp": "ManiSkill, batch 80, MPS on",
}
#: The same of a small run on a processor.
SMALL = {"mujoco_arm": "LIBERO, batch 16, MPS off"}
SIMULATOR_NAMES = {"libero": "LIBERO", "mujoco_warp": "mujoco_warp", "mujoco_arm": "mujoco_arm"}


def solo_rows(file: str, document: Document) -> list[dict[str, Any]]:
    """Return one row for each part that was measured: median and range, in seconds.

    ``active_frac`` is the mean SM activity meanwhile; null where it was not measured, or with the first call,
    which compiles and allocates.
    """
    rows = []
    blurred = bool(document.get("solo_activity_includes_first_call"))
    for step, part in PARTS.items():
        found = document["steps"].get(step, {})
        if not found.get("ok"):
            continue
        active = found.get("activity")
        known = isinstance(active, dict) and not blurred
        active_frac = next(iter(active.values()), None) if known else None
        rows.append(_row(file, document, part, found["each_s"], active_frac))
        for call, name in ENDED.items() if step == "solo_overlapped" else ():
            each = [e[call] for e in found.get("ended_s", ()) if call in e]
            if each:
                rows.append(_row(file, document, name, each, None))
    return rows


def _row(
    file: str, document: Document, part: str, each: list[float], active_frac: float | None
) -> dict[str, Any]:
    return {
        **facts(file, document),
        "part": part,
        "seconds": median(each),
        "least_s": min(each),
        "most_s": max(each),
        "times": len(each),
        "active_frac": active_frac,
    }


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of stored runs that measured parts alone, or of a small run here."""

    def wanted(document: Document) -> bool:
        return on_gpu(document) and bool(solo_rows("", document))

    return measured_study("rose/alone", preset, seed, checkout, wanted, solo_rows, "solo")


def by_workload(frame: pl.DataFrame) -> dict[tuple[str, bool], dict[str, float]]:
    """Return seconds by part, of each workload with and without MPS; of several runs the last one's.

    Of one day the last is the one whose file comes last.
    """
    found: dict[tuple[str, bool], dict[str, float]] = {}
    for row in sorted(frame.iter_rows(named=True), key=lambda row: str(row["date"])):
        found.setdefault((row["workload"], row["mps"]), {})[row["part"]] = row["seconds"]
    return found


def speedup(parts: Mapping[str, float]) -> float | None:
    """Return serial over the longer of both branches when they overlap; None if a part is missing."""
    branches = [parts.get(name) for name in ENDED.values()]
    serial = parts.get("serial")
    if serial is None or any(b is None for b in branches):
        return None
    return serial / max(b for b in branches if b is not None)


def _compared(
    label: str, parts: Mapping[str, float] | None, paper: Paper, figure: str, x: str | None, cause: str
) -> list[Compared]:
    """Rows of one workload; `x` names the paper's, None where the paper has none."""
    names = {
        "inference alone": "inference",
        "simulation alone": "simulation",
        "serial": "serial",
        "inference overlapped": "inference, overlapped",
        "simulation overlapped": "simulation, overlapped",
    }
    missing = f"{label} was not measured"
    there = parts or {}

    def printed(series: str) -> float | Unavailable:
        return Unavailable("the paper does not show it") if x is None else paper.value(figure, series, x)

    why = f"{cause}{stretched(there)}" if parts else missing
    rows = [
        Compared(f"{label}: {name}", "s", amount(there.get(part), missing=missing), printed(name), why)
        for name, part in names.items()
    ]
    gain: float | Unavailable
    if x is None or figure == "table01":
        gain = printed("speedup")
    else:
        known = [v for v in map(printed, ("serial", *list(names)[-2:])) if isinstance(v, float)]
        gain = known[0] / max(known[1:]) if len(known) == 3 else Unavailable("a part is not readable")
    rows.append(Compared(f"{label}: speedup", "1", amount(speedup(there), missing=missing), gain, why))
    if figure == "table01" and x is not None and x.startswith("ManiSkill"):
        for name in ("inference", "simulation"):
            slower = _slower(there, name)
            of = f"slowdown of {name}"
            rows.append(Compared(f"{label}: {of}", "%", amount(slower, 100, missing), printed(of), why))
    return rows


def _slower(parts: Mapping[str, float], name: str) -> float | None:
    """By which share a part takes longer beside the other one."""
    alone, beside = parts.get(name), parts.get(f"{name}, overlapped")
    return None if alone is None or beside is None else beside / alone - 1


def stretched(parts: Mapping[str, float]) -> str:
    """Say what bounds the speedup of one chunk, and how much of it is lost where both stretch each other."""
    shares = {name: _slower(parts, name) for name in ("inference", "simulation")}
    if None in shares.values() or "serial" not in parts:
        return ""
    most = parts["serial"] / max(parts[name] for name in shares)
    told = " and ".join(f"{name} by {100 * (s or 0.0):+.0f} %" for name, s in shares.items())
    return f"; measured: if neither slowed the other down, {most:.2f} times; beside each other {told}"


def _on_gpu(frame: pl.DataFrame) -> bool:
    return any(str(device).startswith("cuda") for device in frame["device"])


def cause_of_times(frame: pl.DataFrame, workload: str, *, mps: bool) -> str:
    """Say what differs from the paper's set-up, from the raw table."""
    rows = [r for r in frame.iter_rows(named=True) if (r["workload"], r["mps"]) == (workload, mps)]
    if not rows:
        return ""
    r = rows[-1]
    where = f"one {r['gpu']}" if r["gpu"] != "none" else r["device"]
    what = f"{r['policy']} on {SIMULATOR_NAMES.get(r['simulator'], r['simulator'])}"
    return (
        f"another machine and program: {where}, {what} with {r['envs']} environments and chunks of"
        f" {r['chunk_steps']} actions here; pi0.5 in RLinf there"
    )


#: Why LIBERO gains nothing under MPS.
OUTSIDE = (
    "; images are drawn in graphics contexts, which are outside of MPS and take turns with its server: no"
    " daemon should run, and no pair is eligible for a quota"
)


def _also(
    frame: pl.DataFrame, found: Mapping[tuple[str, bool], Mapping[str, float]], shown: Collection[Any]
) -> Iterator[tuple[str, Mapping[str, float], str]]:
    """Give what was measured and has no number of the paper beside it: label, parts, cause."""
    for (workload, mps), parts in sorted(found.items()):
        if (workload, mps) in shown:
            continue
        simulator = simulator_of(workload)
        name = workload.replace(simulator, SIMULATOR_NAMES.get(simulator, simulator), 1)
        why = cause_of_times(frame, workload, mps=mps) + (OUTSIDE if mps and simulator == "libero" else "")
        yield f"{name}, MPS {'on' if mps else 'off'}", parts, why


def compare_table(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Table 1: LIBERO without MPS, the simulator with GPU physics with it; then what else was measured."""
    frame = tables["alone"]
    found = by_workload(frame)
    rows: list[Compared] = []
    shown = []
    for simulator, x in (WORKLOADS if _on_gpu(frame) else SMALL).items():
        mps = x.endswith("on")
        shown.append((simulator, mps))
        label = f"{SIMULATOR_NAMES[simulator]}, MPS {'on' if mps else 'off'}"
        why = cause_of_times(frame, simulator, mps=mps)
        rows += _compared(label, found.get((simulator, mps)), paper, "table01", x, why)
    for label, parts, why in _also(frame, found, shown):
        rows += _compared(label, parts, paper, "table01", None, why)
    return rows


def compare_figure(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 4: both simulators without MPS; then the speedups that were measured under it."""
    frame = tables["alone"]
    found = by_workload(frame)
    rows: list[Compared] = []
    shown = []
    for simulator in WORKLOADS if _on_gpu(frame) else SMALL:
        name, parts = PAPER_SIMULATORS[simulator], found.get((simulator, False))
        shown.append((simulator, False))
        label = f"{SIMULATOR_NAMES[simulator]}, MPS off"
        why = cause_of_times(frame, simulator, mps=False)
        rows += _compared(label, parts, paper, "fig04", f"{name}, MPS off", why)
    for label, also, why in _also(frame, found, shown):
        rows.append(_compared(label, also, paper, "fig04", None, why)[-1])
    return rows
