"""Fig 8: one problem on more and more GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.planning.evaluate import Problem
from rlprof.planning.search_options import SearchOptions
from rlprof.reproduce.compare import NOT_COMPUTED, Compared, amount, yes
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rpeg.causes import (
    AS_IS,
    cause_of_8_gpus,
    cause_of_advantage,
    cause_of_throughput,
    fitting_on_8,
)
from rlprof.reproduce.rpeg.plans import constants_digest, options_document, stale_plans
from rlprof.reproduce.rpeg.problems import STRONG_GPUS, strong_scaling
from rlprof.reproduce.rpeg.weak_scaling import GREEDY, THROUGHPUT, methods, options
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

#: Evaluations of each search, and numbers of GPUs.
PRESETS = {"smoke": (600, (8, 16)), "full": (60_000, STRONG_GPUS)}


def _rows(gpus: int, chosen: SearchOptions) -> list[dict[str, Any]]:
    return [{"gpus": gpus, **row} for row in methods(strong_scaling(gpus).problem, chosen)]


def study(preset: str, seed: int, _: Path) -> Study:
    """Return the study."""
    evaluations, counts = PRESETS[preset]
    chosen = options(evaluations, seed, preset)
    cases: dict[str, Callable[[], list[dict[str, Any]]]] = {
        strong_scaling(gpus).name: partial(_rows, gpus, chosen) for gpus in counts
    }

    def problem_of(row: Mapping[str, Any]) -> Problem:
        return strong_scaling(row["gpus"]).problem

    parameters = {"constants": constants_digest(), "search": options_document(chosen)}
    return Study(
        "rpeg/strong_scaling",
        preset,
        seed,
        parameters,
        cases,
        stale=partial(stale_plans, problem_of=problem_of),
    )


def advantage(frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``gpus``, ``method``, ``tokens_per_s`` and ``fits``, and the advantage over the greedy baseline.

    Returns
    -------
    polars.DataFrame
        With ``advantage_frac`` (null for what does not fit). The greedy throughput counts whether it fits or
        not.
    """
    import polars as pl

    greedy = frame.filter(pl.col("method") == GREEDY).select(
        "gpus", pl.col("tokens_per_s").alias("greedy_tokens_per_s"), pl.col("fits").alias("greedy_fits")
    )
    over = pl.col("tokens_per_s") / pl.col("greedy_tokens_per_s") - 1
    return (
        frame.select("gpus", "method", "tokens_per_s", "utilisation_frac", "fits", "memory_ratio")
        .join(greedy, on="gpus", maintain_order="left")
        .with_columns(pl.when("fits").then(over).alias("advantage_frac"))
    )


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 8: throughput at both ends, advantage over greedy, and what fits on eight GPUs."""
    import polars as pl

    rows = advantage(tables["strong_scaling"])
    ours = rows.filter(pl.col("method") == THROUGHPUT)
    from_16 = ours.filter(pl.col("gpus") >= 16)["advantage_frac"].drop_nulls()
    greedy_8 = rows.filter((pl.col("gpus") == 8) & (pl.col("method") != THROUGHPUT))
    baselines = greedy_8.filter(pl.col("method").is_in(["greedy", "concurrent"]))["fits"].any()
    causes = tables["strong_scaling_causes"]
    found: list[Compared] = []
    for gpus in (8, 128):
        there = ours.filter((pl.col("gpus") == gpus) & pl.col("fits"))["tokens_per_s"]
        value = amount(
            there[0] if len(there) else None, missing=f"no plan that fits on {gpus} GPUs was found"
        )
        cause = cause_of_8_gpus(causes) if gpus == 8 else cause_of_throughput(causes, AS_IS, gpus)
        found.append(
            Compared(
                f"throughput on {gpus} GPUs",
                "tokens/s",
                value,
                paper.value("fig08", "throughput", str(gpus)),
                cause,
            )
        )
    found += [
        Compared(
            f"throughput on 8 GPUs, {change}",
            "tokens/s",
            tokens_per_s,
            paper.value("fig08", "throughput", "8"),
            cause_of_throughput(causes, change, 8),
        )
        for change, tokens_per_s in fitting_on_8(causes).items()
    ]
    found.append(
        Compared("baselines fit on 8 GPUs", "", yes(bool(baselines)), "no"),
    )
    for which, most in (("least", from_16.min()), ("most", from_16.max())):
        found.append(
            Compared(
                f"{which} advantage over greedy from 16 GPUs on",
                "%",
                amount(most, 100),
                paper.value("fig08", f"{which} advantage over greedy from 16 GPUs on"),
                cause_of_advantage(causes),
            )
        )
    grows = yes(all(b >= a for a, b in pairwise(from_16))) if len(from_16) > 1 else NOT_COMPUTED
    ours_by_size = ", ".join(
        f"{r['gpus']} GPUs {r['advantage_frac']:+.1%}"
        for r in ours.filter((pl.col("gpus") >= 16) & pl.col("advantage_frac").is_not_null()).iter_rows(
            named=True
        )
    )
    cause = f"{ours_by_size}; {cause_of_advantage(causes)}"
    found.append(Compared("the advantage grows with every doubling", "", grows, "yes", cause))
    return found
