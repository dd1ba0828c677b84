"""Between documents (JSON, TOML) and the values of planning: shapes, pipelines, workloads, options, plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from itertools import chain
from typing import Any, TypeVar

from rlprof.planning.errors import PlanningError
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Container, Invocation, Link, Model, Pipeline
from rlprof.planning.plan import Assignment, Box, Parallelism, Plan
from rlprof.planning.shapes import ModelShape, shape_named
from rlprof.planning.workload import LengthQuantile, Workload

T = TypeVar("T")


def record(kind: type[T], document: Any, where: str, error: type[PlanningError], **given: Any) -> T:
    """Make a dataclass of a table whose keys are its fields.

    Parameters
    ----------
    kind : type
        The dataclass.
    document : mapping
        Keys and values.
    where : str
        What the table is, for errors.
    error : type
        Raised if it is no table, a key is unknown or missing, or a value is of a wrong type.
    **given
        Fields that are made otherwise and replace what the table has.
    """
    own = fields(kind)  # type: ignore[arg-type]
    known = [f.name for f in own]
    if not isinstance(document, Mapping):
        raise error(
            f"{where}: a table is expected, not {document!r}", hint=f"its keys are {', '.join(known)}"
        )
    if foreign := sorted(set(map(str, document)) - set(known)):
        raise error(f"{where}: unknown key {foreign[0]!r}", hint=f"known are {', '.join(known)}")
    needed = [f.name for f in own if f.default is MISSING and f.default_factory is MISSING]
    if lost := [name for name in needed if name not in document and name not in given]:
        raise error(f"{where} lacks {', '.join(map(repr, lost))}", hint=f"its keys are {', '.join(known)}")
    values = {str(key): tuple(value) if isinstance(value, list) else value for key, value in document.items()}
    try:
        return kind(**{**values, **given})
    except (TypeError, AttributeError, ValueError) as wrong:
        raise error(f"{where}: {wrong}") from wrong


def _list(document: Mapping[str, Any], key: str, where: str, error: type[PlanningError]) -> list[Any]:
    value = document.get(key, [])
    if not isinstance(value, list):
        raise error(f"{where}: {key!r} is {value!r}, a list is expected")
    return value


def pipeline_to_document(pipeline: Pipeline) -> dict[str, Any]:
    """Return a pipeline as a document of plain values."""
    return {
        "name": pipeline.name,
        "inputs": list(pipeline.inputs),
        "outputs": list(pipeline.outputs),
        "staleness": dict(pipeline.staleness),
        "models": [
            {"name": m.name, "head": m.head, "trainable": m.trainable, "shape": asdict(m.shape)}
            for m in pipeline.models
        ],
        "containers": [{k: v for k, v in asdict(c).items() if v} for c in pipeline.containers],
        "invocations": [
            {**asdict(v), "inputs": list(v.inputs), "outputs": list(v.outputs)} for v in pipeline.invocations
        ],
        "data": [asdict(e) for e in pipeline.data],
        "publications": [asdict(e) for e in pipeline.publications],
    }


def pipeline_from_document(document: Any, where: str, error: type[PlanningError]) -> Pipeline:
    """Make a pipeline of a document; a shape is a name or a table.

    Raises
    ------
    error
        If the document has another form.
    PipelineError, UnknownShapeError
        If the pipeline is not well-formed, or a shape is not known.
    """
    if not isinstance(document, Mapping):
        raise error(f"{where}: a table is expected, not {document!r}")
    models = []
    for n, table in enumerate(_list(document, "models", where, error)):
        at = f"{where}: models[{n}]"
        shape = table.get("shape") if isinstance(table, Mapping) else None
        made = (
            shape_named(shape) if isinstance(shape, str) else record(ModelShape, shape, f"{at}: shape", error)
        )
        models.append(record(Model, table, at, error, shape=made))

    def each(kind: type[T], key: str) -> tuple[T, ...]:
        tables = _list(document, key, where, error)
        return tuple(record(kind, table, f"{where}: {key}[{n}]", error) for n, table in enumerate(tables))

    given = {
        "models": tuple(models),
        "containers": each(Container, "containers"),
        "invocations": each(Invocation, "invocations"),
        "data": each(Link, "data"),
        "publications": each(Link, "publications"),
    }
    staleness = document.get("staleness", {})
    if not isinstance(staleness, Mapping):
        raise error(f"{where}: 'staleness' is {staleness!r}, a table of steps by model is expected")
    return record(Pipeline, document, where, error, staleness=tuple(staleness.items()), **given)


def workload_to_document(workload: Workload) -> dict[str, Any]:
    """Return a workload as a document of plain values."""
    document = asdict(workload)
    document["quantiles"] = [asdict(q) for q in workload.quantiles]
    return document


def workload_from_document(document: Any, where: str, error: type[PlanningError]) -> Workload:
    """Make a workload of a document; errors as `record`, and of `Workload`."""
    if not isinstance(document, Mapping):
        raise error(f"{where}: a table is expected, not {document!r}")
    quantiles = tuple(
        record(LengthQuantile, q, f"{where}: quantiles[{n}]", error)
        for n, q in enumerate(_list(document, "quantiles", where, error))
    )
    return record(Workload, document, where, error, quantiles=quantiles)


def options_from_document(document: Any, where: str, error: type[PlanningError]) -> ModelOptions:
    """Make options of a document; errors as `record`, and of `ModelOptions`."""
    return record(ModelOptions, document, where, error)


def plan_to_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as a document of plain values, by invocation."""
    return {
        name: {
            "origin": list(a.box.origin),
            "extent": list(a.box.extent),
            "data": a.parallelism.data,
            "pipeline": a.parallelism.pipeline,
            "tensor": a.parallelism.tensor,
            "microbatches": a.microbatches,
        }
        for name, a in plan.assignments.items()
    }


def plan_from_document(document: Any, where: str, error: type[PlanningError]) -> Plan:
    """Make a plan of a document.

    Raises
    ------
    error
        If it has another form.
    """
    if not isinstance(document, Mapping):
        raise error(f"{where}: a table by invocation is expected, not {document!r}")
    assignments = {}
    for name, table in document.items():
        at = f"{where}: {name}"
        try:
            triples = [tuple(table[key]) for key in ("origin", "extent")]
            counts = [table[key] for key in ("data", "pipeline", "tensor", "microbatches")]
        except (KeyError, TypeError, ValueError) as wrong:
            raise error(f"{at}: a field is missing or of a wrong type: {wrong}") from wrong
        if any(len(t) != 3 for t in triples) or any(type(c) is not int for c in chain(*triples, counts)):
            raise error(f"{at}: origin and extent are three whole numbers each, the others one")
        (r0, n0, g0), (dr, dn, dg) = triples
        box = Box((r0, n0, g0), (dr, dn, dg))
        assignments[str(name)] = Assignment(box, Parallelism(*counts[:3]), counts[3])
    return Plan(assignments)
