"""Fig 9: operators one by one, in the plans of Fig 8: slower each, and sooner done together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rlprof.planning.candidates import directories
from rlprof.planning.evaluate import Evaluation
from rlprof.reproduce.compare import Compared, amount, yes
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rpeg.plans import again
from rlprof.reproduce.rpeg.problems import strong_scaling
from rlprof.reproduce.rpeg.strong_scaling import study as strong_study
from rlprof.reproduce.rpeg.weak_scaling import CONCURRENT, GREEDY, THROUGHPUT
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

SHOWN = (GREEDY, CONCURRENT, THROUGHPUT)
#: Eight GPUs hold no plan at all.
LEAST_GPUS = 16
GENERATION = "actor_generation"


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the strong-scaling study: its plans are looked into."""
    return strong_study(preset, seed, checkout)


def evaluations(frame: pl.DataFrame, gpus: int) -> dict[str, Evaluation]:
    """Evaluate the plans for so many GPUs anew, by method.

    Parameters
    ----------
    frame : polars.DataFrame
        The raw table of the strong-scaling study.
    gpus : int
        One of its sizes.
    """
    import polars as pl

    rows = frame.filter((pl.col("gpus") == gpus) & pl.col("plan").is_not_null())
    by_method = {row["method"]: row for row in rows.iter_rows(named=True)}
    problem = strong_scaling(gpus).problem
    return {m: again(problem, by_method[m]) for m in SHOWN if m in by_method}


