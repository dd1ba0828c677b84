"""How far the gains of Fig 6 depend on constants that the paper does not print: each is changed, alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.planning.baselines import concurrent_plan, synchronous
from rlprof.planning.evaluate import Problem, evaluate
from rlprof.planning.search_options import SearchOptions
from rlprof.reproduce.rpeg.causes import AS_IS, CHANGES, PLAIN
from rlprof.reproduce.rpeg.plans import constants_digest, judged, options_document, searched, stale_plans
from rlprof.reproduce.rpeg.problems import Setting, weak_scaling
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

#: Evaluations of each search, and every so many-th case.
PRESETS = {"smoke": (200, 18), "full": (3_000, 1)}
TRIED = (AS_IS, PLAIN, "half of peak_flops", "half of memory_bandwidth", "half of all links")


def _rows(setting: Setting, change: str, chosen: SearchOptions) -> list[dict[str, Any]]:
    problem = CHANGES[change](setting.problem)
    plain = synchronous(problem)
    baseline = evaluate(plain, concurrent_plan(plain))
    row, _ = searched(problem, chosen)
    facts = {
        "setting": setting.name,
        "change": change,
        "baseline_tokens_per_s": baseline.score,
        "baseline_fits": baseline.feasible,
    }
    if not baseline.feasible:  # there is no gain to speak of; the row says why it is missing
        return [{**facts, **dict.fromkeys(judged(baseline)), "fits": row["fits"]}]
    return [{**facts, **{key: row[key] for key in judged(baseline)}}]


def study(preset: str, seed: int, _: Path) -> Study:
    """Return the study: the cases of Fig 6 with each change. It searches less than Fig 6 does."""
    evaluations, step = PRESETS[preset]
    settings = (
        {s.name: s for s in weak_scaling()[1::step]} if step > 1 else {s.name: s for s in weak_scaling()}
    )
    chosen = SearchOptions(evaluations=evaluations, seed=seed, staleness=(1,), polish=False)
    cases: dict[str, Callable[[], list[dict[str, Any]]]] = {
        f"{s.name}, {change}": partial(_rows, s, change, chosen)
        for s in settings.values()
        for change in TRIED
    }

    def problem_of(row: Mapping[str, Any]) -> Problem:
        return CHANGES[row["change"]](settings[row["setting"]].problem)

    parameters = {"constants": constants_digest(), "search": options_document(chosen)}
    return Study(
        "rpeg/weak_scaling_causes",
        preset,
        seed,
        parameters,
        cases,
        stale=partial(stale_plans, problem_of=problem_of),
    )


def ranges(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the range of the gain over the concurrent baseline by change.

    Returns
    -------
    polars.DataFrame
        ``change``, ``cases`` (whose baseline fits), ``least``, ``mean``, ``most`` (fractions).
    """
    import polars as pl

    gain = pl.col("tokens_per_s") / pl.col("baseline_tokens_per_s") - 1
    return (
        frame.filter("baseline_fits")
        .group_by("change", maintain_order=True)
        .agg(
            pl.len().alias("cases"),
            gain.min().alias("least"),
            gain.mean().alias("mean"),
            gain.max().alias("most"),
        )
    )


def cause_of_gains(frame: pl.DataFrame) -> str:
    """Say how the range of gains moves with each change, from the raw table."""
    parts = [
        f"{r['change']}: {100 * r['least']:.0f} to {100 * r['most']:.0f} %"
        for r in ranges(frame).iter_rows(named=True)
    ]
    return (
        "constants of another machine, which the paper does not print: with little search gains are "
        + "; ".join(parts)
    )
