"""Table X and Fig 12, right: how much results depend on the seed, and how many plans are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.planning.evaluate import Problem
from rlprof.planning.search_options import SearchOptions
from rlprof.reproduce.compare import NOT_COMPUTED, Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rpeg.plans import constants_digest, options_document, searched, stale_plans
from rlprof.reproduce.rpeg.problems import STABILITY, Setting
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

#: Evaluations of each search, seeds, and how many of the workloads, smallest first.
PRESETS = {"smoke": (300, 3, 1), "full": (80_000, 8, 5)}
PAPER_SECONDS, PAPER_CORES = 600, 6


def _rows(setting: Setting, chosen: SearchOptions) -> list[dict[str, Any]]:
    row, _ = searched(setting.problem, chosen)
    return [{"gpus": setting.gpus, "seed": chosen.seed, **row}]


def study(preset: str, seed: int, _: Path) -> Study:
    """Return the study: the workloads of Table X, each with several seeds; staleness 0 and 1 are searched."""
    evaluations, seeds, count = PRESETS[preset]
    settings = {s.gpus: s for s in STABILITY[:count]}
    base = SearchOptions(evaluations=evaluations, seed=seed, polish=preset != "smoke")
    cases: dict[str, Callable[[], list[dict[str, Any]]]] = {
        f"{s.name}, seed {seed + n}": partial(_rows, s, replace(base, seed=seed + n))
        for s in settings.values()
        for n in range(seeds)
    }

    def problem_of(row: Mapping[str, Any]) -> Problem:
        return settings[row["gpus"]].problem

    parameters = {"constants": constants_digest(), "search": options_document(base)}
    return Study(
        "rpeg/stability", preset, seed, parameters, cases, stale=partial(stale_plans, problem_of=problem_of)
    )


def spread(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the spread over seeds by number of GPUs.

    Returns
    -------
    polars.DataFrame
        ``gpus``, ``seeds``, ``cv_frac`` (standard deviation over mean), ``worst_gap_frac`` (to the best
        seed), ``evaluations``, ``search_s`` (means of a search), ``per_second``.
    """
    import polars as pl

    score = pl.col("tokens_per_s")
    return frame.group_by("gpus", maintain_order=True).agg(
        pl.len().alias("seeds"),
        (score.std() / score.mean()).alias("cv_frac"),
        (1 - score.min() / score.max()).alias("worst_gap_frac"),
        pl.col("evaluations").mean(),
        pl.col("search_s").mean(),
        (pl.col("evaluations").sum() / pl.col("search_s").sum()).alias("per_second"),
    )


def gaps(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the cumulative share of seeds by their gap to the best seed.

    Returns
    -------
    polars.DataFrame
        ``gpus``, ``gap_percent``, ``share`` (0..1) of seeds whose gap is not larger.
    """
    import polars as pl

    gap = 100 * (1 - pl.col("tokens_per_s") / pl.col("tokens_per_s").max().over("gpus"))
    return (
        frame.with_columns(gap.alias("gap_percent"))
        .sort("gpus", "gap_percent")
        .with_columns((pl.int_range(1, pl.len() + 1) / pl.len()).over("gpus").alias("share"))
        .select("gpus", "gap_percent", "share")
    )


CAUSE_SPEED = (
    "another evaluator: compiled, one core here and six in the paper; evaluations that a cache answers are"
    " not counted, those of the final polishing are"
)


def cause_of_budget(frame: pl.DataFrame) -> str:
    """Say how the searches differ in budget from the paper's."""
    rows = spread(frame)
    seeds, evaluations = int(rows["seeds"][0]), float(rows["evaluations"].mean() or 0)  # type: ignore[arg-type]
    return (
        f"budget: {seeds} seeds of about {evaluations:,.0f} evaluations each here; 200 seeds of 600 s, 75,000"
        " to 220,000 evaluations, there"
    )


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Table X: evaluations in 600 s on six cores, and the spread over seeds."""
    rows = spread(tables["stability"])
    by_gpus = {r["gpus"]: r for r in rows.iter_rows(named=True)}
    found = []
    for gpus in (s.gpus for s in STABILITY):
        row = by_gpus.get(gpus)
        ours = NOT_COMPUTED if row is None else amount(row["per_second"], PAPER_SECONDS * PAPER_CORES)
        found.append(
            Compared(
                f"evaluations in 600 s on six cores (ours: one core x 6), {gpus} GPUs",
                "evaluations",
                ours,
                paper.value("table10", "evaluations in 600 s on six cores", str(gpus)),
                CAUSE_SPEED,
            )
        )
    return found + compare_spread(tables, paper)


def compare_spread(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 12, right: coefficient of variation and largest gap."""
    import polars as pl

    rows = spread(tables["stability"])
    cause = cause_of_budget(tables["stability"])
    found = [
        Compared(
            f"coefficient of variation over seeds, {which}",
            "%",
            amount(value, 100),
            paper.value("fig12", "coefficient of variation", which),
            cause,
        )
        for which, value in (("least", rows["cv_frac"].min()), ("most", rows["cv_frac"].max()))
    ]
    for x, there in (
        ("64 to 512", rows.filter(pl.col("gpus") <= 512)),
        ("1024", rows.filter(pl.col("gpus") == 1024)),
    ):
        found.append(
            Compared(
                f"largest gap to the best seed, {x} GPUs",
                "%",
                amount(there["worst_gap_frac"].max(), 100),
                paper.value("fig12", "largest gap to the best seed", x),
                cause,
            )
        )
    return found
