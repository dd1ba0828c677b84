"""Fig 12: SM activity over an iteration, natively and optimised, and how much of the time it is low."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rose.causes import by_hand, measured
from rlprof.reproduce.rose.here import OPTIMISED as OPTIMISED_HERE
from rlprof.reproduce.rose.here import optimised_here
from rlprof.reproduce.rose.results import (
    PAPER_SIMULATORS,
    Document,
    facts,
    file_stem,
    optimisation_study,
    order,
    outcome,
    paper_name,
    set_up,
    simulator_of,
)
from rlprof.reproduce.rose.samples import LEVELS
from rlprof.reproduce.rose.schedules import OPTIMISED, TURNS, WITH_QUOTA, is_todays
from rlprof.reproduce.study import Study
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

#: Parts of an iteration by the names of its phases. Rollouts are the loop between policy and simulator.
PARTS = {"iteration": "iteration", "generate_rollouts": "interaction loop"}
#: Stands for a value that nobody knows.
UNKNOWN = "-"
NOT_STORED = Unavailable("no optimised iterations with samples of activity are stored")


def activity_rows(file: str, document: Document) -> list[dict[str, Any]]:
    """Return what is known of the activity of a run's counted iterations.

    Rows of ``kind`` "part": of each iteration and each of `PARTS`, ``seconds``, ``covered_frac``,
    ``active_frac``, ``below_half`` and ``below_most`` (shares of its time below 50 and 80 %), the median
    ``period_s`` of the samples and their ``source``. Others have ``values``, one after the other with spaces
    between. Of "level": the share of a variant's time with activity in each of `LEVELS` equal steps from 0 to
    1. Of "course": activity in equal steps of the iteration of median length, ``seconds``; `UNKNOWN` where
    there is no sample; of what is drawn: the best of today's schedules and the optimised order, with its
    quota and without. Only the first have the facts of the run.
    """
    withdrawn, decided = document.get("withdrawn") or {}, outcome(document)
    by_variant: dict[str, list[dict[str, Any]]] = {}
    for found in document.get("iterations", ()):
        counted = not (found["warm_up"] or found.get("short") or found["variant"] in withdrawn)
        if counted and isinstance(found.get("over_time"), Mapping):
            by_variant.setdefault(order(document, found["variant"]), []).append(found)
    rates = {name: median(i["simulator_steps_per_s"] for i in of) for name, of in by_variant.items()}
    best = max((name for name in rates if is_todays(name)), key=lambda name: rates[name], default=None)
    parts: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for variant, iterations in by_variant.items():
        names = {"file": file, "variant": variant}
        for found in iterations:
            over = found["over_time"]
            parts += [
                {
                    **facts(file, document),
                    **decided,
                    **names,
                    "kind": "part",
                    "part": PARTS[name],
                    "steps_per_s": found["simulator_steps_per_s"],
                    "source": over["source"],
                    "period_s": over["period_s"],
                    **{k: v for k, v in part.items() if k != "levels"},
                }
                for name, part in over["parts"].items()
                if name in PARTS
            ]
        others += [{**names, "kind": "level", **row} for row in _levels(iterations)]
        if variant in (best, OPTIMISED, WITH_QUOTA):
            others += [{**names, "kind": "course", **row} for row in _course(iterations)]
    return parts + others


def _levels(iterations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How much of the time activity is how high, over all iterations of a variant."""
    rows = []
    for name, shown in PARTS.items():
        known = [p for i in iterations if (p := i["over_time"]["parts"].get(name)) and p["levels"]]
        total = sum(p["seconds"] for p in known)
        if total:
            shares = (
                sum(p["seconds"] * p["levels"][level] for p in known) / total for level in range(LEVELS)
            )
            rows.append({"part": shown, "values": _packed(shares)})
    return rows


