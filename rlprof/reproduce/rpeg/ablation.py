"""Table IV: what each mechanism of the search and of the schedule is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.planning.evaluate import Problem, evaluate
from rlprof.planning.search_options import SearchOptions
from rlprof.reproduce.compare import NOT_COMPUTED, Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rpeg.plans import constants_digest, options_document, plan_of, searched, stale_plans
from rlprof.reproduce.rpeg.problems import ABLATION, Setting
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

FULL = "full"
#: Options of the search that differ.
CHANGES: dict[str, dict[str, Any]] = {
    FULL: {},
    "A1": {},  # an option of the schedule, see `without`
    "A2": {"staleness": (0,)},
    "A3": {"search_microbatches": False},
    "A4": {"pair_probability": 0.0},
    "A5": {"warm_restarts": False},
    "A6": {"critical_probability": 0.0},
    "A7": {"polish": False},
    "A8": {"penalise_memory": False},
    "A9": {"cooling": 0.95},
}
MEANING = {
    "A1": "no splitting by response length",
    "A2": "no staleness",
    "A3": "microbatches fixed by the number of stages",
    "A4": "no donor-receiver moves",
    "A5": "no warm restarts",
    "A6": "invocations drawn uniformly",
    "A7": "no polishing",
    "A8": "plans beyond the memory rejected",
    "A9": "geometric cooling",
}
#: The paper draws all candidates alike; half of our draws are guided (rlprof.planning, docs/planning.md).
UNGUIDED = "unguided"
DRAWN_AS_PAPER = (FULL, "A7", "A9")
#: Evaluations of each search, seeds, scenarios.
PRESETS = {"smoke": (300, 1, ("MemTight",)), "full": (20_000, 5, tuple(s.name for s in ABLATION))}
#: Choices of execution; the others are mechanisms of the search.
EXECUTION = ("A1", "A2", "A3")
PRINTED = ("A1", "A2", "A3", "A7", "A9")
SMALL = ("A4", "A5", "A6", "A8")


def without(problem: Problem, change: str) -> Problem:
    """Return the problem without splitting by response length for A1, else as it is."""
    if change != "A1":
        return problem
    return replace(problem, options=replace(problem.options, split_generation=False))


def base_options(evaluations: int, seed: int, preset: str) -> SearchOptions:
    """Return the options of the full system; smoke tests do not polish."""
    return SearchOptions(evaluations=evaluations, seed=seed, staleness=(1,), polish=preset != "smoke")


def changed(base: SearchOptions, change: str, seed: int, guided: float = 0.5) -> SearchOptions:
    """Return the options with one mechanism switched off."""
    return replace(base, seed=seed, guided_probability=guided, **CHANGES[change])


def _rows(setting: Setting, change: str, guided: float, chosen: SearchOptions) -> list[dict[str, Any]]:
    row, _ = searched(without(setting.problem, change), chosen)
    facts = {"scenario": setting.name, "change": change, "guided": guided, "seed": chosen.seed}
    return [{**facts, **row}]


def study(preset: str, seed: int, _: Path) -> Study:
    """Return the study: scenarios x (full, A1 to A9) x seeds, some of them also with the paper's draws."""
    evaluations, seeds, names = PRESETS[preset]
    settings = {s.name: s for s in ABLATION if s.name in names}
    base = base_options(evaluations, seed, preset)
    cases: dict[str, Callable[[], list[dict[str, Any]]]] = {}
    for name, setting in settings.items():
        for guided in (0.5, 0.0):
            for change in CHANGES:
                for n in range(seeds):
                    chosen = changed(base, change, seed + n, guided)
                    label = f"{name}, {change}, seed {seed + n}" + ("" if guided else f", {UNGUIDED}")
                    if guided or (preset == "full" and change in DRAWN_AS_PAPER):
                        cases[label] = partial(_rows, setting, change, guided, chosen)

    def problem_of(row: Mapping[str, Any]) -> Problem:
        return without(settings[row["scenario"]].problem, row["change"])

    parameters = {
        "constants": constants_digest(),
        "search": options_document(base),
        "changes": CHANGES,
    }
    return Study(
        "rpeg/ablation", preset, seed, parameters, cases, stale=partial(stale_plans, problem_of=problem_of)
    )


