"""Fig 14: what the graph, MPS and quotas each give, and what each round does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rose.causes import bounds, drift, measured
from rlprof.reproduce.rose.others import not_measured
from rlprof.reproduce.rose.products import looked_at, wrong_shares
from rlprof.reproduce.rose.results import (
    PAPER_SIMULATORS,
    Document,
    optimisation_study,
    order,
    outcome,
    paper_name,
    set_up,
    simulator_of,
)
from rlprof.reproduce.rose.rounds import rounds_not_accepted
from rlprof.reproduce.rose.schedules import (
    EITHER,
    ONE_ROUND,
    OPTIMISED,
    WITH_QUOTA,
    is_todays,
    iteration_rows,
)
from rlprof.reproduce.study import Study
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

Row = dict[str, Any]
#: Forms of a program, as the figure calls them.
ONE, GRAPH, MPS, FULL = "one round", "graph", "graph, MPS", "graph, MPS, quota"
#: The graph where processes of both simulators take turns on the cores (`simulator_cores`); not the paper's.
TURNS = "graph, turns on the cores"
#: The wider of the two bounds that `benchmarks.gpu.optimize` computes.
ANY_GRAPH = "any graph"
#: What set bounds of early results: all that executes on the GPU, as if kernels of two calls took turns too.
ALL_IN_TURN = "GPU time slices"
NOT_STORED = Unavailable("no optimisation is stored")
#: Number of the paper by figure and form: series and workload.
PRINTED = {
    "fig14a": {
        GRAPH: ("graph only over Colocated", "ManiSkill, pi0.5"),
        MPS: ("graph and MPS over Colocated", "ManiSkill, pi0.5"),
        FULL: ("full over Colocated", "ManiSkill, pi0.5"),
    },
    "fig14b": {
        ONE: ("one round over Colocated+Pipe", "LIBERO, pi0.5"),
        GRAPH: ("two rounds over Colocated+Pipe", "LIBERO, pi0.5"),
    },
}
WORKLOADS = {"fig14a": ("ManiSkill", "mujoco_warp"), "fig14b": ("LIBERO", "libero")}
#: The policy in these; a workload of another one is compared with the paper's of that.
PRINTED_POLICY = "pi0.5"
FIRST_SHARE = "share of the first round in the time saved"


def iterations(file: str, document: Document) -> list[Row]:
    """Return one row for each counted iteration, as `schedules.iteration_rows`, with what was decided.

    ``not_accepted`` says what was measured of rounds that were not. ``bound`` is the most that any graph
    could be faster than the best of today's schedules of the run, by what its calls took with nothing beside
    them, and ``bound_by`` what sets that; null where it was not computed.
    """
    medians = document.get("summary") or {}
    binding = ((document.get("bound") or {}).get(ANY_GRAPH) or {}).get("binding")
    by_hand = "by hand"  # under that name its medians are kept, whatever it counts as
    counted_as = order(document, by_hand)
    return [
        {
            **row,
            **outcome(document),
            "not_accepted": rounds_not_accepted(document),
            "bound": (medians.get(name, {}).get("most_speedup") or {}).get(ANY_GRAPH),
            "bound_by": binding,
        }
        for row in iteration_rows(file, document)
        for name in (by_hand if row["variant"] == counted_as else row["variant"],)
    ]


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of stored optimisations; ``wrong_shares`` says which quotas nobody can train with."""
    looked = looked_at(checkout) if preset == "h200" else {}
    wrong = wrong_shares(looked)

    def rows(file: str, document: Document) -> list[Row]:
        return [{**row, "wrong_shares": wrong} for row in iterations(file, document)]

    return optimisation_study("rose/ablation", preset, seed, checkout, rows, {"products": looked})


