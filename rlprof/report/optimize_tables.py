"""Tables of an optimisation's result: activity by phase, gain, levers, what was tried, cost, estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import rlprof
from rlprof.overlap.optimize.log import setting, shortened
from rlprof.report.cells import Table
from rlprof.report.optimize_activity import NO_LOG, NOT_STORED, last, source_of
from rlprof.report.text import count, duration, percent
from rlprof.text import counted
from rlprof.unavailable import Unavailable

#: Fields of `overhead` in words, in their order; others are shown under their own names.
COST = {
    "total_s": "whole optimisation",
    "retained_training_s": "of it training that counts",
    "net_s": "net",
    "gain_s": "gain an iteration",
}


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


def earlier_table(result: Mapping[str, Any]) -> Table | None:
    """The graph of an earlier session that stays in place of this one's, or was set aside; None: neither."""
    earlier = result["earlier_graph"]
    if earlier is None:
        return None
    file = str(earlier.get("file") or "graph.json")  # of a version that set none aside
    stays = "it stays: what is shown here found less"
    rows = (
        ("file", f"{file}: {stays if file == 'graph.json' else 'set aside for what is shown here'}"),
        ("found", str(earlier.get("date") or "not stored")),
        ("steps", "; ".join(map(str, earlier["steps"])) or "none"),
        ("levers", _listed(earlier.get("levers") or {}) or "none"),
        ("quotas", _listed(earlier.get("quotas") or {}) or "none"),
    )
    return Table(("", ""), rows, "Graph of an earlier session")


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
    if not rows and result["steps"] and result["counted"]:
        return Unavailable(f"{result['ended']}: its iterations were not compared in pairs")
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
    return Table(("", "iterations", "median", "least", "most"), rows, "Counted iterations")


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
        return NO_LOG
    rows = [tuple(map(shortened, row)) for entry in result["decisions"] for row in _tried(entry)]
    if not rows:
        return Unavailable("no window was found, so nothing was tried")
    return Table(("round", "window", "what", "outcome", "comparison", "gain"), tuple(rows))


def _tried(e: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    where = (str(e.get("round") or ""), last(e.get("target", "")))
    if e["what"] == "compared":
        again = ", measured before" if e.get("reused") else ""
        yield (
            *where,
            str(e["steps"]),
            str(e["outcome"]),
            *_compared(e["result"], str(e["comparison"]), again),
        )
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


def cost_table(result: Mapping[str, Any]) -> Table | Unavailable:
    """Seconds of the optimisation, and iterations after which they are paid back."""
    cost = result["overhead"]
    if not cost:
        return Unavailable(f"not known: {result['ended']}")
    rows = [(words, duration(cost[name])) for name, words in COST.items() if name in cost]
    rows += [
        (name.removesuffix("_s").replace("_", " "), duration(value))
        for name, value in cost.items()
        if name not in COST and name.endswith("_s") and isinstance(value, int | float)
    ]
    rows.append(("paid back after", payback(result)))
    sessions, unknown = cost.get("sessions") or (), cost.get("measurements_of_unknown_cost")
    notes = [f"In {counted(len(sessions), 'session')}."] if sessions else []
    if unknown:
        notes.append(f"What {counted(unknown, 'measurement')} of an earlier version took is not known.")
    return Table(("", ""), tuple(rows), note=" ".join(notes))


def part_table(result: Mapping[str, Any]) -> Table | None:
    """What each part of the work took, over all sessions; None: the result does not tell it."""
    parts = result["overhead"].get("parts") or ()
    rows = tuple(
        (
            str(p["part"]) + (" (apart)" if p.get("apart") else ""),
            duration(p.get("total_s")),
            duration(p.get("retained_training_s")),
            duration(p.get("net_s")),
            count(p.get("iterations"))
            + (f" ({p['lost_iterations']} lost)" if p.get("lost_iterations") else ""),
            count(p.get("trials")),
        )
        for p in parts
    )
    heads = ("part", "took", "training that counts", "net", "iterations", "local trials")
    return Table(heads, rows, "By part") if rows else None


def payback(result: Mapping[str, Any]) -> str:
    """Iterations until the net cost is gained, in words; or why never."""
    back = result["overhead"].get("paid_back_after_iterations")
    if back is not None:
        return f"{back:,.0f} iterations"
    if any(row["outcome"] == "kept" for row in result["levers"] or ()):
        return "not by overlap, which gained nothing (what levers gain is not counted)"
    return "never: nothing was gained"


def batch_table(result: Mapping[str, Any]) -> Table | Unavailable:
    """Durations by batch size."""
    if not result["batch_times"]:
        reason = "no durations by batch size"
        return Unavailable(
            f"{reason}: {NOT_STORED if result['batch_times'] is None else 'none was measured'}"
        )
    rows = []
    for row in result["batch_times"]:
        sizes = ", ".join(f"{b}: {duration(t)}" for b, t in row["medians_s"].items())
        line = "one size: no line"
        if row["per_sample_s"] is not None:
            line = f"{duration(row['fixed_s'])} + {duration(row['per_sample_s'])} a sample"
        single = row.get("residual_frac")  # of single durations; of medians there is none with two sizes
        told = (percent(row["worst_residual_frac"], 1), percent(single, 1), count(row.get("observations")))
        rows.append((last(row["node"]), sizes, line, *told))
    heads = ("node", "median by batch size", "line", "worst residual", "of single durations", "durations")
    return Table(heads, tuple(rows), "Batch sizes")


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
        rows.append(
            ("cores kept busy by others", f"{percent(busy['median'])}, at most {percent(busy['most'])}")
        )
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
