"""Fig 11 and Table 2: complete iterations under each schedule, and of optimised graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rose.alone import by_workload
from rlprof.reproduce.rose.results import (
    PAPER_SIMULATORS,
    Document,
    facts,
    measured_study,
    on_gpu,
    order,
    set_up,
    simulator_of,
    with_run,
)
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

#: Schedules of today's systems; `native` is the colocated loop of a program whose calls are recorded.
BASELINES = ("colocated", "native", "colocated-pipe", "hybrid", "hybrid-pipe")
#: Why there is no figure.
NONE = "nothing but today's schedules ran"
OPTIMISED, ONE_ROUND, WITH_QUOTA = "optimised", "round 1", "with quota"
#: What the paper finds best of RLinf's schedules.
PAPER_BEST = {"LIBERO": "colocated-pipe", "ManiSkill": "colocated"}


def iteration_rows(file: str, document: Document) -> list[dict[str, Any]]:
    """Return one row for each complete iteration that counts: warm-ups and short ones are left out.

    ``active_frac`` is the mean SM activity of the iteration; null where it was not measured. ``withdrawn``
    says why an iteration does not count after all; null if it does.
    """
    rows = []
    withdrawn = document.get("withdrawn") or {}
    for found in document.get("iterations", ()):
        if found["warm_up"] or found.get("short"):
            continue
        active = found.get("activity")
        active_frac = active.get("iteration") if isinstance(active, dict) else found.get("sm_activity")
        phases = {f"{name}_s": value for name, value in sorted(found["phases_s"].items())}
        rows.append(
            {
                **facts(file, document),
                "variant": order(document, found["variant"]),
                "schedule": found.get("schedule"),
                "wall_s": found["wall_s"],
                "steps_per_s": found["simulator_steps_per_s"],
                "active_frac": active_frac,
                "differences": len(found.get("semantic_differences") or ()),
                "withdrawn": withdrawn.get(found["variant"]),
                **phases,
            }
        )
    return rows


def is_todays(variant: str) -> bool:
    """Whether a variant is one of today's schedules, with levers that any schedule may have or without.

    ``"colocated-pipe+graph"`` is one, and so is ``"native, egl-one:2"``, whose images are drawn elsewhere.
    """
    return variant.partition(",")[0].partition("+")[0] in BASELINES


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of stored runs with complete iterations, or of a small run here."""

    def wanted(document: Document) -> bool:
        return on_gpu(document) and bool(iteration_rows("", document))

    return measured_study("rose/schedules", preset, seed, checkout, wanted, iteration_rows, "schedules")


def by_variant(frame: pl.DataFrame) -> pl.DataFrame:
    """Return medians over iterations of each variant that was not withdrawn, run by run.

    Returns
    -------
    polars.DataFrame
        ``file``, ``workload``, ``mps``, ``run`` (its conditions), ``variant``, ``iterations``,
        ``steps_per_s`` (median), ``least``, ``most``, ``active_frac`` (mean SM activity), ``differences`` (of
        the semantic record), ``over_best``: throughput over that of the best of today's schedules in the same
        run; null where it ran none.
    """
    import polars as pl

    rate = pl.col("steps_per_s")
    counted = with_run(frame).filter(pl.col("withdrawn").is_null())
    table = counted.group_by("file", "workload", "mps", "run", "variant", maintain_order=True).agg(
        pl.len().alias("iterations"),
        rate.median().alias("steps_per_s"),
        rate.min().alias("least"),
        rate.max().alias("most"),
        pl.col("active_frac").mean(),
        pl.col("differences").sum(),
    )
    best = table.filter(_drawn_as(BASELINES)).group_by("file").agg(rate.max().alias("best"))
    return (
        table.join(best, on="file", how="left", maintain_order="left")
        .with_columns((rate / pl.col("best")).alias("over_best"))
        .drop("best")
    )


def _drawn_as(variants: tuple[str, ...]) -> pl.Expr:
    """One of these variants, wherever its images are drawn."""
    import polars as pl

    return pl.col("variant").str.split(",").list.first().is_in(variants)


def best_schedule(table: pl.DataFrame, workload: str, file: str | None = None) -> dict[str, Any] | None:
    """Return the fastest of today's schedules, in one run or without MPS in any; None if none ran."""
    import polars as pl

    where = ~pl.col("mps") if file is None else pl.col("file") == file
    rows = table.filter(pl.col("workload") == workload, where, pl.col("variant").is_in(BASELINES))
    return rows.sort("steps_per_s", descending=True).row(0, named=True) if rows.height else None


def variant_row(table: pl.DataFrame, workload: str, variant: str, *, mps: bool) -> dict[str, Any] | None:
    """Return one variant of a workload, of its last run; None if it did not run."""
    import polars as pl

    rows = table.filter(pl.col("workload") == workload, pl.col("variant") == variant, pl.col("mps") == mps)
    return rows.row(-1, named=True) if rows.height else None


