"""Sections of the report of an optimisation, the same for a page and for a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from rlprof.overlap.optimize.log import setting, text
from rlprof.report import optimize_activity as active
from rlprof.report import optimize_charts as charts
from rlprof.report import optimize_orders as orders
from rlprof.report import optimize_quota as quota
from rlprof.report import optimize_tables as tables
from rlprof.report.cells import Item, Lines, Section
from rlprof.report.optimize_stored import BY_HAND, reads_result, whole
from rlprof.report.text import duration, percent
from rlprof.unavailable import Unavailable

#: Sections of what only a search makes.
OF_A_SEARCH = ("levers", "windows", "tried", "quotas", "estimates")


@reads_result
def title_of(result: Mapping[str, Any]) -> str:
    """Return what was optimised, in a few words."""
    config = result["facts"]["config"]
    named = [str(config[k]) for k in ("policy", "simulator", "algorithm", "preset") if config.get(k)]
    return ", ".join(named) or "a program"


@reads_result
def headline(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what matters most: pairs of a value and what it is."""
    result = whole(result)
    total, shares = result["total"], result["sm_activity"]
    told = [_gain(result)]
    if result["unfinished"]:
        told.append(("not finished", f"{'; '.join(map(str, result['unfinished']))}; --resume goes on"))
    what = "SM activity" if active.quantity(result) == "SM activity" else "activity"
    if shares["after"] is not None:
        of = f"{what} of an iteration; {percent(shares['before'])} before"
        told.append((percent(shares["after"]), of))
    elif shares["before"] is not None:
        told.append((percent(shares["before"]), f"{what} of an iteration in the native order"))
    if result["overhead"]:
        told.append((duration(result["overhead"].get("net_s")), "net cost of the optimisation"))
    back = result["overhead"].get("paid_back_after_iterations")
    if back is not None:
        told.append((f"{back:,.0f}", "iterations until it is paid back"))
    elif total is not None and result["steps"]:
        told.append(("never", "paid back: nothing was gained"))
    return told


def _gain(result: Mapping[str, Any]) -> tuple[str, str]:
    total = result["total"]
    if result["by_hand"]:
        return _gain_by_hand(result)
    if not result["steps"]:
        return _gain_without_overlap(result)
    times = {order: result["counted"].get(order) for order in active.ORDERS}
    if total is None and not result["rounds"] and times["before"] and times["after"]:
        ratio = median(times["before"]) / median(times["after"])
        counts = " and ".join(str(len(of or ())) for of in times.values())
        return f"{ratio:.3f} ×", f"by medians of {counts} counted iterations; not compared in pairs"
    if total is None:
        kept = [r["validation"] for r in result["rounds"] if r.get("accepted") and r.get("validation")]
        gain = sum(c["gain_s"] for c in kept)
        return f"about {duration(gain)}", f"an iteration, of {len(kept)} rounds added up: not measured in all"
    ratio = total["reference"]["median_s"] / total["candidate"]["median_s"]
    return f"{ratio:.3f} ×", f"{total['decision']}; {tables.gain_text(total)} an iteration"


def _gain_without_overlap(result: Mapping[str, Any]) -> tuple[str, str]:
    """Gain of levers alone, each over what was in use by then."""
    why = "no overlap that was tried pays; the native order is kept"
    if result["stopped"]:
        why = "it was stopped before an overlap was accepted; the native order is kept"
    kept = [row for row in result["levers"] or () if row["outcome"] == "kept" and row.get("result")]
    if not kept:
        return "no gain so far" if result["stopped"] else "no gain", why
    gains = " and ".join(f"{row['result']['gain_frac']:+.1%}" for row in kept)
    levers = ", then ".join(
        f"{row['lever']}, {setting(row['before'])} → {setting(row['value'])}" for row in kept
    )
    return gains, f"an iteration by levers alone ({levers}): {why}"


def _gain_by_hand(result: Mapping[str, Any]) -> tuple[str, str]:
    """Gain of a graph by hand over the best order without a graph that ran in turn with it."""
    best = orders.best_baseline(result["orders"])
    if best is None:
        return "gain not known", "no baseline ran beside the graph by hand"
    reference, own = result["orders"][best], result["orders"][BY_HAND]
    ratio, low, high = orders.gain_over(reference, own)
    counts = f"medians of {len(reference['turns'])} and {len(own['turns'])} counted iterations"
    by = f"{low:.3f} to {high:.3f} by its slowest and fastest"
    return (
        f"{ratio:.3f} ×",
        f"by hand over {best}, the best baseline: by {counts}, {by}; not compared in pairs",
    )


@reads_result
def sections(result: Mapping[str, Any], *, width: Any = 800) -> dict[str, Section]:
    """Return the sections by name, in their order.

    Parameters
    ----------
    result : mapping
        As of `rlprof.report.optimize_stored.read_result`.
    width : int or "container"
        Of wide charts, in pixels.
    """
    result = whole(result)
    return {name: _made(result, name, width) for name in _SECTIONS}


@reads_result
def section(result: Mapping[str, Any], name: str, *, width: Any = 800) -> Section:
    """Return one of the sections; see `sections`."""
    return _made(whole(result), name, width)