def by_form(frame: pl.DataFrame) -> pl.DataFrame | Unavailable:
    """Return how much faster each form is than the best of today's schedules in the same run.

    Returns
    -------
    polars.DataFrame or Unavailable
        ``workload``, ``form``, ``mps``, ``over_best`` (median over iterations of all runs, each against the
        median of its own run's reference), ``least`` and ``most`` of it, ``iterations``, ``runs``,
        ``reference`` (the schedules compared with), ``todays`` (how many of today's ran, run by run),
        ``active_frac`` (mean), ``bound``, ``bound_by``. Today's schedules are forms too, and the
        best of them counts with the levers that it ran with.
    """
    import polars as pl

    if frame.is_empty():
        return NOT_STORED
    rows = [r for r in frame.iter_rows(named=True) if r["withdrawn"] is None]
    found: dict[tuple[str, str, bool], list[tuple[float, str, int, Row]]] = {}
    for file in dict.fromkeys(r["file"] for r in rows):
        of = [r for r in rows if r["file"] == file]
        rates: dict[str, list[float]] = {}
        for r in of:
            rates.setdefault(r["variant"], []).append(r["steps_per_s"])
        today = {v: median(rate) for v, rate in rates.items() if is_todays(v)}
        if not today:
            continue
        reference = max(today, key=lambda v: today[v])
        for r in of:
            for form in forms(r):
                found.setdefault((r["workload"], form, r["mps"]), []).append(
                    (r["steps_per_s"] / today[reference], _called(reference), len(today), r)
                )
    table = []
    for (workload, form, mps), each in found.items():
        over, active = [e[0] for e in each], [e[3]["active_frac"] for e in each]
        known = [a for a in active if a is not None]
        bounds = [e[3]["bound"] for e in each if e[3]["bound"] is not None]
        table.append(
            {
                "workload": workload,
                "form": form,
                "mps": mps,
                "over_best": median(over),
                "least": min(over),
                "most": max(over),
                "iterations": len(each),
                "runs": len({e[3]["file"] for e in each}),
                "reference": " and ".join(dict.fromkeys(e[1] for e in each)),
                "todays": list({e[3]["file"]: e[2] for e in each}.values()),
                "active_frac": fmean(known) if known else None,
                "bound": median(bounds) if bounds else None,
                "bound_by": " and ".join(sorted({e[3].get("bound_by") or "" for e in each} - {""})),
            }
        )
    return pl.DataFrame(table)


def forms(row: Mapping[str, Any]) -> list[str]:
    """Return the forms that an iteration is one of; several where a round or a quota changed nothing."""
    variant, mps = row["variant"], row["mps"]
    if variant == ONE_ROUND:
        return [ONE]
    if variant == WITH_QUOTA:
        return [FULL] if row["quota"] else ["graph, MPS, best quota in trials, not kept"]
    if variant == OPTIMISED and mps:
        return [MPS] if row["quota"] or row["quota_reason"] is None else [MPS, FULL]
    if variant == OPTIMISED and row["simulator_cores"]:
        return [TURNS]
    if variant == OPTIMISED:
        return [ONE, GRAPH] if row["accepted"] == 1 else [GRAPH]
    return [_called(variant)]


def _called(variant: str) -> str:
    return variant.replace("native", "colocated", 1)


def workloads(frame: pl.DataFrame, figure: str) -> list[str]:
    """Return which workloads stand for the one of a figure; the arm on a processor for any."""
    name, usual = WORKLOADS[figure]
    there = [] if frame.is_empty() else frame["workload"].unique(maintain_order=True).to_list()
    fit = [w for w in there if PAPER_SIMULATORS.get(simulator_of(w)) == name]
    return fit or [w for w in there if simulator_of(w) == "mujoco_arm"] or [usual]


def ladder(frame: pl.DataFrame, figure: str, paper: Paper) -> pl.DataFrame | Unavailable:
    """Return the bars of a figure, ours and the paper's.

    Returns
    -------
    polars.DataFrame or Unavailable
        ``form``, ``who`` (a workload of ours, or the paper's), ``over_best``, ``least`` and ``most`` (null
        for the paper's). Unavailable if none of ours ran.
    """
    import polars as pl

    table = by_form(frame)
    if isinstance(table, Unavailable):
        return table
    rows = []
    for workload in workloads(frame, figure):
        for form in (*PRINTED[figure], TURNS):
            row = _form(table, workload, form)
            if row is not None:
                rows.append({"who": workload, **{k: row[k] for k in ("form", "over_best", "least", "most")}})
    if not rows:
        return Unavailable("; ".join(_missing(frame, s, GRAPH) for s in workloads(frame, figure)))
    for policy in dict.fromkeys(paper_name(w) for w in workloads(frame, figure)):
        for form, (series, usual) in PRINTED[figure].items():
            x = usual.replace(PRINTED_POLICY, policy)
            value = paper.value(figure, series, x)
            if isinstance(value, float):
                one = {"who": f"paper, {x}", "form": form, "over_best": value}
                rows.append({**one, "least": None, "most": None})
    forms = [*PRINTED[figure], TURNS]
    schema = dict.fromkeys(("over_best", "least", "most"), pl.Float64)
    return pl.DataFrame(
        sorted(rows, key=lambda r: forms.index(str(r["form"]))),
        schema={"form": pl.String, "who": pl.String, **schema},
    )


