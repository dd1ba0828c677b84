"""Fig 11 and Table 2: complete iterations under each schedule, and of optimised graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rose.alone import by_workload
from rlprof.reproduce.rose.causes import by_hand, drift, measured
from rlprof.reproduce.rose.others import not_measured
from rlprof.reproduce.rose.results import (
    PAPER_SIMULATORS,
    Document,
    facts,
    measured_study,
    on_gpu,
    order,
    paper_name,
    set_up,
    simulator_of,
    with_run,
)
from rlprof.reproduce.study import Study
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

#: Schedules of today's systems; `native` is the colocated loop of a program whose calls are recorded.
BASELINES = ("colocated", "native", "colocated-pipe", "hybrid", "hybrid-pipe")
#: Why there is no figure.
NONE = "nothing but today's schedules ran"
OPTIMISED, ONE_ROUND, WITH_QUOTA = "optimised", "round 1", "with quota"
#: What runs with `simulator_cores` differ in, and what their orders are called that leave it away.
TURNS, SHARED = "turns on the cores", "cores shared"
#: What the paper finds best of RLinf's schedules.
PAPER_BEST = {"LIBERO": "colocated-pipe", "ManiSkill": "colocated"}


def iteration_rows(file: str, document: Document) -> list[dict[str, Any]]:
    """Return one row for each complete iteration that counts: warm-ups and short ones are left out.

    ``active_frac`` is the mean SM activity of the iteration; null where it was not measured. ``withdrawn``
    says why an iteration does not count after all; null if it does.
    """
    rows = []
    withdrawn = document.get("withdrawn") or {}
    for found in document.get("iterations", ()):
        if found["warm_up"] or found.get("short"):
            continue
        active = found.get("activity")
        active_frac = active.get("iteration") if isinstance(active, dict) else found.get("sm_activity")
        phases = {f"{name}_s": value for name, value in sorted(found["phases_s"].items())}
        rows.append(
            {
                **facts(file, document),
                "variant": order(document, found["variant"]),
                "schedule": found.get("schedule"),
                "wall_s": found["wall_s"],
                "steps_per_s": found["simulator_steps_per_s"],
                "active_frac": active_frac,
                "differences": len(found.get("semantic_differences") or ()),
                "withdrawn": withdrawn.get(found["variant"]),
                **phases,
            }
        )
    return rows


def is_todays(variant: str) -> bool:
    """Whether a variant is one of today's schedules, with levers that any schedule may have or without.

    ``"colocated-pipe+graph"`` is one, and so is ``"native, egl-one:2"``, whose images are drawn elsewhere.
    """
    return variant.partition(",")[0].partition("+")[0] in BASELINES


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of stored runs with complete iterations, or of a small run here."""

    def wanted(document: Document) -> bool:
        return on_gpu(document) and bool(iteration_rows("", document))

    return measured_study("rose/schedules", preset, seed, checkout, wanted, iteration_rows, "schedules")


def by_variant(frame: pl.DataFrame) -> pl.DataFrame:
    """Return medians over iterations of each variant that was not withdrawn, run by run.

    Returns
    -------
    polars.DataFrame
        ``file``, ``workload``, ``setup``, ``mps``, ``simulator_cores``, ``same_iteration``, ``run`` (its
        conditions), ``variant``, ``iterations``,
        ``steps_per_s`` (median), ``least``, ``most``, ``active_frac`` (mean SM activity), ``differences`` (of
        the semantic record), ``over_best``: throughput over that of the best of today's schedules in the same
        run; null where it ran none.
    """
    import polars as pl

    rate = pl.col("steps_per_s")
    counted = with_run(frame).filter(pl.col("withdrawn").is_null())
    keys = ("file", "workload", "setup", "mps", "simulator_cores", "same_iteration", "run", "variant")
    table = counted.group_by(*keys, maintain_order=True).agg(
        pl.len().alias("iterations"),
        rate.median().alias("steps_per_s"),
        rate.min().alias("least"),
        rate.max().alias("most"),
        pl.col("active_frac").mean(),
        pl.col("differences").sum(),
    )
    best = table.filter(_drawn_as(BASELINES)).group_by("file").agg(rate.max().alias("best"))
    return (
        table.join(best, on="file", how="left", maintain_order="left")
        .with_columns((rate / pl.col("best")).alias("over_best"))
        .drop("best")
    )


