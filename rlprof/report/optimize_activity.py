"""Activity in an optimisation's result: where it is from, its course before and after, phases and windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof.report.cells import Table
from rlprof.report.text import count, duration, percent
from rlprof.unavailable import Unavailable

ORDERS = ("before", "after")
NOT_STORED = "this result was stored without them"
NO_LOG = Unavailable("the log of decisions is not stored in this result")


def last(path: object) -> str:
    """Last part of a node's path."""
    return str(path).rpartition("/")[2]


def source_of(result: Mapping[str, Any]) -> str | Unavailable:
    """Return where activity comes from."""
    for order in ORDERS:
        over = (result["over_time"] or {}).get(order) or {}
        if "source" in over:
            return str(over["source"])
    if any(result["sm_activity"][order] is not None for order in ORDERS) and result["rounds"]:
        return str(result["rounds"][0].get("source", "not stored"))
    told = [str(r["source"]) for r in result["rounds"] if r.get("source")]
    return Unavailable(f"no activity was sampled{': ' + told[0] if told else ''}")


def quantity(result: Mapping[str, Any]) -> str:
    """Return what the activity is of: SMs of a GPU, or what stands in for them."""
    source = source_of(result)
    return "SM activity" if isinstance(source, str) and source.startswith("SM counters") else "Activity"


def course_of(result: Mapping[str, Any], order: str) -> Mapping[str, Any] | Unavailable:
    """Return the activity over an iteration natively ("before") or by the graph, or why there is none."""
    stored = result["over_time"]
    if stored is None:
        return Unavailable("its course over the iteration is not stored: the result is of an earlier version")
    found = stored.get(order) or {}
    if not found.get("course"):
        return Unavailable(str(found.get("reason", "not stored")))
    return found


def courses_note(result: Mapping[str, Any]) -> str:
    """Return which iterations the courses are of, and how they were sampled."""
    told = []
    for order in ORDERS:
        found = course_of(result, order)
        if isinstance(found, Unavailable):
            told.append(f"{order}: {found.reason}")
            continue
        every = "" if not found.get("period_s") else f", a sample every {duration(found['period_s'])}"
        of = (
            f"the one of median length of {found['iterations']}"
            if found["iterations"] > 1
            else "the only one"
        )
        told.append(f"{order}: an iteration of {duration(found['time_s'])}, {of}{every}")
    return "; ".join(told)


def sampled(course: Mapping[str, Any] | Unavailable, part: Mapping[str, Any]) -> bool:
    """Return whether a part of an iteration is at least as long as a sample: else others' activity is its."""
    if isinstance(course, Unavailable):
        return False
    return (part.get("seconds") or 0.0) >= (course.get("period_s") or 0.0)


def phase_table(result: Mapping[str, Any]) -> Table | Unavailable:
    """Activity by phase, before and after: seconds, mean activity, shares of its time at low activity."""
    found = {order: course_of(result, order) for order in ORDERS}
    if all(isinstance(f, Unavailable) for f in found.values()):
        return Unavailable("activity by phase is not known")
    parts = {o: {} if isinstance(f, Unavailable) else f.get("parts") or {} for o, f in found.items()}
    names = dict.fromkeys(name for of in parts.values() for name in of)
    rows = []
    for name in names:
        row = [name]
        for order in ORDERS:
            part = parts[order].get(name) or {}
            known = sampled(found[order], part)
            row += [
                duration(part.get("seconds")),
                percent(part.get("active_frac") if known else None, 1),
                percent(part.get("below_half") if known else None),
                percent(part.get("below_most") if known else None),
            ]
        rows.append(tuple(row))
    notes = []
    for order, f in found.items():
        if isinstance(f, Unavailable):
            continue
        if f.get("phases_of") is None:
            notes.append(f"phases {order}: when its calls ran was not recorded")
        elif f["phases_of"] != "this iteration":
            notes.append(f"phases {order} are those of {f['phases_of']}")
    if any(not sampled(found[o], part) for o in ORDERS for part in parts[o].values()):
        notes.append("what is shorter than a sample has no activity of its own")
    notes.append("a phase reaches from its first call to the end of its last one: phases may overlap")
    heads = ["part"]
    for order in ORDERS:
        heads += [order, "activity", "below 50 %", "below 80 %"]
    return Table(tuple(heads), tuple(rows), "By phase", "; ".join(notes) + ".")


def window_table(result: Mapping[str, Any], most: int = 15) -> Table | Unavailable:
    """Ranked windows of the first round, as it was profiled last."""
    rankings = [e for e in result["decisions"] or () if e["what"] == "ranking"]
    first = rankings[0].get("round") if rankings else None
    found = next((e for e in reversed(rankings) if e.get("round") == first), None)
    if found is None:
        return NO_LOG if result["decisions"] is None else Unavailable("no round began")
    rows = tuple(
        (
            str(w["rank"] or "–"),
            last(w["node"]) + (" (target)" if w["node"] in found["targets"] else ""),
            count(w["count"]),
            duration(w["total_s"]),
            duration(w["mean_s"]),
            percent(w["sm_activity"], 1),
            str(w["tier"] or "–"),
            duration(w["score_s"]),
        )
        for w in found["windows"][:most]
    )
    note = f"activity from: {found['source']}"
    if len(found["windows"]) > most:
        note += f"; {len(found['windows']) - most} more nodes are in the log"
    heads = ("rank", "node", "calls", "time", "mean of a call", "activity", "tier", "unused time")
    return Table(heads, rows, "", note + ".")