def _made(result: Mapping[str, Any], name: str, width: Any) -> Section:
    """A section; of what only a search makes, where there was none, that alone."""
    made = _SECTIONS[name](result, width)
    searched = result["searched"] or name not in OF_A_SEARCH or (name == "quotas" and result["quota"])
    return made if searched else Section(made.title, "", [Unavailable(str(result["ended"]))])


def _graph(result: Mapping[str, Any], _width: Any) -> Section:
    steps = tuple(map(str, result["steps"]))
    lead = "Steps from the native order to the one that is kept."
    if not result["by_hand"]:
        items: list[Item] = [Lines(steps) if steps else Unavailable("none: the native order is kept")]
        earlier = tables.earlier_table(result)
        return Section("The graph", lead, [*items, *([] if earlier is None else [earlier])])
    placed = result["orders"][BY_HAND]["placement"] or "not stored"
    missing = Unavailable(f"no graph by hand that is of this result lies beside it; its placement: {placed}")
    items = [Lines(steps) if steps else missing]
    return Section("The graph", "By hand: steps from the native order. No search selected it.", items)


def _activity(result: Mapping[str, Any], width: Any) -> Section:
    source = active.source_of(result)
    what = active.quantity(result)
    lead = f"Over the iteration of median length, before and after. Source: {source}."
    if isinstance(source, Unavailable):
        lead = ""
    elif what != "SM activity":
        lead += " No SMs were measured: this stands in for them."
    items: list[Item] = [charts.course_figure(result, width), active.phase_table(result)]
    items += [f for f in (charts.phase_figure(result), charts.level_figure(result)) if f is not None]
    return Section(f"{what} over time", lead, items)


def _gains(result: Mapping[str, Any], width: Any) -> Section:
    items: list[Item] = [tables.gain_table(result)]
    figure = charts.pair_figure(result, width)
    if figure is not None:
        items.append(figure)
    further = [tables.counted_table(result)]
    if result["orders"]:
        further = [orders.order_table(result), orders.bound_table(result)]
    items += [table for table in further if table is not None]
    return Section("Gain with its spread", "Complete iterations in turn, each of which is training.", items)


def _tried(result: Mapping[str, Any], _width: Any) -> Section:
    items: list[Item] = [tables.tried_table(result)]
    if result["decisions"]:
        items.append(Lines(tuple(text(result["decisions"]).splitlines()), fold="All decisions, in words"))
    lead = "In the order of the search; refusals name what forbids them."
    return Section("What was tried", lead, items)


def _quotas(result: Mapping[str, Any], width: Any) -> Section:
    lead = "Algorithm 2: the share of the SMs of who has slack, level by level."
    found = quota.quota_of(result)
    if isinstance(found, Unavailable):
        return Section("Quotas", lead, [found])
    items: list[Item] = [quota.quota_table(found)]
    if quota.trials_of(found):
        items.append(quota.trial_table(found))
        figure = charts.quota_figure(found, width)
        items += [] if figure is None else [figure]
        items.append(quota.validation_table(found))
    return Section("Quotas", lead, items)


def _timelines(result: Mapping[str, Any], width: Any) -> Section:
    lead = "One iteration each, on one axis: what each component ran."
    before = active.course_of(result, "before")
    if result["timelines_are"]:
        lead += f" Stored: {result['timelines_are']}."
    elif not isinstance(before, Unavailable) and before.get("phases_of") not in (None, "this iteration"):
        lead += f" Before: {before['phases_of']}; native code does not tell when its calls run."
    return Section("Timelines", lead, charts.timeline_figures(result, width))


def _levers(result: Mapping[str, Any], _width: Any) -> Section:
    lead = (
        "Settings that were tried alone, in complete iterations; what is compared above has those that were"
        " kept on both sides."
    )
    return Section("Levers", lead, [tables.lever_table(result)])


def _windows(result: Mapping[str, Any], _width: Any) -> Section:
    lead = "Nodes of the iteration that the first round profiled: tier by activity, then by unused time."
    return Section("Windows", lead, [active.window_table(result)])


def _cost(result: Mapping[str, Any], _width: Any) -> Section:
    lead = "Iterations that were trained on the way count as training; the rest is net cost."
    parts = tables.part_table(result)
    return Section("What it cost", lead, [tables.cost_table(result), *([] if parts is None else [parts])])


def _estimates(result: Mapping[str, Any], _width: Any) -> Section:
    lead = "Durations on parts of a batch, and how much longer calls take beside others, with residuals."
    return Section("Estimates", lead, [tables.batch_table(result), tables.interference_table(result)])


def _machine(result: Mapping[str, Any], _width: Any) -> Section:
    return Section("State of the machine", "Read beside iterations and trials.", [quota.state_table(result)])


def _provenance(result: Mapping[str, Any], _width: Any) -> Section:
    return Section("Where these numbers come from", "", [tables.provenance_table(result)])


_SECTIONS: dict[str, Callable[[Mapping[str, Any], Any], Section]] = {
    "graph": _graph,
    "activity": _activity,
    "timelines": _timelines,
    "gain": _gains,
    "levers": _levers,
    "windows": _windows,
    "tried": _tried,
    "quotas": _quotas,
    "cost": _cost,
    "estimates": _estimates,
    "machine": _machine,
    "provenance": _provenance,
}