def losses(frame: pl.DataFrame, guided: float = 0.5) -> pl.DataFrame:
    """Return the loss of mean throughput by scenario and change.

    Parameters
    ----------
    frame : polars.DataFrame
        The raw table.
    guided : float
        Share of guided draws of the searches that count.

    Returns
    -------
    polars.DataFrame
        ``scenario``, ``change``, ``tokens_per_s`` (mean over seeds), ``spread_frac`` (standard deviation over
        mean), ``loss_frac`` of the mean against the full system, ``best_loss_frac`` of the best seed against
        the best of the full system, ``found`` (seeds with a plan that fits).
    """
    import polars as pl

    means = (
        frame.filter(pl.col("guided") == guided)
        .group_by("scenario", "change", maintain_order=True)
        .agg(
            pl.col("tokens_per_s").mean(),
            (pl.col("tokens_per_s").std() / pl.col("tokens_per_s").mean()).alias("spread_frac"),
            pl.col("fits").sum().alias("found"),
            pl.col("tokens_per_s").max().alias("best"),
        )
    )
    full = means.filter(pl.col("change") == FULL).select(
        "scenario", pl.col("tokens_per_s").alias("full"), pl.col("best").alias("full_best")
    )
    return (
        means.join(full, on="scenario", maintain_order="left")
        .with_columns(
            (1 - pl.col("tokens_per_s") / pl.col("full")).alias("loss_frac"),
            (1 - pl.col("best") / pl.col("full_best")).alias("best_loss_frac"),
        )
        .drop("full", "best", "full_best")
        .filter(pl.col("change") != FULL)
    )


def in_full_system(frame: pl.DataFrame) -> pl.DataFrame:
    """Return what the best plan of each change is worth in the full system, whose plans include theirs.

    A search that is done finds nothing worse than any of them: what lacks is what the search of the full
    system missed, and no loss below 0 is left for A3 to A9, whose plans are worth the same there.

    Returns
    -------
    polars.DataFrame
        ``scenario``, ``change``, ``tokens_per_s`` (under the change), ``there`` (the same plan in the full
        system; null if it does not fit there), ``full`` (the best that was found of the full system).
    """
    import polars as pl

    settings = {s.name: s for s in ABLATION}
    guided = frame.filter((pl.col("guided") > 0) & pl.col("fits"))
    full = dict(
        guided.filter(pl.col("change") == FULL)
        .group_by("scenario")
        .agg(pl.col("tokens_per_s").max())
        .iter_rows()
    )
    rows = []
    for (scenario, change), found in guided.group_by("scenario", "change", maintain_order=True):
        if change != FULL:
            best = found.sort("tokens_per_s", descending=True).row(0, named=True)
            there = evaluate(settings[str(scenario)].stale_by(1), plan_of(best["plan"]))
            score = there.score if there.feasible else None
            rows.append((scenario, change, best["tokens_per_s"], score, full.get(str(scenario))))
    numbers = dict.fromkeys(("tokens_per_s", "there", "full"), pl.Float64)
    return pl.DataFrame(rows, schema={"scenario": pl.String, "change": pl.String, **numbers}, orient="row")


def averages(
    lost: pl.DataFrame, scenarios: tuple[str, ...] = ("MemTight", "Hetero", "Deep")
) -> dict[str, float]:
    """Return the mean loss of each change over scenarios; by default over those that the paper prints."""
    import polars as pl

    rows = lost.filter(pl.col("scenario").is_in(scenarios)).group_by("change").agg(pl.col("loss_frac").mean())
    return {change: float(loss) for change, loss in sorted(rows.iter_rows()) if loss is not None}


def order(by_change: Mapping[str, float], count: int = 3) -> str:
    """Return the changes with the largest losses, largest first."""
    return ", ".join(sorted(by_change, key=lambda c: -by_change[c])[:count])


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper, cause: str = "") -> list[Compared]:
    """Table IV: losses by scenario and on average, and which features dominate.

    Parameters
    ----------
    tables : mapping of str to polars.DataFrame
        With "ablation".
    paper : Paper
        Its numbers.
    cause : str
        Of the differences.
    """
    frame = tables["ablation"]
    lost = losses(frame)
    found: list[Compared] = []
    by = {(r["scenario"], r["change"]): r["loss_frac"] for r in lost.iter_rows(named=True)}
    for change in PRINTED:
        for scenario in ("MemTight", "Hetero", "Deep"):
            loss = by.get((scenario, change))
            ours = NOT_COMPUTED if loss is None else 100 * loss
            found.append(
                Compared(
                    f"{change} ({MEANING[change]}), loss in {scenario}",
                    "%",
                    ours,
                    paper.value("table04", f"{change} loss", scenario),
                    cause,
                )
            )
    mean = averages(lost)
    nothing = "no plan that fits was found with it"
    found += [
        Compared(
            f"{change}, average",
            "%",
            amount(mean.get(change), 100, nothing),
            paper.value("table04", f"{change} loss", "average"),
            cause,
        )
        for change in PRINTED
    ]
    found += [
        Compared(f"{c} ({MEANING[c]}), average", "%", amount(mean.get(c), 100, nothing), "below 1")
        for c in SMALL
    ]
    printed = {c: float(paper.number("table04", f"{c} loss", "average").value or 0) for c in PRINTED}
    found.append(Compared("the largest losses", "", order(mean), order(printed), cause))
    return found
