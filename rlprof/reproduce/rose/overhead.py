"""Section 5.4: what optimising costs, and after how many iterations it is paid back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rose.results import Document, documents, facts, on_gpu, stored_study
from rlprof.reproduce.rose.schedules import PAPER_SIMULATORS
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

#: Length of a complete run in iterations, and of the paper's iterations in seconds (85,727 s / 252).
ITERATIONS, PAPER_ITERATION_S = 250, 340.0


def overhead_rows(file: str, document: Document) -> list[dict[str, Any]]:
    """Return one row for an optimisation: seconds in all, retained, net; gain of an iteration; decisions."""
    found = document.get("optimisation")
    if not isinstance(found, dict) or "overhead" not in found:
        return []
    spent = found["overhead"]
    iterations = [i["time_s"] for i in found.get("iterations", ())]
    return [
        {
            **facts(file, document),
            "rounds": len(found.get("rounds", ())),
            "accepted": sum(bool(r["accepted"]) for r in found.get("rounds", ())),
            "steps": "; ".join(found.get("steps", ())),
            "ended": found.get("ended"),
            "iteration_s": min(iterations) if iterations else None,
            **{name: spent.get(name) for name in ("total_s", "retained_training_s", "net_s", "gain_s")},
            "paid_back_after_iterations": spent.get("paid_back_after_iterations"),
        }
    ]


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of stored optimisations; a small one here would say nothing about the cost."""
    stored = documents(checkout, lambda d: on_gpu(d) and bool(overhead_rows("", d)))
    return stored_study("rose/overhead", preset, seed, stored, overhead_rows)


def shares(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the net overhead as a share of complete runs.

    Returns
    -------
    polars.DataFrame
        ``simulator``, ``net_s``, ``of_own_run`` (of 250 iterations as fast as the best one here),
        ``of_papers_run`` (of 250 iterations of 340 s).
    """
    import polars as pl

    return frame.select(
        "file",
        "simulator",
        "net_s",
        (pl.col("net_s") / (ITERATIONS * pl.col("iteration_s"))).alias("of_own_run"),
        (pl.col("net_s") / (ITERATIONS * PAPER_ITERATION_S)).alias("of_papers_run"),
        "paid_back_after_iterations",
    )


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Section 5.4: net overhead, and its share of a complete run."""
    found: list[Compared] = []
    for r in shares(tables["overhead"]).iter_rows(named=True):
        name = PAPER_SIMULATORS.get(r["simulator"])
        if name is None:
            continue
        why = (
            "shorter iterations: ours and the paper's differ in program and size; quota trials are apart here"
        )
        share = paper.value("overhead", "net overhead of the run", name)
        found += [
            Compared(
                f"{r['simulator']}: net overhead",
                "s",
                amount(r["net_s"]),
                paper.value("overhead", "net overhead", name),
                why,
            ),
            Compared(
                f"{r['simulator']}: of {ITERATIONS} of our iterations",
                "%",
                amount(r["of_own_run"], 100),
                share,
                why,
            ),
            Compared(
                f"{r['simulator']}: of {ITERATIONS} iterations of {PAPER_ITERATION_S:.0f} s",
                "%",
                amount(r["of_papers_run"], 100),
                share,
                why,
            ),
        ]
    return found
