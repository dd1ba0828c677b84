"""Tables of an optimisation's result: activity by phase, gain, levers, what was tried, cost, estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import rlprof
from rlprof.overlap.optimize.log import setting, shortened
from rlprof.report.cells import Table
from rlprof.report.text import count, duration, percent
from rlprof.unavailable import Unavailable

ORDERS = ("before", "after")
#: Fields of `overhead` in words, in their order; others are shown under their own names.
COST = {
    "total_s": "whole optimisation",
    "retained_training_s": "of it training that counts",
    "net_s": "net",
    "gain_s": "gain an iteration",
}
NOT_STORED = "this result was stored without them"


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
    return found  # type: ignore[no-any-return]


def courses_note(result: Mapping[str, Any]) -> str:
    """Return which iterations the courses are of, and how they were sampled."""
    told = []
    for order in ORDERS:
        found = course_of(result, order)
        if isinstance(found, Unavailable):
            told.append(f"{order}: {found.reason}")
            continue
        every = "" if not found.get("period_s") else f", a sample every {duration(found['period_s'])}"
        of = f"the one of median length of {found['iterations']}" if found["iterations"] > 1 else "the only one"
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
    """Ranked windows of the first round."""
    found = next((e for e in result["decisions"] or () if e["what"] == "ranking"), None)
    if found is None:
        return Unavailable(
            "the log of decisions is not stored in this result"
            if result["decisions"] is None
            else "no round began"
        )
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


def spread_text(s: Mapping[str, Any]) -> str:
    """Median with what it is known from: quartiles, least and greatest of fewer than four, one time."""
    if s.get("runs") == 1:
        return f"{duration(s['median_s'])} (once)"
    kind = "quartiles" if s.get("runs", 4) >= 4 else "least and most"
    return f"{duration(s['median_s'])} ({kind} {duration(s['low_s'])} to {duration(s['high_s'])})"


def gain_text(c: Mapping[str, Any]) -> str:
    """Gain of a comparison in seconds with its interval."""
    if c.get("low_s") is None or c.get("high_s") is None:
        return f"{duration(c['gain_s'])} (interval not known: too few pairs)"
    sure = f"{c['confidence']:.0%} " if c.get("confidence") else ""
    return f"{duration(c['gain_s'])} ({sure}interval {duration(c['low_s'])} to {duration(c['high_s'])})"


def gain_table(result: Mapping[str, Any]) -> Table | Unavailable:
    """Complete iterations: each round's comparison, and all rounds together."""
    compared = [(f"round {n}", r.get("validation")) for n, r in enumerate(result["rounds"], 1)]
    known = [c for _, c in compared if c is not None]
    total = result["total"]
    if total is not None and (len(known) > 1 or total not in known):
        compared.append(("in all", total))
    rows = tuple(
        (
            name,
            spread_text(c["reference"]),
            spread_text(c["candidate"]),
            f"{c['gain_frac']:+.1%}",
            gain_text(c),
            count(len(c["pairs"])),
            str(c["decision"]),
            _ended(c),
        )
        for name, c in compared
        if c is not None
    )
    if not rows:
        return Unavailable("no graph came as far as complete iterations")
    heads = ("", "before", "after", "gain", "gain an iteration", "pairs", "decision", "ended")
    note = "the gain is the median over pairs, not the difference of the medians."
    return Table(heads, rows, "", note)


def _ended(c: Mapping[str, Any]) -> str:
    """Why a comparison ended, and what the machine's state puts in doubt."""
    return "; ".join([str(c["reason"]), *(f"doubtful: {said}" for said in c.get("doubts") or ())])


def counted_table(result: Mapping[str, Any]) -> Table | None:
    """Counted iterations that a benchmark ran after the search, as far as there are any."""
    if not result["counted"]:
        return None
    rows = tuple(
        (order, count(len(times)), duration(median(times)), duration(min(times)), duration(max(times)))
        for order, times in result["counted"].items()
    )
    return Table(("", "iterations", "median", "least", "most"), rows, "Counted after the search")


