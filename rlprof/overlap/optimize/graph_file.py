"""A selected graph as a file: how to make it again, what it was made of, and a hash over both."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlprof.errors import OutputError, UnreadableError
from rlprof.files import read_bytes
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import IllegalTransformationError, OverlapError
from rlprof.overlap.legality import check
from rlprof.overlap.optimize.steps import Step, derive

FORMAT, VERSION = "rlprof graph", 1
#: Far more than any graph or quotas take; a file of more is something else.
MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class GraphFile:
    """A graph to run in place of a region.

    Parameters
    ----------
    region : str
        Path of its node.
    steps : tuple of Step
        From the native graph to it.
    native_hash, graph_hash : str
        `CallGraph.hash` of the native graph, and of what the steps make of it.
    facts : mapping of str to value
        What else is needed to run it, such as the number of spare simulators, and where it comes from.
    """

    region: str
    steps: tuple[Step, ...]
    native_hash: str
    graph_hash: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, native: CallGraph, graph: CallGraph, steps: tuple[Step, ...], **facts: Any) -> GraphFile:
        """Describe a graph."""
        return cls(native.region, steps, native.hash, graph.hash, facts)

    def derive(self, native: CallGraph) -> CallGraph:
        """Make the graph of a fresh recording, and check it.

        Raises
        ------
        OverlapError
            If the program is another one than the graph was selected for.
        IllegalTransformationError
            If a step, or the graph as a whole, is refused.
        """
        if native.region != self.region or native.hash != self.native_hash:
            raise OverlapError(
                f"the graph was selected for another program: its {self.region} does other calls",
                hint="run with the options it was optimised with, or optimise again",
            )
        graph = derive(native, self.steps)
        refusals = check(native, graph)
        if refusals:
            first = refusals[0]
            raise IllegalTransformationError(first.reason, rule=first.rule, calls=first.calls)
        if graph.hash != self.graph_hash:
            raise OverlapError(
                "the steps of the graph file make another graph than was selected",
                hint="optimise again with this version",
            )
        return graph

    def to_dict(self) -> dict[str, Any]:
        """Return the document; ``hash`` is over everything else in it."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "region": self.region,
            "steps": [one.to_dict() for one in self.steps],
            "native_hash": self.native_hash,
            "graph_hash": self.graph_hash,
            "facts": dict(self.facts),
        }
        return with_hash(document)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        write_json(path, self.to_dict())

    @classmethod
    def read(cls, path: Path) -> GraphFile:
        """Read a file.

        Raises
        ------
        UnreadableError
            If it is missing, damaged, or of another version.
        UsageError
            If a step is none.
        """
        document = read_json(path, FORMAT, VERSION)
        try:
            region, native, graph = (document[name] for name in ("region", "native_hash", "graph_hash"))
            facts, steps = document["facts"], tuple(Step.from_dict(one) for one in document["steps"])
        except (KeyError, TypeError) as error:
            raise UnreadableError("is no graph file", where=path, hint="optimise again") from error
        if not (all(isinstance(text, str) for text in (region, native, graph)) and isinstance(facts, dict)):
            raise UnreadableError("is no graph file", where=path, hint="optimise again")
        return cls(region, steps, native, graph, facts)


def read_json(path: Path, form: str, version: int) -> dict[str, Any]:
    """Read a document that `write_json` wrote with a hash; errors as of `GraphFile.read`."""
    try:
        document = json.loads(read_bytes(path, most_bytes=MOST_BYTES))
    except (ValueError, RecursionError) as error:  # the latter of one that is nested without end
        raise UnreadableError(
            "is no JSON document", where=path, hint=f"give a file of form {form!r}"
        ) from error
    if not isinstance(document, dict) or document.get("format") != form:
        raise UnreadableError(f"is no {form} file", where=path, hint="give one that rlprof optimize wrote")
    if document.get("version") != version:
        raise UnreadableError(
            f"is of version {str(document.get('version'))[:20]}; this one reads {version}",
            where=path,
            hint="optimise again",
        )
    if document.pop("hash", None) != _hash(document):
        raise UnreadableError("was changed after it was written", where=path, hint="optimise again")
    return document


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document, whole or not at all.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise OutputError(f"cannot be written ({error.strerror})", where=path) from error
    finally:
        beside.unlink(missing_ok=True)


def with_hash(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with ``hash`` over everything else in it."""
    return {**document, "hash": _hash(document)}


def _hash(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
