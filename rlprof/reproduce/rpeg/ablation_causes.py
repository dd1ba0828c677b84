"""Why Table IV differs: A1 to A3 again, with suspected causes put in place of ours one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.planning.cluster import LINK_KINDS, TIERS
from rlprof.planning.cost_time import operator_time
from rlprof.planning.evaluate import Problem
from rlprof.planning.search_options import SearchOptions
from rlprof.reproduce.compare import Compared
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rpeg import ablation
from rlprof.reproduce.rpeg.causes import AS_IS, PLAIN, Change, scaled, ungated
from rlprof.reproduce.rpeg.plans import again, constants_digest, options_document, searched, stale_plans
from rlprof.reproduce.rpeg.problems import ABLATION, Setting
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

#: Latency of a small collective inside of a program that decodes, over that of the nominal file.
LATENCY_FACTOR = 8.0
BANDWIDTH_FACTOR = 1 / 3
SLOW_LINKS = f"{PLAIN}, latencies of all links x {LATENCY_FACTOR:.0f}"
SLOW_DECODE = f"{PLAIN}, a third of memory_bandwidth"
BOTH = f"{PLAIN}, both"


def latencies() -> dict[str, float]:
    """Return the factor of the latency of every kind of transfer and tier."""
    return {f"{kind}.{tier}.alpha_s": LATENCY_FACTOR for kind in LINK_KINDS for tier in TIERS}


CAUSES: dict[str, Change] = {
    AS_IS: lambda p: p,
    PLAIN: ungated,
    SLOW_LINKS: lambda p: scaled(ungated(p), latencies()),
    SLOW_DECODE: lambda p: scaled(ungated(p), {"memory_bandwidth": BANDWIDTH_FACTOR}),
    BOTH: lambda p: scaled(ungated(p), {"memory_bandwidth": BANDWIDTH_FACTOR, **latencies()}),
}
CHANGES = (ablation.FULL, *ablation.EXECUTION)
SCENARIOS = ("MemTight", "Hetero", "Deep")
#: Evaluations of each search, seeds, scenarios, causes.
PRESETS = {"smoke": (200, 1, 1, 2), "full": (20_000, 2, len(SCENARIOS), len(CAUSES))}


def problem_under(setting: Setting, cause: str, change: str) -> Problem:
    """Return the problem of a scenario under a cause; for A1 without splitting by response length."""
    return ablation.without(CAUSES[cause](setting.problem), change)


def _rows(setting: Setting, cause: str, change: str, chosen: SearchOptions) -> list[dict[str, Any]]:
    row, _ = searched(problem_under(setting, cause, change), chosen)
    facts = {"scenario": setting.name, "cause": cause, "change": change, "guided": 0.5, "seed": chosen.seed}
    return [{**facts, **row}]


def study(preset: str, seed: int, _: Path) -> Study:
    """Return the study: scenarios x causes x (full, A1 to A3) x seeds."""
    evaluations, seeds, scenarios, causes = PRESETS[preset]
    settings = {s.name: s for s in ABLATION if s.name in SCENARIOS[:scenarios]}
    base = ablation.base_options(evaluations, seed, preset)
    cases: dict[str, Callable[[], list[dict[str, Any]]]] = {}
    for setting in settings.values():
        for cause in list(CAUSES)[:causes]:
            for change in CHANGES:
                for n in range(seeds):
                    chosen = ablation.changed(base, change, seed + n)
                    label = f"{setting.name}, {cause}, {change}, seed {seed + n}"
                    cases[label] = partial(_rows, setting, cause, change, chosen)

    def problem_of(row: Mapping[str, Any]) -> Problem:
        return problem_under(settings[row["scenario"]], row["cause"], row["change"])

    parameters = {"constants": constants_digest(), "search": options_document(base)}
    return Study(
        "rpeg/ablation_causes",
        preset,
        seed,
        parameters,
        cases,
        stale=partial(stale_plans, problem_of=problem_of),
    )


def by_cause(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the losses by cause, scenario and change.

    Returns
    -------
    polars.DataFrame
        ``cause``, and as `rlprof.reproduce.rpeg.ablation.losses`.
    """
    import polars as pl

    parts = [
        ablation.losses(frame.filter(pl.col("cause") == cause)).select(pl.lit(cause).alias("cause"), pl.all())
        for cause in frame["cause"].unique(maintain_order=True)
    ]
    return pl.concat(parts)