def lever_table(result: Mapping[str, Any]) -> Table | Unavailable:
    """Settings that were tried alone."""
    if result["levers"] is None:
        return Unavailable(NOT_STORED)
    rows = []
    for row in result["levers"]:
        c, change = row["result"], ""
        if row["outcome"] != "does not apply":
            change = f"{setting(row['before'])} → {setting(row['value'])}"
        rows.append(
            (
                str(row["lever"]),
                change,
                "" if c is None else spread_text(c["reference"]),
                "" if c is None else spread_text(c["candidate"]),
                "" if c is None else f"{c['gain_frac']:+.1%}",
                "" if c is None else count(len(c["pairs"])),
                str(row["outcome"]),
                str(row["reason"]),
            )
        )
    if not rows:
        return Unavailable("no lever was tried")
    heads = ("lever", "change", "before", "after", "gain", "pairs", "outcome", "why")
    return Table(heads, tuple(rows))


def tried_table(result: Mapping[str, Any]) -> Table | Unavailable:
    """Every candidate of the search: measured, refused, or not tried, and why."""
    if result["decisions"] is None:
        return Unavailable("the log of decisions is not stored in this result")
    rows = [tuple(map(shortened, row)) for entry in result["decisions"] for row in _tried(entry)]
    if not rows:
        return Unavailable("no window was found, so nothing was tried")
    return Table(("round", "window", "what", "outcome", "comparison", "gain"), tuple(rows))


