"""Plans in files: versioned, hashed, complete. What a runtime executes and later questions are asked of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rlprof.planning.cluster import Cluster
from rlprof.planning.documents import (
    options_from_document,
    pipeline_from_document,
    pipeline_to_document,
    plan_from_document,
    plan_to_document,
    workload_from_document,
    workload_to_document,
)
from rlprof.planning.errors import PlanFormatError
from rlprof.planning.evaluate import Evaluation, Problem, evaluate
from rlprof.planning.files import read_text, write_text
from rlprof.planning.hardware_file import hardware_from_document, hardware_to_document
from rlprof.planning.pipeline import Pipeline
from rlprof.planning.plan import Plan

if TYPE_CHECKING:
    from rlprof.planning.search import SearchResult
    from rlprof.planning.search_options import SearchOptions

FORMAT, VERSION = "rlprof.plan", 1


@dataclass(frozen=True)
class SavedPlan:
    """A plan with all that it was made for.

    Parameters
    ----------
    problem : Problem
        Pipeline with the staleness and sharing chosen, workload, cluster, options.
    plan : Plan
        The plan.
    base : Pipeline
        The pipeline of the baselines: nothing shared, no staleness.
    baselines : mapping of str to Plan
        "greedy", "concurrent".
    search : mapping
        How it was found: seed, budget, evaluations, seconds, versions. Facts for people.
    elites : tuple of Plan
        Good plans to resume a search from.
    """

    problem: Problem
    plan: Plan
    base: Pipeline
    baselines: Mapping[str, Plan] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    elites: tuple[Plan, ...] = ()

    def evaluate(self) -> Evaluation:
        """Evaluate the plan anew."""
        return evaluate(self.problem, self.plan)

    def evaluate_baselines(self) -> dict[str, Evaluation]:
        """Evaluate the baselines anew."""
        problem = replace(self.problem, pipeline=self.base)
        return {name: evaluate(problem, plan) for name, plan in self.baselines.items()}

    @property
    def synchronous_score(self) -> float | None:
        """Throughput of the best plan found without staleness and sharing; None if unknown."""
        tried, tau = self.search.get("structures"), self.search.get("staleness")
        if not isinstance(tried, list | tuple) or not isinstance(tau, list | tuple):
            return None
        first = tried[0] if tried and isinstance(tried[0], Mapping) else {}  # the plainest comes first
        fresh = 0 in tau
        score = first.get("throughput_tokens_per_s")
        return float(score) if fresh and isinstance(score, int | float) else None

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical configuration: pipeline, workload, cluster, options and plan."""
        return configuration_hash(self.problem, self.plan)


