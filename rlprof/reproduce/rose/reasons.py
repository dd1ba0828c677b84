"""What runs measured that says why they are as fast as they are: bounds, calls side by side, turns.

A raw table beside those of the figures; `rlprof.reproduce.rose.causes` makes sentences of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rlprof.reproduce.rose.alone import PARTS
from rlprof.reproduce.rose.results import (
    FOLDER,
    PROCESSOR_FOLDER,
    Document,
    documents,
    facts,
    is_optimisation,
    is_rollout_quota,
    on_gpu,
    stored_study,
)
from rlprof.reproduce.study import Study

#: Limits: all that executes, in turn; the same, by readings of one iteration; drawing and SM time.
IN_TURN, READ, BOTH = "in turn", "in turn, by readings", "drawing and SM time"
#: Processor time of all processes, divided by the cores.
CORES = "cores"
#: Names of limits in results of several ages.
LIMITS = {
    "GPU time slices": IN_TURN,
    "GPU time slices, kernels in turn": IN_TURN,
    "graphics slices and SM time": BOTH,
    "SM time": "SM time",
    "cores": CORES,
}
ANY_GRAPH = "any graph"
#: Short names of nodes; others are called by their last part.
CALLS = {"step": "simulation", "predict_values": "values", "training_step": "training"}
#: The worker whose calls draw.
SIMULATOR = "env"
ORDERS = {"before": "native", "after": "graph"}
Span = tuple[float, float]


def covered_s(spans: Sequence[Span]) -> float:
    """Return how long at least one of some spans lasts."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return total


def busy_s(readings: Sequence[Sequence[float]], start_s: float, end_s: float, period_s: float) -> float:
    """Return how long a GPU was busy, from readings of its utilisation.

    Parameters
    ----------
    readings : sequence of (float, float)
        When, and which share; each stands for the time that is nearer to it than to others.
    start_s, end_s : float
        Of what counts. A utilisation is told a period late, so readings of a period later are taken.
    period_s : float
        How often the utilisation is renewed.
    """
    times = [at for at, _ in readings]
    if len(times) < 2:
        return 0.0
    middles = [(a + b) / 2 for a, b in pairwise(times)]
    edges = [2 * times[0] - middles[0], *middles, 2 * times[-1] - middles[-1]]
    lo, hi = start_s + period_s, end_s + period_s
    spans = zip(readings, pairwise(edges), strict=True)
    return sum(share * max(min(b, hi) - max(a, lo), 0.0) for (_, share), (a, b) in spans)


def reason_rows(
    file: str, document: Document, timelines: Mapping[str, Sequence[Sequence[Any]]] | None = None
) -> list[dict[str, Any]]:
    """Return what one run tells of why it is as fast as it is.

    Parameters
    ----------
    file : str
        Name of the document.
    document : dict
        A run of `benchmarks.gpu.embodied` or `optimize`.
    timelines : mapping, optional
        Calls of its profiled iterations: name, node, component worker, start and end in seconds; those
        ``"before"`` are of the native order, those ``"after"`` of the graph of round 1.

    Returns
    -------
    list of dict
        Rows of ``kind`` "limit": an iteration by any graph takes at least ``seconds``, by ``what``; "in turn"
        holds only where kernels of two calls take turns on the GPU. "use": ``seconds`` of the profiled native
        iteration that the GPU was busy, or drew. "profile": what that iteration took. "call": mean
        ``seconds`` of the calls of a node, ``count``, and ``alone_s``, for how long calls of no other node
        ran beside them. "part": median ``seconds`` and ``active_frac`` of what was measured alone. "order":
        median seconds of counted iterations of ``order``.
    """
    rows = [*_limits(document), *_uses(document, timelines), *_parts(document)]
    for name, calls in (timelines or {}).items():
        rows += _calls(ORDERS.get(name, name), calls)
    empty = dict.fromkeys(("order", "seconds", "alone_s", "count", "active_frac"))
    return [{**facts(file, document), **empty, **row} for row in rows]


def _limits(document: Document) -> Iterator[dict[str, Any]]:
    bound = (document.get("bound") or {}).get(ANY_GRAPH) or {}
    for limit in (*bound.get("limits", ()), *bound.get("assumed", ())):
        yield {"kind": "limit", "what": LIMITS.get(limit["name"], limit["name"]), "seconds": limit["least_s"]}


