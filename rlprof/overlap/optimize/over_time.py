"""The course of the device's activity over an iteration, before and after: what reports draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlprof.analysis.activity_summary import summary
from rlprof.overlap.optimize.cost import Trained
from rlprof.overlap.optimize.outcome import Optimization
from rlprof.overlap.optimize.windows import Activity
from rlprof.overlap.optimize.workload import Measurement

#: Call, node, lane, start and end in seconds from the start of the iteration.
Tasks = Sequence[tuple[str, str, str, float, float]]


def kept(
    found: Activity | None, start_ns: int, end_ns: int, region: str, tasks: Tasks
) -> dict[str, Any] | None:
    """Return what is kept of the samples of one iteration, for `Measurement.over_time`.

    Parameters
    ----------
    found : Activity or None
        Samples; None: there are none.
    start_ns, end_ns : int
        Of the iteration, on their clock.
    region : str
        Path of the iteration's node.
    tasks : sequence of (str, str, str, float, float)
        Its calls, as of `Measurement.tasks`; none: its phases are not known.

    Returns
    -------
    dict or None
        As of `rlprof.analysis.activity_summary.summary`, in steps no finer than the samples. Its parts are
        the iteration and its phases.
    """
    if found is None or end_ns <= start_ns:
        return None
    spans = {"iteration": (start_ns, end_ns)}
    for name, (first_s, last_s) in phases(region, tasks).items():
        spans[name] = start_ns + round(first_s * 1e9), start_ns + round(last_s * 1e9)
    return summary(found, spans, bins=None)


def phases(region: str, tasks: Tasks) -> dict[str, tuple[float, float]]:
    """Return the first start and the last end, in seconds, of the calls in each child of a region.

    Children may overlap. They are in the order of their starts.
    """
    spans: dict[str, tuple[float, float]] = {}
    for _, node, _, start_s, end_s in tasks:
        if not node.startswith(region + "/"):
            continue
        name = node[len(region) + 1 :].partition("/")[0]
        if name == "iteration":  # that is what the whole is called
            name = f"{region}/{name}"
        first_s, last_s = spans.get(name, (start_s, end_s))
        spans[name] = min(first_s, start_s), max(last_s, end_s)
    return dict(sorted(spans.items(), key=lambda item: item[1]))


def courses(found: Optimization) -> dict[str, dict[str, Any]]:
    """Return the activity over the iteration of median length, natively and by the selected graph.

    Returns
    -------
    dict
        ``before`` and ``after``: as of `kept`, with ``time_s`` of the iteration, of how many ``iterations``
        it is the one of median length, and ``phases_of``, what the parts but the iteration were seen in; or
        the ``reason`` why it cannot be told.
    """
    native, chosen = found.native.hash, found.graph.hash
    why = _why(found)
    before = _course(found, native, why)
    if found.graph is found.native:
        return {"before": before, "after": {"reason": "the native order is kept"}}
    return {"before": before, "after": _course(found, chosen, why)}


def of_one_source(found: Optimization) -> list[Trained]:
    """Return iterations without those whose activity is of another source than the latest profile's."""
    profiled = [r.profile.measurement for r in found.rounds]
    measured = [*(one.measurement for one in found.trained), *profiled]
    latest = next((s for m in reversed(measured) if (s := _source(m)) is not None), None)
    return [one for one in found.trained if _source(one.measurement) in (None, latest)]


def _source(measured: Measurement) -> str | None:
    return None if measured.over_time is None else str(measured.over_time["source"])


def counted(found: Optimization, graph: str, known: Sequence[Measurement]) -> list[Measurement]:
    """Return those of some iterations by a graph that tell what it is like.

    Levers of the graph are tried with it, so that others may have run with settings that were not kept.

    Parameters
    ----------
    found : Optimization
        What came out.
    graph : str
        Hash of the native graph or of the selected one.
    known : sequence of Measurement
        Iterations by it.

    Returns
    -------
    list of Measurement
        Those whose times are the gain; else those that ran as training does, which a profiled one does not;
        else all.
    """
    side = 0 if graph == found.native.hash else 1
    times = set() if found.total is None else {pair[side] for pair in found.total.pairs}
    profile = _profile(found, graph)
    return [m for m in known if m.time_s in times] or [m for m in known if m != profile] or list(known)


def _profile(found: Optimization, graph: str) -> Measurement | None:
    return next((r.profile.measurement for r in reversed(found.rounds) if r.before.hash == graph), None)


def _why(found: Optimization) -> str:
    """Why an iteration has no samples."""
    if not found.trained and not found.rounds:
        return "no iteration was measured"
    sources = [r.profile.source for r in found.rounds if r.profile.measurement.over_time is None]
    return f"no activity was sampled: {sources[0]}" if sources else "no iteration with samples was measured"


def _course(found: Optimization, graph: str, why: str) -> dict[str, Any]:
    profile = _profile(found, graph)
    known = [one.measurement for one in of_one_source(found) if one.graph == graph]
    known = [m for m in known if m.over_time is not None]
    if profile is not None and profile.over_time is not None and profile not in known:
        known.append(profile)
    if not known:
        return {"reason": why}
    shown = sorted(counted(found, graph, known), key=lambda m: m.time_s)
    one = shown[(len(shown) - 1) // 2]
    over = dict(one.over_time or {})
    phases_of = "this iteration" if len(over["parts"]) > 1 else None
    if phases_of is None and profile is not None and profile.over_time is not None:
        seen = {name: part for name, part in profile.over_time["parts"].items() if name != "iteration"}
        if seen:
            over["parts"] = {**over["parts"], **seen}
            phases_of = f"the profiled iteration, call by call, of {profile.time_s:.4g} s"
    return {"time_s": one.time_s, "iterations": len(shown), "phases_of": phases_of, **over}