def operators(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the time of every invocation in a step, by size and method.

    Returns
    -------
    polars.DataFrame
        ``gpus``, ``method``, ``invocation``, ``held`` (GPUs that it runs on), ``seconds``.
    """
    import polars as pl

    rows = []
    for gpus in sorted(frame["gpus"].unique()):
        if gpus < LEAST_GPUS:
            continue
        for method, e in evaluations(frame, gpus).items():
            names = [v.name for v in e.problem.pipeline.invocations]
            seconds = dict.fromkeys(names, 0.0)
            for n, node in enumerate(e.graph.nodes):
                if node.kind == "op" and node.step == 0:
                    seconds[names[node.vertex]] += e.timeline.finish_s[n] - e.timeline.start_s[n]
            rows += [(gpus, method, name, e.plan[name].box.size, s) for name, s in seconds.items()]
    schema = ["gpus", "method", "invocation", "held", "seconds"]
    return pl.DataFrame(rows, schema=schema, orient="row")


def slower(times: pl.DataFrame) -> pl.DataFrame:
    """Return how long each invocation of our plans takes, over its time in the greedy plan.

    Returns
    -------
    polars.DataFrame
        ``gpus``, ``invocation``, ``held``, ``over_greedy`` (above 1: slower).
    """
    import polars as pl

    greedy = times.filter(pl.col("method") == GREEDY).select(
        "gpus", "invocation", pl.col("seconds").alias("greedy_s")
    )
    return (
        times.filter(pl.col("method") == THROUGHPUT)
        .join(greedy, on=["gpus", "invocation"], maintain_order="left")
        .select("gpus", "invocation", "held", (pl.col("seconds") / pl.col("greedy_s")).alias("over_greedy"))
    )


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 9: effective parallelism, makespan, and which operators are slower than under greedy."""
    import polars as pl

    frame = tables["strong_scaling"].filter(pl.col("gpus") >= LEAST_GPUS)
    by = {m: frame.filter(pl.col("method") == m) for m in SHOWN}
    saved = 1 - by[THROUGHPUT]["makespan_s"] / by[GREEDY]["makespan_s"]
    cause = cause_of_size(frame)
    found = [
        Compared(
            "P_eff, greedy",
            "1",
            amount(by[GREEDY]["parallelism"].mean()),
            paper.value("fig09", "P_eff", "greedy"),
        )
    ]
    for label, method, series in (("concurrent", CONCURRENT, "concurrent"), ("rlprof", THROUGHPUT, "RPEG")):
        values = by[method]["parallelism"]
        found += [
            Compared(
                f"P_eff, {label}, {which}",
                "1",
                amount(value),
                paper.value("fig09", "P_eff", f"{series}, {which}"),
                cause,
            )
            for which, value in (("least", values.min()), ("most", values.max()))
        ]
    found += [
        Compared(
            f"makespan saved over greedy, {which}",
            "%",
            amount(value, 100),
            paper.value("fig09", "reduction of the makespan", which),
            cause,
        )
        for which, value in (("least", saved.min()), ("most", saved.max()))
    ]
    ratios = slower(operators(frame))
    generation = ratios.filter(pl.col("invocation") == GENERATION)
    others = ratios.filter(pl.col("invocation") != GENERATION)
    every = {fits: in_order(frame, fitting=fits) for fits in (False, True)}
    most = others.filter(pl.col("over_greedy") > 1).height > others.height / 2
    faster = generation.filter(pl.col("over_greedy") < 1)
    found += [
        Compared("P_eff: greedy < concurrent < ours, where all of them fit", "", yes(every[True]), "yes"),
        Compared("P_eff: greedy < concurrent < ours, at every size", "", yes(every[False]), "yes", cause),
        Compared("most operators but generation are slower than under greedy", "", yes(most), "yes"),
        Compared(
            "generation is faster than under greedy, on fewer GPUs, at some size",
            "",
            yes(faster.filter(pl.col("held") < pl.col("gpus")).height > 0),
            "yes",
            cause_of_generation(generation),
        ),
    ]
    return found


def in_order(frame: pl.DataFrame, *, fitting: bool) -> bool:
    """Return whether P_eff grows from the greedy over the concurrent baseline to ours, at each size.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of the strong-scaling study, of sizes with a plan.
    fitting : bool
        Only sizes at which all three fit into memory.
    """
    import polars as pl

    shown = frame.filter(pl.col("method").is_in(SHOWN))
    by_size = [
        {r["method"]: r for r in part.iter_rows(named=True)}
        for _, part in shown.group_by("gpus", maintain_order=True)
    ]
    compared = [rows for rows in by_size if not fitting or all(r["fits"] for r in rows.values())]
    return bool(compared) and all(
        a["parallelism"] < b["parallelism"] for rows in compared for a, b in pairwise(rows[m] for m in SHOWN)
    )


def cause_of_size(frame: pl.DataFrame) -> str:
    """Say what each size has: the paper's case, and its size, is not legible."""
    import polars as pl

    by = {m: frame.filter(pl.col("method") == m).sort("gpus") for m in SHOWN}
    saved = 1 - by[THROUGHPUT]["makespan_s"] / by[GREEDY]["makespan_s"]
    values = zip(
        by[THROUGHPUT]["gpus"],
        *(by[m]["parallelism"] for m in (CONCURRENT, THROUGHPUT)),
        saved,
        by[GREEDY]["fits"],
        strict=True,
    )
    sizes = "; ".join(
        f"{gpus} GPUs: P_eff {p:.2f} (concurrent {c:.2f}), {100 * s:.1f} % saved"
        f"{'' if fits else ', greedy does not fit'}"
        for gpus, c, p, s, fits in values
    )
    return f"size of the case, which is not legible in the paper; ours: {sizes}"


def fastest_generation(gpus: int) -> dict[int, float]:
    """Return the least time of generation in a step by the GPUs that it runs on, over that on all of them.

    Parameters
    ----------
    gpus : int
        Size of the cluster.
    """
    found = directories(strong_scaling(gpus).problem)
    (generation,) = (d for d in found if d.invocation == GENERATION)
    best: dict[int, float] = {}
    for c in generation.candidates:
        best[c.gpus] = min(best.get(c.gpus, math.inf), c.time_s)
    return {held: s / best[max(best)] for held, s in sorted(best.items())}


def cause_of_generation(generation: pl.DataFrame) -> str:
    """Say that no strategy on fewer GPUs generates faster than the greedy plan, or which does."""
    parts = []
    for gpus in generation["gpus"]:
        over = fastest_generation(gpus)
        fewer = {held: r for held, r in over.items() if held < gpus}
        held = min(fewer, key=lambda h: fewer[h])
        parts.append(f"{fewer[held]:.2f} of the time on {held} of {gpus} GPUs")
    return (
        "the greedy baseline here takes the fastest of all strategies, in the paper a feasible one; the"
        f" fastest generation on fewer GPUs takes {', '.join(parts)}"
    )