def means(lost: pl.DataFrame, cause: str, changes: Collection[str]) -> dict[str, float]:
    """Return the average loss of each of some changes under a cause, from the table of `by_cause`."""
    import polars as pl

    rows = lost.filter((pl.col("cause") == cause) & pl.col("change").is_in(list(changes)))
    return ablation.averages(rows)


def told(frame: pl.DataFrame) -> str:
    """Say which average losses A1, A2 and A3 have under each cause, from the raw table."""
    lost = by_cause(frame)
    parts = []
    for cause in lost["cause"].unique(maintain_order=True):
        shown = (
            f"{change} {round(100 * loss, 1) or 0.0} %"  # no -0.0
            for change, loss in means(lost, cause, ablation.EXECUTION).items()
        )
        parts.append(f"{cause}: {', '.join(shown)}")
    seeds = frame["seed"].n_unique()
    return (
        "constants of another machine and parameters of a layer: the more generation takes of a step, and the"
        " more room memory leaves beside it, the more overlap is worth; where it holds all GPUs, splitting it"
        " is worth nothing; average losses with"
        f" {seeds} seed{'s' * (seeds > 1)}: {'; '.join(parts)}"
    )


def generation(frame: pl.DataFrame) -> pl.DataFrame:
    """Return how much of a step generation is in the best plan of the full system, by cause and scenario.

    Returns
    -------
    polars.DataFrame
        ``scenario``, ``cause``, ``gpus`` of the cluster, ``generation_gpus``, ``generation_s``, ``step_s``.
        Where generation holds all GPUs, nothing runs beside it, and splitting it is worth nothing.
    """
    import polars as pl

    settings = {s.name: s for s in ABLATION}
    full = frame.filter((pl.col("change") == ablation.FULL) & pl.col("fits"))
    rows = []
    for (scenario, cause), found in full.group_by("scenario", "cause", maintain_order=True):
        best = found.sort("tokens_per_s", descending=True).row(0, named=True)
        problem = problem_under(settings[str(scenario)], str(cause), ablation.FULL)
        e = again(problem, best)
        n, v = next((n, v) for n, v in enumerate(problem.pipeline.invocations) if v.role == "generation")
        at, model = e.plan[v.name], problem.pipeline.model_of(n)
        time = operator_time(v.role, model, problem.workload, at, problem.cluster, problem.options)
        step_s = e.makespan_s / problem.options.steps
        rows.append((scenario, cause, problem.cluster.size, at.box.size, time.total_s, step_s))
    columns = ("scenario", "cause", "gpus", "generation_gpus", "generation_s", "step_s")
    return pl.DataFrame(rows, schema=columns, orient="row")


def cause_of_a3(frame: pl.DataFrame) -> str:
    """Say what plans with a fixed number of microbatches are worth in the full system, from the raw table."""
    rows = ablation.in_full_system(frame).filter(change="A3").drop_nulls()
    shown = "; ".join(
        f"{r['scenario']}: {r['there']:,.0f} tokens/s of {r['full']:,.0f}" for r in rows.iter_rows(named=True)
    )
    return (
        "how far a search is from done: every plan with a fixed number of microbatches is a plan of the full"
        " system too and worth the same there, so that the gain which the paper has for it in MemTight and"
        f" Hetero is what its full search missed; ours: {shown}"
    )


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Table IV, and the order of its losses under each cause."""
    causes = tables["ablation_causes"]
    a3 = cause_of_a3(tables["ablation"])
    rows = [
        replace(row, cause=a3) if isinstance(row.paper, float) and row.paper < 0 else row
        for row in ablation.compare(tables, paper, told(causes))
    ]
    lost = by_cause(causes)
    printed = {c: paper.value("table04", f"{c} loss", "average") for c in ablation.EXECUTION}
    three = {c: v for c, v in printed.items() if isinstance(v, float)}
    for cause in lost["cause"].unique(maintain_order=True):
        mean = means(lost, cause, ablation.EXECUTION)
        rows.append(Compared(f"order of A1 to A3, {cause}", "", ablation.order(mean), ablation.order(three)))
    return rows