def _uses(
    document: Document, timelines: Mapping[str, Sequence[Sequence[Any]]] | None
) -> Iterator[dict[str, Any]]:
    """How the profiled native iteration used the GPU, and the limits that follow from it."""
    step = document.get("steps", {}).get("native_profile") or {}
    if not step.get("ok"):
        return
    yield {"kind": "profile", "what": "native iteration", "order": "native", "seconds": step["wall_s"]}
    readings, period_s = step.get("gpu_utilization_readings"), step.get("gpu_utilization_period_s")
    if not readings or period_s is None:
        return
    start_s = step.get("first_call_s", 0.0)
    busy = busy_s(readings, start_s, start_s + step["wall_s"], period_s)
    yield {"kind": "use", "what": "the GPU executes", "order": "native", "seconds": busy}
    if str((document.get("argv") or {}).get("mps")) != "True":  # clients of one server share the GPU
        yield {"kind": "limit", "what": READ, "seconds": busy}
    calls = (timelines or {}).get("before")
    if not calls:
        return
    others = sum(end - start for _, _, worker, start, end in calls if not worker.startswith(SIMULATOR))
    drawing = max(busy - others, 0.0)  # a call keeps the GPU busy at most as long as it takes
    yield {"kind": "use", "what": "the GPU draws", "order": "native", "seconds": drawing}
    limits = ((document.get("bound") or {}).get(ANY_GRAPH) or {}).get("limits", ())
    for sm in (limit for limit in limits if limit["name"] == "SM time" and "work_s" in limit):
        # its head is left out, for the little that drawing itself takes of SMs counts twice
        yield {"kind": "limit", "what": BOTH, "seconds": drawing + sm["work_s"] + sm["tail_s"]}


def _calls(order: str, calls: Sequence[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    spans: dict[str, list[Span]] = {}
    for _, node, _, start, end in calls:
        name = node.rpartition("/")[2]
        spans.setdefault(CALLS.get(name, name), []).append((start, end))
    everything = covered_s([s for each in spans.values() for s in each])
    for what, of in spans.items():
        others = covered_s([s for name, each in spans.items() if name != what for s in each])
        yield {
            "kind": "call",
            "what": what,
            "order": order,
            "seconds": fmean(end - start for start, end in of),
            "alone_s": everything - others,
            "count": len(of),
        }
    length = max(end for each in spans.values() for _, end in each)
    yield {"kind": "profile", "what": f"{order} iteration, by its calls", "order": order, "seconds": length}


def _parts(document: Document) -> Iterator[dict[str, Any]]:
    blurred = document.get("solo_activity_includes_first_call")
    for step, what in PARTS.items():
        found = document.get("steps", {}).get(step) or {}
        if found.get("ok"):
            active = found.get("activity")
            known = None if blurred or not isinstance(active, Mapping) else next(iter(active.values()), None)
            yield {
                "kind": "part",
                "what": what,
                "seconds": median(found["each_s"]),
                "active_frac": known,
            }
    times: dict[str, list[float]] = {}
    for one in document.get("iterations", ()):
        if not (one["warm_up"] or one.get("short")):
            times.setdefault(one["variant"], []).append(one["wall_s"])
    for order, each in times.items():
        yield {
            "kind": "order",
            "what": "iteration",
            "order": order,
            "seconds": median(each),
            "count": len(each),
        }


def timelines(checkout: Path) -> dict[str, dict[str, Any]]:
    """Return the stored calls of profiled iterations, by the file of the result that they belong to."""
    found = {}
    for path in sorted((checkout / FOLDER).glob("timelines_*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        found[document["result"]] = document["timelines"]
    return found


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of what stored runs tell of their reasons; small ones on a processor tell little."""
    name, calls = "rose/reasons", timelines(checkout) if preset == "h200" else {}

    def with_calls(file: str, document: Document) -> list[dict[str, Any]]:
        return reason_rows(file, document, calls.get(file))

    def wanted(document: Document) -> bool:
        if preset == "h200":
            return on_gpu(document) and not is_rollout_quota(document)
        return is_optimisation(document) and not on_gpu(document)

    stored = documents(checkout, wanted, FOLDER if preset == "h200" else PROCESSOR_FOLDER)
    if not stored:
        return Study(name, preset, seed, {}, {}, reads=True, missing="no runs are stored that tell of any")
    return stored_study(name, preset, seed, stored, with_calls, calls and {"calls of": calls})
