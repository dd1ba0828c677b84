"""What Algorithm 2 tried, and the state of the machine beside measurements: tables and points of a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from rlprof.report.cells import Table
from rlprof.report.optimize_tables import gain_text, spread_text
from rlprof.report.text import count, duration
from rlprof.unavailable import Unavailable

#: Numbers of a state that are shown, in words; others are shown under their own names.
STATE = {
    "sm_clock_mhz": "SM clock (MHz)",
    "memory_clock_mhz": "memory clock (MHz)",
    "temperature_c": "temperature (°C)",
    "power_w": "power (W)",
    "slowed_by": "reasons for lower clocks (bits of NVML)",
    "slowed_frac": "share of trials that were slowed down",
    "core_mhz": "clock of cores (MHz)",
    "throttled": "times that cores were throttled",
    "own_cores": "cores kept busy by the program",
    "others_cores": "cores kept busy by others",
}
#: Of a state, but no state of the machine.
NO_STATE = frozenset({"wall_s", "cores", "trials"})
#: Values of one kind that are told apart in a cell.
MOST_VALUES = 6


def quota_of(result: Mapping[str, Any]) -> Mapping[str, Any] | Unavailable:
    """Return what is stored of the search for quotas, or why nothing is."""
    found = result["quota"]
    if not isinstance(found, Mapping) or not found:
        return Unavailable("no search for quotas is stored in this result; quotas.json beside it says why")
    return found


def quota_table(found: Mapping[str, Any]) -> Table:
    """What was chosen and why, and who has how much slack."""
    chosen = found.get("quotas") or {}
    what = ", ".join(f"{who}: {share} %" for who, share in chosen.items()) or "none: all have all SMs"
    rows = [("quotas", what), ("why", str(found.get("reason") or "not stored"))]
    pair = found.get("pair")
    if isinstance(pair, Mapping):
        rows += [
            ("has slack", f"{pair['earlier']}, before {pair['later']}; they meet at {pair['join']}"),
            ("slack", f"{duration(pair['slack_s'])}, {pair['occurrences']} times in an iteration"),
            (
                "readiness",
                f"{duration(pair.get('earlier_ready_s'))} and {duration(pair.get('later_ready_s'))}",
            ),
        ]
        rows += [("other pair", str(one)) for one in pair.get("others") or ()]
    cost = found.get("cost")
    if isinstance(cost, Mapping):
        took = f"{duration(cost.get('total_s'))}, {duration(cost.get('retained_training_s'))} of it training"
        trials = f"{count(cost.get('iterations'))} iterations, {count(cost.get('trials'))} local trials"
        rows.append(("took, apart from the rest", f"{took} that counts; {trials}"))
    elif found.get("seconds") is not None:
        rows.append(("took", duration(found["seconds"])))
    if found.get("stopped"):
        rows.append(("not finished", "it was interrupted, or its budget was spent"))
    return Table(("", ""), tuple(rows))


def trials_of(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the trials of the search, in their order, and those of the sweep that came after it."""
    search = found.get("search") or {}
    trials = found.get("trials") or search.get("trials") or ()
    sweep = found.get("sweep") or ()
    return [t for t in (*trials, *sweep) if isinstance(t, Mapping)]


def trial_table(found: Mapping[str, Any]) -> Table | Unavailable:
    """Every level that was tried, its time, and why it was kept or dropped."""
    trials = trials_of(found)
    if not trials:
        return Unavailable("no level was tried")
    search = {**found, **(found.get("search") or {})}
    start, best = search.get("start"), search.get("best")
    reference = next((t.get("time_s") for t in trials if start is not None and t.get("k") == start), None)
    rows = []
    for n, trial in enumerate(trials, 1):
        time_s = trial.get("time_s")
        share = trial.get("setting")
        rows.append(
            (
                str(n),
                str(trial.get("phase", "")),
                count(trial.get("amount")),
                "–" if share is None else f"{share} %",
                duration(time_s),
                duration(trial.get("spread_s")),
                count(trial.get("runs")),
                _beside_q0(trial),
                _verdict(trial, start, best, reference),
            )
        )
    heads = ("", "phase", "SMs", "share", "median", "spread", "runs", "in pairs with q0", "outcome")
    return Table(
        heads, tuple(rows), "Levels", str(search.get("reason") or "") if search.get("search") else ""
    )


def _beside_q0(trial: Mapping[str, Any]) -> str:
    c = trial.get("comparison")
    if not isinstance(c, Mapping) or "gain_frac" not in c:
        return "–"
    return f"{c['gain_frac']:+.1%}, {c.get('decision', '')} ({len(c.get('pairs') or ())} pairs)"


def _verdict(trial: Mapping[str, Any], start: Any, best: Any, reference: float | None) -> str:
    if trial.get("unavailable"):
        return f"not measured: {trial['unavailable']}"
    for name in ("outcome", "reason"):
        if trial.get(name):
            return str(trial[name])
    time_s = trial.get("time_s")
    if start is not None and trial.get("k") == start:
        return "q0: what others are compared with" + ("; the least time" if best == start else "")
    gain = ""  # the pairs with q0 say it where there are any; times apart drift
    if reference and time_s is not None and not isinstance(trial.get("comparison"), Mapping):
        gain = f" ({1 - time_s / reference:+.1%} against q0)"
    if best is not None and trial.get("k") == best:
        return f"the least time: validated by complete iterations{gain}"
    return f"dropped: another level took less time{gain}" if best is not None else gain.strip(" ()")