def _form(table: pl.DataFrame, workload: str, form: str) -> Row | None:
    for row in table.iter_rows(named=True):
        wanted = form in (MPS, FULL)
        if (row["workload"], row["form"], row["mps"]) == (workload, form, wanted):
            return row
    return None


def _missing(frame: pl.DataFrame, workload: str, form: str) -> str:
    """Why a form has no number."""
    rows = [] if frame.is_empty() else [r for r in frame.iter_rows(named=True) if r["workload"] == workload]
    if not rows:
        return NOT_STORED.reason if frame.is_empty() else f"no optimisation of {workload} is stored"
    if form in (MPS, FULL):
        if not any(r["device"].startswith("cuda") for r in rows):
            return "a processor has no MPS"
        rows = [r for r in rows if r["mps"]]
        if not rows:
            return "no optimisation ran under MPS"
    elif all(r["mps"] for r in rows):
        return "no optimisation ran without MPS"
    if form == FULL:
        wrong = dict.fromkeys(filter(None, (r.get("wrong_shares") for r in rows)))
        return "; ".join(["no quota was found", *(f"{why} for the policy's process here" for why in wrong)])
    reasons = dict.fromkeys(r["ended"] for r in rows if r["ended"])
    return f"no optimised order ran: {'; '.join(reasons) or 'none was searched'}"


def over_either(frame: pl.DataFrame, workload: str, form: str) -> tuple[float, str] | Unavailable:
    """Return how much faster a form under MPS is than the best of today's schedules with or without a daemon.

    Returns
    -------
    tuple of float and str, or Unavailable
        Median over iterations, each over the best of today's schedules of all runs of the same set-up; and
        which run that is of. Unavailable where no such run without MPS is stored.
    """
    rows = [r for r in frame.iter_rows(named=True) if r["withdrawn"] is None and r["workload"] == workload]
    ours = [r for r in rows if r["mps"] and form in forms(r)]
    over: list[float] = []
    told: dict[str, None] = {}
    for row in ours:
        rates: dict[tuple[str, str], list[float]] = {}
        of: dict[tuple[str, str], Row] = {}
        for r in rows:
            if r["setup"] == row["setup"] and is_todays(r["variant"]):
                rates.setdefault((r["file"], r["variant"]), []).append(r["steps_per_s"])
                of[r["file"], r["variant"]] = r
        if all(r["mps"] for r in of.values()):
            continue
        best = max(rates, key=lambda key: median(rates[key]))
        over.append(row["steps_per_s"] / median(rates[best]))
        daemon = "under a daemon" if of[best]["mps"] else "without a daemon"
        told[f"over {_called(best[1])} of {best[0]}, {daemon}{drift(row, of[best])}"] = None
    if not over:
        return Unavailable("no run of the same workload without MPS is stored")
    return median(over), "; ".join(told)


def _compared(frame: pl.DataFrame, figure: str, paper: Paper, reasons: pl.DataFrame | None) -> list[Compared]:
    table = by_form(frame)
    found: list[Compared] = []
    used: set[tuple[str, str]] = set()
    for workload in workloads(frame, figure):
        used.add((FIRST_SHARE, f"LIBERO, {paper_name(workload)}"))
        values: dict[str, float | None] = {}
        for form, (series, usual) in PRINTED[figure].items():
            x = usual.replace(PRINTED_POLICY, paper_name(workload))
            used.add((series, x))
            row = None if isinstance(table, Unavailable) else _form(table, workload, form)
            values[form] = None if row is None else row["over_best"]
            if row is None:
                missing = why = _missing(frame, workload, form)
            else:
                missing, why = "", _cause(frame, workload, row, reasons)
            found.append(
                Compared(
                    f"{workload}: {series}",
                    "1",
                    amount(values[form], missing=missing),
                    paper.value(figure, series, x),
                    why,
                )
            )
            if row is not None and row["mps"]:
                either = over_either(frame, workload, form)
                ours: float | Unavailable
                if isinstance(either, Unavailable):
                    ours, told = either, either.reason
                else:
                    ours, told = either[0], f"{either[1]}; {why}"
                label = f"{workload}: {form}, over {EITHER}"
                found.append(Compared(label, "1", ours, paper.value(figure, series, x), told))
        row = None if isinstance(table, Unavailable) else _form(table, workload, TURNS)
        if row is not None:
            none = Unavailable("the paper's simulators take no turns on the cores")
            why = _cause(frame, workload, row, reasons)
            found.append(Compared(f"{workload}: {TURNS}", "1", row["over_best"], none, why))
        if figure == "fig14b":
            found.append(_first_share(frame, workload, values, paper, reasons))
    return [*found, *not_measured(paper, figure, used)]


