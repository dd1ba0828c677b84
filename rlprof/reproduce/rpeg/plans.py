"""Plans as rows of a raw table, and back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from rlprof.planning.documents import plan_from_document, plan_to_document
from rlprof.planning.errors import InfeasibleError, PlanningError
from rlprof.planning.evaluate import Evaluation, Problem, evaluate
from rlprof.planning.hardware_file import hardware_to_document, read_hardware
from rlprof.planning.plan import Plan
from rlprof.planning.search import SearchResult, search
from rlprof.planning.search_options import SearchOptions
from rlprof.reproduce.errors import RawTableError
from rlprof.reproduce.rpeg.problems import HARDWARE

if TYPE_CHECKING:
    import polars as pl

#: How far a stored prediction may lie from one made now, relative.
TOLERANCE = 1e-9


def constants_digest() -> str:
    """Short hash of the constants that all predictions rest on: a table made with others is another."""
    constants = hardware_to_document(read_hardware(HARDWARE))["constants"]
    values = {name: c["value"] for name, c in sorted(constants.items())}
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]


def plan_text(plan: Plan) -> str:
    """Return a plan as one line of JSON: for each invocation origin, extent, degrees and microbatches."""
    return json.dumps(
        {
            name: [*a["origin"], *a["extent"], a["data"], a["pipeline"], a["tensor"], a["microbatches"]]
            for name, a in plan_to_document(plan).items()
        },
        separators=(",", ":"),
    )


def plan_of(text: str) -> Plan:
    """Read what `plan_text` wrote.

    Raises
    ------
    RawTableError
        If it is something else.
    """
    try:
        document = {
            name: {
                "origin": v[:3],
                "extent": v[3:6],
                **dict(zip(("data", "pipeline", "tensor", "microbatches"), v[6:], strict=True)),
            }
            for name, v in json.loads(text).items()
        }
        return plan_from_document(document, "raw table", PlanningError)
    except (ValueError, AttributeError, TypeError, PlanningError) as error:
        raise RawTableError(f"no plan: {error}", hint="compute the table again") from error


def judged(evaluation: Evaluation) -> dict[str, Any]:
    """Return what a row holds of an evaluation."""
    tau = evaluation.problem.pipeline.tau
    return {
        "tokens_per_s": evaluation.score,
        "makespan_s": evaluation.makespan_s,
        "utilisation_frac": evaluation.utilisation_frac,
        "parallelism": evaluation.timeline.parallelism,
        "memory_ratio": evaluation.memory_ratio,
        "fits": evaluation.feasible,
        "staleness": json.dumps(dict(tau), separators=(",", ":")),
        "plan": plan_text(evaluation.plan),
    }


#: A row where nothing was found.
NOTHING: dict[str, Any] = {
    "tokens_per_s": None,
    "makespan_s": None,
    "utilisation_frac": None,
    "parallelism": None,
    "memory_ratio": None,
    "fits": False,
    "staleness": None,
    "plan": None,
}


def searched(
    problem: Problem, options: SearchOptions, start: tuple[Plan, ...] = ()
) -> tuple[dict[str, Any], SearchResult | None]:
    """Search in this process; return a row, and the result (None if nothing fits).

    ``lacking_bytes`` is what the best infeasible plan lacks on its fullest GPU.

    Raises
    ------
    KeyboardInterrupt
        If the search was ended by Ctrl-C.
    """
    try:
        found = search(problem, options, start=start, workers=1)
    except InfeasibleError as error:
        spent: dict[str, Any] = {"evaluations": options.evaluations, "search_s": None}
        return {**NOTHING, **spent, "lacking_bytes": float(error.lacking_bytes)}, None
    if found.interrupted:  # Ctrl-C ends the study too: half a search is no result
        raise KeyboardInterrupt
    spent = {"evaluations": found.evaluations, "search_s": round(found.seconds, 3)}
    return {**judged(found.evaluation), **spent, "lacking_bytes": 0.0}, found


def options_document(options: SearchOptions) -> dict[str, Any]:
    """Return the search options that a study sets, as plain values, for its parameters.

    Defaults are left out: an option that is added later does not make stored tables others. The seed is known
    otherwise.
    """
    values = {f.name: getattr(options, f.name) for f in fields(options)}
    defaults = {f.name: f.default for f in fields(options)}
    return {name: value for name, value in values.items() if name != "seed" and value != defaults[name]}


def again(problem: Problem, row: Mapping[str, Any]) -> Evaluation:
    """Evaluate the plan of a row anew, with the staleness that it was found with."""
    pipeline = problem.pipeline.with_staleness(json.loads(row["staleness"]))
    return evaluate(replace(problem, pipeline=pipeline), plan_of(row["plan"]))


def stale_plans(
    frame: pl.DataFrame, problem_of: Callable[[Mapping[str, Any]], Problem], most: int = 40
) -> str | None:
    """Say whether stored predictions are no longer those of this version's cost model.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows with plans.
    problem_of : callable
        The problem of a row.
    most : int
        Plans that are evaluated anew, evenly spread over the table.
    """
    rows = [row for row in frame.iter_rows(named=True) if row["plan"] is not None]
    for row in rows[:: max(1, math.ceil(len(rows) / most))]:
        now = again(problem_of(row), row).score
        if not math.isclose(now, row["tokens_per_s"], rel_tol=TOLERANCE):
            return (
                f"the cost model has changed since: {row['case']} is {now:,.1f} tokens/s now, "
                f"{row['tokens_per_s']:,.1f} there"
            )
    return None