def _drawn_as(variants: tuple[str, ...]) -> pl.Expr:
    """One of these variants, wherever its images are drawn."""
    import polars as pl

    return pl.col("variant").str.split(",").list.first().is_in(variants)


def best_schedule(table: pl.DataFrame, workload: str, file: str | None = None) -> dict[str, Any] | None:
    """Return the fastest of today's schedules, in one run or without MPS in any; None if none ran."""
    import polars as pl

    where = ~pl.col("mps") if file is None else pl.col("file") == file
    rows = table.filter(pl.col("workload") == workload, where, pl.col("variant").is_in(BASELINES))
    return rows.sort("steps_per_s", descending=True).row(0, named=True) if rows.height else None


def best_with_or_without_mps(
    table: pl.DataFrame, most: Mapping[str, Any]
) -> tuple[dict[str, Any], str] | Unavailable:
    """Return the fastest of today's schedules of the same set-up, with an MPS daemon or without.

    Parameters
    ----------
    table : polars.DataFrame
        As `by_variant` gives it.
    most : mapping
        Row of what is compared with it, of a run under MPS.

    Returns
    -------
    tuple of dict and str, or Unavailable
        The row, and what is to be said of it. Unavailable where no run without MPS is stored.
    """
    import polars as pl

    rows = table.filter(pl.col("setup") == most["setup"], pl.col("variant").is_in(BASELINES))
    if not rows.filter(~pl.col("mps")).height:
        return Unavailable("no run of the same workload without MPS is stored")
    best = rows.sort("steps_per_s", descending=True, maintain_order=True).row(0, named=True)
    daemon = "under the same daemon" if best["mps"] else "without a daemon"
    text = f"the best of today's schedules, {called(best)}, is of {best['file']}, {daemon}"
    return best, text + drift(most, best)


def variant_row(table: pl.DataFrame, workload: str, variant: str, *, mps: bool) -> dict[str, Any] | None:
    """Return one variant of a workload, of its last run; None if it did not run."""
    import polars as pl

    rows = table.filter(pl.col("workload") == workload, pl.col("variant") == variant, pl.col("mps") == mps)
    return rows.row(-1, named=True) if rows.height else None


def fastest(table: pl.DataFrame, workload: str) -> dict[str, Any] | None:
    """Return the variant, none of today's, whose gain over the best of those in its own run says most.

    That is one with most iterations, of these an optimised one, one beside most of today's schedules (the
    best of few may be none of the best), and the one that gains most, in this order.
    """
    import polars as pl

    beside_it = (
        table.filter(pl.col("workload") == workload, _drawn_as(BASELINES))
        .group_by("file")
        .agg(pl.col("variant").n_unique().alias("of_todays"))
    )
    rows = table.filter(
        pl.col("workload") == workload,
        pl.col("over_best").is_not_null(),
        ~_drawn_as(BASELINES),
    ).join(beside_it, on="file", how="left", maintain_order="left")
    optimised = pl.col("variant") == OPTIMISED
    order = ("iterations", optimised, "of_todays", "over_best")
    most = rows.sort(*order, descending=True, maintain_order=True)
    return most.drop("of_todays").row(0, named=True) if most.height else None


def called(row: Mapping[str, Any]) -> str:
    """Name of a variant for people."""
    turns = row["simulator_cores"] and SHARED not in row["variant"]
    words = [row["variant"].replace("native", "colocated", 1)]
    return ", ".join([*words, *[TURNS] * bool(turns), *["MPS"] * bool(row["mps"])])


