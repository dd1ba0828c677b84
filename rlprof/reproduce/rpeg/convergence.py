"""Fig 12, left: how fast the search gets better, up to 2,048 GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.planning.baselines import concurrent_plan, synchronous
from rlprof.planning.evaluate import Problem, evaluate
from rlprof.planning.search_options import SearchOptions
from rlprof.reproduce.compare import NOT_COMPUTED, Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rpeg import stability
from rlprof.reproduce.rpeg.plans import (
    NOTHING,
    constants_digest,
    judged,
    options_document,
    searched,
    stale_plans,
)
from rlprof.reproduce.rpeg.problems import CONVERGENCE, Setting
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

#: Seconds of each search on one core, and which of the four sizes.
PRESETS = {"smoke": (2.0, 1), "full": (45.0, 4)}
INITIAL, BETTER, LAST = "initial", "better", "last"


def _rows(setting: Setting, chosen: SearchOptions) -> list[dict[str, Any]]:
    facts = {"setting": setting.name, "gpus": setting.gpus}
    plain = synchronous(setting.problem)
    first = judged(evaluate(plain, concurrent_plan(plain)))
    # a search without a result that counts: what is compiled is loaded, which is no time of a search
    searched(setting.problem, SearchOptions(evaluations=20, polish=False, staleness=(1,)))
    row, found = searched(setting.problem, chosen)
    rows: list[dict[str, Any]] = [{**facts, "kind": INITIAL, "seconds": 0.0, "seen": 0, **first}]
    for seconds, seen, score in found.history if found else ():
        better = {**NOTHING, "tokens_per_s": score, "fits": True}
        rows.append({**facts, "kind": BETTER, "seconds": seconds, "seen": seen, **better})
    last = {key: row[key] for key in NOTHING}
    spent = {"seconds": row["search_s"], "seen": row["evaluations"]}
    return [*rows, {**facts, "kind": LAST, **spent, **last}]


def study(preset: str, seed: int, _: Path) -> Study:
    """Return the study. It has a budget of time, so another run finds other plans; staleness is one step."""
    seconds, count = PRESETS[preset]
    settings = {s.name: s for s in CONVERGENCE[:count]}
    chosen = SearchOptions(seconds=seconds, seed=seed, staleness=(1,), polish=preset != "smoke")
    cases: dict[str, Callable[[], list[dict[str, Any]]]] = {
        name: partial(_rows, s, chosen) for name, s in settings.items()
    }

    def problem_of(row: Mapping[str, Any]) -> Problem:
        return settings[row["setting"]].problem

    parameters = {"constants": constants_digest(), "search": options_document(chosen)}
    return Study(
        "rpeg/convergence", preset, seed, parameters, cases, stale=partial(stale_plans, problem_of=problem_of)
    )


def relative(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the best makespan so far over that of the initial plan.

    The initial plan is the concurrent baseline, which need not fit into memory.

    Returns
    -------
    polars.DataFrame
        ``setting``, ``gpus``, ``seconds``, ``makespan_over_initial``; a last point at the end of the search.
    """
    import polars as pl

    first = frame.filter(pl.col("kind") == INITIAL).select("setting", pl.col("tokens_per_s").alias("initial"))
    return (
        frame.filter(pl.col("kind") != INITIAL, pl.col("tokens_per_s").is_not_null())
        .join(first, on="setting", maintain_order="left")
        .select(
            "setting",
            "gpus",
            "seconds",
            "tokens_per_s",
            makespan_over_initial=pl.col("initial") / pl.col("tokens_per_s"),
        )
    )


def reached(frame: pl.DataFrame, within_frac: float = 0.05) -> pl.DataFrame:
    """Return when the search came near its own end.

    Returns
    -------
    polars.DataFrame
        ``setting``, ``gpus``, ``saved_frac`` (makespan of the end below the initial one's), ``initial_fits``,
        ``near_s`` (seconds until the makespan was within `within_frac` of the end), ``search_s``.
    """
    import polars as pl

    curve = relative(frame)
    end = curve.group_by("setting", maintain_order=True).agg(
        pl.col("gpus").first(),
        (1 - pl.col("makespan_over_initial").min()).alias("saved_frac"),
        pl.col("makespan_over_initial").min().alias("end"),
        pl.col("seconds").max().alias("search_s"),
    )
    near = (
        curve.join(end.select("setting", "end"), on="setting", maintain_order="left")
        .filter(pl.col("makespan_over_initial") <= (1 + within_frac) * pl.col("end"))
        .group_by("setting")
        .agg(pl.col("seconds").min().alias("near_s"))
    )
    initial = frame.filter(pl.col("kind") == INITIAL).select("setting", pl.col("fits").alias("initial_fits"))
    return (
        end.drop("end")
        .join(near, on="setting", maintain_order="left")
        .join(initial, on="setting", maintain_order="left")
    )


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 12: makespan saved, time until it is near the end, and the spread over seeds."""
    import polars as pl

    rows = reached(tables["convergence"])
    seconds = math.ceil(float(rows["search_s"].max() or 0))  # type: ignore[arg-type]
    unfit = rows.filter(~pl.col("initial_fits"))["setting"].to_list()
    cause = (
        "the initial plan: the paper does not say which it is; ours is the concurrent baseline"
        + (f", which does not fit into memory for {', '.join(unfit)}" if unfit else "")
        + "; batch and lengths are not printed either"
    )
    found = [
        Compared(
            f"makespan saved over the initial plan, {which}",
            "%",
            amount(value, 100),
            paper.value("fig12", "reduction of the makespan over the initial plan", which),
            cause,
        )
        for which, value in (("least", rows["saved_frac"].min()), ("most", rows["saved_frac"].max()))
    ]
    largest = rows.filter(pl.col("gpus") == 2048)["near_s"]
    found.append(
        Compared(
            f"time until within 5 % of the result of {seconds} s, 2,048 GPUs (paper: of an hour)",
            "s",
            amount(largest[0] if len(largest) else None, missing=NOT_COMPUTED.reason),
            300.0,
            f"budget: one core for {seconds} s here, six cores for 3,600 s there",
        )
    )
    return found + stability.compare_spread(tables, paper)
