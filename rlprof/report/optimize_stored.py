"""Stored results of optimisations, of this version, of earlier ones and of benchmarks, in one form."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Concatenate, ParamSpec, TypeVar

from rlprof.errors import RlprofError, UnreadableError
from rlprof.files import read_bytes
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.overlap.optimize.result import FORMAT, VERSION
from rlprof.report.optimize_orders import orders_of

RESULT, MEASUREMENTS = "result.json", "measurements.jsonl"
#: What a result of any version has; what else there is may lack.
NEEDED = ("steps", "ended", "total", "rounds", "overhead")
#: Variants of the GPU benchmark that are the native order and the selected one.
VARIANTS = {"before": "native", "after": "optimised"}
BY_HAND = "by hand"


#: What has nothing to do with the form of a value.
_OTHERWISE = (RlprofError, OSError, MemoryError, ImportError)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Reads = Callable[Concatenate[Mapping[str, Any], _P], _R]


def reads_result(make: _Reads[_P, _R]) -> _Reads[_P, _R]:
    """Let a function of a result raise `UnreadableError` where a file has a field of another form.

    Parameters
    ----------
    make : callable
        Its first argument is a result. One that was not read from a file (`read_result`) is none that a
        person could mend: what it raises goes on.
    """

    @functools.wraps(make)
    def told(result: Mapping[str, Any], /, *args: _P.args, **named: _P.kwargs) -> _R:
        try:
            return make(result, *args, **named)
        except _OTHERWISE:
            raise
        except Exception as error:  # polars has errors of its own
            if isinstance(result, Mapping) and result.get("where") is not None:
                raise _other_form(error, result["where"]) from error
            raise

    return told


def _other_form(error: Exception, where: Path | str) -> UnreadableError:
    said = str(error).partition("\n")[0]
    return UnreadableError(
        f"holds what no result of this version does ({type(error).__name__}: {said})",
        where=where,
        hint="give it as it was written, or see with RLPROF_DEBUG=1 what is wrong in it",
    )


def parsed(text: str) -> Any:
    """Parse a stored result; a number that is none, or infinite, is not known: None.

    Raises
    ------
    ValueError, RecursionError
        If it is no JSON.
    """

    def number(digits: str) -> float | None:
        value = float(digits)
        return value if math.isfinite(value) else None

    return json.loads(text, parse_constant=lambda _: None, parse_float=number)


def read_result(path: Path | str) -> dict[str, Any]:
    """Read the result of an optimisation.

    Parameters
    ----------
    path : pathlib.Path or str
        ``result.json`` of `rlprof optimize`, the folder that it lies in, or a stored result of
        ``benchmarks``.

    Returns
    -------
    dict
        As of `whole`, and ``where`` it was read: what shows it names that file if a field has another form.

    Raises
    ------
    UnreadableError
        If it cannot be read, is no result of an optimisation, or is of a later version.
    """
    path = Path(path)
    path = path / RESULT if path.is_dir() else path
    hint = "give a result.json of rlprof optimize, its folder, or a stored result of benchmarks"
    if not path.exists() and path.with_name(MEASUREMENTS).exists():
        raise UnreadableError(
            "is not there: the optimisation of this folder has not come to a result",
            where=path,
            hint="rlprof optimize embodied --resume goes on with it",
        )
    try:
        found = parsed(read_bytes(path).decode())
    except UnreadableError as error:
        raise UnreadableError(error.what, where=path, hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"is no JSON ({error})", where=path, hint=hint) from error
    try:
        result = whole(found)
    except RlprofError as error:
        raise UnreadableError(error.what, where=path, hint=error.hint or hint) from None
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise _other_form(error, path) from error
    if result["timelines"] is None:
        result |= _timelines_beside(path)
    if result["by_hand"] and not result["steps"]:
        result["steps"] = _steps_beside(path, found)
    return result | {"where": str(path)}


def _steps_beside(path: Path, document: Mapping[str, Any]) -> list[str]:
    """Steps of a benchmark's graph by hand, which lies beside its result; none where it is not of it."""
    try:
        name = str((document.get("argv") or {}).get("name") or "")
        graph = GraphFile.read(path.with_name(f"by_hand{name}.json"))
        native = document["steps"]["build_and_record"]["native"]
    except (RlprofError, LookupError, TypeError, ValueError, AttributeError):
        return []
    return [str(step) for step in graph.steps] if graph.native_hash == native else []


def _timelines_beside(path: Path) -> dict[str, Any]:
    """Timelines of a benchmark's result, which are stored beside it and name it."""
    beside = path.with_name(path.name.replace("optimize_", "timelines_", 1))
    if beside == path or not beside.is_file():
        return {}
    try:
        found = parsed(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, Mapping) or found.get("result") != path.name:
        return {}
    return {"timelines": found.get("timelines"), "timelines_are": found.get("what")}