def _course(iterations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Activity over the iteration whose length is nearest to the median."""
    middle = median(i["wall_s"] for i in iterations)
    one = min(iterations, key=lambda i: abs(i["wall_s"] - middle))
    length = one["over_time"]["parts"]["iteration"]["seconds"]
    return [{"seconds": length, "values": _packed(one["over_time"]["course"])}]


def _packed(values: Iterable[float | None]) -> str:
    """Numbers in one cell: a row for each makes a table of which nine tenths are the name of the run."""
    return " ".join(UNKNOWN if value is None else repr(value) for value in values)


def _unpacked(cell: str) -> list[float | None]:
    return [None if value == UNKNOWN else float(value) for value in cell.split()]


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of stored optimisations with samples of activity, or of a small run here."""
    if preset == "smoke":
        cases: dict[str, Callable[[], Sequence[dict[str, Any]]]] = {
            "here": lambda: activity_rows("here", optimised_here(checkout))
        }
        return Study("rose/over_time", preset, seed, {"arguments": list(OPTIMISED_HERE)}, cases)
    return optimisation_study("rose/over_time", preset, seed, checkout, activity_rows)


@dataclass(frozen=True, slots=True)
class Pair:
    """What is shown of one run: the best of today's schedules, and the optimised order.

    Parameters
    ----------
    file, workload : str
        Of the run.
    mps : bool
        It ran under MPS.
    before : str
        Variant of the most simulator steps per second among today's.
    after : str or Unavailable
        The optimised one, with its quota where one was chosen.
    gain : float or None
        Median throughput of the optimised one over that of `before`; None without one.
    todays : int
        How many of today's schedules ran in it.
    simulator_cores : int
        On so many simulators took turns; 0: they did not.
    """

    file: str
    workload: str
    mps: bool
    before: str
    after: str | Unavailable
    gain: float | None = None
    todays: int = 1
    simulator_cores: int = 0

    @property
    def label(self) -> str:
        """The run, for people."""
        turns = f", {TURNS}" if self.simulator_cores else ""
        return f"{self.workload}{turns}{', MPS' if self.mps else ''}"

    @property
    def pays(self) -> bool:
        """Whether the optimised order is the faster one."""
        return self.gain is not None and self.gain > 1

    @property
    def shown(self) -> str:
        """What the optimised order is, for people: one that loses is nobody's optimum."""
        if self.gain is None or self.pays:
            return "optimised"
        return f"by the graph, which loses ({self.gain:.2f} times)"

    @property
    def names(self) -> dict[str, str]:
        """What both variants are called in charts."""
        names = {self.before: self.before.replace("native", "colocated", 1)}
        if isinstance(self.after, str):
            names[self.after] = self.after if self.pays else "graph, slower"
        return names

    @property
    def titled(self) -> str:
        """The run, for charts: with a remark where the graph loses."""
        lost = self.gain is not None and not self.pays
        return f"{self.label} (the graph loses there: {self.gain:.2f} times)" if lost else self.label

    @property
    def stem(self) -> str:
        """The run, for names of files."""
        return f"{file_stem(self.workload)}{'_mps' if self.mps else ''}"


def pairs(frame: pl.DataFrame) -> list[Pair]:
    """Return what to show of each workload, without MPS and with it.

    Of several runs that with most iterations of the optimised order, the last one of these.
    """
    found: dict[tuple[str, bool], Pair] = {}
    most: dict[tuple[str, bool], int] = {}
    if frame.is_empty():
        return []
    rows = [r for r in frame.iter_rows(named=True) if r["kind"] == "part"]
    for file in dict.fromkeys(r["file"] for r in rows):
        of = [r for r in rows if r["file"] == file]
        rates: dict[str, list[float]] = {}
        for r in of:
            rates.setdefault(r["variant"], []).append(r["steps_per_s"])
        today = [v for v in rates if is_todays(v)]
        if not today:
            continue
        before = max(today, key=lambda v: median(rates[v]))
        first = of[0]
        wanted = WITH_QUOTA if first["quota"] and WITH_QUOTA in rates else OPTIMISED
        after: str | Unavailable = wanted
        if wanted not in rates:
            after = Unavailable(f"no optimised order ran: {first['ended'] or 'none was searched'}")
        gain = median(rates[wanted]) / median(rates[before]) if wanted in rates else None
        key = first["workload"], first["mps"]
        if len(rates.get(wanted, ())) < most.get(key, 0):
            continue
        most[key] = len(rates.get(wanted, ()))
        count = len({v.partition(",")[0].partition("+")[0] for v in today})
        found[key] = Pair(file, *key, before, after, gain, count, first["simulator_cores"])
    return list(found.values())


def shares(frame: pl.DataFrame) -> pl.DataFrame | Unavailable:
    """Return the share of low time of each variant.

    Returns
    -------
    polars.DataFrame or Unavailable
        ``file``, ``workload``, ``mps``, ``variant``, ``part``, ``iterations``, ``seconds`` (of all), and,
        weighted by time, ``active_frac``, ``below_half`` and ``below_most``; ``period_s``.
    """
    import polars as pl

    if frame.is_empty():
        return NOT_STORED
    seconds = pl.col("seconds")
    known = frame.filter(pl.col("kind") == "part", pl.col("active_frac").is_not_null())
    return known.group_by("file", "workload", "mps", "variant", "part", maintain_order=True).agg(
        pl.len().alias("iterations"),
        seconds.sum(),
        *((pl.col(c) * seconds).sum() / seconds.sum() for c in ("active_frac", "below_half", "below_most")),
        pl.col("period_s").median(),
    )


def course(frame: pl.DataFrame, pair: Pair) -> pl.DataFrame:
    """Return activity over an iteration of both variants of a run: ``variant``, ``at_s``, ``active_frac``."""
    import polars as pl

    rows = []
    for row in _drawn(frame, pair, "course"):
        values = _unpacked(row["values"])
        step_s = row["seconds"] / len(values)
        rows += [(row["variant"], round(n * step_s, 6), v) for n, v in enumerate(values) if v is not None]
    schema = {"variant": pl.String, "at_s": pl.Float64, "active_frac": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def distribution(frame: pl.DataFrame, pair: Pair) -> pl.DataFrame:
    """Return how much of the time activity is below a level, of both variants of a run.

    Returns
    -------
    polars.DataFrame
        ``part``, ``variant``, ``below_frac`` (0 to 1), ``share_frac`` of the part's time.
    """
    import polars as pl

    rows = [
        (row["part"], row["variant"], (level + 1) / LEVELS, below)
        for row in _drawn(frame, pair, "level")
        for level, below in enumerate(accumulate(v or 0.0 for v in _unpacked(row["values"])))
    ]
    schema = {"part": pl.String, "variant": pl.String, "below_frac": pl.Float64, "share_frac": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row").sort("part", "variant", maintain_order=True)


def _drawn(frame: pl.DataFrame, pair: Pair, kind: str) -> list[dict[str, Any]]:
    """Rows of both variants of a run, as they are called in charts."""
    return [
        {**row, "variant": pair.names[row["variant"]]}
        for row in frame.iter_rows(named=True)
        if (row["kind"], row["file"]) == (kind, pair.file) and row["variant"] in pair.names
    ]


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 12: low time of the interaction loop and of the iteration, before and after, and its reduction."""
    frame = tables["over_time"]
    found: list[Compared] = []
    for pair in pairs(frame):
        found += _compared(frame, pair, paper, tables.get("reasons"))
    if not found:
        for part in PARTS.values():
            found += _rows("LIBERO", part, None, None, paper, NOT_STORED.reason, NOT_STORED.reason)
    return found


def low_time(part: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """Say where the low time of an order lies, from its rows of `shares` of the loop and of the iteration."""
    loop_s, all_s = (r["below_half"] * r["seconds"] / r["iterations"] for r in (part, whole))
    where = f"{loop_s:.2f} s of them in the interaction loop"
    return f"low time by the graph: {all_s:.2f} s of an iteration, {where}"


def _compared(frame: pl.DataFrame, pair: Pair, paper: Paper, reasons: pl.DataFrame | None) -> list[Compared]:
    table = shares(frame)
    assert not isinstance(table, Unavailable)
    of = {(r["variant"], r["part"]): r for r in table.iter_rows(named=True) if r["file"] == pair.file}
    part_row = next(r for r in frame.iter_rows(named=True) if r["file"] == pair.file)
    schedule = pair.before.replace("native", "colocated", 1)
    why = (
        f"{set_up(part_row)}; {part_row['source']}, samples of {1e3 * part_row['period_s']:.3g} ms (the share"
        f" depends on the period); before: {schedule}, the"
        f" {f'best of {pair.todays}' if pair.todays > 1 else 'only one'} of today's schedules in that run"
    )
    if isinstance(pair.after, str):
        why += by_hand(reasons, pair.workload, pair.file, cores=pair.simulator_cores)
    if pair.gain is not None:
        why += f"; the graph is {pair.gain:.3g} times as fast"
        if not pair.pays:
            why += ": nobody would keep it here, and its share is shown to say what it does"
    ends = [of.get((pair.after, part)) for part in reversed(PARTS.values())]
    if all(ends):
        why += "; " + low_time(*(end for end in ends if end is not None))
    why += measured(reasons, pair.workload, mps=pair.mps)
    rows: list[Compared] = []
    for part in reversed(PARTS.values()):
        before = of.get((pair.before, part))
        after = None if isinstance(pair.after, Unavailable) else of.get((pair.after, part))
        missing = pair.after.reason if isinstance(pair.after, Unavailable) else "its activity is not known"
        told = f"{why}; {missing}" if after is None else why
        name = PAPER_SIMULATORS.get(simulator_of(pair.workload), "")
        rows += _rows(
            pair.label,
            part,
            None if before is None else before["below_half"],
            None if after is None else after["below_half"],
            paper if (name, paper_name(pair.workload)) == ("LIBERO", "pi0.5") else None,
            missing,
            told,
            pair.shown,
        )
    return rows


def _rows(
    label: str,
    part: str,
    before: float | None,
    after: float | None,
    paper: Paper | None,
    missing: str,
    why: str,
    shown: str = "optimised",
) -> list[Compared]:
    below, x = f"share of the {part} below 50 % SM activity", "pi0.5, LIBERO"
    printed: list[float | Unavailable] = [Unavailable("the paper shows pi0.5 on LIBERO alone")] * 3
    if paper is not None:
        printed = [
            paper.value("fig03", below, x),
            paper.value("fig12", below, f"{x}, optimised"),
            paper.value("fig12", "relative reduction of that share", part),
        ]
    reduction = 1 - after / before if before and after is not None else None
    label = f"{label}: share of the {part} below 50 %"
    return [
        Compared(f"{label}, before", "%", amount(before, 100, missing), printed[0], why),
        Compared(f"{label}, {shown}", "%", amount(after, 100, missing), printed[1], why),
        Compared(f"{label}, reduced by", "%", amount(reduction, 100, missing), printed[2], why),
    ]
