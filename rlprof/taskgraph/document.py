"""Task graphs as JSON documents: what is written, and what is read, of this version and earlier ones.

Version 2 added ``accesses`` and ``worker`` of tasks; each is written only where a task has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from rlprof.expect import expect
from rlprof.taskgraph.errors import GraphFormatError
from rlprof.taskgraph.task import CellAccess, Edge, Task, Use

FORMAT, VERSION = "rlprof.taskgraph", 2
READABLE = (1, 2)

_HINT = "give what TaskGraph.to_json, or to_dict, returned"


def to_document(
    tasks: Iterable[Task], edges: Iterable[Edge], capacities: Mapping[str, int]
) -> dict[str, Any]:
    """Return the parts of a graph as a document, in the order given."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "capacities": dict(capacities),
        "tasks": [_task_document(task) for task in tasks],
        "edges": [{"source": e.source, "target": e.target, "kind": e.kind, "item": e.item} for e in edges],
    }


def to_text(document: Mapping[str, Any]) -> str:
    """Return a document as JSON; equal documents give equal text."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()


def from_text(text: str | bytes) -> Any:
    """Parse JSON.

    Raises
    ------
    GraphFormatError
        If the text is none.
    """
    expect(text, (str, bytes), "the JSON", _HINT, GraphFormatError)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise GraphFormatError(f"no JSON: {error}", hint=_HINT) from error


def check_format(document: Any) -> Mapping[str, Any]:
    """Return the document if it says that it is a task graph of a version that can be read.

    Raises
    ------
    GraphFormatError
        If not.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise GraphFormatError(f'no task graph: "format" is not "{FORMAT}"', hint=_HINT)
    if document.get("version") not in READABLE:
        raise GraphFormatError(
            f"a task graph of version {document.get('version')}, known are {READABLE[0]} to {VERSION}",
            hint="upgrade rlprof",
        )
    return document


def parts_of(document: Mapping[str, Any]) -> tuple[tuple[Task, ...], tuple[Edge, ...], Mapping[str, int]]:
    """Tasks, edges and capacities of a document; KeyError or TypeError where a field is missing or wrong."""
    return (
        tuple(_task(task) for task in document["tasks"]),
        tuple(Edge(**edge) for edge in document["edges"]),
        document["capacities"],
    )


def _task_document(task: Task) -> dict[str, Any]:
    document = {
        "id": task.id,
        "name": task.name,
        "duration_s": task.duration_s,
        "resources": [
            {"resource": u.resource, "amount": u.amount, "exclusive": u.exclusive} for u in task.resources
        ],
        "payload": task.payload,
        "program_order": task.program_order,
        "provenance": dict(task.provenance),
    }
    if task.accesses:
        document["accesses"] = [
            {"cell": a.cell, "sees": a.sees, "makes": a.makes, "copy": a.copy} for a in task.accesses
        ]
    if task.worker is not None:
        document["worker"] = task.worker
    return document


def _task(document: Mapping[str, Any]) -> Task:
    resources = tuple(Use(**use) for use in document["resources"])
    accesses = tuple(CellAccess(**access) for access in document.get("accesses", ()))
    return Task(**{**document, "resources": resources, "accesses": accesses})
