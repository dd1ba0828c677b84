"""Section 5.4: what optimising costs, and after how many iterations it is paid back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rose.results import (
    PAPER_SIMULATORS,
    Document,
    documents,
    facts,
    is_optimisation,
    is_rollout_quota,
    on_gpu,
    optimisation_study,
    outcome,
    set_up,
    stored_study,
)
from rlprof.reproduce.rose.rounds import rounds_decided, rounds_not_accepted, with_decisions
from rlprof.reproduce.study import Study
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

PARTS = ("training that counts", "net overhead", "quota search")
#: What an optimisation took, and an iteration by what it found gains.
SPENT = ("total_s", "retained_training_s", "net_s", "gain_s")
#: Steps of `benchmarks.gpu.rollout_quota` that are its search; each pass is named by its levels too.
QUOTA_STEPS = ("levels", "pair", "sweep", "fine")
NOT_STORED = Unavailable("no optimisation is stored")
#: Length of a complete run in iterations, and of the paper's iterations in seconds (85,727 s / 252).
ITERATIONS, PAPER_ITERATION_S = 250, 340.0


def overhead_rows(file: str, document: Document) -> list[dict[str, Any]]:
    """Return one row for an optimisation: seconds in all, retained, net; gain of an iteration; decisions.

    ``iteration_s`` is the median of complete iterations by the selected graph, or of the best order that ran
    where nothing was selected; ``quota_s`` what finding levels and a quota took, which is not in the others.
    A search of the rollout's quota by itself is a row too: it has ``quota_s`` alone, and `searches_alone`.
    """
    if is_rollout_quota(document):
        return _quota_rows(file, document)
    found = document.get("optimisation")
    if not isinstance(found, dict) or "overhead" not in found:
        return []
    spent, steps = found["overhead"], document.get("steps", {})
    quota = [steps[n]["seconds"] for n in ("levels", "quotas") if steps.get(n, {}).get("ok")]
    return [
        {
            **facts(file, document),
            **outcome(document),
            "rounds": rounds_decided(document),
            "not_accepted": rounds_not_accepted(document),
            "stopped": found.get("stopped"),
            "iteration_s": _iteration_s(found),
            **{name: spent.get(name) for name in SPENT},
            "paid_back_after_iterations": spent.get("paid_back_after_iterations"),
            "quota_s": sum(quota) if quota else None,
        }
    ]


def _quota_rows(file: str, document: Document) -> list[dict[str, Any]]:
    """The row of a search of the rollout's quota by itself: no graph was searched, no iteration trained."""
    found, steps = document.get("quotas") or {}, document.get("steps", {})
    taken = [
        step["seconds"]
        for name, step in steps.items()
        if name.partition("_")[0] in QUOTA_STEPS and "seconds" in step
    ]
    if not found.get("search") or not taken:
        return []
    ended = (
        "a search of the rollout's quota by itself, not within that of a graph:"
        f" {len(found.get('sweep') or ())} levels, without a complete iteration"
    )
    if "seconds" in (build := steps.get("build", {})):
        ended += f"; building the program took {build['seconds']:.3g} s, apart"
    nothing = ("stopped", "iteration_s", *SPENT, "paid_back_after_iterations")
    return [
        {
            **facts(file, document),
            **outcome(document),
            "ended": ended,
            **dict.fromkeys(nothing),
            "quota_s": sum(taken),
        }
    ]


def searches_alone(row: Mapping[str, Any]) -> bool:
    """Whether a row is of a search of the rollout's quota by itself."""
    return row["rounds"] is None


