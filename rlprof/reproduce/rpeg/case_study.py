"""Fig 9: operators one by one, in the plans of Fig 8: slower each, and sooner done together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

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
                cause_of_parallelism(frame) if method == THROUGHPUT else "",
            )
            for which, value in (("least", values.min()), ("most", values.max()))
        ]
    found += [
        Compared(
            f"makespan saved over greedy, {which}",
            "%",
            amount(value, 100),
            paper.value("fig09", "reduction of the makespan", which),
        )
        for which, value in (("least", saved.min()), ("most", saved.max()))
    ]
    ratios = slower(operators(frame))
    generation = ratios.filter(pl.col("invocation") == "actor_generation")
    others = ratios.filter(pl.col("invocation") != "actor_generation")
    order = all(g < c < r for g, c, r in zip(*(by[m]["parallelism"].to_list() for m in SHOWN), strict=True))
    most = others.filter(pl.col("over_greedy") > 1).height > others.height / 2
    faster = generation.filter(pl.col("over_greedy") < 1)
    found += [
        Compared("P_eff: greedy < concurrent < ours, at every size", "", yes(order), "yes"),
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


def cause_of_parallelism(frame: pl.DataFrame) -> str:
    """Say at which size our plans keep more operators running than the paper's."""
    import polars as pl

    ours = frame.filter(pl.col("method") == THROUGHPUT).select("gpus", "parallelism")
    sizes = ", ".join(f"{p:.2f} on {g} GPUs" for g, p in ours.iter_rows())
    return f"size of the case, which is not legible in the paper; ours: {sizes}"


def cause_of_generation(generation: pl.DataFrame) -> str:
    """Say how generation compares with the greedy plan at each size."""
    parts = ", ".join(
        f"{r['over_greedy']:.2f} of its time on {r['held']} of {r['gpus']} GPUs"
        for r in generation.iter_rows(named=True)
    )
    return f"generation takes {parts}"