def fastest(table: pl.DataFrame, workload: str) -> dict[str, Any] | None:
    """Return a variant, none of today's, that gains most over the best of those in its own run.

    Of those with most iterations: one that ran once proves little, and the largest of many is a lucky one.
    """
    import polars as pl

    rows = table.filter(
        pl.col("workload") == workload,
        pl.col("over_best").is_not_null(),
        ~_drawn_as(BASELINES),
    )
    most = rows.sort("iterations", "over_best", descending=True, maintain_order=True)
    return most.row(0, named=True) if most.height else None


def called(row: Mapping[str, Any]) -> str:
    """Name of a variant for people."""
    return f"{row['variant'].replace('native', 'colocated', 1)}{', MPS' if row['mps'] else ''}"


def withdrawn(frame: pl.DataFrame, workload: str) -> str:
    """Say which variants were withdrawn and why; empty if none was."""
    reasons: dict[str, list[str]] = {}
    for row in frame.iter_rows(named=True):
        if row["workload"] == workload and row["withdrawn"]:
            variants = reasons.setdefault(row["withdrawn"], [])
            variants += [row["variant"]] if row["variant"] not in variants else []
    return "".join(f"; withdrawn: {' and '.join(names)}, {why}" for why, names in reasons.items())


def cause(frame: pl.DataFrame, workload: str) -> str:
    """Say what differs from the paper's set-up, and what was withdrawn, from the raw table."""
    rows = [r for r in frame.iter_rows(named=True) if r["workload"] == workload]
    if not rows:
        return ""
    return set_up(rows[-1]) + withdrawn(frame, workload)


def cause_of_halves(alone: pl.DataFrame, simulator: str) -> str:
    """Say what splitting the batch into two groups costs, from parts that were measured alone."""
    parts = by_workload(alone).get((simulator, False), {})
    serial, halves = parts.get("serial"), parts.get("two groups, overlapped")
    if serial is None or halves is None:
        return "what two groups cost was not measured"
    told = (
        f"a chunk takes {halves:.2f} s with halves of the batch that overlap, {serial:.2f} s one after the"
        " other"
    )
    if halves <= serial:
        return f"two groups: {told}"
    return (
        f"what two groups cost: {told} with all of it; half of a batch does not take half the time where the"
        " host launches kernels more slowly than they run"
    )


def _there(frame: pl.DataFrame) -> list[tuple[str, str]]:
    """Workloads that were measured, and which of the paper's simulators they stand for, in its order."""
    there = frame["workload"].unique(maintain_order=True).to_list()
    return [(w, name) for s, name in PAPER_SIMULATORS.items() for w in there if simulator_of(w) == s]


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 11: the best of today's schedules in the run of the fastest variant, and the gain over that."""
    frame = tables["schedules"]
    table = by_variant(frame)
    rows: list[Compared] = []
    for workload, name in _there(frame):
        most, why = fastest(table, workload), cause(frame, workload)
        best = best_schedule(table, workload)
        if best is None:
            continue
        # what the gain is over: the fastest of another run may be another one
        best = (best_schedule(table, workload, most["file"]) if most else None) or best
        ours = best["variant"].replace("native", "colocated")
        halves = cause_of_halves(tables["alone"], simulator_of(workload)) + withdrawn(frame, workload)
        rows.append(Compared(f"{workload}: best of today's schedules", "", ours, PAPER_BEST[name], halves))
        rows.append(
            Compared(
                f"{workload}: fastest variant ({called(most) if most else 'none ran'}) over it",
                "1",
                amount(most and most["over_best"], missing=NONE),
                paper.value("fig11", "best over the best RLinf configuration", f"H100, {name}, pi0.5"),
                why,
            )
        )
    return rows


def compare_activity(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Table 2: mean SM activity of iterations under the best of today's schedules and the fastest variant."""
    frame = tables["schedules"]
    quantity = "SM activity" if any(d.startswith("cuda") for d in frame["device"]) else "busy cores"
    table = by_variant(frame)
    found: list[Compared] = []
    for workload, name in _there(frame):
        most, why = fastest(table, workload), cause(frame, workload)
        best = best_schedule(table, workload, most["file"] if most else None)
        if best is None:
            continue
        x = f"pi0.5, {name}"
        before, after = best["active_frac"], most and most["active_frac"]
        printed = [paper.value("table02", s, x) for s in ("SM activity of the baseline", "SM activity")]
        relative = [p for p in printed if isinstance(p, float)]
        found += [
            Compared(f"{workload}: {quantity}, {called(best)}", "%", amount(before, 100), printed[0], why),
            Compared(
                f"{workload}: {quantity}, {called(most) if most else 'fastest variant'}",
                "%",
                amount(after, 100, NONE),
                printed[1],
                why,
            ),
            Compared(
                f"{workload}: relative improvement",
                "%",
                amount(None if before is None or after is None else after / before - 1, 100, NONE),
                100 * (relative[1] / relative[0] - 1),
                why,
            ),
        ]
    return found
