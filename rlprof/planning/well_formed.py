"""What makes a pipeline graph well-formed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rlprof.planning.errors import PipelineError
from rlprof.planning.limits import MOST_STEPS, is_count
from rlprof.planning.pipeline import ROLES, Pipeline, count_elements
from rlprof.planning.shapes import HEADS
from rlprof.planning.workload import Workload


def _once(kind: str, names: Iterable[str], where: str) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise PipelineError(f"{where}: {times} {kind} are named {name!r}", hint="give each its own name")
        if not name or name != name.strip():
            raise PipelineError(
                f"{where}: a name among the {kind} is empty or has spaces around it: {name!r}"
            )


def check(pipeline: Pipeline) -> None:
    """Check that each edge carries what its ends pass, publications start at training and carry its weights,
    containers without a producer or consumer are declared, and data edges are acyclic (RPEG, Appendix A).

    Also that every use of a trainable model is published to: its weights would never be new ones, and nothing
    would keep it from running ahead of training for all steps.

    Raises
    ------
    PipelineError
        If not; names the edge, container, invocation or model.
    """
    where = f"pipeline {pipeline.name!r}"
    _once("models", (m.name for m in pipeline.models), where)
    _once("containers", (c.name for c in pipeline.containers), where)
    _once("invocations", (v.name for v in pipeline.invocations), where)
    if not pipeline.invocations:
        raise PipelineError(f"{where} has no invocation")
    _check_interfaces(pipeline, where)
    _check_models(pipeline, where)
    _check_edges(pipeline, where)
    _check_boundary(pipeline, where)
    _check_served(pipeline, where)
    _ = pipeline.topological_order


def _check_models(pipeline: Pipeline, where: str) -> None:
    for model in pipeline.models:
        if model.head not in HEADS:
            raise PipelineError(
                f"{where}: model {model.name!r} has the head {model.head!r}",
                hint=f"use one of {', '.join(HEADS)}",
            )
        uses = [v for v in pipeline.invocations if v.model == model.name]
        if not uses:
            raise PipelineError(f"{where}: no invocation uses model {model.name!r}")
        trained = [v.name for v in uses if v.role == "training"]
        if model.trainable and len(trained) != 1:
            raise PipelineError(
                f"{where}: trainable model {model.name!r} has {len(trained)} training invocations",
                hint="give it exactly one, or make it frozen",
            )
        if trained and not model.trainable:
            raise PipelineError(f"{where}: {trained[0]!r} trains model {model.name!r}, which is frozen")
    for container in pipeline.containers:
        if container.weights_of:
            if container.weights_of not in pipeline.model_by_name:
                raise PipelineError(
                    f"{where}: container {container.name!r} holds weights of {container.weights_of!r},"
                    " no model of it"
                )
        else:
            count_elements(container, Workload(1, 1, 1))
    for name, steps in dict(pipeline.staleness).items():
        if isinstance(steps, bool) or (steps != 0 and not is_count(steps, most=MOST_STEPS)):
            raise PipelineError(
                f"{where}: the staleness of {name!r} is {steps!r}",
                hint=f"give 0, 1, 2, ... up to {MOST_STEPS:,} steps",
            )
        if name not in pipeline.tau:
            raise PipelineError(
                f"{where}: a staleness is given for {name!r}, which is no trainable model of it",
                hint=f"trainable are {', '.join(pipeline.tau) or 'none'}",
            )


def _check_interfaces(pipeline: Pipeline, where: str) -> None:
    for v in pipeline.invocations:
        if v.role not in ROLES:
            raise PipelineError(
                f"{where}: invocation {v.name!r} has the role {v.role!r}",
                hint=f"use one of {', '.join(ROLES)}",
            )
        if v.model not in pipeline.model_by_name:
            raise PipelineError(
                f"{where}: invocation {v.name!r} uses model {v.model!r}, which is not declared"
            )
        for container in (*v.inputs, *v.outputs):
            if container not in pipeline.container_by_name:
                raise PipelineError(
                    f"{where}: invocation {v.name!r} names container {container!r}, which is not declared"
                )


def _check_edges(pipeline: Pipeline, where: str) -> None:
    for kind, links in (("data", pipeline.data), ("publication", pipeline.publications)):
        for link in links:
            edge = f"{where}: the {kind} edge {link.source} -> {link.target} ({link.container})"
            for end in (link.source, link.target):
                if end not in pipeline.index:
                    raise PipelineError(f"{edge} names {end!r}, no invocation of it")
            if link.container not in pipeline.container_by_name:
                raise PipelineError(f"{edge} carries a container that is not declared")
            source = pipeline.invocations[pipeline.index[link.source]]
            target = pipeline.invocations[pipeline.index[link.target]]
            if link.container not in source.outputs:
                raise PipelineError(f"{edge}: {source.name!r} does not put out {link.container!r}")
            if link.container not in target.inputs:
                raise PipelineError(f"{edge}: {target.name!r} does not take {link.container!r}")
            held = pipeline.container_by_name[link.container].weights_of
            if kind == "publication":
                if source.role != "training":
                    raise PipelineError(f"{edge} starts at {source.name!r}, which does not train")
                if held != source.model:
                    raise PipelineError(f"{edge} does not carry the weights of {source.model!r}")
                if target.model != source.model:
                    raise PipelineError(f"{edge} ends at {target.name!r}, which uses model {target.model!r}")
                if target.role == "training":
                    raise PipelineError(
                        f"{edge} ends at a training invocation",
                        hint="updates of a model are in order without it",
                    )
        repeated = next((link for link, n in Counter(links).items() if n > 1), None)
        if repeated:
            raise PipelineError(
                f"{where}: the {kind} edge {repeated.source} -> {repeated.target} ({repeated.container})"
                " is there twice"
            )


def _check_boundary(pipeline: Pipeline, where: str) -> None:
    for names, what in ((pipeline.inputs, "input"), (pipeline.outputs, "output")):
        for name in names:
            if name not in pipeline.container_by_name:
                raise PipelineError(f"{where}: its {what} {name!r} is no declared container")
    produced = {c for v in pipeline.invocations for c in v.outputs}
    consumed = {c for v in pipeline.invocations for c in v.inputs}
    trained = {m.name for m in pipeline.models if m.trainable}
    for container in pipeline.containers:
        name = container.name
        if name not in produced and name not in pipeline.inputs:
            raise PipelineError(
                f"{where}: container {name!r} has no producer",
                hint="let an invocation put it out, or make it an input",
            )
        if name not in consumed and name not in pipeline.outputs and container.weights_of not in trained:
            raise PipelineError(
                f"{where}: container {name!r} has no consumer",
                hint="let an invocation take it, or make it an output",
            )


def _check_served(pipeline: Pipeline, where: str) -> None:
    reached = {link.target for link in pipeline.publications}
    for v in pipeline.invocations:
        if v.model in pipeline.training and v.role != "training" and v.name not in reached:
            trained = pipeline.invocations[pipeline.training[v.model]].name
            raise PipelineError(
                f"{where}: {v.name!r} uses trainable model {v.model!r}: no publication brings its weights",
                hint=f"add one from {trained!r}, or let it use a frozen model",
            )