def saved_search(problem: Problem, options: SearchOptions, result: SearchResult) -> SavedPlan:
    """Return what is kept of a search: its plan, the baselines, and how it was found.

    Parameters
    ----------
    problem, options
        As `rlprof.planning.search.search` was given them.
    result : SearchResult
        What it found.
    """
    import platform

    import numpy as np

    from rlprof import __version__
    from rlprof.planning.baselines import concurrent_plan, greedy_plan, synchronous
    from rlprof.planning.candidates import directories

    base = synchronous(problem)
    found = directories(base)
    facts = {
        **asdict(options),
        "evaluations_done": result.evaluations,
        "seconds_taken": round(result.seconds, 3),
        "interrupted": result.interrupted,
        "parts": result.parts,
        "workers": result.workers,
        "structures": [
            {"staleness": name, "throughput_tokens_per_s": score} for name, score in result.by_structure
        ],
        "versions": {"rlprof": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }
    return SavedPlan(
        result.evaluation.problem,
        result.plan,
        base.pipeline,
        {"greedy": greedy_plan(base, found), "concurrent": concurrent_plan(base, found)},
        facts,
        result.elites,
    )


def configuration_to_document(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return what is hashed: pipeline, workload, cluster, options and plan."""
    cluster = problem.cluster
    return {
        "pipeline": pipeline_to_document(problem.pipeline),
        "workload": workload_to_document(problem.workload),
        "cluster": {
            "racks": cluster.racks,
            "nodes_per_rack": cluster.nodes_per_rack,
            "gpus_per_node": cluster.gpus_per_node,
            "hardware": hardware_to_document(cluster.hardware),
        },
        "options": asdict(problem.options),
        "plan": plan_to_document(plan),
    }


def configuration_hash(problem: Problem, plan: Plan) -> str:
    """Return SHA-256 of the canonical configuration, in hexadecimal."""
    return _digest(configuration_to_document(problem, plan))


def _digest(configuration: Any) -> str:
    return hashlib.sha256(orjson.dumps(configuration, option=orjson.OPT_SORT_KEYS)).hexdigest()


def prediction(evaluation: Evaluation) -> dict[str, Any]:
    """Return the figures that a plan is judged by."""
    return {
        "throughput_tokens_per_s": evaluation.score,
        "step_s": evaluation.makespan_s / evaluation.problem.options.steps,
        "makespan_s": evaluation.makespan_s,
        "steps": evaluation.problem.options.steps,
        "utilisation_frac": evaluation.utilisation_frac,
        "parallelism": evaluation.timeline.parallelism,
        "peak_bytes": evaluation.peak_bytes,
        "usable_bytes": evaluation.problem.cluster.usable_bytes,
        "fits": evaluation.feasible,
    }


def saved_to_document(saved: SavedPlan) -> dict[str, Any]:
    """Return a saved plan as a document; its predictions are for readers, and made anew when needed."""
    configuration = configuration_to_document(saved.problem, saved.plan)
    return {
        "format": FORMAT,
        "version": VERSION,
        "hash": _digest(configuration),
        "configuration": configuration,
        "prediction": prediction(saved.evaluate()),
        "baselines": {
            "pipeline": pipeline_to_document(saved.base),
            "plans": {name: plan_to_document(plan) for name, plan in saved.baselines.items()},
            "predictions": {name: prediction(e) for name, e in saved.evaluate_baselines().items()},
        },
        "search": dict(saved.search),
        "elites": [plan_to_document(plan) for plan in saved.elites],
    }


def saved_from_document(document: Any, where: str) -> SavedPlan:
    """Make a saved plan of a document.

    Raises
    ------
    PlanFormatError
        If it is no plan, of a later version, of another form, or its configuration does not have its hash.
    PlanningError
        If what it holds is not valid.
    """
    error = PlanFormatError
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise error(
            f'{where}: no plan: "format" is not "{FORMAT}"', hint="make one with rlprof plan -o plan.json"
        )
    if document.get("version") != VERSION:
        raise error(
            f"{where}: a plan of version {document.get('version')}, known is {VERSION}",
            hint="make it with this version of rlprof, or upgrade rlprof",
        )
    configuration = document.get("configuration")
    if not isinstance(configuration, Mapping):
        raise error(f"{where}: there is no configuration")
    if _digest(configuration) != document.get("hash"):
        raise error(
            f"{where}: the configuration was changed after the plan was made: its hash is another",
            hint="make the plan again",
        )
    try:
        parts = [configuration[key] for key in ("pipeline", "workload", "cluster", "options", "plan")]
        topology = [parts[2][key] for key in ("racks", "nodes_per_rack", "gpus_per_node")]
        hardware = hardware_from_document(parts[2]["hardware"], f"{where}: hardware")
        baselines = document["baselines"]
        base, plans = baselines["pipeline"], dict(baselines["plans"])
        elites, search = list(document["elites"]), dict(document["search"])
    except (KeyError, TypeError, ValueError) as wrong:
        raise error(f"{where}: a field is missing or of a wrong type: {wrong}") from wrong
    problem = Problem(
        pipeline_from_document(parts[0], f"{where}: pipeline", error),
        workload_from_document(parts[1], f"{where}: workload", error),
        Cluster(hardware, *topology),
        options_from_document(parts[3], f"{where}: options", error),
    )
    plan = plan_from_document(parts[4], f"{where}: plan", error)
    plan.check(problem.pipeline, problem.workload, problem.cluster)
    return SavedPlan(
        problem,
        plan,
        pipeline_from_document(base, f"{where}: baselines", error),
        {str(name): plan_from_document(p, f"{where}: {name}", error) for name, p in plans.items()},
        search,
        tuple(plan_from_document(p, f"{where}: elites", error) for p in elites),
    )


def write_plan(saved: SavedPlan, path: str | Path, *, force: bool = True) -> None:
    """Write a plan file, whole or not at all.

    Raises
    ------
    OutputError
        If it cannot be written, or is there and `force` is not set.
    """
    text = orjson.dumps(saved_to_document(saved), option=orjson.OPT_INDENT_2).decode()
    write_text(text + "\n", path, force=force)


def read_plan(path: str | Path) -> SavedPlan:
    """Read a plan file.

    Raises
    ------
    UnreadableError
        If it cannot be read.
    PlanFormatError, PlanningError
        As `saved_from_document`.
    """
    try:
        document = orjson.loads(read_text(path, PlanFormatError))
    except orjson.JSONDecodeError as wrong:
        raise PlanFormatError(f"{path}: no JSON: {wrong}") from wrong
    return saved_from_document(document, str(path))
