"""Charts of an optimisation's result: activity over time, by phase, timelines, pairs, levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from rlprof.plots.gantt import OTHER, Gantt, gantt_chart, lay_out
from rlprof.plots.reproductions import bars_chart, lines_chart
from rlprof.plots.rose import course_chart, distribution_chart
from rlprof.report.cells import Figure
from rlprof.report.optimize_activity import ORDERS, course_of, courses_note, quantity, sampled
from rlprof.report.optimize_quota import level_points
from rlprof.text import clean, shorten
from rlprof.unavailable import Unavailable

#: Rows of each timeline.
BARS = 2_000
#: Phases that are drawn; the table has all.
MOST_PHASES = 12


def timelines(result: Mapping[str, Any], *, width: Any = 800) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Charts of the iteration before and after, on one axis, with their notes; none that was not recorded."""
    found = {}
    stored = result.get("timelines") or {}
    tables = {name: task_table(stored.get(name) or ()) for name in ORDERS}
    ends = [float(t["end_s"].max() or 0.0) for t in tables.values() if t.height]  # type: ignore[arg-type]
    names = lay_out(pl.concat(tables.values())).names  # what has which colour in both
    for name, table in tables.items():
        if table.height:
            laid = _coloured(lay_out(table, budget=BARS), names)
            chart = gantt_chart(laid, title=name, end_s=max(ends), width=width)
            found[name] = (chart, laid.notes)
    return found


def _coloured(gantt: Gantt, names: tuple[str, ...]) -> Gantt:
    """A chart's bars in the colours of names that are given."""
    own = [shorten(clean(name), 40) for name in gantt.bars["name"]]
    colours = pl.Series("colour", [n if n in names else OTHER for n in own], dtype=pl.String)
    known = names if OTHER in names or OTHER not in colours else (*names, OTHER)
    return replace(gantt, bars=gantt.bars.with_columns(colours), names=known)


def task_table(tasks: Sequence[Sequence[Any]]) -> pl.DataFrame:
    """Return a table of a Gantt chart: ``task``, ``name``, ``lane``, ``start_s``, ``end_s``."""
    rows = [(task, node.rpartition("/")[2], lane, start, end) for task, node, lane, start, end in tasks]
    schema = {"task": pl.String, "name": pl.String, "lane": pl.String}
    return pl.DataFrame(rows, schema={**schema, "start_s": pl.Float64, "end_s": pl.Float64}, orient="row")


def timeline_figures(result: Mapping[str, Any], width: Any) -> list[Figure | Unavailable]:
    """Timelines before and after; of what there is none, why."""
    drawn: list[Figure | Unavailable] = [
        Figure(name, chart, notes) for name, (chart, notes) in timelines(result, width=width).items()
    ]
    there = {f.key for f in drawn if isinstance(f, Figure)}
    for name in ORDERS:
        if name in there:
            continue
        if result["timelines"] is None:
            return [Unavailable("the calls of the iterations are not stored in this result")]
        if name == "after" and not result["steps"]:
            drawn.append(Unavailable("after: the native order is kept"))
        else:
            drawn.append(Unavailable(f"{name}: no iteration whose calls were recorded"))
    return drawn


def course_figure(result: Mapping[str, Any], width: Any) -> Figure | Unavailable:
    """Activity over an iteration, before and after."""
    rows: list[tuple[str, float, float | None]] = []
    for order in ORDERS:
        found = course_of(result, order)
        if isinstance(found, Unavailable):
            continue
        course, length = found["course"], found["parts"]["iteration"]["seconds"]
        # the last step reaches the end; where no sample is, the line has a gap
        for n, active in enumerate((*course, course[-1])):
            rows.append((order, round(n * length / len(course), 6), active))
    if not any(active is not None for *_, active in rows):
        return Unavailable(courses_note(result))
    frame = pl.DataFrame(
        rows, schema={"variant": pl.String, "at_s": pl.Float64, "active_frac": pl.Float64}, orient="row"
    )
    chart = course_chart(frame, quantity=quantity(result), width=width)
    return Figure("course", chart, (courses_note(result),))


def phase_figure(result: Mapping[str, Any]) -> Figure | None:
    """Mean activity of each phase, before and after; None: there is nothing to draw."""
    rows = []
    names: dict[str, None] = {}
    for order in ORDERS:
        found = course_of(result, order)
        for name, part in ({} if isinstance(found, Unavailable) else found["parts"]).items():
            told = part.get("active_frac") is not None and sampled(found, part)
            if told and (name in names or len(names) < MOST_PHASES):
                names[name] = None
                rows.append((name.replace("_", " "), order, part["active_frac"]))  # labels break at blanks
    if len(names) < 2:
        return None
    schema = {"phase": pl.String, "order": pl.String, "active_frac": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    chart = bars_chart(
        frame, category="phase", value="active_frac", group="order", value_title=quantity(result),
        form=".0%", width=min(900, max(240, 110 * len(names))), height=160,
    )  # fmt: skip
    return Figure("phases", chart)


def level_figure(result: Mapping[str, Any]) -> Figure | None:
    """How much of the iteration activity is below a level, before and after."""
    rows: list[tuple[str, float, float]] = []
    for order in ORDERS:
        found = course_of(result, order)
        levels = None if isinstance(found, Unavailable) else found["parts"]["iteration"].get("levels")
        below = 0.0
        for n, share in enumerate(levels or ()):
            below += share
            rows.append((order, (n + 1) / len(levels or ()), min(below, 1.0)))
    if not rows:
        return None
    frame = pl.DataFrame(
        rows, schema={"variant": pl.String, "below_frac": pl.Float64, "share_frac": pl.Float64}, orient="row"
    )
    return Figure("levels", distribution_chart(frame, quantity=quantity(result)))


def pair_figure(result: Mapping[str, Any], width: Any) -> Figure | None:
    """Times of the pairs that the gain is of; None: fewer than two."""
    compared = result["total"] or next(
        (r["validation"] for r in reversed(result["rounds"]) if r.get("validation")), None
    )
    pairs = (compared or {}).get("pairs") or ()
    if len(pairs) < 2:
        return None
    rows = [(n, order, pair[i]) for n, pair in enumerate(pairs, 1) for i, order in enumerate(ORDERS)]
    frame = pl.DataFrame(
        rows, schema={"pair": pl.Int64, "order": pl.String, "seconds": pl.Float64}, orient="row"
    )
    chart = lines_chart(
        frame, x="pair", y="seconds", group="order", x_title="pair, in the order measured",
        y_title="s of an iteration", x_scale="linear", x_values=ticks(len(pairs)), points_only=ORDERS,
        zero=False, width=width, height=180,
    )  # fmt: skip
    return Figure("pairs", chart)


def ticks(count: int, most: int = 12) -> list[float]:
    """Ticks of an axis of so many things: whole numbers from 1 on."""
    return [float(n) for n in range(1, count + 1, max(1, -(-count // most)))]


def quota_figure(found: Mapping[str, Any], width: Any) -> Figure | None:
    """Time of the comparison by level; None: fewer than two were measured."""
    points = level_points(found)
    if len(points) < 2:
        return None
    schema = {"phase": pl.String, "amount": pl.Float64, "seconds": pl.Float64}
    frame = pl.DataFrame(points, schema=schema, orient="row")
    chart = lines_chart(
        frame, x="amount", y="seconds", group="phase", x_title="SMs of the process with slack",
        y_title="s of the comparison", x_scale="linear", points_only=tuple(dict.fromkeys(frame["phase"])),
        zero=False, width=width, height=180,
    )  # fmt: skip
    return Figure("quota", chart)
