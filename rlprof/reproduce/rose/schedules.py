"""Fig 11, Fig 14 and Table 2: complete iterations under each schedule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rose.results import Document, facts, measured_study, on_gpu
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

SYNCHRONOUS = ("colocated", "colocated-pipe", "hybrid", "hybrid-pipe")
PAPER_SIMULATORS = {"libero": "LIBERO", "mujoco_warp": "ManiSkill"}


def iteration_rows(file: str, document: Document) -> list[dict[str, Any]]:
    """Return one row for each complete iteration that counts: warm-ups and short ones are left out."""
    rows = []
    for found in document.get("iterations", ()):
        if found["warm_up"] or found.get("short"):
            continue
        active = found.get("activity")
        phases = {f"{name}_s": value for name, value in sorted(found["phases_s"].items())}
        rows.append(
            {
                **facts(file, document),
                "variant": found["variant"],
                "schedule": found["schedule"],
                "round": found["round"],
                "wall_s": found["wall_s"],
                "steps_per_s": found["simulator_steps_per_s"],
                "active_frac": active.get("iteration") if isinstance(active, dict) else None,
                "differences": len(found.get("semantic_differences") or ()),
                **phases,
            }
        )
    return rows


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of stored runs with complete iterations, or of a small run here."""

    def wanted(document: Document) -> bool:
        return on_gpu(document) and bool(iteration_rows("", document))

    return measured_study("rose/schedules", preset, seed, checkout, wanted, iteration_rows)


def by_variant(frame: pl.DataFrame) -> pl.DataFrame:
    """Return medians over iterations of each variant.

    Returns
    -------
    polars.DataFrame
        ``simulator``, ``mps``, ``variant``, ``iterations``, ``steps_per_s`` (median), ``least``, ``most``,
        ``active_frac`` (mean SM activity), ``over_best`` (throughput over that of the best synchronous
        schedule of the same simulator, of those without switches and without MPS).
    """
    import polars as pl

    keys = ["simulator", "mps", "variant"]
    rate = pl.col("steps_per_s")
    table = frame.group_by(keys, maintain_order=True).agg(
        pl.len().alias("iterations"),
        rate.median().alias("steps_per_s"),
        rate.min().alias("least"),
        rate.max().alias("most"),
        pl.col("active_frac").mean(),
    )
    best = (
        table.filter(pl.col("variant").is_in(SYNCHRONOUS), ~pl.col("mps"))
        .group_by("simulator")
        .agg(rate.max().alias("best"))
    )
    return (
        table.join(best, on="simulator", how="left", maintain_order="left")
        .with_columns((rate / pl.col("best")).alias("over_best"))
        .drop("best")
    )


def best_schedule(table: pl.DataFrame, simulator: str) -> dict[str, Any] | None:
    """Return the row of the fastest synchronous schedule without switches and MPS; None if there is none."""
    import polars as pl

    rows = table.filter(
        pl.col("simulator") == simulator, ~pl.col("mps"), pl.col("variant").is_in(SYNCHRONOUS)
    ).sort("steps_per_s", descending=True)
    return rows.row(0, named=True) if rows.height else None


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 11: which of today's schedules is the best one, and what others reach beside it."""
    table = by_variant(tables["schedules"])
    rows: list[Compared] = []
    for simulator, name in PAPER_SIMULATORS.items():
        best = best_schedule(table, simulator)
        if best is None:
            continue
        wanted = {"LIBERO": "colocated-pipe", "ManiSkill": "colocated"}[name]
        rows.append(Compared(f"{simulator}: best of today's schedules", "", best["variant"], wanted))
        of_it = table.filter(table["simulator"] == simulator)
        fastest = of_it.sort("steps_per_s", descending=True).row(0, named=True)
        called = fastest["variant"] + (", MPS" if fastest["mps"] else "")
        rows.append(
            Compared(
                f"{simulator}: fastest of all variants ({called}) over it",
                "1",
                amount(fastest["over_best"]),
                paper.value("fig11", "best over the best RLinf configuration", f"H100, {name}, pi0.5"),
            )
        )
    return rows
