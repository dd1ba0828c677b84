"""The result of an optimisation as one document: what reports and notebooks read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlprof.analysis.batch_time import BatchFit
from rlprof.analysis.interference import Interference, Ran, interference
from rlprof.overlap.optimize.log import Entry
from rlprof.overlap.optimize.outcome import Optimization
from rlprof.overlap.optimize.over_time import counted, courses, of_one_source
from rlprof.overlap.optimize.workload import Measurement
from rlprof.unavailable import Unavailable

FORMAT, VERSION = "rlprof optimisation", 1


def document(
    found: Optimization, entries: Sequence[Entry], facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything that a report shows.

    Parameters
    ----------
    found : Optimization
        The result.
    entries : sequence of Entry
        The decision log.
    facts : mapping of str to value
        Configuration, hardware, versions.
    """
    before = _shown(found, found.native.hash)
    after = None if found.graph is found.native else _shown(found, found.graph.hash)
    paid = found.paid_back_after
    return {
        "format": FORMAT,
        "version": VERSION,
        "facts": dict(facts or {}),
        "steps": [str(one) for one in found.steps],
        "ended": found.ended,
        "stopped": found.stopped,
        "unfinished": list(found.unfinished),
        "total": None if found.total is None else found.total.to_dict(),
        "levers": [row.to_dict() for row in found.levers],
        "rounds": [
            {
                "accepted": r.accepted,
                "source": r.profile.source,
                "validation": None if r.validation is None else r.validation.to_dict(),
            }
            for r in found.rounds
        ],
        "sm_activity": {
            "before": _activity(found, found.native.hash),
            "after": None if after is None else _activity(found, found.graph.hash),
        },
        "over_time": courses(found),
        "timelines": {"before": _tasks(before), "after": _tasks(after)},
        "iterations": [
            {
                "graph": one.graph,
                "time_s": one.measurement.time_s,
                "sm_activity": one.measurement.sm_activity,
                "facts": dict(one.measurement.facts),
                "session": one.session,
                "part": one.part,
            }
            for one in found.trained
        ],
        "overhead": {
            "total_s": found.total_s,
            "retained_training_s": found.retained_s,
            "net_s": found.net_overhead_s,
            "gain_s": found.gain_s,
            "paid_back_after_iterations": None if isinstance(paid, Unavailable) else paid,
            **found.cost.to_dict(),
        },
        "batch_times": _batch_times(found),
        "interference": _interference(found, before, after),
        "decisions": list(entries),
    }


def _shown(found: Optimization, graph: str) -> Measurement | None:
    """The iteration of median time among those whose calls were recorded."""
    known = [m for m in _of(found, graph) if m.tasks]
    profiled = [r.profile.measurement for r in found.rounds if r.before.hash == graph]
    known = sorted(counted(found, graph, known) or [m for m in profiled if m.tasks], key=lambda m: m.time_s)
    return known[(len(known) - 1) // 2] if known else None


def _of(found: Optimization, graph: str) -> list[Measurement]:
    """All iterations of a graph, in whatever session."""
    return [one.measurement for one in found.trained if one.graph == graph]


def _activity(found: Optimization, graph: str) -> float | None:
    mine = [one.measurement for one in of_one_source(found) if one.graph == graph]
    known = counted(found, graph, [m for m in mine if m.sm_activity is not None])
    values = [m.sm_activity for m in known if m.sm_activity is not None]
    return sum(values) / len(values) if values else None


def _tasks(measured: Measurement | None) -> list[list[Any]]:
    return [] if measured is None else [list(task) for task in measured.tasks]


def _batch_times(found: Optimization) -> list[dict[str, Any]]:
    rows = []
    for node in sorted({node for node, _ in found.batch_times.observed}):
        fit = found.batch_times.fit(node)
        row: dict[str, Any] = {
            "node": node,
            "medians_s": {str(b): t for b, t in found.batch_times.medians_s(node).items()},
            "fixed_s": None,
            "per_sample_s": None,
            "worst_residual_frac": None,
            "residual_frac": None,
            "observations": sum(len(t) for (n, _), t in found.batch_times.observed.items() if n == node),
        }
        if isinstance(fit, BatchFit):
            row |= {
                "fixed_s": fit.fixed_s,
                "per_sample_s": fit.per_sample_s,
                "worst_residual_frac": fit.worst_residual_frac,
                "residual_frac": fit.residual_frac,
            }
        rows.append(row)
    return rows


def _interference(
    found: Optimization, before: Measurement | None, after: Measurement | None
) -> dict[str, Any]:
    sizes = {c.id: c.batch_size or 0 for c in found.native.calls}
    parts = {c.id: len(c.samples) if c.samples is not None else c.batch_size or 0 for c in found.graph.calls}
    natively = () if before is None else before.tasks
    alone = [Ran(node, sizes.get(call, 0), s, e) for call, node, _, s, e in natively]
    for (node, size), times in found.batch_times.observed.items():
        alone += [Ran(node, size, 0.0, t) for t in times]
    beside = () if after is None else after.tasks
    runs = [tuple(Ran(node, parts.get(call, 0), s, e) for call, node, _, s, e in beside)] if beside else []
    if not runs and not found.together:
        return {"reason": "nothing that overlaps was measured", "factors": []}
    result = interference(alone, [*runs, *found.together])
    if not isinstance(result, Interference):
        return {"reason": result.reason, "factors": []}
    return {
        "reason": None,
        "factors": [
            {
                "node": one.node,
                "beside": ", ".join(one.beside),  # several that cannot be told apart
                "factor": one.factor,
                "error_frac": one.error_frac,
                "calls": one.calls,
            }
            for one in result.found
        ],
        "residual_frac": dict(sorted(result.residual_frac.items())),
        "untold": [
            {"node": node, "beside": other, "reason": why.reason}
            for (node, other), why in sorted(result.untold.items())
        ],
    }