def whole(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with every field that a report reads; what was not stored is None.

    Parameters
    ----------
    document : mapping
        As of `rlprof.overlap.optimize.result.document`, of this version or an earlier one, or a document of
        the GPU benchmark that holds one.

    Raises
    ------
    RlprofError
        If it is none.
    """
    found: dict[str, Any] = {}
    if isinstance(document, Mapping):
        found = dict(document) if document.get("format") == FORMAT else _of_benchmark(document)
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise RlprofError(
            "is no result of an optimisation"
            + (f": it has no {', '.join(missing)}" if found else _why(document)),
            hint="give the result.json of rlprof optimize",
        )
    version = found.get("version", VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise RlprofError(
            f"is of version {found['version']}; this rlprof reads {VERSION}", hint="update rlprof"
        )
    facts = dict(found.get("facts") or {})
    machine = dict(found.get("machine") or {})  # of benchmarks: beside the result
    if "date" in machine:
        facts.setdefault("date", machine.pop("date"))
    facts["hardware"] = {**machine, **(facts.get("hardware") or {})}
    facts["config"] = dict(facts.get("config") or {})
    found["facts"] = facts
    found["stopped"] = bool(found.get("stopped"))
    found.setdefault("unfinished", [str(found["ended"])] if found["stopped"] else [])
    found["sm_activity"] = {"before": None, "after": None, **(found.get("sm_activity") or {})}
    for name in ("timelines", "over_time", "decisions", "levers", "batch_times", "interference", "quota"):
        found.setdefault(name, None)
    for name in ("orders", "bound", "earlier_graph"):
        found.setdefault(name, None)
    found.setdefault("searched", True)
    found.setdefault("by_hand", False)
    found["iterations"] = list(found.get("iterations") or ())
    found.setdefault("counted", {})
    found.setdefault("timelines_are", None)
    return found


def _why(document: object) -> str:
    """What a document is instead, where that can be told."""
    if not isinstance(document, Mapping) or document.get("command") not in ("optimize", "run"):
        return ""
    ran = [name for name, order in orders_of(document).items() if not order["withdrawn"]]
    withdrawn = (document.get("withdrawn") or {}).get(BY_HAND)
    return (
        ": it is of a benchmark in which no graph was searched or given, and none by hand"
        + (f" counts: {withdrawn}" if withdrawn else " ran")
        + (f"; it has complete iterations of {', '.join(ran)} alone" if ran else "")
    )


def _of_benchmark(document: Mapping[str, Any]) -> dict[str, Any]:
    """The optimisation inside of a document of the GPU benchmark, with what is stored beside it."""
    inside = document.get("optimisation")
    by_order = {name: _counted(document, variant) for name, variant in VARIANTS.items()}
    by_hand = _counted(document, BY_HAND)
    if isinstance(inside, Mapping) and inside.get("format") == FORMAT:
        found = dict(inside)
    elif isinstance(document.get("given"), Mapping) and by_order["after"]:
        steps = list(document["given"].get("steps") or ())
        found = _unsearched("the graph was given, so nothing was searched", steps, by_order)
    elif document.get("command") == "optimize" and inside is None and by_hand:
        by_order["after"] = by_hand
        found = _unsearched("the graph was made by hand, so nothing was searched", [], by_order)
        found["by_hand"] = True
    else:
        return {}
    facts = dict(found.get("facts") or {})
    facts["config"] = {**(document.get("config") or {}), **(facts.get("config") or {})}
    found["facts"] = facts
    found.setdefault("machine", document.get("machine"))
    if found.get("quota") is None:
        found["quota"] = document.get("quotas")
    found.setdefault("over_time", {name: _course(rows) for name, rows in by_order.items()})
    found["counted"] = {name: [r["wall_s"] for r in rows] for name, rows in by_order.items() if rows}
    found["orders"], found["bound"] = orders_of(document), document.get("bound")
    return found


def _unsearched(why: str, steps: list[str], by_order: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A result without a search, of a graph that the benchmark was given, or had by hand."""
    shares = {name: [r["sm_activity"] for r in of if r.get("sm_activity")] for name, of in by_order.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "steps": steps,
        "ended": why,
        "searched": False,
        "total": None,
        "rounds": [],
        "overhead": {},
        "sm_activity": {name: sum(of) / len(of) if of else None for name, of in shares.items()},
    }


def _counted(document: Mapping[str, Any], variant: str) -> list[dict[str, Any]]:
    withdrawn = document.get("withdrawn") or {}
    return [
        row
        for row in document.get("iterations") or ()
        if row.get("variant") == variant
        and variant not in withdrawn
        and not (row.get("warm_up") or row.get("short"))
    ]


def _course(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The course of the counted iteration of median length."""
    known = [row for row in rows if isinstance(row.get("over_time"), Mapping)]
    if not known:
        why = (
            "no samples of activity are stored with its iterations" if rows else "no counted iteration ran so"
        )
        return {"reason": why}
    middle = median(row["wall_s"] for row in known)
    one = min(known, key=lambda row: abs(row["wall_s"] - middle))
    return {
        "time_s": one["wall_s"],
        "iterations": len(known),
        "phases_of": "this iteration",
        **one["over_time"],
    }
