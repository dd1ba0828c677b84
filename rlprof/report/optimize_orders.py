"""Orders that a benchmark ran in turn: their iterations, gain over the best baseline, equality, bounds."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median
from typing import Any

from rlprof.report.cells import Table
from rlprof.report.text import count, duration, percent
from rlprof.text import counted

#: Today's schedules; with levers that any of them may have they are baselines too.
BASELINES = ("native", "colocated-pipe", "hybrid", "hybrid-pipe")
#: Fields of an iteration that are kept of each turn.
TURN = ("wall_s", "sm_activity", "gpu", "semantic_differences")


def is_baseline(order: str) -> bool:
    """Whether an order is one of today's schedules: "native", "colocated-pipe+graph", "native, egl-one:2"."""
    return order.partition(",")[0].partition("+")[0] in BASELINES


def orders_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the orders of a benchmark's document that have counted iterations.

    Parameters
    ----------
    document : mapping
        As `benchmarks.gpu.optimize` writes it.

    Returns
    -------
    dict of str to dict
        By name: ``turns`` (counted iterations), ``withdrawn`` (why it does not count, or None), and
        ``against_native``, ``share_of_bound``, ``placement`` of its summary, where they are there.
    """
    summary, withdrawn = document.get("summary") or {}, document.get("withdrawn") or {}
    found: dict[str, dict[str, Any]] = {}
    for row in document.get("iterations") or ():
        if row.get("warm_up") or row.get("short") or not row.get("wall_s") or not row.get("variant"):
            continue
        told = summary.get(row["variant"]) or {}
        names = ("against_native", "share_of_bound", "placement")
        start: dict[str, Any] = {"turns": [], "withdrawn": withdrawn.get(row["variant"])}
        start |= {name: told.get(name) for name in names}
        found.setdefault(row["variant"], start)["turns"].append({k: row.get(k) for k in TURN})
    return found


def times(order: Mapping[str, Any]) -> list[float]:
    """Seconds of the counted iterations of an order."""
    return [turn["wall_s"] for turn in order["turns"]]


def best_baseline(orders: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the baseline of least median time; None if none ran."""
    today = {name: median(times(o)) for name, o in orders.items() if is_baseline(name) and not o["withdrawn"]}
    return min(today, key=lambda name: today[name]) if today else None


def gain_over(reference: Mapping[str, Any], order: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return how many times as fast an order is as another's median: by its median, slowest, fastest."""
    one_s, own = median(times(reference)), times(order)
    return one_s / median(own), one_s / max(own), one_s / min(own)


def order_table(result: Mapping[str, Any]) -> Table:
    """Counted iterations of all orders that ran in turn, and what each gains over the best baseline."""
    orders = result["orders"]
    best = best_baseline(orders)
    rows = []
    for name, order in orders.items():
        own = times(order)
        active = [t["sm_activity"] for t in order["turns"] if t["sm_activity"] is not None]
        gain = "–"
        if order["withdrawn"]:
            gain = f"withdrawn: {order['withdrawn']}"
        elif best is not None and name != best:
            by, low, high = gain_over(orders[best], order)
            gain = f"{by:.3f} ×" + (f" ({low:.3f} to {high:.3f})" if len(own) > 1 else " (once)")
        rows.append(
            (
                name + (", the best baseline" if name == best else ""),
                count(len(own)),
                duration(median(own)),
                f"{duration(min(own))} to {duration(max(own))}",
                percent(fmean(active) if active else None, 1),
                gain,
                _equality(order),
            )
        )
    heads = ("order", "iterations", "median", "range", "SM activity", "over the best baseline", "equality")
    note = (
        "how many times as fast as the median of the best baseline: by the median, in brackets by the slowest"
        " and the fastest iteration; orders ran in turn, and were not compared in pairs."
    )
    return Table(heads, tuple(rows), "Counted iterations", note if best else "No baseline ran.")


def _equality(order: Mapping[str, Any]) -> str:
    """What comparing an order's training with native training of the same iteration told."""
    apart = order["against_native"]
    if isinstance(apart, Mapping):
        holds = "equal to native training" if apart.get("holds") else "NOT equal to native training"
        differ = apart.get("weights_rel")
        by = "" if differ is None else f", weights differ by {differ:.2g} of their size"
        runs = counted(apart.get("iterations") or 0, "iteration")
        return f"{holds} by {apart.get('equality')} ({runs}{by})"
    known = [t["semantic_differences"] for t in order["turns"] if t["semantic_differences"] is not None]
    if not known:
        return "not compared"
    differences = sum(map(len, known))
    return f"{counted(differences, 'difference')} of the semantic record; weights were not compared"


def bound_table(result: Mapping[str, Any]) -> Table | None:
    """Least time of an iteration by any graph, what sets it, and how much of that each order reached."""
    rows = []
    for kind, bound in (result["bound"] or {}).items():
        reached = {
            name: (order["share_of_bound"] or {}).get(kind) for name, order in result["orders"].items()
        }
        shares = "; ".join(f"{name} {percent(share)}" for name, share in reached.items() if share is not None)
        over = bound.get("over_iterations") or {}
        spread = f"{duration(over['least_s'])} to {duration(over['most_s'])}" if "most_s" in over else "–"
        binding = str(bound.get("binding") or "–")
        rows.append((kind, duration(bound.get("least_s")), spread, binding, shares or "–"))
    heads = ("bound of", "least time", "over iterations", "set by", "share that is reached")
    note = "the share is that of the greatest speed-up over the best baseline that the bound leaves."
    return Table(heads, tuple(rows), "Bounds", note) if rows else None