def validation_table(found: Mapping[str, Any]) -> Table | Unavailable:
    """Complete iterations under the chosen level and under q0."""
    checked = found.get("validation")
    if not isinstance(checked, Mapping):
        return Unavailable("no level came as far as complete iterations")
    c = checked.get("comparison")
    if c is None:
        return Unavailable(f"no complete iterations were compared: {checked.get('reason', 'not stored')}")
    row = (
        spread_text(c["reference"]),
        spread_text(c["candidate"]),
        f"{c['gain_frac']:+.1%}" if "gain_frac" in c else "",
        gain_text(c),
        count(len(c["pairs"])),
        "q0 is kept" if checked.get("kept") else "the level is kept",
        str(checked.get("reason", "")),
    )
    heads = ("q0", "with the level", "gain", "gain an iteration", "pairs", "outcome", "why")
    return Table(heads, (row,), "Complete iterations")


def level_points(found: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return phase, SMs and seconds of each trial that was measured, by level."""
    points = [
        (str(t.get("phase", "trial")), float(t["amount"]), float(t["time_s"]))
        for t in trials_of(found)
        if t.get("time_s") is not None and t.get("amount") is not None
    ]
    return sorted(points, key=lambda p: p[1])


# state of the machine ---------------------------------------------------------------------------------------


def state_table(result: Mapping[str, Any]) -> Table | Unavailable:
    """Clocks, temperature and what else was read beside iterations and trials: median, least and most."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    told: dict[str, None] = {}
    for kind, state in _states(result):
        if isinstance(state, Mapping):
            by_kind.setdefault(kind, []).append(state)
        elif state:
            told[str(state)] = None
    keys = dict.fromkeys([*STATE, *(k for states in by_kind.values() for s in states for k in s)])
    rows = []
    for kind, states in by_kind.items():
        for key in keys:
            values = [s[key] for s in states if s.get(key) is not None and key not in NO_STATE]
            if values:
                rows.append((kind, STATE.get(key, key.replace("_", " ")), count(len(values)), _range(values)))
    if not rows:
        device = str(result["facts"]["config"].get("device") or "")
        if told:
            return Unavailable(f"clocks could not be read: {'; '.join(told)}")
        if device.startswith("cpu"):
            return Unavailable("no clocks were read: there is no GPU")
        return Unavailable("no clocks are stored in this result")
    return Table(("of", "", "readings", "median (least to most)"), tuple(rows))


def _range(values: list[Any]) -> str:
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(values):
        return f"{median(numbers):.4g} ({min(numbers):.4g} to {max(numbers):.4g})"
    texts = dict.fromkeys(str(v) for v in values)
    more = f" and {len(texts) - MOST_VALUES} more" if len(texts) > MOST_VALUES else ""
    return ", ".join(list(texts)[:MOST_VALUES]) + more


def _states(result: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Kind of work and state of the machine beside it, flat."""
    before, after = _graphs(result)
    for one in result["iterations"]:
        graph = one.get("graph")
        kind = "native iterations" if graph == before else "iterations by the graph"
        if graph not in (before, after) or before == after:
            kind = "native iterations" if graph == before else "other iterations"
        for state in _flat(one.get("state"), one.get("facts")):
            yield kind, state
    for entry in result["decisions"] or ():
        inside = entry.get("result")
        kind = "local trials" if entry["what"] == "compared" else str(entry["what"])
        beside = entry.get("machine") or {}  # state of each side, over its trials
        for side in ("reference", "candidate"):
            for state in _flat(beside.get(side)):
                yield f"{kind}, {side}", state
        for state in _flat(entry.get("state"), inside.get("state") if isinstance(inside, Mapping) else None):
            yield kind, state
    for name, order in (result["orders"] or {}).items():
        for turn in order["turns"]:
            for state in _flat(turn["gpu"]):
                yield f"iterations, {name}", state
    quota = result["quota"]
    for trial in trials_of(quota) if isinstance(quota, Mapping) else ():
        for state in _flat(trial.get("state")):
            yield "trials of levels", state


def _graphs(result: Mapping[str, Any]) -> tuple[str | None, str | None]:
    started = next((e["graph"] for e in result["decisions"] or () if e["what"] == "started"), None)
    ended = [e["graph"] for e in result["decisions"] or () if e["what"] == "ended"]
    if started is None and result["iterations"]:  # the native order is measured first
        started = result["iterations"][0].get("graph")
        total = result["total"] or {}
        times = {pair[1] for pair in total.get("pairs") or ()}
        ended = [i["graph"] for i in result["iterations"] if i.get("time_s") in times]
    return started, ended[-1] if ended else None


def _flat(*found: Any) -> Iterable[Any]:
    for one in found:
        if isinstance(one, Mapping):
            inner = {k: v for k, v in one.items() if not isinstance(v, Mapping | list | tuple)}
            nested = [v for v in one.values() if isinstance(v, Mapping)]
            if "gpu" in inner and isinstance(inner["gpu"], str):  # it could not be read; this says why
                yield inner.pop("gpu")
            for more in nested:
                inner.update({k: v for k, v in more.items() if not isinstance(v, Mapping | list | tuple)})
            if inner:
                yield inner
        elif isinstance(one, list | tuple):
            yield from _flat(*one)
        elif isinstance(one, str):
            yield one
