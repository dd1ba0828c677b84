"""Searches of Algorithm 1 on a GPU as they are kept: every decision, in tens of kilobytes.

A kept search is a ``result.json`` of `rlprof optimize`, in `benchmarks/results/searches` under the name of
the run that it belongs to: ``rlprof optimize report FILE`` makes its page. Numbers have six digits, times in
timelines are to ten microseconds; an entry of a list has a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlprof.overlap.optimize.log import setting
from rlprof.overlap.optimize.result import FORMAT

FOLDER = "benchmarks/results/searches"
Document = dict[str, Any]


def search_of(path: Path, document: Document) -> Document | None:
    """The whole search that belongs to a run, which lies beside the run's result; None: there is none.

    Raises
    ------
    ValueError
        If what lies there is of another search.
    """
    found = document.get("optimisation")
    name = (document.get("argv") or {}).get("name") or ""
    beside = path.with_name(f"optimisation{name}.json")
    if not found or not beside.exists():
        return None
    search = json.loads(beside.read_text(encoding="utf-8"))
    if "decisions" not in search:
        return None
    if search.get("format") != FORMAT or any(search.get(k) != found.get(k) for k in ("total", "overhead")):
        raise ValueError(f"{beside.name} is not the search of {path.name}")
    return with_machine(search, document["machine"])


def with_machine(search: Document, machine: Document) -> Document:
    """A search with the machine that it ran on, and its report with the hardware."""
    gpu, driver, *_ = [*str(machine.get("gpu") or "").split("\n")[0].split(", "), ""]
    known = {"date": machine.get("date"), "gpu": gpu, "driver": driver}
    known |= {name: machine.get(name) for name in ("cores", "python", "torch")}
    hardware = {k: v for k, v in known.items() if v} | search["facts"].get("hardware", {})
    return {**search, "facts": {**search["facts"], "hardware": hardware}, "machine": machine}


def compact(search: Document) -> Document:
    """A search with short numbers."""
    timelines = {
        name: [[*call[:3], *(round(at_s, 5) for at_s in call[3:])] for call in calls]
        for name, calls in search["timelines"].items()
    }
    return {**{k: _short(v) for k, v in search.items()}, "timelines": timelines}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list) else value


def written(search: Document) -> str:
    """A search as JSON: a line for each entry of a list, none for spaces."""
    parts = []
    for name, value in search.items():
        if name == "timelines":
            shown = _lines("{", (f"{json.dumps(k)}:{_entries(v)}" for k, v in value.items()), "}")
        else:
            shown = _entries(value)
        parts.append(f"{json.dumps(name)}:{shown}")
    return _lines("{", parts, "}") + "\n"


def save(path: Path, search: Document) -> None:
    """Write a search whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(written(search), encoding="utf-8")
    temporary.replace(path)


def _entries(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, separators=(",", ":"))
    return _lines("[", (json.dumps(v, separators=(",", ":")) for v in value), "]")


def _lines(begin: str, parts: Iterable[str], end: str) -> str:
    return f"{begin}\n" + ",\n".join(parts) + f"\n{end}"


def search_table(search: Document) -> str:
    """What was tried and what was refused, as rows."""
    machine = search.get("machine") or {}
    gpu = str(machine.get("gpu", "")).split("\n")[0].split(",")[0]
    config = search["facts"]["config"]
    out = [
        f"{machine.get('date', '')}, {gpu or 'a processor'}, {config['policy']} and {config['simulator']}:"
        f" {search['ended']}.",
        "",
        "| round | window | what | comparison, s | pairs | outcome |",
        "|---:|---|---|---|---:|---|",
    ]
    refused: dict[tuple[str, str, str], list[str]] = {}  # what is refused for several windows has one row
    for e in search["decisions"]:
        which, window = str(e.get("round") or "in all"), _name(e.get("target", "complete iterations"))
        if e["what"] in ("compared", "validated"):
            c = e["result"]
            steps = e["steps"] if isinstance(e["steps"], str) else "; ".join(e["steps"])
            times = f"{c['reference']['median_s']:.3f} -> {c['candidate']['median_s']:.3f}"
            decided = c["decision"] if c["decision"] != "unclear" else "by medians, not clear"
            out.append(
                _row(which, window, _steps(steps), times, len(c["pairs"]), f"{e['outcome']} ({decided})")
            )
        elif e["what"] == "lever" and (c := e["result"]) is not None:
            times = f"{c['reference']['median_s']:.3f} -> {c['candidate']['median_s']:.3f}"
            change = f"lever {e['lever']}, {setting(e['before'])} -> {setting(e['value'])}"
            out.append(_row("", "", change, times, len(c["pairs"]), f"{e['outcome']} ({e['reason']})"))
        elif e["what"] == "not measured":
            out.append(
                _row(which, window, _steps(e["steps"]), "", "", f"not measured: {_steps(e['reason'])}")
            )
        elif e["what"] == "candidates":
            for one in e["refused"]:
                refused.setdefault((which, one["steps"], f"refused: {one['reason']}"), []).append(window)
            for one in e["candidates"]:
                if not one["kept"] and not one.get("tried"):
                    refused.setdefault((which, one["steps"], "not tried: others come first"), []).append(
                        window
                    )
    out += [
        _row(which, ", ".join(dict.fromkeys(windows)), _steps(steps), "", "", _steps(why))
        for (which, steps, why), windows in refused.items()
    ]
    return "\n".join(out)


def _row(*cells: Any) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _name(node: str) -> str:
    return node.rpartition("/")[2]


def _steps(text: str) -> str:
    """Steps or a reason without what all paths begin with, and as a cell of a table."""
    return text.replace("iteration/generate_rollouts/", "").replace("|", "/")
