"""Figs 6 and 7: throughput and utilisation as models grow with the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.planning.baselines import concurrent_plan, greedy_plan, synchronous
from rlprof.planning.candidates import directories
from rlprof.planning.evaluate import Problem, evaluate
from rlprof.planning.search_options import SearchOptions
from rlprof.reproduce.compare import Compared, amount, yes
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rpeg import problems
from rlprof.reproduce.rpeg.plans import constants_digest, judged, options_document, searched, stale_plans
from rlprof.reproduce.rpeg.weak_causes import cause_of_gains
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

METHODS = ("greedy", "concurrent", "rlprof, throughput", "rlprof, utilisation")
GREEDY, CONCURRENT, THROUGHPUT, UTILISATION = METHODS
#: Evaluations of each search; every so many-th case.
PRESETS = {"smoke": (800, 6), "full": (40_000, 1)}


def options(evaluations: int, seed: int, preset: str) -> SearchOptions:
    """One-step staleness of both trained models, as in the paper's predicted schedules (Appendix B).

    Smoke tests do not polish, which would take longer than their search.
    """
    return SearchOptions(evaluations=evaluations, seed=seed, staleness=(1,), polish=preset != "smoke")


def methods(problem: Problem, chosen: SearchOptions) -> list[dict[str, Any]]:
    """Return one row for each method; the baselines are synchronous."""
    plain = synchronous(problem)
    found = directories(plain)
    rows = []
    for name, make in ((GREEDY, greedy_plan), (CONCURRENT, concurrent_plan)):
        row = judged(evaluate(plain, make(plain, found)))
        rows.append({"method": name, **row, "evaluations": 1, "search_s": 0.0, "lacking_bytes": 0.0})
    row, result = searched(problem, chosen)
    rows.append({"method": THROUGHPUT, **row})
    start = (result.plan,) if result else ()
    row, _ = searched(problem, replace(chosen, objective="efficiency"), start)
    rows.append({"method": UTILISATION, **row})
    return rows


def _rows(setting: problems.Setting, sweep: str, chosen: SearchOptions) -> list[dict[str, Any]]:
    facts = {
        "sweep": sweep,
        "models": f"{setting.actor}B/{setting.critic}B",
        "gpus": setting.gpus,
        "prompts": setting.prompts,
        "response_tokens": setting.response_tokens,
    }
    return [{**facts, **row} for row in methods(setting.problem, chosen)]


def study(preset: str, seed: int, _: Path) -> Study:
    """Return the study: all 36 cases, or for a smoke test a few."""
    evaluations, step = PRESETS[preset]
    settings = problems.weak_scaling()[::step]
    by_name = {s.name: s for s in settings}
    chosen = options(evaluations, seed, preset)
    cases: dict[str, Callable[[], list[dict[str, Any]]]] = {
        s.name: partial(_rows, s, s.name.rsplit(",", 3)[0], chosen) for s in settings
    }
    parameters = {"constants": constants_digest(), "search": options_document(chosen)}

    def problem_of(row: Mapping[str, Any]) -> Problem:
        return by_name[row["case"]].problem

    return Study(
        "rpeg/weak_scaling",
        preset,
        seed,
        parameters,
        cases,
        stale=partial(stale_plans, problem_of=problem_of),
    )


def gains(frame: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each case: what the methods reach, and the gain over the concurrent baseline.

    Returns
    -------
    polars.DataFrame
        Facts of the case; what ours and the concurrent baseline reach, and whether they fit; ``gain_frac``
        (null where the baseline does not fit), ``gain_any_frac`` (whether it fits or not); ``loss_frac`` and
        ``more_utilisation`` of the utilisation objective.
    """
    import polars as pl

    facts = ["case", "sweep", "models", "gpus", "prompts", "response_tokens"]
    one = {m: frame.filter(pl.col("method") == m) for m in METHODS}
    joined = one[THROUGHPUT].select(*facts, "tokens_per_s", "utilisation_frac", "fits")
    for name, method in (("concurrent", CONCURRENT), ("useful", UTILISATION)):
        other = one[method].select(
            "case",
            pl.col("tokens_per_s").alias(f"{name}_tokens_per_s"),
            pl.col("utilisation_frac").alias(f"{name}_utilisation_frac"),
            pl.col("fits").alias(f"{name}_fits"),
        )
        joined = joined.join(other, on="case", how="left", maintain_order="left")
    gain = pl.col("tokens_per_s") / pl.col("concurrent_tokens_per_s") - 1
    return joined.with_columns(
        pl.when("concurrent_fits").then(gain).alias("gain_frac"),
        gain.alias("gain_any_frac"),
        (1 - pl.col("useful_tokens_per_s") / pl.col("tokens_per_s")).alias("loss_frac"),
        (pl.col("useful_utilisation_frac") - pl.col("utilisation_frac")).alias("more_utilisation"),
    )