def beside(table: pl.DataFrame, most: Mapping[str, Any], reasons: pl.DataFrame | None) -> str:
    """Say what the gain of a variant is over: iterations, which of today's schedules ran in the same run."""
    import polars as pl

    ran = table.filter(pl.col("file") == most["file"], _drawn_as(BASELINES))
    best = ran.sort("steps_per_s", descending=True, maintain_order=True).row(0, named=True)
    count = ran["variant"].str.split(",").list.first().n_unique()
    among = f"best of {count}" if count > 1 else "only one"
    return (
        f"; median of {most['iterations']} over that of {best['iterations']} iterations of {called(best)},"
        f" the {among} of today's schedules in {Path(most['file']).stem}"
        + by_hand(reasons, most["workload"], most["file"], cores=most["simulator_cores"])
    )


def withdrawn(frame: pl.DataFrame, workload: str) -> str:
    """Say which variants were withdrawn and why; empty if none was."""
    reasons: dict[str, list[str]] = {}
    for row in frame.iter_rows(named=True):
        if row["workload"] == workload and row["withdrawn"]:
            variants = reasons.setdefault(row["withdrawn"], [])
            variants += [row["variant"]] if row["variant"] not in variants else []
    return "".join(f"; withdrawn: {' and '.join(names)}, {why}" for why, names in reasons.items())


def cause(frame: pl.DataFrame, workload: str) -> str:
    """Say what differs from the paper's set-up, and what was withdrawn, from the raw table."""
    rows = [r for r in frame.iter_rows(named=True) if r["workload"] == workload]
    if not rows:
        return ""
    return set_up(rows[-1]) + withdrawn(frame, workload)


def cause_of_halves(alone: pl.DataFrame, workload: str, table: pl.DataFrame) -> str:
    """Say what splitting the batch into two groups costs, from parts alone, or from complete iterations.

    Parameters
    ----------
    alone : polars.DataFrame
        Parts that were measured alone.
    workload : str
        Its name.
    table : polars.DataFrame
        Complete iterations, as `by_variant` gives them.
    """
    parts = by_workload(alone).get((workload, False), {})
    serial, halves = parts.get("serial"), parts.get("two groups, overlapped")
    if serial is None or halves is None:
        return _halves_in_iterations(table, workload)
    told = (
        f"a chunk takes {halves:.2f} s with halves of the batch that overlap, {serial:.2f} s one after the"
        " other"
    )
    if halves <= serial:
        return f"two groups: {told}"
    return (
        f"what two groups cost: {told} with all of it; half of a batch does not take half the time where the"
        " host launches kernels more slowly than they run"
    )


def _halves_in_iterations(table: pl.DataFrame, workload: str) -> str:
    """What halves of a batch cost, by `colocated-pipe` beside `colocated` of the same run."""
    rates: dict[str, dict[str, float]] = {}
    for row in table.iter_rows(named=True):
        if row["workload"] == workload:
            rates.setdefault(row["file"], {})[row["variant"].replace("native", "colocated")] = row[
                "steps_per_s"
            ]
    told = [
        f"{100 * (of['colocated-pipe'] / of['colocated'] - 1):+.0f} % in {Path(file).stem}"
        for file, of in rates.items()
        if {"colocated", "colocated-pipe"} <= set(of)
    ]
    if not told:
        return "what two groups cost was not measured"
    return f"two groups, colocated-pipe, change the throughput of colocated by {', '.join(told)}"


def _there(frame: pl.DataFrame) -> list[tuple[str, str]]:
    """Workloads that were measured, and which of the paper's simulators they stand for, in its order."""
    there = frame["workload"].unique(maintain_order=True).to_list()
    return [(w, name) for s, name in PAPER_SIMULATORS.items() for w in there if simulator_of(w) == s]