def _tried(e: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    where = (str(e.get("round") or ""), last(e.get("target", "")))
    if e["what"] == "compared":
        again = ", measured before" if e.get("reused") else ""
        yield (*where, str(e["steps"]), str(e["outcome"]), *_compared(e["result"], str(e["comparison"]), again))
    elif e["what"] == "not measured":
        yield (*where, str(e["steps"]), f"not measured: {e['reason']}", "", "")
    elif e["what"] == "candidates":
        for r in e["refused"]:
            yield (*where, str(r["steps"]), f"refused: {r['reason']}", "", "")
        for c in e["candidates"]:
            if not c["kept"]:
                why = "tried for another window" if c.get("tried") else "not tried: others come first"
                yield (*where, str(c["steps"]), why, "", "")
    elif e["what"] == "combined":
        for c in e["combinations"]:
            if c.get("reason"):
                yield (where[0], "combination", str(c["steps"]), f"refused: {c['reason']}", "", "")
        for r in e["refused"]:
            why = f"not with {r['others']}: {r['reason']}"
            yield (where[0], "combination", str(r["steps"]), why, "", "")
    elif e["what"] == "validated":
        what = "; ".join(map(str, e["steps"]))
        told = _compared(e["result"], "complete iterations", "")
        yield (str(e["round"] or "all"), "combination", what, str(e["outcome"]), *told)


def _compared(c: Mapping[str, Any], what: str, again: str) -> tuple[str, str]:
    times = f"{spread_text(c['reference'])} → {spread_text(c['candidate'])} on {what}"
    doubts = "".join(f"; doubtful: {said}" for said in c.get("doubts") or ())
    return times, f"{c['gain_frac']:+.1%}, {c['decision']} ({len(c['pairs'])} pairs{again}){doubts}"


def cost_table(result: Mapping[str, Any]) -> Table:
    """Seconds of the optimisation, and iterations after which they are paid back."""
    cost = result["overhead"]
    rows = [(words, duration(cost[name])) for name, words in COST.items() if name in cost]
    rows += [
        (name.removesuffix("_s").replace("_", " "), duration(value))
        for name, value in cost.items()
        if name not in COST and name.endswith("_s") and isinstance(value, int | float)
    ]
    rows.append(("paid back after", payback(result)))
    sessions, unknown = cost.get("sessions") or (), cost.get("measurements_of_unknown_cost")
    notes = [f"in {len(sessions)} sessions"] if len(sessions) > 1 else []
    if unknown:
        notes.append(f"what {unknown} measurements of an earlier version took is not known")
    return Table(("", ""), tuple(rows), note="; ".join(notes))


def part_table(result: Mapping[str, Any]) -> Table | None:
    """What each part of the work took, over all sessions; None: the result does not tell it."""
    parts = result["overhead"].get("parts") or ()
    rows = tuple(
        (
            str(p["part"]) + (" (apart)" if p.get("apart") else ""),
            duration(p.get("total_s")),
            duration(p.get("retained_training_s")),
            duration(p.get("net_s")),
            count(p.get("iterations")) + (f" ({p['lost_iterations']} lost)" if p.get("lost_iterations") else ""),
            count(p.get("trials")),
        )
        for p in parts
    )
    heads = ("part", "took", "training that counts", "net", "iterations", "local trials")
    return Table(heads, rows, "By part") if rows else None


def payback(result: Mapping[str, Any]) -> str:
    """Iterations until the net cost is gained, in words; or why never."""
    back = result["overhead"].get("paid_back_after_iterations")
    return "never: nothing was gained" if back is None else f"{back:,.0f} iterations"


def batch_table(result: Mapping[str, Any]) -> Table | Unavailable:
    """Durations by batch size."""
    if not result["batch_times"]:
        reason = "no durations by batch size"
        return Unavailable(f"{reason}: {NOT_STORED if result['batch_times'] is None else 'none was measured'}")
    rows = []
    for row in result["batch_times"]:
        sizes = ", ".join(f"{b}: {duration(t)}" for b, t in row["medians_s"].items())
        line = "one size: no line"
        if row["per_sample_s"] is not None:
            line = f"{duration(row['fixed_s'])} + {duration(row['per_sample_s'])} a sample"
        rows.append((last(row["node"]), sizes, line, percent(row["worst_residual_frac"], 1)))
    return Table(("node", "median by batch size", "line", "worst residual"), tuple(rows), "Batch sizes")


def interference_table(result: Mapping[str, Any]) -> Table | Unavailable:
    """How much longer calls take beside others."""
    found = result["interference"]
    if found is None or not (found["factors"] or found.get("untold")):
        why = NOT_STORED if found is None else found.get("reason") or "none can be told"
        return Unavailable(f"no factors of interference: {why}")
    residual = found.get("residual_frac") or {}
    rows = [
        (
            last(f["node"]),
            _beside(f["beside"]),
            f"{f['factor']:.2f} ×" + (f" ± {f['error_frac']:.0%}" if f.get("error_frac") else ""),
            count(f["calls"]),
            percent(residual.get(f["node"]), 1),
        )
        for f in found["factors"]
    ]
    for f in found.get("untold") or ():
        if isinstance(f, Mapping):
            where = (last(f.get("node", "")), _beside(f.get("beside", "")))
            rows.append((*where, f"cannot be told: {f.get('reason', '')}", "", ""))
    heads = ("node", "beside", "takes", "calls", "median residual")
    return Table(heads, tuple(rows), "Interference")


def _beside(found: Any) -> str:
    """Nodes that run beside; several that cannot be told apart are one text, or a list."""
    return ", ".join(map(last, found.split(", ") if isinstance(found, str) else found))


def provenance_table(result: Mapping[str, Any]) -> Table:
    """Date, hardware, versions, configuration."""
    facts = result["facts"]
    source = source_of(result)
    rows = [("date", str(facts.get("date") or "not stored"))]
    hardware = facts["hardware"] or {"hardware": "not stored"}
    rows += [(str(k), str(v)) for k, v in hardware.items()]
    if result.get("others_busy_frac"):
        busy = result["others_busy_frac"]
        rows.append(("cores kept busy by others", f"{percent(busy['median'])}, at most {percent(busy['most'])}"))
    rows.append(("activity from", source if isinstance(source, str) else source.reason))
    rows.append(("made with", f"rlprof {facts['rlprof']}" if facts.get("rlprof") else "not stored"))
    rows.append(("page made with", f"rlprof {rlprof.__version__}"))
    told = {k: v for k, v in facts["config"].items() if v is not None and v is not False}
    rows.append(("configuration", _listed(told) or "not stored"))
    rows.append(("options of the search", _listed(facts.get("options") or {}) or "not stored"))
    for name in ("spares", "levers", "stream_priorities", "iterations"):
        if facts.get(name) not in (None, {}, []):
            value = facts[name]
            shown = _listed(value) if isinstance(value, Mapping) else str(value)
            rows.append(({"iterations": "iterations trained"}.get(name, name.replace("_", " ")), shown))
    return Table(("", ""), tuple(rows))


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={_flat(v)}" for k, v in values.items())


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({_listed(value)})"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "/".join(map(str, value)) or "none"
    return str(value)