def compare_throughput(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 6: gains over the concurrent baseline, and where plans fit."""
    rows = gains(tables["weak_scaling"])
    cause = f"{cause_of_fit(rows)}; {cause_of_gains(tables['weak_scaling_causes'])}"
    fitting = rows["gain_frac"].drop_nulls()
    long = rows.filter(rows["response_tokens"] == 896)["gain_frac"].drop_nulls()
    short = rows.filter(rows["response_tokens"] == 128)["gain_frac"].drop_nulls()
    longer = yes(len(long) > 0 and len(short) > 0 and _mean(long) > _mean(short))
    return [
        Compared(
            "least gain over concurrent, where that fits",
            "%",
            amount(fitting.min(), 100),
            paper.value("fig06", "least gain over concurrent where feasible"),
            cause,
        ),
        Compared(
            "most gain over concurrent, where that fits",
            "%",
            amount(fitting.max(), 100),
            paper.value("fig06", "most gain over concurrent where feasible"),
            cause,
        ),
        Compared(
            "cases with a plan that fits",
            "%",
            amount(rows["fits"].mean(), 100),
            paper.value("fig06", "cases with a feasible plan"),
        ),
        Compared("mean gain is larger for long responses than for short ones", "", longer, "yes", ""),
    ]


def cause_of_fit(rows: pl.DataFrame) -> str:
    """Say what gains are if baselines that do not fit count as well, from the table of gains."""
    import polars as pl

    largest = rows.sort("gain_any_frac", descending=True).row(0, named=True)
    unfit = rows.filter(~pl.col("concurrent_fits")).height
    ratio = f"{100 * largest['gain_any_frac']:.0f} % in {largest['case']}"
    return (
        f"memory of a GPU, which decides which baselines fit: {unfit} of {rows.height} do not fit into 102 GB"
        f" here; counted all the same, the largest gain is {ratio}"
    )


def cause_of_utilisation(rows: pl.DataFrame) -> str:
    """Say how much there is to gain for the utilisation objective, from the table of gains."""
    held = rows["utilisation_frac"]
    same = rows.filter(rows["more_utilisation"] < 0.005).height
    return (
        f"plans for throughput hold {100 * _mean(held):.0f} % of the GPUs' time on average already; in {same}"
        f" of {rows.height} cases the other objective has nothing to add"
    )


def _mean(values: pl.Series) -> float:
    return float(values.mean())  # type: ignore[arg-type]


def compare_utilisation(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 7: what the utilisation objective reaches and gives up."""
    rows = gains(tables["weak_scaling"])
    cause = cause_of_utilisation(rows)
    quantities = (
        (
            "least utilisation with the utilisation objective",
            rows["useful_utilisation_frac"].min(),
            "least utilisation",
        ),
        ("most utilisation", rows["useful_utilisation_frac"].max(), "most utilisation"),
        (
            "most utilisation gained over the throughput objective",
            rows["more_utilisation"].max(),
            "most utilisation gained",
        ),
        ("median throughput given up for it", rows["loss_frac"].median(), "most throughput given up"),
        ("most throughput given up for it", rows["loss_frac"].max(), "most throughput given up"),
    )
    return [
        Compared(name, "%", amount(ours, 100), paper.value("fig07", series), cause)
        for name, ours, series in quantities
    ]