def _first_share(
    frame: pl.DataFrame,
    workload: str,
    values: Mapping[str, float | None],
    paper: Paper,
    reasons: pl.DataFrame | None,
) -> Compared:
    one, two = values[ONE], values[GRAPH]
    share, why = None, _missing(frame, workload, GRAPH)
    if one and two:
        saved = 1 - 1 / two  # of an iteration under the reference
        share = (1 - 1 / one) / saved if saved > 0 else None
        ended = {r["ended"] for r in frame.iter_rows(named=True) if r["workload"] == workload and r["ended"]}
        why = "no time was saved"
        if share is not None:
            why = "; ".join(sorted(ended))
            why += _rounds(frame, workload, why) + measured(reasons, workload, mps=False)
    printed = paper.value("fig14b", FIRST_SHARE, f"LIBERO, {paper_name(workload)}")
    return Compared(f"{workload}: {FIRST_SHARE}", "%", amount(share, 100, why), printed, why)


def _cause(frame: pl.DataFrame, workload: str, row: Row, reasons: pl.DataFrame | None) -> str:
    """What differs from the paper's set-up, what is compared with, what was measured, the quota's lot."""
    of = [r for r in frame.iter_rows(named=True) if r["workload"] == workload and r["mps"] == row["mps"]]
    text = (
        f"{set_up(of[-1])}; over {row['reference']}, the {_among(row['todays'], mps=row['mps'])};"
        f" median of {row['iterations']} iterations in {row['runs']}"
        f" run{'s' if row['runs'] > 1 else ''}, {row['least']:.3g} to {row['most']:.3g}"
    )
    if row["bound"] is not None and not bounds(reasons, workload, mps=row["mps"]):
        text += f"; no graph can be more than {row['bound']:.3g} times as fast here"
        if ALL_IN_TURN in row["bound_by"].split(" and "):
            text += ", as long as kernels of two calls take turns on the GPU"
    if not row["mps"] and row["form"] == GRAPH:
        text += _rounds(frame, workload)
    text += measured(reasons, workload, mps=row["mps"])
    kept = dict.fromkeys(r["quota_reason"] for r in of if r["quota_reason"] and not r["quota"])
    if row["form"] == FULL and kept:
        text += f"; all SMs were kept: {'; '.join(kept)}"
    return text


def _among(todays: Sequence[int], *, mps: bool) -> str:
    """Say of how many of today's schedules the reference is the best, given how many each run had."""
    others = [count for count in todays if count > 1]
    alone, under = len(todays) - len(others), " under MPS" if mps else ""
    if not alone or not others:
        return f"{'only one' if alone else 'best'} of today's schedules in the same run{under}"
    fewest, most = min(others), max(others)
    best = f"best of {fewest}" if fewest == most else f"best of {fewest} to {most}"
    where = "the other" if len(others) == 1 else f"the {len(others)} others"
    return f"only one of today's schedules in {alone} of {len(todays)} runs{under}, the {best} in {where}"


def _rounds(frame: pl.DataFrame, workload: str, known: str = "") -> str:
    """Say what was measured of rounds that were not accepted, without MPS, run by run, unless it is known."""
    of = [r for r in frame.iter_rows(named=True) if r["workload"] == workload and not r["mps"]]
    said = {r["file"]: r["not_accepted"] for r in of if r["not_accepted"] and r["not_accepted"] not in known}
    several = len({r["file"] for r in of}) > 1
    told = [f"{text}{f' in {Path(file).stem}' if several else ''}" for file, text in said.items()]
    return "".join(f"; {one}" for one in told)


def compare_levers(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 14a: the graph alone, with MPS, with MPS and a quota."""
    return _compared(tables["ablation"], "fig14a", paper, tables.get("reasons"))


def compare_rounds(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 14b: one round, two rounds, and how much of the time saved the first one saves."""
    return _compared(tables["ablation"], "fig14b", paper, tables.get("reasons"))