def _iteration_s(found: Mapping[str, Any]) -> float | None:
    by_graph: dict[str, list[float]] = {}
    for one in found.get("iterations", ()):
        by_graph.setdefault(one["graph"], []).append(one["time_s"])
    return min((median(times) for times in by_graph.values()), default=None)


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of stored optimisations: on a GPU (and quota searches), or on a processor."""

    def wanted(document: Document) -> bool:
        known = is_optimisation(document) or is_rollout_quota(document)
        return known and on_gpu(document) and bool(overhead_rows("", document))

    if preset == "h200" and (stored := documents(checkout, wanted)):
        return stored_study("rose/overhead", preset, seed, with_decisions(stored, checkout), overhead_rows)
    return optimisation_study("rose/overhead", preset, seed, checkout, overhead_rows)


def shares(frame: pl.DataFrame) -> pl.DataFrame | Unavailable:
    """Return the net overhead as a share of complete runs.

    Returns
    -------
    polars.DataFrame or Unavailable
        ``file``, ``workload``, ``mps``, ``net_s``, ``quota_s``, ``of_own_run`` (of 250 iterations of the
        order that was found), ``of_papers_run`` (of 250 iterations of 340 s), ``paid_back_after_iterations``.
    """
    import polars as pl

    if frame.is_empty():
        return NOT_STORED
    # a table of quota searches alone has columns without a number
    frame = frame.with_columns(pl.col("net_s", "iteration_s", "paid_back_after_iterations").cast(pl.Float64))
    return frame.select(
        "file",
        "workload",
        "mps",
        "net_s",
        "quota_s",
        (pl.col("net_s") / (ITERATIONS * pl.col("iteration_s"))).alias("of_own_run"),
        (pl.col("net_s") / (ITERATIONS * PAPER_ITERATION_S)).alias("of_papers_run"),
        "paid_back_after_iterations",
    )


def spent_rows(frame: pl.DataFrame, paper: Paper) -> pl.DataFrame | Unavailable:
    """Return where the time of optimising went, ours and the paper's.

    Returns
    -------
    polars.DataFrame or Unavailable
        ``run``, ``what`` ("training that counts", "net overhead", "quota search"), ``seconds``.
    """
    import polars as pl

    if frame.is_empty():
        return NOT_STORED
    rows: list[tuple[str, str, float]] = []
    for run, r in _labelled(frame):
        parts = (r["retained_training_s"], r["net_s"], r["quota_s"])
        rows += [(run, what, s) for what, s in zip(PARTS, parts, strict=True) if s is not None]
    for name in dict.fromkeys(PAPER_SIMULATORS[s] for s in frame["simulator"] if s in PAPER_SIMULATORS):
        for what, series in zip(PARTS, ("retained training", "net overhead"), strict=False):
            value = paper.value("overhead", series, name)
            if isinstance(value, float):
                rows.append((f"paper, {name}", what, value))
    return pl.DataFrame(
        rows, schema={"run": pl.String, "what": pl.String, "seconds": pl.Float64}, orient="row"
    )


def _labelled(frame: pl.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """Rows with a name for each run: what it optimised, and its file where several did the same."""
    rows = list(frame.iter_rows(named=True))
    labels = [
        f"{r['workload']}{', MPS' if r['mps'] else ''}{', a quota by itself' if searches_alone(r) else ''}"
        for r in rows
    ]
    return [
        (f"{label}, {Path(r['file']).stem}" if labels.count(label) > 1 else label, r)
        for label, r in zip(labels, rows, strict=True)
    ]


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Section 5.4: optimising in all, net, and its share of a complete run."""
    frame = tables["overhead"]
    table = shares(frame)
    if isinstance(table, Unavailable):
        return _compared("LIBERO", {}, paper, "LIBERO", table.reason)
    found: list[Compared] = []
    for (label, whole), share in zip(_labelled(frame), table.iter_rows(named=True), strict=True):
        name = PAPER_SIMULATORS.get(whole["simulator"])
        if name is None:
            continue
        found += _compared(label, {**whole, **share}, paper, name, _cause(whole))
    return found


def _compared(label: str, row: Mapping[str, Any], paper: Paper, name: str, why: str) -> list[Compared]:
    missing = why if not row else "it is not known"
    printed = paper.value("overhead", "net overhead of the run", name)
    apart = Unavailable("there it is part of the net overhead")
    none = Unavailable("the paper searches quotas for ManiSkill alone")

    def one(what: str, unit: str, column: str, scale: float, theirs: float | Unavailable) -> Compared:
        return Compared(f"{label}: {what}", unit, amount(row.get(column), scale, missing), theirs, why)

    rows = [
        one("optimisation in all", "s", "total_s", 1, paper.value("overhead", "optimisation in all", name)),
        one(
            "training that counts",
            "s",
            "retained_training_s",
            1,
            paper.value("overhead", "retained training", name),
        ),
        one("net overhead", "s", "net_s", 1, paper.value("overhead", "net overhead", name)),
        one(f"net, of {ITERATIONS} of our iterations", "%", "of_own_run", 100, printed),
        one(
            f"net, of {ITERATIONS} iterations of {PAPER_ITERATION_S:.0f} s",
            "%",
            "of_papers_run",
            100,
            printed,
        ),
    ]
    if row.get("quota_s") is not None:
        search = one("quota search, apart", "s", "quota_s", 1, apart if name == "ManiSkill" else none)
        rows = [search] if searches_alone(row) else [*rows, search]
    return rows


def _cause(row: Mapping[str, Any]) -> str:
    """What differs, and what the optimiser found."""
    if searches_alone(row):
        return f"{set_up(row)}; {row['ended']}"
    text = f"{set_up(row)}; {row['accepted']} of {row['rounds']} rounds accepted, {row['ended']}"
    if row["not_accepted"] and row["not_accepted"] not in str(row["ended"]):
        text += f"; {row['not_accepted']}"
    if row["iteration_s"] is not None:
        text += f"; an iteration takes {row['iteration_s']:.3g} s here, {PAPER_ITERATION_S:.0f} s there"
    paid = row["paid_back_after_iterations"]
    return text + ("; nothing was gained" if paid is None else f"; paid back after {paid:.0f} iterations")