#: What the gain of a run under MPS is also told over.
EITHER = "the best of today's schedules with or without MPS"


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 11: the best of today's schedules in the run of the fastest variant, and the gain over that.

    Of a run under MPS also the gain over the best of today's schedules with or without a daemon.
    """
    frame, reasons = tables["schedules"], tables.get("reasons")
    table, series = by_variant(frame), "best over the best RLinf configuration"
    rows: list[Compared] = []
    used: set[tuple[str, str]] = set()
    for workload, name in _there(frame):
        most, why = fastest(table, workload), cause(frame, workload)
        best = best_schedule(table, workload)
        if best is None:
            continue
        # what the gain is over: the fastest of another run may be another one
        best = (best_schedule(table, workload, most["file"]) if most else None) or best
        ours = best["variant"].replace("native", "colocated")
        halves = cause_of_halves(tables["alone"], workload, table) + withdrawn(frame, workload)
        x = f"H100, {name}, {paper_name(workload)}"
        printed, variant = paper.value("fig11", series, x), called(most) if most else "none ran"
        used.add((series, x))
        why += beside(table, most, reasons) if most else ""
        why += measured(reasons, workload, mps=bool(most and most["mps"]))
        gain = amount(most and most["over_best"], missing=NONE)
        rows += [
            Compared(f"{workload}: best of today's schedules", "", ours, PAPER_BEST[name], halves),
            Compared(f"{workload}: fastest variant ({variant}) over it", "1", gain, printed, why),
        ]
        if most and most["mps"]:
            either = best_with_or_without_mps(table, most)
            over: float | Unavailable
            if isinstance(either, Unavailable):
                over, told = either, either.reason
            else:
                over, told = most["steps_per_s"] / either[0]["steps_per_s"], f"{either[1]}; {why}"
            rows.append(
                Compared(f"{workload}: fastest variant ({variant}) over {EITHER}", "1", over, printed, told)
            )
    return [*rows, *not_measured(paper, "fig11", used)]


def compare_activity(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Table 2: mean SM activity of iterations under the best of today's schedules and the fastest variant."""
    frame, reasons = tables["schedules"], tables.get("reasons")
    quantity = "SM activity" if any(d.startswith("cuda") for d in frame["device"]) else "busy cores"
    table = by_variant(frame)
    found: list[Compared] = []
    used: set[tuple[str, str]] = set()
    for workload, name in _there(frame):
        most, why = fastest(table, workload), cause(frame, workload)
        best = best_schedule(table, workload, most["file"] if most else None)
        if best is None:
            continue
        why += beside(table, most, reasons) if most else ""
        why += measured(reasons, workload, mps=bool(most and most["mps"]))
        x = f"{paper_name(workload)}, {name}"
        series = ("SM activity of the baseline", "SM activity")
        before, after = best["active_frac"], most["active_frac"] if most else None
        printed = [_printed(paper, s, x) for s in series]
        used |= {(s, x) for s in series}
        found += [
            Compared(f"{workload}: {quantity}, {called(best)}", "%", amount(before, 100), printed[0], why),
            Compared(
                f"{workload}: {quantity}, {called(most) if most else 'fastest variant'}",
                "%",
                amount(after, 100, NONE),
                printed[1],
                why,
            ),
            _improvement(f"{workload}: relative improvement", before, after, printed, why),
        ]
        if most and most["mps"]:
            either = best_with_or_without_mps(table, most)
            label = f"{workload}: relative improvement over {EITHER}"
            if isinstance(either, Unavailable):
                found.append(Compared(label, "%", either, _relative(printed), either.reason))
            else:
                row, told = either
                active = row["active_frac"]
                known = "unknown" if active is None else f"{100 * active:.1f} %"
                say = f"{told}; its SM activity is {known}; {why}"
                found.append(_improvement(label, active, after, printed, say))
    return [*found, *not_measured(paper, "table02", used)]


def _printed(paper: Paper, series: str, x: str) -> float | Unavailable:
    """A number of Table 2, which has no GR00T."""
    known = {(n.series, n.x) for n in paper.of("table02")}
    return paper.value("table02", series, x) if (series, x) in known else Unavailable(f"the paper has no {x}")


def _relative(printed: Sequence[float | Unavailable]) -> float | Unavailable:
    before, after = printed
    if isinstance(before, Unavailable) or isinstance(after, Unavailable):
        return Unavailable("the paper has none")
    return 100 * (after / before - 1)


def _improvement(
    label: str,
    before: float | None,
    after: float | None,
    printed: Sequence[float | Unavailable],
    why: str,
) -> Compared:
    ours = None if before is None or after is None else after / before - 1
    return Compared(label, "%", amount(ours, 100, NONE), _relative(printed), why)
